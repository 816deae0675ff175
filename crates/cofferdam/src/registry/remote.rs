//! The remote backend's entry in the registry. The server is in the environment variables of its other clients.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_contract::{Backend, Error, Finding, FindingState, Result};
use cofferdam_server::TlsFiles;
use cofferdam_server::remote::{RemoteBackend, RemoteConfig};

use super::Setup;
use super::table::{Creation, Examination, Implementation};
use crate::resident::Candidates;

/// The address of the server.
const SERVER: &str = "COFFERDAM_SERVER";
/// The key.
const KEY: &str = "COFFERDAM_KEY";
/// A PEM file of authorities to trust instead of those of this host.
const CA: &str = "COFFERDAM_CA";
/// PEM files of the client's certificate and of its private key.
const CLIENT_CERT: &str = "COFFERDAM_CLIENT_CERT";
const CLIENT_KEY: &str = "COFFERDAM_CLIENT_KEY";

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    qualified: |name| Setup { remote: Some(name.to_owned()), ..Setup::default() },
    qualifier: |setup| setup.remote.clone(),
    fingerprint: |setup| Some(format!("{:?} {:?}", std::env::var_os(SERVER), setup.remote)),
    is_tried: false,
    ..Implementation::new(create, examine)
};

fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(connect(config(creation.setup)?)?))
}

fn config(setup: &Setup) -> Result<RemoteConfig> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    // Like other clients, by default that of this user.
    let own = || format!("unix:{}", Candidates::read(|name| std::env::var_os(name)).socket().display());
    let server = variable(SERVER).unwrap_or_else(own);
    let file = |name| variable(name).map(PathBuf::from);
    let certificate = TlsFiles::of(file(CLIENT_CERT), file(CLIENT_KEY))?;
    Ok(RemoteConfig { server, key: variable(KEY), ca: file(CA), certificate, backend: setup.remote.clone() })
}

/// Connects in a thread with a runtime of its own: the caller may be in one.
fn connect(config: RemoteConfig) -> Result<RemoteBackend> {
    let failed = || Error::new(cofferdam_contract::ErrorKind::Internal, "connect", "cannot start a runtime");
    let connecting = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| failed().with_source(error))?.block_on(RemoteBackend::connect(&config))
    });
    connecting.join().map_err(|_| failed())?
}

/// Asks the server for its backend.
fn examine(setup: &Setup) -> Examination<'_> {
    Box::pin(async move {
        const NAME: &str = "server";
        let connected: Result<String> = async {
            let config = config(setup)?;
            let backend = RemoteBackend::connect(&config).await?;
            Ok(format!("{} answers; its backend has level {}", config.server, backend.level()))
        }
        .await;
        vec![match connected {
            Ok(what) => Finding::new(NAME, FindingState::Ok, what, None),
            Err(error) => Finding::missing(NAME, &error),
        }]
    })
}
