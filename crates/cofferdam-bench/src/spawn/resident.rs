//! A server of the command line, for the contestant that runs through it. It ends with the benchmark.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A listening server.
#[derive(Debug)]
pub struct Resident {
    child: Child,
    directory: TempDir,
}

impl Resident {
    /// Starts a server. It prepares sandboxes but no interpreters, which no workload here uses.
    pub fn start(command_line: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut child = Command::new(command_line)
            .args(["serve", "--python", "0", "--node", "0"])
            .env("XDG_RUNTIME_DIR", directory.path())
            .env("XDG_STATE_HOME", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stderr = child.stderr.take().context("it is piped")?;
        let resident = Self { child, directory };
        BufReader::new(stderr).read_line(&mut line)?;
        ensure!(line.contains("serving"), "cannot start the server: {line}");
        Ok(resident)
    }

    /// Returns the environment variable for a run through the server.
    pub fn variable(&self) -> (&'static str, &Path) {
        ("XDG_RUNTIME_DIR", self.directory.path())
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}
