//! The remote backend's entry in the registry.

use std::sync::Arc;

use cofferdam_contract::configuration::Variables;
use cofferdam_contract::{Backend, Error, Finding, Result};
use cofferdam_server::remote::{RemoteBackend, RemoteConfig, RemoteSettings, doctor};

use super::Setup;
use super::table::{Creation, Examination, Implementation};
use crate::resident::Candidates;

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    qualified: |name| Setup {
        remote: RemoteSettings { backend: Some(name.to_owned()), ..RemoteSettings::default() },
        ..Setup::default()
    },
    qualifier: |setup| setup.remote.backend.clone(),
    fingerprint: |setup| Some(format!("{:?}", setup.remote)),
    is_tried: false,
    ..Implementation::new(create, examine)
};

fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(connect(config(creation.setup)?)?))
}

/// Reads the key only here: it is of no concern to other backends.
fn config(setup: &Setup) -> Result<RemoteConfig> {
    let lookup = |name: &str| std::env::var_os(name);
    // Like other clients, by default that of this user.
    let own = || format!("unix:{}", Candidates::read(lookup).socket().display());
    setup.remote.config(Variables::new(&lookup), own)
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

fn examine(setup: &Setup) -> Examination<'_> {
    Box::pin(async move {
        match config(setup) {
            Ok(config) => doctor(&config).await,
            Err(error) => vec![Finding::missing("server", &error)],
        }
    })
}
