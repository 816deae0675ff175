//! Certificates of clients, and the tenants that their names mean.
//!
//! Only names in the extension "subject alternative name" count, as for servers. A common name means nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use cofferdam_contract::{Error, Result, TenantId};
use cofferdam_util::hex;
use rustls::pki_types::CertificateDer;
use serde::Deserialize;

use crate::caller::{Caller, Proof, Scope};
use crate::listen::Tls;

/// The start of a name that means a tenant, if there are no rules.
const TENANT: &str = "cofferdam://tenant/";
/// The most bytes of a serial number, by RFC 5280.
const MAX_SERIAL: usize = 20;

/// The certificate of the client at the other end of a connection.
pub struct PeerCertificate {
    chain: Vec<CertificateDer<'static>>,
    tls: Arc<Tls>,
}

impl PeerCertificate {
    /// Creates it from a chain that was verified.
    pub(crate) fn new(chain: &[CertificateDer<'_>], tls: Arc<Tls>) -> Self {
        Self { chain: chain.iter().map(|one| one.clone().into_owned()).collect(), tls }
    }

    /// Returns false if it has ended, was revoked, or is not of an authority that the server trusts now.
    pub fn is_valid(&self) -> bool {
        self.tls.accepts(&self.chain)
    }
}

impl fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerCertificate(…)")
    }
}

impl PartialEq for PeerCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Eq for PeerCertificate {}

/// A name in a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Uri(String),
    Dns(String),
}

/// The tenants and scopes that names in certificates mean.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateRules(Option<BTreeMap<Name, (TenantId, BTreeSet<Scope>)>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    rules: Vec<RuleDocument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleDocument {
    uri: Option<String>,
    dns: Option<String>,
    tenant: TenantId,
    scopes: BTreeSet<String>,
}

impl CertificateRules {
    /// Reads rules from JSON. Without rules, `cofferdam://tenant/NAME` means a tenant and all scopes but `admin`.
    ///
    /// # Errors
    /// - `InvalidInput` for a malformed document, a rule without a name or with several, or two rules for one name.
    pub fn parse(text: &str) -> Result<Self> {
        let malformed = |message: String| {
            Error::invalid("read identity", message)
                .with_remedy("docs/server-access.md describes the file of --client-rules")
        };
        let document: Document =
            serde_json::from_str(text).map_err(|error| malformed(format!("the file is malformed: {error}")))?;
        let mut rules = BTreeMap::new();
        for RuleDocument { uri, dns, tenant, scopes } in document.rules {
            let name = match (uri, dns) {
                (Some(uri), None) if !uri.is_empty() => Name::Uri(uri),
                (None, Some(dns)) if !dns.is_empty() && !dns.contains('*') => Name::Dns(dns.to_ascii_lowercase()),
                _ => return Err(malformed("a rule needs either 'uri' or 'dns', without '*'".to_owned())),
            };
            let scopes = scopes.iter().map(|scope| scope.parse()).collect::<Result<_>>()?;
            let shown = format!("{name:?}");
            if rules.insert(name, (tenant, scopes)).is_some() {
                return Err(malformed(format!("there are two rules for {shown}")));
            }
        }
        Ok(Self(Some(rules)))
    }

    /// Returns the caller whom a certificate names. `None` if it names none, or several.
    pub(crate) fn caller(&self, certificate: &PeerCertificate) -> Option<Caller> {
        let own = webpki::EndEntityCert::try_from(certificate.chain.first()?).ok()?;
        let uris = own.valid_uri_names().map(|name| Name::Uri(name.to_owned()));
        let dns = own.valid_dns_names().map(|name| Name::Dns(name.to_ascii_lowercase()));
        let (tenant, scopes) = self.meaning(uris.chain(dns))?;
        let serial = &own.serial()[..own.serial().len().min(MAX_SERIAL)];
        Some(Caller {
            is_operator: false,
            tenant,
            scopes,
            key: format!("cert:{}", hex::encode(serial)),
            proof: Proof::Connection,
            certificate: None,
        })
    }

