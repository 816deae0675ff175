//! The needs of a gateway besides sockets: the rules of a policy, the values of its secrets, and an authority.

use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, NetworkPolicy, NetworkSecret, Result};

use crate::authority::{Authority, Roots};
use crate::intercept::Interception;
use crate::rules::Rules;
use crate::secrets::Secrets;

/// Variables with the path of a file of certificates, as programs read them: OpenSSL, Requests, curl, Node.js, pip, Git,
/// Cargo, and the clients of AWS.
const BUNDLE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
];
/// The names of the files of certificates in a sandbox: in PEM, and as a key store of Java.
pub const FILES: [&str; 2] = ["ca-certificates.crt", "ca-certificates.jks"];

/// The network access of one sandbox: rules, secrets, and an authority if TLS is intercepted.
#[derive(Debug)]
pub struct Access {
    pub(crate) rules: Rules,
    pub(crate) secrets: Option<Arc<Secrets>>,
    pub(crate) declared: Vec<NetworkSecret>,
    pub(crate) interception: Option<Interception>,
}

impl Access {
    /// Reads the secrets of a policy from their sources, and creates an authority if its rules need one.
    ///
    /// # Errors
    /// - `InvalidInput` for a secret whose hosts no rule allows.
    /// - The errors of the sources.
    pub async fn of(policy: &NetworkPolicy, rules: Rules) -> Result<Self> {
        let declared = match policy {
            NetworkPolicy::Rules(detailed) => detailed.secrets.clone(),
            _ => Vec::new(),
        };
        let secrets = match declared.is_empty() {
            false => {
                for secret in &declared {
                    if let Some(host) = secret.hosts.iter().find(|host| !rules.may_request(host)) {
                        let what = "no rule of the network policy allows requests to the host of a secret";
                        return Err(Error::invalid("create", what)
                            .with_context("host", host.escape_debug().to_string())
                            .with_remedy("allow the host, with protocol any, https or http"));
                    }
                }
                avoid_core_dumps();
                let list = declared.clone();
                let reading = tokio::task::spawn_blocking(move || Secrets::read(&list)).await;
                let failed =
                    |error| Error::new(ErrorKind::Internal, "create", "cannot read the secrets").with_source(error);
                Some(Arc::new(reading.map_err(failed)??))
            }
            true => None,
        };
        let interception = match secrets.is_some() || rules.intercepts() {
            true => Some(Interception { authority: Authority::generate()?, roots: Roots::of_host().await? }),
            false => None,
        };
        Ok(Self { rules, secrets, declared, interception })
    }

    /// Returns the variables of programs in the sandbox: placeholders of secrets, and the path of the file of
    /// certificates in this directory.
    pub fn variables(&self, directory: &str) -> Vec<(String, String)> {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let secrets = self.secrets.iter().flat_map(|secrets| secrets.variables()).map(pair);
        let [bundle, key_store] = FILES.map(|name| format!("{directory}/{name}"));
        let bundles = BUNDLE_VARIABLES.iter().map(|name| pair((name, &bundle)));
        let java = format!("-Djavax.net.ssl.trustStore={key_store} -Djavax.net.ssl.trustStoreType=JKS");
        let certificates = bundles.chain([("JAVA_TOOL_OPTIONS".to_owned(), java)]);
        secrets.chain(certificates.filter(|_| self.interception.is_some())).collect()
    }

    /// Returns true if the sandbox needs files of certificates.
    pub fn has_files(&self) -> bool {
        self.interception.is_some()
    }

    /// Returns the names and contents of the files of certificates: those that the host trusts, and the sandbox's
    /// authority. There are none if TLS is not intercepted.
    pub fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let Some(Interception { authority, roots }) = &self.interception else { return Vec::new() };
        FILES.into_iter().zip([authority.bundle(roots).into_bytes(), authority.key_store(roots)]).collect()
    }
}

/// Lets the kernel write no core dump of this process, which would contain the values.
fn avoid_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Core);
    // The kernel pipes no dump to a handler with a limit of 1, but does with 0. Neither is enough for a file.
    let current = limit.maximum.map_or(1, |max| max.min(1));
    // Lowering the current limit needs no right.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(current), ..limit });
}
