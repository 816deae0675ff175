//! Registry of backends: known backends, backends of this build, their creation and their requirements.

mod features;
#[cfg(feature = "container")]
pub mod images;
pub mod machines;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

pub use cofferdam_code::MODULE_INTERPRETER;
#[cfg(feature = "conformance")]
use cofferdam_conformance::{Target, UnixPrograms};
#[cfg(feature = "container")]
use cofferdam_container::{DockerBackend, DockerConfig, PullPolicy};
use cofferdam_contract::{Backend, Error, ErrorKind, Finding, FindingState, Level, Result, Spec};
use cofferdam_engine::{PoolConfig, PooledBackend};
pub use cofferdam_process::ForkedLauncher;
use cofferdam_process::{LauncherStart, ProcessBackend, ProcessConfig};
#[cfg(feature = "conformance")]
use cofferdam_simulated::{SimulatedBackend, SimulatedPrograms};
#[cfg(feature = "wasm")]
use cofferdam_wasm::{WasmBackend, WasmConfig, WasmPrograms};
pub use features::build_with;
use features::feature_of;
use serde::Serialize;

/// The default backend.
pub const DEFAULT_BACKEND: &str = "process";

/// The backend that runs WebAssembly modules.
pub const MODULE_BACKEND: &str = "wasm";

/// The backend that creates containers.
pub const CONTAINER_BACKEND: &str = "docker";

/// The backend that creates VMs.
pub const MACHINE_BACKEND: &str = "vm";

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

/// All known backends, lowest isolation level first.
pub const KNOWN: &[BackendInfo] = &[
    known("simulated", Level::Simulated, cfg!(feature = "conformance"), "no isolation, deterministic; for tests"),
    known("wasm", Level::Wasm, cfg!(feature = "wasm"), "WebAssembly inside Cofferdam's own process"),
    known("process", Level::Process, true, "a process isolated by namespaces, filters and control groups"),
    known("docker", Level::Container, cfg!(feature = "container"), "a container of the Docker or Podman engine"),
    known("vm", Level::Vm, cfg!(feature = "vm"), "a VM of QEMU or Firecracker with its own kernel"),
    known("apple-vz", Level::Vm, false, "a VM of macOS"),
    known("remote", Level::Vm, false, "another Cofferdam server"),
    known("e2b", Level::Vm, false, "the E2B cloud"),
];

const fn known(name: &'static str, level: Level, built_in: bool, summary: &'static str) -> BackendInfo {
    BackendInfo { name, level, built_in, summary }
}

/// Returns the backends of this build, lowest isolation level first.
pub fn built_in() -> impl Iterator<Item = &'static BackendInfo> {
    KNOWN.iter().filter(|info| info.built_in)
}

/// Finds a backend of this build by name. `local` means `process`, `docker:runsc` is `docker` with the OCI runtime
/// `runsc` ([`runtime`]), `vm:qemu` and `qemu`, `vm:firecracker` and `firecracker` are `vm` with that VMM ([`driver`]).
///
/// Returns `Unsupported` for a known name that is not in this build, and `InvalidInput` for any other name.
pub fn find(name: &str) -> Result<&'static BackendInfo> {
    let (name, kind) = name.split_once(':').map_or((name, None), |(name, kind)| (name, Some(kind)));
    let name = match (name, kind) {
        ("local", None) => "process",
        ("qemu" | "firecracker", None) | (MACHINE_BACKEND, Some("qemu" | "firecracker")) => MACHINE_BACKEND,
        (_, None) => name,
        (CONTAINER_BACKEND, Some(kind)) if !kind.is_empty() => name,
        (_, Some(kind)) => {
            let what = format!("there is no backend '{}:{}'", name.escape_debug(), kind.escape_debug());
            return Err(Error::invalid("select backend", what).with_remedy(format!(
                "append a runtime to {CONTAINER_BACKEND}, such as docker:runsc, or a VMM to {MACHINE_BACKEND}: \
                 {MACHINE_BACKEND}:qemu or {MACHINE_BACKEND}:firecracker"
            )));
        }
    };
    match KNOWN.iter().find(|info| info.name == name) {
        Some(info) if info.built_in => Ok(info),
        Some(_) => Err(match feature_of(name) {
            Some(feature) => Error::unsupported("select backend", format!("this build has no backend '{name}'"))
                .with_remedy(build_with(feature)),
            None => Error::unsupported("select backend", format!("the backend '{name}' is not in this version"))
                .with_remedy(format!("use one of: {}", names(built_in()))),
        }),
        None => Err(Error::invalid("select backend", format!("there is no backend '{}'", name.escape_debug()))
            .with_remedy(format!("use one of: {}", names(built_in())))),
    }
}

