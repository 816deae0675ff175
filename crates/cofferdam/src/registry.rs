//! Registry of backends: known backends, backends of this build, their creation and their requirements.
//!
//! `registry/table.rs` has one row for each backend, with the functions in the file that has the backend's name.

#[cfg(feature = "images")]
pub mod base;
#[cfg(feature = "container")]
mod container;
#[cfg(feature = "e2b")]
mod e2b;
#[cfg(any(feature = "images", feature = "vm"))]
pub mod image_store;
#[cfg(feature = "container")]
pub mod images;
mod process;
#[cfg(feature = "server")]
mod remote;
#[cfg(feature = "images")]
mod roots;
mod setup;
#[cfg(feature = "conformance")]
mod simulated;
mod table;
#[cfg(not(all(feature = "container", feature = "e2b", feature = "server", feature = "vm", feature = "wasm")))]
mod unavailable;
#[cfg(feature = "vm")]
mod vm;
#[cfg(feature = "vm")]
pub mod vms;
#[cfg(feature = "wasm")]
mod wasm;

#[cfg(any(feature = "images", feature = "vm", feature = "wasm"))]
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_changes::sandbox::CopyOnWriteByCopy;
pub use cofferdam_code::MODULE_INTERPRETER;
#[cfg(feature = "conformance")]
use cofferdam_conformance::Target;
#[cfg(feature = "container")]
pub use cofferdam_container::{ContainerSettings, PullPolicy};
use cofferdam_contract::{Backend, Error, Finding, FindingState, Level, Result, Spec};
#[cfg(feature = "e2b")]
pub use cofferdam_e2b::E2bSettings;
use cofferdam_engine::{PoolConfig, PooledBackend};
pub use cofferdam_process::ForkedLauncher;
#[cfg(feature = "server")]
pub use cofferdam_server::remote::RemoteSettings;
#[cfg(feature = "vm")]
pub use cofferdam_vm::{MakePolicy, VmSettings};
#[cfg(feature = "wasm")]
pub use cofferdam_wasm::WasmSettings;
use serde::Serialize;
use serde_json::Value;

pub use setup::{BackendOptions, ImageSettings, Setup};
pub use table::build_with;
use table::{Creation, Named, TABLE, use_one_of};
#[cfg(not(feature = "e2b"))]
pub use unavailable::UnavailableSettings as E2bSettings;
#[cfg(not(feature = "server"))]
pub use unavailable::UnavailableSettings as RemoteSettings;
#[cfg(not(feature = "wasm"))]
pub use unavailable::UnavailableSettings as WasmSettings;
#[cfg(not(feature = "container"))]
pub use unavailable::{UnavailableSettings as ContainerSettings, UnavailableValue as PullPolicy};
#[cfg(not(feature = "vm"))]
pub use unavailable::{UnavailableSettings as VmSettings, UnavailableValue as MakePolicy};
#[cfg(feature = "wasm")]
pub use wasm::{Installed, WASM_LANGUAGES, install, wasm_cache};

/// The default backend.
pub const DEFAULT_BACKEND: &str = cofferdam_process::NAME;

/// The backend that runs WebAssembly modules.
pub const MODULE_BACKEND: &str = "wasm";

/// The backend that creates containers.
pub const CONTAINER_BACKEND: &str = "docker";

/// The backend that creates VMs.
pub const VM_BACKEND: &str = "vm";

/// Static information about a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BackendInfo {
    /// The name that options and configuration use.
    pub name: &'static str,
    /// Its isolation level.
    pub level: Level,
    /// True if this build has it.
    pub built_in: bool,
    /// A one-line description.
    pub summary: &'static str,
}

/// Returns all known backends, lowest isolation level first.
pub fn known() -> impl Iterator<Item = &'static BackendInfo> {
    TABLE.iter().map(|row| &row.info)
}

/// Returns the backends of this build, lowest isolation level first.
pub fn built_in() -> impl Iterator<Item = &'static BackendInfo> {
    known().filter(|info| info.built_in)
}

/// Returns true if the sandboxes of this backend are those of another server. They are never prepared by default, because
/// each costs something there.
pub fn is_external(name: &str) -> bool {
    TABLE.iter().any(|row| row.info.name == name && row.is_external)
}

/// Finds a backend of this build by name. `local` means `process`, `docker:runsc` is `docker` with the OCI runtime
/// `runsc`, `vm:qemu` and `qemu`, `vm:firecracker` and `firecracker` are `vm` with that VMM ([`setup_of`]).
///
/// Returns `Unsupported` for a known name that is not in this build, and `InvalidInput` for any other name.
pub fn find(name: &str) -> Result<&'static BackendInfo> {
    Named::find(name).map(|named| named.info)
}

