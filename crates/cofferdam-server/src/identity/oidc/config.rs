//! The settings of an issuer of tokens: whom to trust, and what its claims mean. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{Error, Result, TenantId};
use jsonwebtoken::Algorithm;
use reqwest::Url;
use serde::Deserialize;

use crate::caller::Scope;

/// The largest leeway for clocks that differ.
const MAX_LEEWAY: u64 = 300;
/// The largest time between two reads of the issuer's keys, and for which they are kept.
const MAX_REFRESH: u64 = 24 * 60 * 60;
const MAX_KEEP: u64 = 7 * 24 * 60 * 60;

/// An issuer of tokens and the meaning of its claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer: the value of `iss`, and the address of its description.
    pub issuer: Url,
    /// The issuer, byte by byte as in tokens.
    pub(super) issuer_text: String,
    /// The values of `aud` that mean this server.
    pub audience: Vec<String>,
    /// The tenant of a token.
    pub tenant: Rule<TenantId>,
    /// The scopes of a token.
    pub scopes: Rule<BTreeSet<Scope>>,
    /// The accepted algorithms of signatures.
    pub algorithms: Vec<Algorithm>,
    /// The difference of clocks that is accepted.
    pub leeway: Duration,
    /// A PEM file of authorities to trust for the issuer instead of those of this host.
    pub ca: Option<PathBuf>,
    /// The times of the issuer's keys.
    pub timing: Timing,
}

/// The times of the issuer's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The age at which keys are read again.
    pub refresh: Duration,
    /// The age until which keys are used although the issuer does not answer.
    pub keep: Duration,
    /// The time between two reads, also when tokens name keys that are not known.
    pub retry: Duration,
}

/// The source of a value: fixed, or a claim, whose texts are translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule<T> {
    /// The same for all tokens.
    Fixed(T),
    /// A claim: its name, or a JSON pointer such as `/realm_access/roles`.
    Claim {
        /// The claim.
        claim: String,
        /// The meaning of its texts. Others mean nothing. `None`: they are the values themselves.
        values: Option<BTreeMap<String, T>>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    issuer: String,
    audience: Vec<String>,
    tenant: RuleDocument<String>,
    scopes: RuleDocument<BTreeSet<String>>,
    #[serde(default = "algorithms")]
    algorithms: Vec<Algorithm>,
    #[serde(default = "leeway")]
    leeway: u64,
    ca: Option<PathBuf>,
    #[serde(default = "refresh")]
    refresh: u64,
    #[serde(default = "keep")]
    keep: u64,
    #[serde(default = "retry")]
    retry: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleDocument<T> {
    fixed: Option<T>,
    claim: Option<String>,
    values: Option<BTreeMap<String, T>>,
}

fn algorithms() -> Vec<Algorithm> {
    vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA]
}

fn leeway() -> u64 {
    30
}

fn refresh() -> u64 {
    300
}

fn keep() -> u64 {
    24 * 60 * 60
}

fn retry() -> u64 {
    10
}

impl OidcConfig {
    /// Reads settings from JSON.
    ///
    /// # Errors
    /// - `InvalidInput` for a malformed document, an issuer without TLS that is not on this host, an algorithm with a
    ///   shared secret, an unknown scope, or a time out of its bounds.
    pub fn parse(text: &str) -> Result<Self> {
        let document: Document =
            serde_json::from_str(text).map_err(|error| malformed(format!("the file is malformed: {error}")))?;
        let Document { audience, algorithms, leeway, ca, refresh, keep, retry, .. } = document;
        let issuer = address(&document.issuer)?;
        if audience.is_empty() || audience.iter().any(String::is_empty) {
            return Err(malformed("'audience' has no value, so that tokens for other services would be accepted"));
        }
        let symmetric =
            |algorithm: &Algorithm| matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
        if algorithms.is_empty() || algorithms.iter().any(symmetric) {
            return Err(malformed("'algorithms' needs algorithms with a public key, such as RS256, ES256 or EdDSA"));
        }
        let is_timed = (1..=MAX_REFRESH).contains(&refresh) && (refresh..=MAX_KEEP).contains(&keep) && retry >= 1;
        if leeway > MAX_LEEWAY || !is_timed || retry > refresh {
            return Err(malformed(format!(
                "a time is out of its bounds: leeway at most {MAX_LEEWAY} s, refresh at most {MAX_REFRESH} s, keep \
                 from refresh to {MAX_KEEP} s, retry from 1 s to refresh"
            )));
        }
        let timing = Timing {
            refresh: Duration::from_secs(refresh),
            keep: Duration::from_secs(keep),
            retry: Duration::from_secs(retry),
        };
        Ok(Self {
            issuer,
            issuer_text: document.issuer,
            audience,
            tenant: document.tenant.rule("tenant", TenantId::new)?,
            scopes: document.scopes.rule("scopes", |names| names.iter().map(|name| name.parse()).collect())?,
            algorithms,
            leeway: Duration::from_secs(leeway),
            ca,
            timing,
        })
    }