/// Returns the OCI runtime in a backend's name, as in `docker:runsc`.
pub fn runtime(name: &str) -> Option<&str> {
    name.split_once(':').filter(|(name, _)| *name == CONTAINER_BACKEND).map(|(_, runtime)| runtime)
}

/// Returns the VMM in a backend's name, as in `vm:qemu` and `firecracker`.
pub fn driver(name: &str) -> Option<machines::Driver> {
    match name.strip_prefix("vm:").unwrap_or(name) {
        "qemu" => Some(machines::Driver::Qemu),
        "firecracker" => Some(machines::Driver::Firecracker),
        _ => None,
    }
}

/// The policy for an image that the container engine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pull {
    /// Fail, and report how to pull it.
    #[default]
    Never,
    /// Pull it from its registry.
    Missing,
}

impl FromStr for Pull {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            _ => Err(format!("'{}' is not a pull policy; use never or missing", text.escape_debug())),
        }
    }
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

/// Settings of the container backend that are not in a spec.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Containers {
    /// The engine's address: `unix:///path`, an absolute path or `tcp://host:port`. Default: Docker's default sockets,
    /// then Podman's.
    pub host: Option<String>,
    /// The caller's runtime directory, which contains the sockets of rootless engines.
    pub runtime_dir: Option<PathBuf>,
    /// The engine's name of the OCI runtime.
    pub runtime: Option<String>,
    /// The image of specs that name none.
    pub image: Option<String>,
    /// The policy for a missing image.
    pub pull: Pull,
    /// The images that a spec may name, besides the default one; `None` allows every image.
    pub images_allowed: Option<Vec<String>>,
}

impl Containers {
    /// Reads `DOCKER_HOST` and `XDG_RUNTIME_DIR` from the environment.
    pub fn from_environment() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            host: set("DOCKER_HOST").map(|host| host.to_string_lossy().into_owned()),
            runtime_dir: set("XDG_RUNTIME_DIR").map(PathBuf::from),
            ..Self::default()
        }
    }

    /// Returns these settings with another runtime, if one is named.
    fn with_runtime(&self, runtime: Option<&str>) -> Self {
        let runtime = runtime.map(str::to_owned).or_else(|| self.runtime.clone());
        Self { runtime, ..self.clone() }
    }

    /// Returns a one-line fingerprint. Settings with different fingerprints create different containers.
    pub fn fingerprint(&self) -> String {
        let Self { host, runtime_dir, runtime, image, pull, images_allowed } = self;
        format!("{host:?} {runtime_dir:?} {runtime:?} {image:?} {pull:?} {images_allowed:?}")
    }

    #[cfg(feature = "container")]
    fn config(&self) -> DockerConfig {
        let Self { host, runtime_dir, runtime, image, pull, images_allowed } = self.clone();
        let base = DockerConfig::default();
        DockerConfig {
            host,
            runtime_dir,
            runtime,
            image: image.unwrap_or(base.image),
            pull: match pull {
                Pull::Never => PullPolicy::Never,
                Pull::Missing => PullPolicy::Missing,
            },
            images: images_allowed,
            engine: base.engine,
            deadlines: base.deadlines,
        }
    }
}