/// Returns the settings in a backend's name, as in `docker:runsc`, `vm:qemu` and `firecracker`.
pub fn setup_of(name: &str) -> Result<Setup> {
    Named::find(name).map(|named| named.setup())
}

/// Returns the name of a backend with the qualifier that stands for these settings, such as `docker:runsc`.
pub fn qualified_name(name: &str, setup: &Setup) -> Result<String> {
    let Named { info, implementation, .. } = Named::find(name)?;
    Ok(match (implementation.qualifier)(setup) {
        Some(qualifier) => format!("{}:{qualifier}", info.name),
        None => info.name.to_owned(),
    })
}

/// Returns a one-line fingerprint of the settings that affect sandboxes of this backend, or `None` for backends without
/// settings. That of VMs includes the current content of their image, which can be rebuilt under the same name.
pub fn fingerprint(name: &str, setup: &Setup) -> Result<Option<String>> {
    Named::find(name).map(|named| (named.implementation.fingerprint)(setup))
}

/// Returns the settings that this backend takes as attributes of a spec.
pub fn attributes(name: &str, setup: &Setup) -> Result<Vec<(String, Value)>> {
    Named::find(name).map(|named| (named.implementation.attributes)(setup))
}

/// A step of long work and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStep {
    /// Description of the step.
    pub what: String,
    /// Completed bytes and total bytes, if known.
    pub bytes: Option<(u64, u64)>,
}

/// Callback for the beginning and progress of each step.
pub type ImageProgress = Arc<dyn Fn(ImageStep) + Send + Sync>;

/// Returns the backend for at least `level`: the default backend if its level suffices, else the one with the lowest
/// level that does.
pub fn for_level(level: Level) -> Result<&'static BackendInfo> {
    let default = find(DEFAULT_BACKEND)?;
    if default.level >= level {
        return Ok(default);
    }
    let chosen = TABLE.iter().filter(|row| row.info.built_in && !row.is_by_name).map(|row| &row.info);
    chosen.into_iter().find(|info| info.level >= level).ok_or_else(|| {
        let error = Error::unsupported("select backend", format!("no backend of this build reaches level {level}"));
        match TABLE.iter().filter(|row| row.info.level >= level).find_map(|row| row.feature) {
            Some(feature) => error.with_remedy(build_with(feature)),
            None => error.with_remedy(use_one_of()),
        }
    })
}

/// Creates the backend of this name, with programs for its guests, for the conformance suite.
#[cfg(feature = "conformance")]
pub fn conformance_target(name: &str) -> Result<Target> {
    Ok((Named::find(name)?.implementation.target)(backend(name)?))
}

/// Creates a target like [`conformance_target`], with a pool of the backend. The caller shuts the pool down after the
/// run. Must be called in a tokio runtime.
#[cfg(feature = "conformance")]
pub fn pooled_conformance_target(name: &str) -> Result<(Target, Arc<PooledBackend>)> {
    let pooled = Arc::new(pooled(name, Spec::default(), PoolConfig::default())?);
    let target = (Named::find(name)?.implementation.target)(Arc::clone(&pooled) as _);
    Ok((target, pooled))
}

/// Creates a pool of the backend of this name. Must be called in a tokio runtime.
pub fn pooled(name: &str, template: Spec, config: PoolConfig) -> Result<PooledBackend> {
    PooledBackend::new(backend(name)?, template, config)
}

/// Creates the backend of this name, for any number of sandboxes.
pub fn backend(name: &str) -> Result<Arc<dyn Backend>> {
    backend_with(name, &Setup::from_environment()?)
}

/// Creates a backend like [`backend`], with settings. Settings in the name take precedence.
pub fn backend_with(name: &str, setup: &Setup) -> Result<Arc<dyn Backend>> {
    create(name, Creation { is_single: false, launcher: None, setup, progress: silent() })
}

/// Creates the backend of this name for a single sandbox: it prepares nothing for later ones.
pub fn backend_for_one(name: &str) -> Result<Arc<dyn Backend>> {
    backend_forked(name, None, &Setup::from_environment()?, silent())
}

/// Creates a backend like [`backend_for_one`], with settings, a launcher that was forked at program start if there is
/// one (see [`ForkedLauncher`]), and a callback for the progress of pulling or building an image.
pub fn backend_forked(
    name: &str,
    launcher: Option<ForkedLauncher>,
    setup: &Setup,
    progress: ImageProgress,
) -> Result<Arc<dyn Backend>> {
    create(name, Creation { is_single: true, launcher, setup, progress })
}