    /// Returns the address of the issuer's description.
    pub(super) fn discovery(&self) -> String {
        format!("{}/.well-known/openid-configuration", self.issuer_text.trim_end_matches('/'))
    }
}

impl<T> RuleDocument<T> {
    fn rule<U>(self, name: &str, convert: impl Fn(T) -> Result<U>) -> Result<Rule<U>> {
        match self {
            Self { fixed: Some(value), claim: None, values: None } => Ok(Rule::Fixed(convert(value)?)),
            Self { fixed: None, claim: Some(claim), values } if !claim.is_empty() => {
                let convert = |(text, value)| Ok((text, convert(value)?));
                let values = values.map(|values| values.into_iter().map(convert).collect::<Result<_>>());
                Ok(Rule::Claim { claim, values: values.transpose()? })
            }
            _ => Err(malformed(format!("'{name}' needs either 'fixed', or 'claim' and perhaps 'values'"))),
        }
    }
}

/// Parses an address that is reached over TLS, or on this host.
pub(super) fn address(text: &str) -> Result<Url> {
    let url = Url::parse(text).map_err(|_| malformed(format!("'{}' is not an address", text.escape_debug())))?;
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_local);
    let is_plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    if !is_safe || !is_plain || host.is_empty() {
        let message = format!("'{}' is not an https:// address without a user", text.escape_debug());
        return Err(malformed(message));
    }
    Ok(url)
}

fn malformed(message: impl Into<String>) -> Error {
    Error::invalid("read identity", message).with_remedy("docs/server-access.md describes the file of --oidc")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub fn valid() -> Value {
        json!({
            "issuer": "https://login.example/realms/a",
            "audience": ["cofferdam"],
            "tenant": { "claim": "org" },
            "scopes": { "claim": "scope", "values": { "run": ["runs"], "all": ["admin", "runs"] } },
        })
    }

    fn with(key: &str, value: Value) -> Result<OidcConfig> {
        let mut document = valid();
        document[key] = value;
        OidcConfig::parse(&document.to_string())
    }

    #[test]
    fn settings_have_safe_defaults() {
        let config = OidcConfig::parse(&valid().to_string()).unwrap();
        assert_eq!(config.discovery(), "https://login.example/realms/a/.well-known/openid-configuration");
        assert_eq!(config.algorithms, [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA]);
        assert_eq!((config.leeway, config.timing.keep), (Duration::from_secs(30), Duration::from_secs(86400)));
        assert!(with("issuer", json!("http://127.0.0.1:8080")).is_ok());
        assert_eq!(with("tenant", json!({ "fixed": "a" })).unwrap().tenant, Rule::Fixed(TenantId::new("a").unwrap()));
    }

    #[test]
    fn unsafe_settings_are_refused() {
        for (key, value) in [
            ("issuer", json!("http://login.example")),
            ("issuer", json!("http://127.0.0.1.evil.example")),
            ("issuer", json!("https://user:secret@login.example")),
            ("issuer", json!("file:///etc/passwd")),
            ("issuer", json!("login.example")),
            ("audience", json!([])),
            ("audience", json!([""])),
            ("algorithms", json!([])),
            ("algorithms", json!(["HS256"])),
            ("algorithms", json!(["RS256", "HS512"])),
            ("algorithms", json!(["none"])),
            ("leeway", json!(301)),
            ("leeway", json!(-1)),
            ("refresh", json!(0)),
            ("retry", json!(0)),
            ("retry", json!(1000)),
            ("keep", json!(1)),
            ("keep", json!(u64::MAX)),
            ("tenant", json!({})),
            ("tenant", json!({ "fixed": "../etc" })),
            ("tenant", json!({ "fixed": "a", "claim": "b" })),
            ("tenant", json!({ "claim": "" })),
            ("tenant", json!({ "claim": "b", "values": { "x": "a b" } })),
            ("scopes", json!({ "fixed": ["root"] })),
            ("scopes", json!({ "claim": "b", "values": { "x": ["root"] } })),
            ("audiences", json!(["x"])),
        ] {
            assert!(with(key, value.clone()).is_err(), "{key}: {value}");
        }
    }
}