    fn meaning(&self, names: impl Iterator<Item = Name>) -> Option<(TenantId, BTreeSet<Scope>)> {
        let mut found = match &self.0 {
            Some(rules) => names.filter_map(|name| rules.get(&name).cloned()).collect::<Vec<_>>(),
            None => {
                let tenants = names.filter_map(|name| match name {
                    Name::Uri(uri) => uri.strip_prefix(TENANT).map(str::to_owned),
                    Name::Dns(_) => None,
                });
                // One that is malformed makes the certificate unusable, too.
                let tenants: Result<Vec<_>> = tenants.map(TenantId::new).collect();
                tenants.ok()?.into_iter().map(|tenant| (tenant, Scope::of_tenants())).collect()
            }
        };
        let one = found.pop()?;
        found.iter().all(|other| *other == one).then_some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Name {
        Name::Uri(text.to_owned())
    }

    fn tenant_of(rules: &CertificateRules, names: &[Name]) -> Option<String> {
        rules.meaning(names.iter().cloned()).map(|(tenant, _)| tenant.as_str().to_owned())
    }

    /// Promise (Server): A certificate whose names mean no tenant, several, or a malformed one means none.
    #[test]
    fn names_mean_one_tenant_or_none() {
        let rules = CertificateRules::default();
        let dns = Name::Dns("acme".to_owned());
        assert_eq!(tenant_of(&rules, &[dns.clone(), uri("cofferdam://tenant/acme")]).as_deref(), Some("acme"));
        assert!(!rules.meaning([uri("cofferdam://tenant/acme")].into_iter()).unwrap().1.contains(&Scope::Admin));
        for names in [
            vec![],
            vec![dns],
            vec![uri("cofferdam://tenant/")],
            vec![uri("cofferdam://tenant/../x")],
            vec![uri("cofferdam://tenant/a/b")],
            vec![uri("cofferdam://tenant/a?b")],
            vec![uri("cofferdam://tenant/a%2e")],
            vec![uri("COFFERDAM://tenant/a")],
            vec![uri("cofferdam://tenants/a")],
            vec![uri("x-cofferdam://tenant/a")],
            vec![uri("cofferdam://tenant/a"), uri("cofferdam://tenant/b")],
            vec![uri("cofferdam://tenant/a"), uri("cofferdam://tenant/b c")],
        ] {
            assert_eq!(tenant_of(&rules, &names), None, "{names:?}");
        }
    }

    #[test]
    fn rules_replace_the_names_of_tenants() {
        let text = r#"{"rules": [
            {"uri": "spiffe://a/ci", "tenant": "acme", "scopes": ["runs"]},
            {"dns": "Host.example", "tenant": "acme", "scopes": ["admin"]}
        ]}"#;
        let rules = CertificateRules::parse(text).unwrap();
        let host = Name::Dns("host.example".to_owned());
        assert_eq!(rules.meaning([uri("spiffe://a/ci")].into_iter()).unwrap().1, BTreeSet::from([Scope::Runs]));
        assert_eq!(rules.meaning([host.clone()].into_iter()).unwrap().1, BTreeSet::from([Scope::Admin]));
        for names in [vec![uri("cofferdam://tenant/acme")], vec![uri("spiffe://a/ci"), host], vec![uri("spiffe://a/c")]]
        {
            assert_eq!(tenant_of(&rules, &names), None, "{names:?}");
        }
    }

    #[test]
    fn malformed_rules_are_refused() {
        for rule in [
            r#"{"tenant": "a", "scopes": []}"#,
            r#"{"uri": "x", "dns": "y", "tenant": "a", "scopes": []}"#,
            r#"{"uri": "", "tenant": "a", "scopes": []}"#,
            r#"{"dns": "*.example", "tenant": "a", "scopes": []}"#,
            r#"{"uri": "x", "tenant": "a b", "scopes": []}"#,
            r#"{"uri": "x", "tenant": "a", "scopes": ["root"]}"#,
            r#"{"uri": "x", "tenant": "a", "scopes": [], "more": 1}"#,
            r#"{"uri": "x", "tenant": "a", "scopes": []}, {"uri": "x", "tenant": "b", "scopes": []}"#,
        ] {
            assert!(CertificateRules::parse(&format!(r#"{{"rules": [{rule}]}}"#)).is_err(), "{rule}");
        }
    }
}