fn create(name: &str, creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    let named = Named::find(name)?;
    let Creation { is_single, launcher, setup, progress } = creation;
    let setup = named.setup().or(setup.clone());
    let backend = (named.implementation.create)(Creation { is_single, launcher, setup: &setup, progress })?;
    // Backends without overlays get copy-on-write workspaces, too.
    Ok(CopyOnWriteByCopy::wrap(backend))
}

fn silent() -> ImageProgress {
    Arc::new(|_| {})
}

/// Returns the directory `cofferdam` in the user's cache directory, or `None` for a user without a cache directory.
#[cfg(any(feature = "images", feature = "vm", feature = "wasm"))]
fn cache() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("cofferdam"))
}

/// Returns a directory in [`cache`].
#[cfg(any(feature = "images", feature = "wasm"))]
fn cache_directory(name: &str) -> Option<PathBuf> {
    cache().map(|cache| cache.join(name))
}

/// A report on a backend on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// The backend.
    pub backend: &'static str,
    /// Its isolation level.
    pub level: Level,
    /// True if a sandbox with the default limits and every protection was just created, or if no creation was tried and
    /// all requirements are met.
    pub usable: bool,
    /// True if a sandbox was created as a test. Creating a VM takes too long.
    pub tried: bool,
    /// The examined requirements.
    pub items: Vec<Finding>,
}

/// Examines this host for one backend. Creates a sandbox with the default limits as a test, unless that takes seconds.
pub async fn doctor(name: &str, setup: &Setup) -> Result<DoctorReport> {
    let named = Named::find(name)?;
    let all = named.setup().or(setup.clone());
    let Named { info, implementation, .. } = named;
    let mut items = (implementation.examine)(&all).await;
    let tried = implementation.is_tried;
    if tried {
        items.push(trial(name, setup).await);
    }
    let usable = match items.last() {
        Some(trial) if tried => trial.state == FindingState::Ok,
        _ => items.iter().all(|item| item.state != FindingState::Missing),
    };
    Ok(DoctorReport { backend: info.name, level: info.level, usable, tried, items })
}

/// The name of the finding about a sandbox that was created as a test.
const TRIAL: &str = "a sandbox";

async fn trial(name: &str, setup: &Setup) -> Finding {
    let attempt = async {
        let sandbox = backend_with(name, setup)?.create(Spec::default()).await?;
        sandbox.close().await
    };
    match attempt.await {
        Ok(()) => Finding::new(TRIAL, FindingState::Ok, "created and closed with the default limits", None),
        Err(error) => Finding::missing(TRIAL, &error),
    }
}

#[cfg(all(test, feature = "container", feature = "vm", feature = "wasm"))]
mod tests {
    use cofferdam_contract::ErrorKind;

    use super::*;

    #[test]
    fn names_are_found_or_explained() {
        use vms::Driver;
        let driver = |name: &str| setup_of(name).unwrap().vms.driver;
        let runtime = |name: &str| setup_of(name).unwrap().containers.runtime;
        assert_eq!(find("local").unwrap().name, "process");
        for (name, expected) in [
            ("qemu", Some(Driver::Qemu)),
            ("vm:qemu", Some(Driver::Qemu)),
            ("firecracker", Some(Driver::Firecracker)),
            ("vm:firecracker", Some(Driver::Firecracker)),
            ("vm", None),
        ] {
            assert_eq!((find(name).unwrap().name, driver(name), runtime(name)), ("vm", expected, None), "{name}");
        }
        let error = find("apple-vz").unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.remedy().is_some(), "{error}");
        assert_eq!(find("docker:runsc").unwrap().name, "docker");
        assert_eq!((runtime("docker:runsc").as_deref(), runtime("docker")), (Some("runsc"), None));
        for name in ["docker:", "process:runsc", "local:x", ":runsc", "vm:", "vm:xen", "qemu:x"] {
            assert_eq!(find(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
        }
        let error = find("dokcer").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.remedy(), Some(&*use_one_of()));
    }

    #[test]
    fn a_level_is_a_floor() {
        assert_eq!(for_level(Level::Simulated).unwrap().name, "process");
        assert_eq!(for_level(Level::Wasm).unwrap().name, "process");
        assert_eq!(for_level(Level::Process).unwrap().name, "process");
        assert_eq!(for_level(Level::Container).unwrap().name, "docker");
        assert_eq!(for_level(Level::Vm).unwrap().name, "vm");
    }
}