/// Settings of backends that are not in a spec.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setup {
    /// Settings of the container backend.
    pub containers: Containers,
    /// Settings of the VM backend.
    pub machines: machines::Machines,
}

impl Setup {
    /// Reads the environment variables that other programs use too.
    pub fn from_environment() -> Self {
        Containers::from_environment().into()
    }

    /// Returns a one-line fingerprint of the settings that affect sandboxes of this backend, or `None` for backends
    /// without settings. That of VMs includes the current content of their image, which can be rebuilt under the same
    /// name.
    pub fn fingerprint(&self, backend: &str) -> Option<String> {
        match backend {
            CONTAINER_BACKEND => Some(self.containers.fingerprint()),
            MACHINE_BACKEND => Some(format!("{} {:?}", self.machines.fingerprint(), self.machines.image_key())),
            _ => None,
        }
    }
}

impl From<Containers> for Setup {
    fn from(containers: Containers) -> Self {
        Self { containers, ..Self::default() }
    }
}

/// Returns the backend for at least `level`: the default backend if its level suffices, else the one with the lowest
/// level that does.
pub fn for_level(level: Level) -> Result<&'static BackendInfo> {
    let default = find(DEFAULT_BACKEND)?;
    if default.level >= level {
        return Ok(default);
    }
    built_in().find(|info| info.level >= level).ok_or_else(|| {
        let error = Error::unsupported("select backend", format!("no backend of this build reaches level {level}"));
        match KNOWN.iter().filter(|info| info.level >= level).find_map(|info| feature_of(info.name)) {
            Some(feature) => error.with_remedy(build_with(feature)),
            None => error.with_remedy(format!("use one of: {}", names(built_in()))),
        }
    })
}

/// Creates the backend of this name, with programs for its guests, for the conformance suite.
#[cfg(feature = "conformance")]
pub fn conformance_target(name: &str) -> Result<Target> {
    target_of(name, backend(name)?)
}

/// Creates a target like [`conformance_target`], with a pool of the backend. The caller shuts the pool down after the
/// run. Must be called in a tokio runtime.
#[cfg(feature = "conformance")]
pub fn pooled_conformance_target(name: &str) -> Result<(Target, Arc<PooledBackend>)> {
    let pooled = Arc::new(pooled(name, Spec::default(), PoolConfig::default())?);
    let target = target_of(name, Arc::clone(&pooled) as _)?;
    Ok((target, pooled))
}

#[cfg(feature = "conformance")]
fn target_of(name: &str, backend: Arc<dyn Backend>) -> Result<Target> {
    Ok(match find(name)?.name {
        "simulated" => Target::new(backend, SimulatedPrograms),
        #[cfg(feature = "wasm")]
        MODULE_BACKEND => Target::new(backend, WasmPrograms),
        _ => Target::new(backend, UnixPrograms::default()),
    })
}

/// Creates a pool of the backend of this name. Must be called in a tokio runtime.
pub fn pooled(name: &str, template: Spec, config: PoolConfig) -> Result<PooledBackend> {
    PooledBackend::new(backend(name)?, template, config)
}

/// Creates the backend of this name, for any number of sandboxes.
pub fn backend(name: &str) -> Result<Arc<dyn Backend>> {
    backend_with(name, &Setup::from_environment())
}

/// Creates a backend like [`backend`], with settings for containers and VMs.
pub fn backend_with(name: &str, setup: &Setup) -> Result<Arc<dyn Backend>> {
    create_backend(name, ProcessConfig::default(), setup, silent())
}

/// Creates the backend of this name for a single sandbox: it prepares nothing for later ones.
pub fn backend_for_one(name: &str) -> Result<Arc<dyn Backend>> {
    backend_forked(name, None, &Setup::from_environment(), silent())
}

