//! An authority of clients' certificates.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cofferdam_server::{ClientCertificates, Listen, ListenTls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, ExtendedKeyUsagePurpose,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};

use crate::support::certificate;

/// The time for which a certificate is valid, from now in seconds.
pub const VALID: std::ops::Range<i64> = -3600..3600;

/// An authority and its directory.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
    name: String,
}

impl Authority {
    pub fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.join(format!("{name}.pem")), issuer.pem()).unwrap();
        Self { issuer, directory: directory.to_owned(), name: name.to_owned() }
    }

    pub fn file(&self) -> PathBuf {
        self.directory.join(format!("{}.pem", self.name))
    }

    /// Returns the files of a new certificate of a client with names, valid from and to seconds from now.
    pub fn client(&self, serial: u64, names: &[&str], valid: std::ops::Range<i64>) -> TlsFiles {
        self.certificate(serial, names, valid, ExtendedKeyUsagePurpose::ClientAuth)
    }

    pub fn certificate(
        &self,
        serial: u64,
        names: &[&str],
        valid: std::ops::Range<i64>,
        usage: ExtendedKeyUsagePurpose,
    ) -> TlsFiles {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.subject_alt_names = names.iter().map(|name| san(name)).collect();
        params.extended_key_usages = vec![usage];
        (params.not_before, params.not_after) = (at(valid.start).into(), at(valid.end).into());
        let key = KeyPair::generate().unwrap();
        let created = params.signed_by(&key, &self.issuer).unwrap();
        let path = |what: &str| self.directory.join(format!("{}-{serial}-{what}.pem", self.name));
        let files = TlsFiles { certificate: path("cert"), key: path("key") };
        std::fs::write(&files.certificate, created.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o600)).unwrap();
        files
    }

    /// Writes the list of revoked certificates, and returns its file.
    pub fn revoke(&self, serials: &[u64]) -> PathBuf {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: at(-60).into(),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: at(-120).into(),
            next_update: at(3600).into(),
            crl_number: SerialNumber::from(serials.len() as u64 + 1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.directory.join(format!("{}-crl.pem", self.name));
        std::fs::write(&path, params.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        path
    }
}

fn san(name: &str) -> SanType {
    let text = |text: &str| text.to_owned().try_into().unwrap();
    match name.parse::<std::net::IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) if name.contains("://") => SanType::URI(text(name)),
        Err(_) => SanType::DnsName(text(name)),
    }
}

fn at(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { SystemTime::now() - distance } else { SystemTime::now() + distance }
}

/// Returns a listener that asks for certificates of clients.
pub fn listen(directory: &Path, authority: &Authority, revoked: Option<PathBuf>, required: bool) -> Listen {
    let clients = Some(ClientCertificates { authorities: authority.file(), revoked, required });
    Listen::Tcp("127.0.0.1:0".parse().unwrap(), Some(ListenTls { files: certificate(directory), clients }))
}
