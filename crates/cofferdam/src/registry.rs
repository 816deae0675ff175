//! The one place that names backends: which exist, which are in this build, how to make one, what it needs.

use std::sync::Arc;

use cofferdam_conformance::{Target, UnixPrograms};
use cofferdam_contract::{Backend, Error, ErrorKind, Level, Result, Spec};
use cofferdam_engine::{PoolConfig, PooledBackend};
pub use cofferdam_process::ForkedLauncher;
use cofferdam_process::{LauncherStart, ProcessBackend, ProcessConfig};
use cofferdam_simulated::{SimulatedBackend, SimulatedPrograms};
use serde::Serialize;

/// The backend used when nothing else is asked for.
pub const DEFAULT_BACKEND: &str = "process";

/// What is known about a backend without making it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BackendInfo {
    /// The name that options and configuration use.
    pub name: &'static str,
    /// How thick its wall is.
    pub level: Level,
    /// Whether this build has it.
    pub built_in: bool,
    /// One line for people.
    pub summary: &'static str,
}

/// Every backend that has a name, thinnest wall first.
pub const KNOWN: &[BackendInfo] = &[
    known("simulated", Level::Simulated, true, "no wall at all, deterministic; for tests"),
    known("wasm", Level::Wasm, false, "WebAssembly inside Cofferdam's own process"),
    known("process", Level::Process, true, "a process behind namespaces, filters and control groups"),
    known("docker", Level::Container, false, "a container of the Docker or Podman engine"),
    known("qemu", Level::Vm, false, "a virtual machine of QEMU"),
    known("firecracker", Level::Vm, false, "a microVM of Firecracker"),
    known("apple-vz", Level::Vm, false, "a virtual machine of macOS"),
    known("remote", Level::Vm, false, "another Cofferdam server"),
    known("e2b", Level::Vm, false, "the E2B cloud"),
];

const fn known(name: &'static str, level: Level, built_in: bool, summary: &'static str) -> BackendInfo {
    BackendInfo { name, level, built_in, summary }
}

/// The backends of this build, thinnest wall first.
pub fn built_in() -> impl Iterator<Item = &'static BackendInfo> {
    KNOWN.iter().filter(|info| info.built_in)
}

/// Finds a backend of this build by name; `local` means `process`.
///
/// A name that is known but not in this build is `Unsupported`, any other is `InvalidInput`.
pub fn find(name: &str) -> Result<&'static BackendInfo> {
    let name = if name == "local" { "process" } else { name };
    match KNOWN.iter().find(|info| info.name == name) {
        Some(info) if info.built_in => Ok(info),
        Some(_) => Err(Error::unsupported("select backend", format!("the backend '{name}' is not in this version"))
            .with_remedy(format!("use one of: {}", names(built_in())))),
        None => Err(Error::invalid("select backend", format!("there is no backend '{}'", name.escape_debug()))
            .with_remedy(format!("use one of: {}", names(built_in())))),
    }
}

/// Chooses the backend for at least `level`: the default one if its wall is thick enough, else the thinnest that is.
pub fn for_level(level: Level) -> Result<&'static BackendInfo> {
    let default = find(DEFAULT_BACKEND)?;
    if default.level >= level {
        return Ok(default);
    }
    built_in().find(|info| info.level >= level).ok_or_else(|| {
        let have: Vec<String> = built_in().map(|info| format!("{} (level {})", info.name, info.level)).collect();
        Error::unsupported("select backend", format!("no backend of this version reaches level {level}"))
            .with_remedy(format!("ask for a level that one of these has: {}", have.join(", ")))
    })
}

/// The backend of this name, with programs that its guests can run, for the conformance kit.
pub fn conformance_target(name: &str) -> Result<Target> {
    target_of(name, backend(name)?)
}

/// As [`conformance_target`], through a pool of that backend, which is to be shut down after the run. Must be called in
/// a tokio runtime.
pub fn pooled_conformance_target(name: &str) -> Result<(Target, Arc<PooledBackend>)> {
    let pooled = Arc::new(pooled(name, Spec::default(), PoolConfig::default())?);
    let target = target_of(name, Arc::clone(&pooled) as _)?;
    Ok((target, pooled))
}

fn target_of(name: &str, backend: Arc<dyn Backend>) -> Result<Target> {
    Ok(match find(name)?.name {
        "simulated" => Target::new(backend, SimulatedPrograms),
        _ => Target::new(backend, UnixPrograms::default()),
    })
}

