//! TLS by files that are read again when they change: the server's certificate, and the authorities of its clients.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// The time between two checks of the files.
const RELOAD: Duration = Duration::from_secs(5);

/// The files of a certificate, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those of the authorities between it and a trusted one.
    pub certificate: PathBuf,
    /// The private key, which other users must not be able to read.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Returns the files that a client's variables name.
    ///
    /// # Errors
    /// - `InvalidInput` if only one of them is set.
    pub fn of(certificate: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Self>> {
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(Self { certificate, key })),
            _ => Err(Error::invalid(
                "connect",
                "a certificate of a client needs its private key, and the other way round",
            )
            .with_remedy("set COFFERDAM_CLIENT_CERT and COFFERDAM_CLIENT_KEY, or neither")),
        }
    }
}

/// The certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// A PEM file of the authorities of clients.
    pub authorities: PathBuf,
    /// A PEM file of lists of revoked certificates. With it, a certificate must be covered by a list that is up to date.
    pub revoked: Option<PathBuf>,
    /// True if every client must have a certificate. Else clients without one need a key.
    pub required: bool,
}

/// The settings of TLS of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenTls {
    /// The server's certificate.
    pub files: TlsFiles,
    /// The certificates of clients. `None`: they are not asked for any.
    pub clients: Option<ClientCertificates>,
}

impl From<TlsFiles> for ListenTls {
    fn from(files: TlsFiles) -> Self {
        Self { files, clients: None }
    }
}

/// Certificates and their files.
pub struct Tls {
    settings: ListenTls,
    current: Mutex<(Loaded, Stamps)>,
}

/// The files as they were read.
#[derive(Clone)]
struct Loaded {
    config: Arc<ServerConfig>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Identity and times of a file, which differ after it is replaced or written.
type Stamp = Option<(u64, u64, u64, i64, i64)>;
type Stamps = [Stamp; 4];

fn stamp(path: &Path) -> Stamp {
    let of = |found: Metadata| (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec());
    std::fs::metadata(path).ok().map(of)
}

fn stamps(ListenTls { files, clients }: &ListenTls) -> Stamps {
    let authorities = clients.as_ref().and_then(|clients| stamp(&clients.authorities));
    let revoked = clients.as_ref().and_then(|clients| clients.revoked.as_deref()).and_then(stamp);
    [stamp(&files.certificate), stamp(&files.key), authorities, revoked]
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// - `Io` and `InvalidInput` for files that cannot be used.
    /// - `Denied` for a key that every user can read.
    pub fn load(settings: &ListenTls) -> Result<Self> {
        let stamps = stamps(settings);
        Ok(Self { settings: settings.clone(), current: Mutex::new((read(settings)?, stamps)) })
    }

    pub(super) fn settings(&self) -> &ListenTls {
        &self.settings
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.lock().0.config))
    }

    /// Checks the certificate of a client, which may have ended or been revoked since the connection began.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let verifier = self.current.lock().0.verifier.clone();
        let (Some(verifier), Some((own, between))) = (verifier, chain.split_first()) else { return false };
        verifier.verify_client_cert(own, between, UnixTime::now()).is_ok()
    }

    /// Reads the files again when they change. Runs until it is dropped. Files that cannot be used change nothing.
    pub(super) async fn reload(self: Arc<Self>) {
        let mut failed = None;
        loop {
            tokio::time::sleep(RELOAD).await;
            self.reload_changed(&mut failed);
        }
    }

    fn reload_changed(&self, failed: &mut Option<Stamps>) {
        let stamps = stamps(&self.settings);
        if self.current.lock().1 == stamps || *failed == Some(stamps) {
            return;
        }
        match read(&self.settings) {
            Ok(loaded) => *self.current.lock() = (loaded, stamps),
            Err(error) => {
                crate::report::warning(&format!("the certificates stay as they are: {error}"));
                *failed = Some(stamps);
            }
        }
    }
}

