//! Settings of the remote backend as one source has them: the table `[remote]`, the environment, or the backend's name.

use std::path::PathBuf;

use cofferdam_contract::Result;
use cofferdam_contract::configuration::Variables;
use serde::Deserialize;

use super::config::{RemoteConfig, variables};
use crate::listen::TlsFiles;

/// The settings that one source has; `None` leaves a setting to the next source. The key is not a setting: it
/// comes from the environment only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteSettings {
    /// The address of the server.
    pub server: Option<String>,
    /// The server's backend.
    pub backend: Option<String>,
    /// A PEM file of authorities to trust instead of those of this host.
    pub ca: Option<PathBuf>,
    /// A PEM file of the client's certificate.
    pub client_cert: Option<PathBuf>,
    /// A PEM file of the certificate's private key.
    pub client_key: Option<PathBuf>,
}

impl RemoteSettings {
    /// Reads the settings in the environment, which other clients of servers use too: the [`variables`].
    ///
    /// # Errors
    ///
    /// Returns no error, because every text is valid here.
    pub fn from_environment(variables: Variables<'_>) -> Result<Self> {
        let file = |name| variables.raw(name).map(PathBuf::from);
        Ok(Self {
            server: variables.text(variables::SERVER),
            backend: None,
            ca: file(variables::CA),
            client_cert: file(variables::CLIENT_CERT),
            client_key: file(variables::CLIENT_KEY),
        })
    }

    /// Returns these settings, and those of the next source where this one has none.
    /// A certificate and its private key are of one source.
    pub fn or(self, next: Self) -> Self {
        let has_own = self.client_cert.is_some() || self.client_key.is_some();
        let pair = if has_own { (self.client_cert, self.client_key) } else { (next.client_cert, next.client_key) };
        Self {
            server: self.server.or(next.server),
            backend: self.backend.or(next.backend),
            ca: self.ca.or(next.ca),
            client_cert: pair.0,
            client_key: pair.1,
        }
    }

    /// Returns the configuration of a backend, with the key and the trace in the environment. Without an address, the
    /// server is `own`.
    ///
    /// # Errors
    /// - `InvalidInput` for a certificate without its private key, or the other way round.
    pub fn config(&self, variables: Variables<'_>, own: impl FnOnce() -> String) -> Result<RemoteConfig> {
        let Self { server, backend, ca, client_cert, client_key } = self.clone();
        Ok(RemoteConfig {
            server: server.unwrap_or_else(own),
            key: variables.text(variables::KEY),
            ca,
            certificate: TlsFiles::of(client_cert, client_key)?,
            trace: variables.text(variables::TRACE),
            backend,
        })
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::ErrorKind;
    use serde_json::json;

    use super::*;

    fn from(set: &[(&str, &str)], table: RemoteSettings) -> Result<RemoteConfig> {
        let lookup = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let variables = Variables::new(&lookup);
        RemoteSettings::from_environment(variables)?.or(table).config(variables, || "unix:/own".to_owned())
    }

    #[test]
    fn the_server_is_that_of_the_environment_or_the_users_own() {
        let own = from(&[("COFFERDAM_SERVER", ""), ("COFFERDAM_KEY", "")], RemoteSettings::default()).unwrap();
        assert_eq!((own.server.as_str(), own.backend), ("unix:/own", None));
        assert_eq!((own.key, own.ca, own.certificate), (None, None, None));
        let all = [
            ("COFFERDAM_SERVER", "https://s"),
            ("COFFERDAM_KEY", "cfd_1"),
            ("COFFERDAM_CA", "/ca"),
            ("COFFERDAM_CLIENT_CERT", "/cert"),
            ("COFFERDAM_CLIENT_KEY", "/key"),
            ("TRACEPARENT", "00-x"),
        ];
        let named = from(&all, RemoteSettings::default()).unwrap();
        assert_eq!((named.server.as_str(), named.key.as_deref()), ("https://s", Some("cfd_1")));
        assert_eq!((named.ca, named.trace.as_deref()), (Some("/ca".into()), Some("00-x")));
        assert_eq!(named.certificate, Some(TlsFiles { certificate: "/cert".into(), key: "/key".into() }));
        for half in ["COFFERDAM_CLIENT_CERT", "COFFERDAM_CLIENT_KEY"] {
            let error = from(&[(half, "/file")], RemoteSettings::default()).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.remedy().is_some(), "{error}");
        }
    }

    #[test]
    fn the_table_completes_the_environment_except_for_the_key() {
        let table =
            json!({ "server": "https://t", "backend": "vm", "ca": "/t", "client_cert": "/c", "client_key": "/k" });
        let table: RemoteSettings = serde_json::from_value(table).unwrap();
        let found = from(&[("COFFERDAM_CA", "/ca")], table.clone()).unwrap();
        assert_eq!((found.server.as_str(), found.backend.as_deref()), ("https://t", Some("vm")));
        assert_eq!((found.ca, found.key), (Some("/ca".into()), None));
        assert_eq!(found.certificate, Some(TlsFiles { certificate: "/c".into(), key: "/k".into() }));
        assert_eq!(from(&[("COFFERDAM_SERVER", "https://s")], table).unwrap().server, "https://s");
        for secret in ["key", "trace"] {
            assert!(serde_json::from_value::<RemoteSettings>(json!({ secret: "cfd_1" })).is_err(), "{secret}");
        }
    }
}
