//! A fake of Firecracker: a script that executes this test binary, which serves the API.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cofferdam_vm::firecracker::{Firecracker, Launch};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixListener;

use crate::support::{Reply, http, listen, quick};

/// The differences from a correct Firecracker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flaws {
    /// Shell lines to run first.
    pub before: &'static str,
    /// The version that the API reports.
    pub version: Option<&'static str>,
    /// The VM name that the API reports.
    pub name: Option<&'static str>,
}

/// A directory with the two programs, and one for their files.
#[derive(Debug)]
pub(crate) struct Programs {
    directory: TempDir,
}

impl Programs {
    pub(crate) fn new(flaws: &Flaws) -> Self {
        let programs = Self { directory: tempfile::tempdir().expect("a directory") };
        fs::create_dir(programs.place()).expect("a directory");
        let own = std::env::current_exe().expect("this program");
        let (version, name) = (flaws.version.unwrap_or("1.16.1"), flaws.name.unwrap_or_default());
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'Firecracker v1.16.1'; exit; fi\n{}\n\
             export COFFERDAM_TEST_FAKE=\"$2 $4\" COFFERDAM_TEST_VERSION='{version}' COFFERDAM_TEST_NAME='{name}'\n\
             exec '{}' --exact fake::is_a_firecracker --nocapture\n",
            flaws.before,
            own.display()
        );
        program(&programs.firecracker(), &script);
        programs
    }

    pub(crate) fn firecracker(&self) -> PathBuf {
        self.directory.path().join("firecracker")
    }

    /// Returns the directory for their files.
    pub(crate) fn place(&self) -> PathBuf {
        self.directory.path().join("vms")
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { ready: Duration::from_secs(20), deadlines: quick(), ..Launch::new(self.firecracker()) }
    }

    /// Returns the files that are left in that directory after a time limit.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let begun = Instant::now();
        loop {
            let entries =
                fs::read_dir(self.place()).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
            let entries: Vec<_> = entries.unwrap_or_default();
            if entries.is_empty() || begun.elapsed() > Duration::from_secs(5) {
                return entries;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Writes a program, and runs it once: a new program can be busy while another thread's new child still has it open.
fn program(path: &Path, script: &str) {
    fs::write(path, script).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it can be executed");
    let mut try_it = Command::new(path);
    try_it.arg("--version").stdout(Stdio::null());
    while let Err(error) = try_it.status() {
        assert_eq!(error.kind(), std::io::ErrorKind::ExecutableFileBusy, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the process ID of the fake, as this process sees it.
pub(crate) fn process_of(machine: &Firecracker) -> u32 {
    let begun = Instant::now();
    loop {
        let text = machine.console();
        if let Some((_, rest)) = text.split_once("PROCESS ") {
            return rest.lines().next().expect("a line").parse().expect("a number");
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{text}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns true if a process ends within a time limit.
pub(crate) fn is_gone(process: u32) -> bool {
    let begun = Instant::now();
    let state = || {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        text.rsplit_once(") ")?.1.chars().next()
    };
    // A zombie counts as gone.
    while !matches!(state(), None | Some('Z' | 'X')) {
        if begun.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The main function of the fake, in a process of its own.
#[tokio::test]
async fn is_a_firecracker() {
    let Ok(arguments) = std::env::var("COFFERDAM_TEST_FAKE") else { return };
    let (socket, id) = arguments.split_once(' ').expect("a socket and a name");
    let version = std::env::var("COFFERDAM_TEST_VERSION").expect("a version");
    let name = std::env::var("COFFERDAM_TEST_NAME").ok().filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| id.to_owned());
    // The process ID outside of namespaces.
    let own = fs::read_link("/proc/self").expect("it sees itself");
    println!("PROCESS {}", own.display());
    let listener = UnixListener::bind(socket).expect("a socket");
    listen(listener, Arc::new(Mutex::new(Vec::new())), move |seen| {
        let answer = match seen.path.as_str() {
            "/version" => json!({ "firecracker_version": version }),
            _ => json!({ "app_name": "Firecracker", "id": name, "state": "Not started", "vmm_version": version }),
        };
        Reply::Say(http(200, &answer.to_string()))
    })
    .await;
}