fn unusable(what: &str, path: &Path, source: impl ToString) -> Error {
    Error::invalid("read TLS files", format!("cannot use the {what}: {}", source.to_string()))
        .with_context("file", path.display().to_string())
        .with_remedy("give PEM files of a certificate and of its private key")
}

/// Reads a certificate and its private key.
///
/// # Errors
/// - `InvalidInput` for files that cannot be used.
/// - `Denied` for a key that every user can read.
pub(crate) fn read_pair(files: &TlsFiles) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let TlsFiles { certificate, key } = files;
    let found = std::fs::metadata(key).map_err(|error| unusable("key", key, error))?;
    if found.mode() & 0o007 != 0 {
        return Err(Error::new(ErrorKind::Denied, "read TLS files", "every user can use the file of the private key")
            .with_context("file", key.display().to_string())
            .with_remedy("chmod 600 it, and make a new key if other users may have read it"));
    }
    let chain =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| unusable("certificate", certificate, error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("key", key, error))?;
    Ok((chain, private))
}

fn read(ListenTls { files, clients }: &ListenTls) -> Result<Loaded> {
    let (chain, private) = read_pair(files)?;
    let bad = |error| unusable("certificate", &files.certificate, error);
    let verifier = clients.as_ref().map(verifier).transpose()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(bad)?;
    let config = match &verifier {
        Some(verifier) => config.with_client_cert_verifier(Arc::clone(verifier)),
        None => config.with_no_client_auth(),
    };
    let mut config = config.with_single_cert(chain, private).map_err(bad)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Loaded { config: Arc::new(config), verifier })
}

/// Returns the check of clients' certificates.
fn verifier(clients: &ClientCertificates) -> Result<Arc<dyn ClientCertVerifier>> {
    let ClientCertificates { authorities, revoked, required } = clients;
    let bad = |error: String| {
        unusable("authorities of clients", authorities, error)
            .with_remedy("give a PEM file of certificates of authorities")
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authorities).map_err(|error| bad(error.to_string()))? {
        let added = certificate.map_err(|error| bad(error.to_string())).map(|one| roots.add(one))?;
        added.map_err(|error| bad(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if let Some(path) = revoked {
        let lists = CertificateRevocationListDer::pem_file_iter(path)
            .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
            .map_err(|error| unusable("list of revoked certificates", path, error).with_remedy("give a PEM file"))?;
        if lists.is_empty() {
            return Err(unusable("list of revoked certificates", path, "it has no list").with_remedy("give a PEM file"));
        }
        builder = builder.with_crls(lists).only_check_end_entity_revocation().enforce_revocation_expiration();
    }
    if !required {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| bad(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn write(files: &TlsFiles) {
        let created = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&files.certificate, created.cert.pem()).unwrap();
        fs::write(&files.key, created.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Promise (Server): A changed certificate is used without a restart, and a broken one changes nothing.
    #[test]
    fn files_are_read_again_when_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles { certificate: directory.path().join("cert.pem"), key: directory.path().join("key.pem") };
        assert_eq!(Tls::load(&files.clone().into()).unwrap_err().kind(), ErrorKind::InvalidInput);
        write(&files);
        let tls = Tls::load(&files.clone().into()).unwrap();
        let (first, mut failed) = (Arc::clone(&tls.current.lock().0.config), None);
        tls.reload_changed(&mut failed);
        assert!(Arc::ptr_eq(&first, &tls.current.lock().0.config));
        fs::write(&files.certificate, "nonsense").unwrap();
        tls.reload_changed(&mut failed);
        assert!(Arc::ptr_eq(&first, &tls.current.lock().0.config) && failed.is_some());
        write(&files);
        tls.reload_changed(&mut failed);
        assert!(!Arc::ptr_eq(&first, &tls.current.lock().0.config));
    }

    #[test]
    fn a_key_for_every_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles { certificate: directory.path().join("cert.pem"), key: directory.path().join("key.pem") };
        write(&files);
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Tls::load(&files.clone().into()).unwrap_err().kind(), ErrorKind::Denied);
    }
}
