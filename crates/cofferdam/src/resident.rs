//! Whether a run goes through a resident daemon, and which daemon that is.
//!
//! A daemon is used only where a run through it is the run that this process would have made: the same user, the same
//! build, the same backend, and interpreters looked for by the same PATH and HOME. Everything else is local.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use cofferdam::daemon::{Asked, Candidates, Connection, DaemonBackend, Place, Refusal, Surroundings};
use cofferdam::registry::machines::Driver;
use cofferdam::registry::{CONTAINER_BACKEND, MACHINE_BACKEND};
use cofferdam::{Backend, Error, ErrorKind, Result};
use serde::Deserialize;

use crate::args::RunArgs;
use crate::report;
use crate::settings::Settings;
use crate::style::Tone;

/// Whether a daemon runs something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonUse {
    /// One that is there; else it is run locally
    #[default]
    Auto,
    /// None
    Never,
    /// One that is started if none is there
    Start,
    /// One that is there; else it fails
    Require,
}

impl FromStr for DaemonUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false)
    }
}

/// Where this user's daemon is, or would be.
pub fn candidates() -> Candidates {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(Into::into);
    Candidates { runtime: path("XDG_RUNTIME_DIR"), temporary: path("TMPDIR") }
}

/// Whether there is a socket where this user's daemon would listen. Whether somebody does is not asked.
pub fn may_be_there() -> bool {
    candidates().socket().exists()
}

/// Names this build: the very file that runs, so that a daemon that was started from another one is told apart.
pub fn build() -> String {
    let file = std::fs::metadata("/proc/self/exe").map(|file| {
        format!("{:x}:{:x}:{:x}:{}.{:09}", file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec())
    });
    // Without it no two processes are of the same build.
    let file = file.unwrap_or_else(|_| format!("process {}", std::process::id()));
    format!("{} {file}", env!("CARGO_PKG_VERSION"))
}

/// What the process backend looks for interpreters with, and how a backend makes its sandboxes.
pub fn surroundings(settings: &Settings) -> Surroundings {
    let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let containers = settings.setup.fingerprint(settings.backend.name);
    Surroundings { search_path: text("PATH"), home: text("HOME"), containers }
}

/// The daemon that this run goes through, as a backend; `None` for a local run.
pub fn backend(args: &RunArgs, settings: &Settings, config: Option<&Path>) -> Result<Option<Arc<dyn Backend>>> {
    if settings.daemon == DaemonUse::Never {
        return Ok(None);
    }
    let asked =
        Asked { build: build(), surroundings: surroundings(settings), backend: settings.backend.name.to_owned() };
    let mut found = find(&asked);
    if settings.daemon == DaemonUse::Start && matches!(found, Ok(Err(Refusal::None))) {
        let said = start(args, settings, config);
        found = find(&asked);
        if args.output.verbose && !matches!(found, Ok(Ok(_))) {
            said.iter().for_each(|line| report::remark(line, Tone::Warning));
        }
    }
    match found {
        Ok(Ok(connection)) => {
            if args.output.verbose {
                report::remark(&format!("run by the daemon, process {}", connection.pid()), Tone::Good);
            }
            Ok(Some(Arc::new(DaemonBackend::from(connection))))
        }
        Ok(Err(refusal)) if settings.daemon == DaemonUse::Require => {
            let error = Error::new(ErrorKind::Unavailable, "run", refusal.to_string());
            Err(error.with_remedy(refusal.remedy()))
        }
        Err(error) if settings.daemon == DaemonUse::Require => Err(error),
        Ok(Err(refusal)) => Ok(local(args, &refusal.to_string())),
        Err(error) => Ok(local(args, &error.to_string())),
    }
}

fn local(args: &RunArgs, why: &str) -> Option<Arc<dyn Backend>> {
    if args.output.verbose {
        report::remark(&format!("run without a daemon: {why}"), Tone::Warning);
    }
    None
}

fn find(asked: &Asked) -> Result<Result<Connection, Refusal>> {
    match Place::open(candidates().directory())? {
        Some(place) => Connection::for_run(&place, asked),
        None => Ok(Err(Refusal::None)),
    }
}

/// What a daemon for any backend reads of the environment; the last two are read by its loader, and where it panics.
const READ: [&str; 10] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "COFFERDAM_CONFIG",
    "SANDBOX_TIMEOUT_SEC",
    "LD_LIBRARY_PATH",
    "RUST_BACKTRACE",
];
/// What begins the names of those that say how machines are made.
const READ_FOR_MACHINES: &str = "COFFERDAM_VM_";
/// What apt reads, which fetches what images of machines are made of.
const READ_BY_APT: [&str; 5] = ["APT_CONFIG", "http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// Whether a daemon for this backend that a run starts has this variable of the run's.
fn is_for_daemon(variable: &str, backend: &str) -> bool {
    let machines = || variable.starts_with(READ_FOR_MACHINES) || READ_BY_APT.contains(&variable);
    READ.contains(&variable)
        || (backend == CONTAINER_BACKEND && variable == "DOCKER_HOST")
        || (backend == MACHINE_BACKEND && machines())
}

/// Starts a daemon and waits until it listens; gives what it said. It outlives this run, and so has nothing of the caller's
/// environment but what it reads, and none of the run's secrets.
fn start(args: &RunArgs, settings: &Settings, config: Option<&Path>) -> Vec<String> {
    let (name, driver) = (settings.backend.name, settings.setup.machines.driver);
    let backend = match &settings.setup.containers.runtime {
        _ if name == MACHINE_BACKEND && driver != Driver::Auto => format!("{name}:{}", driver.as_str()),
        Some(runtime) => format!("{name}:{runtime}"),
        None => name.to_owned(),
    };
    let program = std::env::current_exe().unwrap_or_else(|_| "cofferdam".into());
    let mut command = Command::new(program);
    command.args(["daemon", "--detach", "--on-demand", "--backend", &backend]);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let kept = std::env::vars_os().filter(|(variable, _)| {
        let text = variable.to_str();
        text.is_some_and(|text| is_for_daemon(text, name) && args.start.secret.iter().all(|secret| secret != text))
    });
    command.env_clear().envs(kept);
    match command.stdin(Stdio::null()).output() {
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect(),
        Err(error) => vec![format!("cannot start a daemon: {error}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Code execution): A daemon has only the environment variables that it reads.
    #[test]
    fn a_daemon_has_what_it_reads_and_nothing_else() {
        for (variable, process, docker, vm) in [
            ("PATH", true, true, true),
            ("XDG_RUNTIME_DIR", true, true, true),
            ("SANDBOX_TIMEOUT_SEC", true, true, true),
            ("DOCKER_HOST", false, true, false),
            ("COFFERDAM_VM_IMAGES", false, false, true),
            ("http_proxy", false, false, true),
            ("COFFERDAM_MCP_TOKEN", false, false, false),
            ("TOKEN", false, false, false),
            ("path", false, false, false),
            ("", false, false, false),
        ] {
            let kept = ["process", CONTAINER_BACKEND, MACHINE_BACKEND].map(|backend| is_for_daemon(variable, backend));
            assert_eq!(kept, [process, docker, vm], "{variable}");
        }
    }
}
