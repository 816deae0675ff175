//! Configuration of a [`super::RemoteBackend`].

use std::path::PathBuf;

use cofferdam_contract::Result;
use cofferdam_contract::configuration::Variables;

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
    /// The place of this program in a trace, as W3C Trace Context writes it.
    pub const TRACE: &str = "TRACEPARENT";
}

/// The server of a [`super::RemoteBackend`].
#[derive(Debug, Clone, Default)]
pub struct RemoteConfig {
    /// The address: `https://HOST[:PORT]`, `http://127.0.0.1:PORT` or `unix:PATH`.
    pub server: String,
    /// The key.
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

impl RemoteConfig {
    /// Reads the [`variables`]. The server's backend comes from the name of this one, as in `remote:BACKEND`. Without an
    /// address, the server is `own`.
    ///
    /// # Errors
    /// - `InvalidInput` for a certificate without its private key, or the other way round.
    pub fn from_environment(
        variables: Variables<'_>,
        backend: Option<String>,
        own: impl FnOnce() -> String,
    ) -> Result<Self> {
        let file = |name| variables.raw(name).map(PathBuf::from);
        Ok(Self {
            server: variables.text(variables::SERVER).unwrap_or_else(own),
            key: variables.text(variables::KEY),
            ca: file(variables::CA),
            certificate: TlsFiles::of(file(variables::CLIENT_CERT), file(variables::CLIENT_KEY))?,
            trace: variables.text(variables::TRACE),
            backend,
        })
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::ErrorKind;

    use super::*;

    fn from(set: &[(&str, &str)]) -> Result<RemoteConfig> {
        let lookup = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        RemoteConfig::from_environment(Variables::new(&lookup), Some("vm".to_owned()), || "unix:/own".to_owned())
    }

    #[test]
    fn the_server_is_that_of_the_environment_or_the_users_own() {
        let own = from(&[("COFFERDAM_SERVER", ""), ("COFFERDAM_KEY", "")]).unwrap();
        assert_eq!((own.server.as_str(), own.backend.as_deref()), ("unix:/own", Some("vm")));
        assert_eq!((own.key, own.ca, own.certificate), (None, None, None));
        let named = from(&[
            ("COFFERDAM_SERVER", "https://s"),
            ("COFFERDAM_KEY", "cfd_1"),
            ("COFFERDAM_CA", "/ca"),
            ("COFFERDAM_CLIENT_CERT", "/cert"),
            ("COFFERDAM_CLIENT_KEY", "/key"),
            ("TRACEPARENT", "00-x"),
        ]);
        let named = named.unwrap();
        assert_eq!((named.server.as_str(), named.key.as_deref()), ("https://s", Some("cfd_1")));
        assert_eq!((named.ca, named.trace.as_deref()), (Some("/ca".into()), Some("00-x")));
        assert_eq!(named.certificate, Some(TlsFiles { certificate: "/cert".into(), key: "/key".into() }));
        for half in ["COFFERDAM_CLIENT_CERT", "COFFERDAM_CLIENT_KEY"] {
            let error = from(&[(half, "/file")]).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.remedy().is_some(), "{error}");
        }
    }
}