/// Makes a pool of the backend of this name. Must be called in a tokio runtime.
pub fn pooled(name: &str, template: Spec, config: PoolConfig) -> Result<PooledBackend> {
    PooledBackend::new(backend(name)?, template, config)
}

/// Makes the backend of this name, for sandbox after sandbox.
pub fn backend(name: &str) -> Result<Arc<dyn Backend>> {
    make(name, ProcessConfig::default())
}

/// Makes the backend of this name for a single sandbox: it prepares nothing for others to come.
pub fn backend_for_one(name: &str) -> Result<Arc<dyn Backend>> {
    backend_forked(name, None)
}

/// The same, with a launcher that was forked at the very start of the program, if one was. See [`ForkedLauncher`].
pub fn backend_forked(name: &str, launcher: Option<ForkedLauncher>) -> Result<Arc<dyn Backend>> {
    let launcher = launcher.map_or(LauncherStart::Execute, LauncherStart::Forked);
    make(name, ProcessConfig { prepare_ahead: false, launcher, ..ProcessConfig::default() })
}

fn make(name: &str, process: ProcessConfig) -> Result<Arc<dyn Backend>> {
    match find(name)?.name {
        "process" => Ok(Arc::new(ProcessBackend::new(process)?)),
        "simulated" => Ok(Arc::new(SimulatedBackend::new(cofferdam_simulated::Config::default()))),
        name => Err(Error::new(
            ErrorKind::Internal,
            "select backend",
            format!("the backend '{name}' is listed but not registered"),
        )),
    }
}

/// How one thing that a backend needs stands on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingState {
    /// There and good.
    Ok,
    /// There, but it enforces less than it could.
    Weaker,
    /// Not there.
    Missing,
}

/// One thing that a backend needs, and how it stands on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is, such as `user namespaces`.
    pub name: String,
    /// How it stands.
    pub state: FindingState,
    /// What was seen.
    pub detail: String,
    /// How to make it better, if it is not ok and a way is known.
    pub remedy: Option<String>,
}

/// What a backend can do on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// The backend.
    pub backend: &'static str,
    /// How thick its wall is.
    pub level: Level,
    /// Whether a sandbox with the default limits and every protection could be made just now.
    pub usable: bool,
    /// What was looked at.
    pub items: Vec<Finding>,
}

/// Examines this host for one backend, and tries to make a sandbox with the default limits.
pub async fn doctor(name: &str) -> Result<DoctorReport> {
    let info = find(name)?;
    let mut items = examine(info.name).await;
    let trial = trial(info.name).await;
    let usable = trial.state == FindingState::Ok;
    items.push(trial);
    Ok(DoctorReport { backend: info.name, level: info.level, usable, items })
}

async fn examine(name: &str) -> Vec<Finding> {
    match name {
        "process" => cofferdam_process::doctor().await.into_iter().map(Finding::from).collect(),
        _ => Vec::new(),
    }
}

impl From<cofferdam_process::Finding> for Finding {
    fn from(finding: cofferdam_process::Finding) -> Self {
        let state = match finding.state {
            cofferdam_process::FindingState::Ok => FindingState::Ok,
            cofferdam_process::FindingState::Weaker => FindingState::Weaker,
            cofferdam_process::FindingState::Missing => FindingState::Missing,
        };
        Self { name: finding.name, state, detail: finding.detail, remedy: finding.remedy }
    }
}

async fn trial(name: &str) -> Finding {
    let attempt = async {
        let sandbox = backend(name)?.create(Spec::default()).await?;
        sandbox.close().await
    };
    let (state, detail, remedy) = match attempt.await {
        Ok(()) => (FindingState::Ok, "made and closed, with the default limits".to_owned(), None),
        Err(error) => (FindingState::Missing, error.to_string(), error.remedy().map(str::to_owned)),
    };
    Finding { name: "a sandbox".to_owned(), state, detail, remedy }
}

fn names<'a>(infos: impl Iterator<Item = &'a BackendInfo>) -> String {
    infos.map(|info| info.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_explained() {
        assert_eq!(find("local").unwrap().name, "process");
        assert_eq!(find("docker").unwrap_err().kind(), ErrorKind::Unsupported);
        let error = find("dokcer").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.remedy(), Some("use one of: simulated, process"));
    }

    #[test]
    fn a_level_is_a_floor() {
        assert_eq!(for_level(Level::Simulated).unwrap().name, "process");
        assert_eq!(for_level(Level::Process).unwrap().name, "process");
        assert_eq!(for_level(Level::Vm).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn known_backends_are_sorted_by_level_and_named_once() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].level <= pair[1].level && pair[0].name != pair[1].name));
    }
}
