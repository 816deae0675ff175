//! Selection of a server for a run.
//!
//! A run uses a server only if the result is the same as without it: the same user, the same build, the same backend,
//! and interpreters found by the same PATH and HOME. All other runs are local.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use cofferdam::registry::{self, CONTAINER_BACKEND, VM_BACKEND};
use cofferdam::resident::{
    Candidates, Connection, Refusal, Requirements, ResidentBackend, SocketDirectory, Surroundings,
};
use cofferdam::{Backend, Error, ErrorKind, NetworkPolicy, Result};
use serde::Deserialize;

use crate::args::RunArgs;
use crate::report;
use crate::settings::Settings;
use crate::style::Tone;

/// The use of a server by a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerUse {
    /// Use a running server, else run locally
    #[default]
    Auto,
    /// Run locally
    Never,
    /// Start a server if none is running
    Start,
    /// Use a running server, else fail
    Require,
}

impl FromStr for ServerUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false)
    }
}

/// Returns the possible directories of this user's server.
pub fn candidates() -> Candidates {
    Candidates::read(|name| std::env::var_os(name))
}

/// Returns true if the socket of this user's server exists. Does not check that a server listens.
pub fn may_be_there() -> bool {
    candidates().socket().exists()
}

/// Identifies this build by its program file, so that a server of another build is not used.
pub fn build() -> String {
    let file = std::fs::metadata("/proc/self/exe").map(|file| {
        format!("{:x}:{:x}:{:x}:{}.{:09}", file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec())
    });
    // Without the file, every process counts as another build.
    let file = file.unwrap_or_else(|_| format!("process {}", std::process::id()));
    format!("{} {file}", env!("CARGO_PKG_VERSION"))
}

/// Returns the variables that locate interpreters, and the fingerprint of the backend's settings.
pub fn surroundings(settings: &Settings) -> Result<Surroundings> {
    let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let containers = registry::fingerprint(settings.backend.name, &settings.setup)?;
    Ok(Surroundings { search_path: text("PATH"), home: text("HOME"), containers })
}

/// Returns the server for this run as a backend, or `None` for a local run.
pub fn backend(args: &RunArgs, settings: &Settings, config: Option<&Path>) -> Result<Option<Arc<dyn Backend>>> {
    if settings.use_server == ServerUse::Never {
        return Ok(None);
    }
    if let Some((why, instead)) = unsuitable(args, settings) {
        if settings.use_server == ServerUse::Require {
            return Err(Error::unsupported("run", why).with_remedy(format!("use --use-server auto, or {instead}")));
        }
        return Ok(local(args, why));
    }
    let requirements = Requirements {
        build: build(),
        surroundings: surroundings(settings)?,
        backend: settings.backend.name.to_owned(),
    };
    let mut found = find(&requirements);
    if settings.use_server == ServerUse::Start && matches!(found, Ok(Err(Refusal::None))) {
        let messages = start(args, settings, config);
        found = find(&requirements);
        if args.output.verbose && !matches!(found, Ok(Ok(_))) {
            messages.iter().for_each(|line| report::remark(line, Tone::Warning));
        }
    }
    match found {
        Ok(Ok(connection)) => {
            if args.output.verbose {
                report::remark(&format!("run by the server, process {}", connection.pid()), Tone::Good);
            }
            Ok(Some(Arc::new(ResidentBackend::from(connection))))
        }
        Ok(Err(refusal)) if settings.use_server == ServerUse::Require => {
            let error = Error::new(ErrorKind::Unavailable, "run", refusal.to_string());
            Err(error.with_remedy(refusal.remedy()))
        }
        Err(error) if settings.use_server == ServerUse::Require => Err(error),
        Ok(Err(refusal)) => Ok(local(args, &refusal.to_string())),
        Err(error) => Ok(local(args, &error.to_string())),
    }
}

/// Returns the reason why no server can serve a run, and what to leave out.
fn unsuitable(args: &RunArgs, settings: &Settings) -> Option<(&'static str, &'static str)> {
    let mounts = &args.sandbox.mounts;
    if registry::is_external(settings.backend.name) {
        return Some(("this user's server has no key of the caller for another server", "another backend"));
    }
    if settings.network != NetworkPolicy::None {
        return Some(("sandboxes of a server have no network", "--net none"));
    }
    if !mounts.mount.is_empty() || !mounts.tmpfs.is_empty() || !args.volumes.volume.is_empty() {
        return Some(("sandboxes of a server have no mounts besides the workspace", "no mounts"));
    }
    let has_image = args.sandbox.image.is_some() && settings.backend.name == registry::DEFAULT_BACKEND;
    has_image.then_some(("process sandboxes of a server have no images", "no image"))
}

fn local(args: &RunArgs, why: &str) -> Option<Arc<dyn Backend>> {
    if args.output.verbose {
        report::remark(&format!("run without a server: {why}"), Tone::Warning);
    }
    None
}

fn find(requirements: &Requirements) -> Result<Result<Connection, Refusal>> {
    match SocketDirectory::open(candidates().directory())? {
        Some(directory) => Connection::for_run(&directory, requirements),
        None => Ok(Err(Refusal::None)),
    }
}

/// Environment variables that a server of any backend reads. Its loader and its panic handler read the last two.
const READ: [&str; 11] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "COFFERDAM_CONFIG",
    "SANDBOX_TIMEOUT_SEC",
    "LD_LIBRARY_PATH",
    "RUST_BACKTRACE",
];
/// Prefix of the variables with settings of the VM backend.
const READ_FOR_VMS: &str = "COFFERDAM_VM_";
/// Environment variables of apt, which downloads the packages of VM images.
const READ_BY_APT: [&str; 5] = ["APT_CONFIG", "http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// Returns true if a server of this backend inherits this variable from the run that starts it.
fn is_for_server(variable: &str, backend: &str) -> bool {
    let vms = || variable.starts_with(READ_FOR_VMS) || READ_BY_APT.contains(&variable);
    READ.contains(&variable)
        || (backend == CONTAINER_BACKEND && variable == "DOCKER_HOST")
        || (backend == VM_BACKEND && vms())
}

/// Starts a server, waits until it listens and returns its messages. The server outlives the run, so it inherits only
/// the environment variables that it reads, and no secrets of the run.
fn start(args: &RunArgs, settings: &Settings, config: Option<&Path>) -> Vec<String> {
    let name = settings.backend.name;
    let backend = registry::qualified_name(name, &settings.setup).unwrap_or_else(|_| name.to_owned());
    let program = std::env::current_exe().unwrap_or_else(|_| "cofferdam".into());
    let mut command = Command::new(program);
    command.args(["serve", "--detach", "--on-demand", "--backend", &backend]);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let inherited = std::env::vars_os().filter(|(variable, _)| {
        let text = variable.to_str();
        text.is_some_and(|text| is_for_server(text, name) && args.start.secret.iter().all(|secret| secret != text))
    });
    command.env_clear().envs(inherited);
    match command.stdin(Stdio::null()).output() {
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect(),
        Err(error) => vec![format!("cannot start a server: {error}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Code execution): A server has only the environment variables that it reads.
    #[test]
    fn server_has_only_the_variables_that_it_reads() {
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
            let inherited = ["process", CONTAINER_BACKEND, VM_BACKEND].map(|backend| is_for_server(variable, backend));
            assert_eq!(inherited, [process, docker, vm], "{variable}");
        }
    }
}