/// Creates a backend like [`backend_for_one`], with settings, a launcher that was forked at program start if there is
/// one (see [`ForkedLauncher`]), and a callback for the progress of pulling or building an image.
pub fn backend_forked(
    name: &str,
    launcher: Option<ForkedLauncher>,
    setup: &Setup,
    progress: ImageProgress,
) -> Result<Arc<dyn Backend>> {
    let launcher = launcher.map_or(LauncherStart::Execute, LauncherStart::Forked);
    create_backend(name, ProcessConfig { prepare_ahead: false, launcher, ..ProcessConfig::default() }, setup, progress)
}

fn silent() -> ImageProgress {
    Arc::new(|_| {})
}

#[cfg_attr(
    not(any(feature = "container", feature = "vm")),
    expect(unused_variables, reason = "only backends that have images have settings and take long")
)]
fn create_backend(
    name: &str,
    process: ProcessConfig,
    setup: &Setup,
    progress: ImageProgress,
) -> Result<Arc<dyn Backend>> {
    match find(name)?.name {
        "process" => Ok(Arc::new(ProcessBackend::new(process)?)),
        #[cfg(feature = "conformance")]
        "simulated" => Ok(Arc::new(SimulatedBackend::new(cofferdam_simulated::Config::default()))),
        // Does not contact the engine before the first sandbox.
        #[cfg(feature = "container")]
        CONTAINER_BACKEND => Ok(Arc::new(container_backend(runtime(name), &setup.containers, progress)?)),
        // Does not examine the host before the first sandbox.
        #[cfg(feature = "vm")]
        MACHINE_BACKEND => Ok(Arc::new(machines::backend(&setup.machines.with_driver(driver(name)), progress)?)),
        // Does not start the compiler before the first module.
        #[cfg(feature = "wasm")]
        MODULE_BACKEND => Ok(Arc::new(wasm_backend())),
        name => Err(Error::new(
            ErrorKind::Internal,
            "select backend",
            format!("the backend '{name}' is listed but not registered"),
        )),
    }
}

/// Creates the container backend. A runtime in the backend's name takes precedence over that of the settings.
#[cfg(feature = "container")]
fn container_backend(runtime: Option<&str>, containers: &Containers, progress: ImageProgress) -> Result<DockerBackend> {
    DockerBackend::with_progress(&containers.with_runtime(runtime).config(), images::pulling(progress))
}

#[cfg(feature = "wasm")]
fn wasm_backend() -> WasmBackend {
    WasmBackend::new(WasmConfig { cache: wasm_cache(), ..WasmConfig::default() })
}

/// Returns the directory of this user's WebAssembly interpreters: `cofferdam/wasm` in the user's cache directory.
/// Returns `None` for a user without a cache directory.
#[cfg(feature = "wasm")]
pub fn wasm_cache() -> Option<PathBuf> {
    cache_directory("wasm")
}

/// Returns a directory below `cofferdam` in the user's cache directory, or `None` for a user without a cache directory.
#[cfg(any(feature = "container", feature = "vm", feature = "wasm"))]
fn cache_directory(name: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("cofferdam").join(name))
}

/// An installed WebAssembly interpreter.
#[cfg(feature = "wasm")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installed {
    /// The language, as `--lang` names it.
    pub language: &'static str,
    /// The version of its implementation.
    pub version: &'static str,
    /// Its module.
    pub module: PathBuf,
    /// The module's SHA-256.
    pub sha256: String,
    /// The licences of its components.
    pub licence: &'static str,
}

/// The languages that can be installed.
#[cfg(feature = "wasm")]
pub const WASM_LANGUAGES: [&str; 2] = ["python", "javascript"];

