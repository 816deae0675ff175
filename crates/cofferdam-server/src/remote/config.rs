//! Configuration of a [`super::RemoteBackend`].

use std::fmt;
use std::path::PathBuf;

use crate::listen::TlsFiles;

/// The environment variables of a server's clients.
pub mod variables {
    /// The address of the server.
    pub const SERVER: &str = "COFFERDAM_SERVER";
    /// The key.
    pub const KEY: &str = "COFFERDAM_KEY";
    /// A PEM file of authorities to trust instead of those of this host.
    pub const CA: &str = "COFFERDAM_CA";
    /// A PEM file of the client's certificate.
    pub const CLIENT_CERT: &str = "COFFERDAM_CLIENT_CERT";
    /// A PEM file of the certificate's private key.
    pub const CLIENT_KEY: &str = "COFFERDAM_CLIENT_KEY";
    /// The position of this program in a trace, as W3C Trace Context writes it.
    pub const TRACE: &str = "TRACEPARENT";
}

/// The server of a [`super::RemoteBackend`].
#[derive(Clone, Default)]
pub struct RemoteConfig {
    /// The address: `https://HOST[:PORT]`, `http://127.0.0.1:PORT` or `unix:PATH`.
    pub server: String,
    /// The key. It is never printed.
    pub key: Option<String>,
    /// A PEM file of authorities to trust instead of those of this host.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub certificate: Option<TlsFiles>,
    /// The trace of which requests are part: a value of the header `traceparent`.
    pub trace: Option<String>,
    /// The server's backend. Default: the server's own.
    pub backend: Option<String>,
}

impl fmt::Debug for RemoteConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, key, ca, certificate, trace, backend } = self;
        f.debug_struct("RemoteConfig")
            .field("server", server)
            .field("key", &key.as_ref().map(|_| format_args!("Key")))
            .field("ca", ca)
            .field("certificate", certificate)
            .field("trace", trace)
            .field("backend", backend)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_never_printed() {
        let config = RemoteConfig {
            server: "https://s".to_owned(),
            key: Some("cfd_0123".to_owned()),
            ..RemoteConfig::default()
        };
        let printed = format!("{config:?}");
        assert!(printed.contains("https://s") && printed.contains("Some(Key)"), "{printed}");
        assert!(!printed.contains("0123"), "{printed}");
    }
}
