//! The command line, used like a person or a script uses it.

mod changes;
mod code;
mod configuration;
#[cfg(feature = "container")]
pub mod containers;
mod copy;
#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
mod documented;
mod documents;
#[cfg(feature = "vm")]
mod export_import;
mod forms;
#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
mod help;
#[cfg(feature = "images")]
mod images;
#[cfg(feature = "vm")]
mod kills;
#[cfg(feature = "wasm")]
mod modules;
mod mounts;
mod plugins;
mod programs;
pub mod published;
mod quotas;
#[cfg(all(feature = "container", feature = "images", feature = "vm"))]
mod registries;
mod repl;
mod run;
mod signals;
#[cfg(feature = "vm")]
mod snapshots;
pub mod terminals;
mod upgrades;
mod usage;
#[cfg(feature = "vm")]
pub mod vms;
mod volumes;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Limits that may be unenforceable on the host of an unprivileged user. Other modules test their enforcement.
pub const WEAKER: &str = "memory,cpu,cpus,pids,disk";

/// Returns true if containers of this user cannot enforce the default memory limit: on cgroup v1 only root can bound
/// their socket buffers.
fn has_weaker_containers() -> bool {
    !rustix::process::geteuid().is_root() && Path::new("/sys/fs/cgroup/memory").is_dir()
}

/// Returns the binary, with an environment that contains only the search path.
pub fn cofferdam() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    command
}

/// Returns `cofferdam run` with these arguments, in the repository's directory.
fn run<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Command {
    let mut command = cofferdam();
    command.args(["run", "--allow-weaker", WEAKER]).args(words).current_dir(repository());
    command
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Runs a command. Returns its exit status, standard output and standard error.
pub fn outcome(command: &mut Command) -> (i32, String, String) {
    read(&command.output().expect("the binary starts"))
}

fn read(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Starts a command with pipes for all three streams.
fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
