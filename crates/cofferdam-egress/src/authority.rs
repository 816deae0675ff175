//! The certificate authority of one sandbox, and the roots that the host trusts.
//!
//! Each sandbox has an authority of its own, so that no sandbox and no other program accepts certificates of another's.
//! Its key is only in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use pem::Pem;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use time::{Duration, OffsetDateTime};
use tokio::sync::OnceCell;

use crate::key_store;

/// The validity of certificates before and after their creation. A sandbox can live long, and clocks differ.
const BEFORE: Duration = Duration::days(1);
const AFTER: Duration = Duration::days(365);
/// The maximum number of names whose certificates are kept.
const MAX_KEPT: usize = 64;
/// The only protocol over intercepted TLS.
const HTTP1: &[u8] = b"http/1.1";

/// A certificate authority of one sandbox.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    servers: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl Authority {
    /// Creates an authority with a new key.
    pub fn generate() -> Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(failed)?;
        // With a name of its own, a certificate of another authority is recognised as such.
        let mut params = params(&format!("Cofferdam sandbox authority {:016x}", u64::from_ne_bytes(random)));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = KeyPair::generate().and_then(|key| CertifiedIssuer::self_signed(params, key));
        Ok(Self { issuer: issuer.map_err(failed)?, servers: Mutex::default() })
    }

    /// Returns the certificate in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Returns the roots that the host trusts and the certificate of this authority in PEM, for a sandbox's
    /// `SSL_CERT_FILE`.
    pub fn bundle(&self, roots: &Roots) -> String {
        let mut bundle: String =
            roots.certificates.iter().map(|root| pem::encode(&Pem::new("CERTIFICATE", root.to_vec()))).collect();
        bundle.push_str(&self.pem());
        bundle
    }

    /// Returns the same certificates as a key store of Java.
    pub fn key_store(&self, roots: &Roots) -> Vec<u8> {
        key_store::encode(roots.certificates.iter().map(|root| root.as_ref()).chain([self.issuer.der().as_ref()]))
    }

    /// Returns the settings of a TLS server with a certificate for a host name.
    pub(crate) fn server(&self, name: &str) -> Result<Arc<ServerConfig>> {
        if let Some(server) = self.servers.lock().get(name) {
            return Ok(Arc::clone(server));
        }
        let server = Arc::new(self.create_server(name)?);
        let mut servers = self.servers.lock();
        if servers.len() >= MAX_KEPT {
            servers.clear();
        }
        servers.insert(name.to_owned(), Arc::clone(&server));
        Ok(server)
    }

    fn create_server(&self, name: &str) -> Result<ServerConfig> {
        // With a key of its own, it has a serial number of its own.
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params("Cofferdam sandbox gateway");
        params.subject_alt_names = CertificateParams::new([name.to_owned()]).map_err(failed)?.subject_alt_names;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key))
            .map_err(failed)?;
        server.alpn_protocols = vec![HTTP1.to_vec()];
        // A client cannot fill memory with sessions.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(server)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(hidden)")
    }
}

/// Certificates that servers are verified with.
#[derive(Clone)]
pub struct Roots {
    certificates: Arc<[CertificateDer<'static>]>,
    client: Arc<ClientConfig>,
}

impl Roots {
    /// Returns the roots that the host trusts, or those of the file that `SSL_CERT_FILE` names. Reads them once.
    pub async fn of_host() -> Result<Self> {
        static HOST: OnceCell<Roots> = OnceCell::const_new();
        let load = || async {
            let load = || rustls_native_certs::load_native_certs().certs;
            let certificates = tokio::task::spawn_blocking(load).await.map_err(failed)?;
            Self::new(certificates)
        };
        HOST.get_or_try_init(load).await.cloned()
    }

    /// Creates roots from certificates. Ignores invalid ones, but one must be valid.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self> {
        let mut store = RootCertStore::empty();
        let certificates: Arc<[_]> =
            certificates.into_iter().filter(|certificate| store.add(certificate.clone()).is_ok()).collect();
        if certificates.is_empty() {
            return Err(Error::new(ErrorKind::Unavailable, "create", "this host has no trusted certificates")
                .with_remedy("install the package ca-certificates, or set SSL_CERT_FILE"));
        }
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(store)
            .with_no_client_auth();
        client.alpn_protocols = vec![HTTP1.to_vec()];
        // Sandboxes share these settings, and a server must not see that they run on one host.
        client.resumption = Resumption::disabled();
        Ok(Self { certificates, client: Arc::new(client) })
    }

    /// Returns the settings of a TLS client that trusts these roots.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roots({})", self.certificates.len())
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - BEFORE, now + AFTER);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn failed(error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, "create", format!("cannot create the sandbox's certificate authority: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_the_trusted_roots_and_the_authority() {
        let (authority, other) = (Authority::generate().unwrap(), Authority::generate().unwrap());
        let roots = Roots::new(vec![other.issuer.der().clone(), CertificateDer::from(b"invalid".to_vec())]).unwrap();
        let bundle = pem::parse_many(authority.bundle(&roots)).unwrap();
        let certificates: Vec<&[u8]> = bundle.iter().map(Pem::contents).collect();
        assert_eq!(certificates, [other.issuer.der().as_ref(), authority.issuer.der().as_ref()]);
        assert!(Roots::new(Vec::new()).is_err());
    }

    #[test]
    fn certificates_of_names_are_kept_within_a_bound() {
        let authority = Authority::generate().unwrap();
        let first = authority.server("a.example").unwrap();
        assert!(Arc::ptr_eq(&first, &authority.server("a.example").unwrap()));
        for number in 0..2 * MAX_KEPT {
            authority.server(&format!("{number}.example")).unwrap();
            assert!(authority.servers.lock().len() <= MAX_KEPT);
        }
        assert!(authority.server("not a name\u{e9}").is_err());
        assert!(!format!("{authority:?}").contains("PRIVATE"));
    }
}
