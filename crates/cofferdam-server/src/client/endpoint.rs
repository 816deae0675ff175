//! The address of a server, and connections to it.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contract::{Connection, Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::Credentials;
use super::tls_errors::tls_error;
use crate::listen::{TlsFiles, read_pair};

/// Names of protocols in the negotiation of TLS.
const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2, or HTTP/1.1 for a server that does not speak it.
    Any,
    /// HTTP/1.1.
    Http1,
}

/// The address of a server.
#[derive(Clone)]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp { host: String, port: u16, tls: Option<Arc<ClientConfig>> },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { tls, .. } => {
                write!(f, "{}://{}", if tls.is_some() { "https" } else { "http" }, self.authority())
            }
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Endpoint {
    pub fn parse(url: &str, credentials: &Credentials<'_>) -> Result<Self> {
        if credentials.certificate.is_some() && !url.starts_with("https:") {
            return Err(Error::invalid("connect", "a certificate of a client is shown over https:// only")
                .with_remedy("use https://, or leave the certificate out"));
        }
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self::Unix(PathBuf::from(path.strip_prefix("//").unwrap_or(path))));
        }
        let bad = || {
            Error::invalid("connect", format!("'{}' is not the address of a server", url.escape_debug()))
                .with_remedy("use https://HOST[:PORT], http://127.0.0.1:PORT or unix:PATH")
        };
        let uri: hyper::Uri = url.parse().map_err(|_| bad())?;
        let (secure, default) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(bad()),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || url.contains('@') {
            return Err(bad());
        }
        let host = uri.host().ok_or_else(bad)?.to_owned();
        let tls = if secure { Some(client_config(credentials.ca, credentials.certificate)?) } else { None };
        Ok(Self::Tcp { host, port: uri.port_u16().unwrap_or(default), tls })
    }

    /// Returns the value of the header `Host`.
    pub fn authority(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
        }
    }

    /// Returns true for a Unix socket.
    pub fn is_socket(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Returns true if other hosts may read what is sent.
    pub fn is_readable_by_others(&self) -> bool {
        match self {
            Self::Unix(_) | Self::Tcp { tls: Some(_), .. } => false,
            Self::Tcp { host, tls: None, .. } => {
                let address = bare(host).parse::<IpAddr>();
                host != "localhost" && !address.is_ok_and(|address| address.is_loopback())
            }
        }
    }

    /// Returns the URI of a path.
    pub fn uri(&self, path: &str) -> String {
        let scheme = if matches!(self, Self::Tcp { tls: Some(_), .. }) { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.authority())
    }

    /// Connects for HTTP/1.1, which WebSockets need.
    pub async fn connect(&self) -> Result<Connection> {
        self.connect_for(Protocol::Http1).await.map(|(stream, _)| stream)
    }

    /// Connects, and returns the protocol to speak. Without TLS nothing is negotiated, and the server speaks both.
    pub async fn connect_for(&self, wanted: Protocol) -> Result<(Connection, Protocol)> {
        let failed = |error: std::io::Error| match tls_error(&error) {
            Some(known) => known.with_context("server", self.to_string()).with_source(error),
            None => Error::new(ErrorKind::Unavailable, "connect", "cannot connect to the server")
                .with_context("server", self.to_string())
                .with_source(error)
                .with_remedy("check the address, the certificate, and that 'cofferdam serve' runs there"),
        };
        match self {
            Self::Unix(path) => Ok((Box::new(UnixStream::connect(path).await.map_err(failed)?), wanted)),
            Self::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((bare(host), *port)).await.map_err(failed)?;
                let _ = stream.set_nodelay(true);
                let Some(config) = tls else { return Ok((Box::new(stream), wanted)) };
                let name = ServerName::try_from(bare(host).to_owned())
                    .map_err(|_| Error::invalid("connect", "the host is no name and no address"))?;
                let mut config = ClientConfig::clone(config);
                config.alpn_protocols = match wanted {
                    Protocol::Any => vec![H2.to_vec(), HTTP1.to_vec()],
                    Protocol::Http1 => vec![HTTP1.to_vec()],
                };
                let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(failed)?;
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                Ok((Box::new(stream), if is_h2 { Protocol::Any } else { Protocol::Http1 }))
            }
        }
    }
}

/// Returns a host without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns settings of TLS that trust the authorities in a PEM file, or those of this host, and show a certificate if
/// the server asks for one.
///
/// # Errors
/// - `InvalidInput` for a file that cannot be used.
/// - `Denied` for a private key that every user can read.
pub fn client_config(ca: Option<&Path>, certificate: Option<&TlsFiles>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let bad = |source: String| {
                Error::invalid("connect", format!("cannot use the file of authorities: {source}"))
                    .with_context("file", path.display().to_string())
            };
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))? {
                let added = certificate.map_err(|error| bad(error.to_string())).map(|one| roots.add(one))?;
                added.map_err(|error| bad(error.to_string()))?;
            }
        }
        None => {
            for certificate in rustls_native_certs::load_native_certs().certs {
                // Hosts have certificates that no program can use.
                let _ = roots.add(certificate);
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder =
        builder.map_err(|error| Error::new(ErrorKind::Internal, "connect", "cannot set TLS up").with_source(error))?;
    let builder = builder.with_root_certificates(roots);
    let Some(files) = certificate else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let (chain, private) = read_pair(files)?;
    let config = builder.with_client_auth_cert(chain, private).map_err(|error| {
        Error::invalid("connect", format!("cannot use the client's certificate: {error}"))
            .with_context("file", files.certificate.display().to_string())
            .with_remedy("give PEM files of a certificate and of its private key")
    })?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_plain_ones_known() {
        for (url, shown, readable) in [
            ("unix:/run/x.sock", "unix:/run/x.sock", false),
            ("unix:///run/x.sock", "unix:/run/x.sock", false),
            ("http://127.0.0.1:80", "http://127.0.0.1:80", false),
            ("http://[::1]:8080/", "http://[::1]:8080", false),
            ("http://localhost", "http://localhost:80", false),
            ("http://example.com", "http://example.com:80", true),
            ("http://192.0.2.1:9", "http://192.0.2.1:9", true),
        ] {
            let endpoint = Endpoint::parse(url, &Credentials::default()).unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.is_readable_by_others()), (shown, readable));
        }
        for url in ["", "example.com", "ftp://x", "http://", "http://x/v1", "http://u:p@x"] {
            assert!(Endpoint::parse(url, &Credentials::default()).is_err(), "{url}");
        }
    }
}