/// Installs a WebAssembly interpreter: downloads or builds it, checks it, compiles it for this host and starts it once.
/// Keeps an interpreter that is already installed. Reports each step to `progress`.
///
/// # Errors
///
/// Returns `InvalidInput` for another language, and `Unavailable` with a remedy if the interpreter cannot be obtained.
#[cfg(feature = "wasm")]
pub async fn install(language: &str, progress: impl Fn(String) + Clone + Send + 'static) -> Result<Installed> {
    use cofferdam_wasm::Language;
    let (name, language) = match language {
        "python" => (WASM_LANGUAGES[0], Language::Python),
        "javascript" => (WASM_LANGUAGES[1], Language::JavaScript),
        other => {
            let what = format!("there is no WebAssembly interpreter for '{}'", other.escape_debug());
            return Err(Error::invalid("setup", what).with_remedy("use python or javascript"));
        }
    };
    let cache = wasm_cache().ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "setup", "this user has no cache directory")
            .with_remedy("set HOME or XDG_CACHE_HOME")
    })?;
    let on_step = progress.clone();
    let found = cofferdam_wasm::obtain(&cache, language, move |step| on_step(step.to_string())).await?;
    wasm_backend().prepare(language, move |step| progress(step.to_string())).await?;
    let cofferdam_wasm::Interpreter { version, module, sha256, licence, .. } = found;
    Ok(Installed { language: name, version, module, sha256, licence })
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
    let info = find(name)?;
    let containers = setup.containers.with_runtime(runtime(name));
    let named = Setup { containers, machines: setup.machines.with_driver(driver(name)) };
    let mut items = examine(info, &named).await;
    let tried = info.name != MACHINE_BACKEND;
    if tried {
        items.push(trial(name, setup).await);
    }
    let usable = match items.last() {
        Some(trial) if tried => trial.state == FindingState::Ok,
        _ => items.iter().all(|item| item.state != FindingState::Missing),
    };
    Ok(DoctorReport { backend: info.name, level: info.level, usable, tried, items })
}

#[cfg_attr(
    not(any(feature = "container", feature = "vm")),
    expect(unused_variables, reason = "only backends that have images have settings")
)]
async fn examine(info: &BackendInfo, setup: &Setup) -> Vec<Finding> {
    match info.name {
        "process" => cofferdam_process::doctor().await,
        #[cfg(feature = "container")]
        CONTAINER_BACKEND => cofferdam_container::doctor(&setup.containers.config()).await,
        #[cfg(feature = "wasm")]
        MODULE_BACKEND => cofferdam_wasm::doctor(wasm_cache()).await,
        #[cfg(feature = "vm")]
        MACHINE_BACKEND => machines::examine(&setup.machines).await,
        _ => Vec::new(),
    }
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

fn names<'a>(infos: impl Iterator<Item = &'a BackendInfo>) -> String {
    infos.map(|info| info.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
    #[test]
    fn names_are_found_or_explained() {
        assert_eq!(find("local").unwrap().name, "process");
        for (name, expected) in [
            ("qemu", Some(machines::Driver::Qemu)),
            ("vm:qemu", Some(machines::Driver::Qemu)),
            ("firecracker", Some(machines::Driver::Firecracker)),
            ("vm:firecracker", Some(machines::Driver::Firecracker)),
            ("vm", None),
        ] {
            assert_eq!((find(name).unwrap().name, driver(name), runtime(name)), ("vm", expected, None), "{name}");
        }
        let error = find("remote").unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.remedy().is_some(), "{error}");
        assert_eq!(find("docker:runsc").unwrap().name, "docker");
        assert_eq!((runtime("docker:runsc"), runtime("docker")), (Some("runsc"), None));
        for name in ["docker:", "process:runsc", "local:x", ":runsc", "vm:", "vm:xen", "qemu:x"] {
            assert_eq!(find(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
        }
        let error = find("dokcer").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.remedy(), Some(&*format!("use one of: {}", names(built_in()))));
    }

    #[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
    #[test]
    fn a_level_is_a_floor() {
        assert_eq!(for_level(Level::Simulated).unwrap().name, "process");
        assert_eq!(for_level(Level::Wasm).unwrap().name, "process");
        assert_eq!(for_level(Level::Process).unwrap().name, "process");
        assert_eq!(for_level(Level::Container).unwrap().name, "docker");
        assert_eq!(for_level(Level::Vm).unwrap().name, "vm");
    }

    #[test]
    fn known_backends_are_sorted_by_level_and_named_once() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].level <= pair[1].level && pair[0].name != pair[1].name));
    }
}
