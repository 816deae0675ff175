//! Upgrades without a pause: the server starts the program again, hands its sockets over, and ends with its sandboxes.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_linux::message;
use cofferdam_server::Control;
use tokio::signal::unix::Signal;
use tokio::task::JoinHandle;

use super::systemd;
use crate::program;
use crate::report::{self, Form};
use crate::style::Tone;

/// The option of a process that takes over. Its standard input is the channel to the process before.
const SUCCESSOR: &str = "--successor";

/// The program as it was started.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    words: Vec<OsString>,
    /// The directory of relative paths in the options. `None` if it was removed.
    directory: Option<PathBuf>,
}

impl Program {
    /// Returns the program of this process. Its path is read before another version replaces the file or a symbolic link.
    pub fn own() -> Result<Self> {
        let path = program::path().map_err(|error| failed("cannot find the program's own file", error))?;
        let words = std::env::args_os().skip(1).filter(|word| word != SUCCESSOR).collect();
        Ok(Self { path, words, directory: std::env::current_dir().ok() })
    }

    /// Starts the program with one end of a channel as its standard input.
    fn start(&self, channel: OwnedFd) -> Result<Child> {
        let mut command = Command::new(&self.path);
        command.args(&self.words).arg(SUCCESSOR).stdin(Stdio::from(channel));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        for variable in systemd::OWN_VARIABLES {
            command.env_remove(variable);
        }
        command.spawn().map_err(|error| {
            failed("cannot start the new version", error).with_context("program", self.path.display().to_string())
        })
    }

    /// Upgrades a server at each signal, one upgrade at a time, unless there is an obstacle. Runs until it is dropped.
    pub async fn at_signals(&self, mut signals: Signal, control: &Control, obstacle: Option<&'static str>) {
        let mut upgrade: Option<JoinHandle<()>> = None;
        while signals.recv().await.is_some() {
            let is_upgrading = upgrade.as_ref().is_some_and(|upgrade| !upgrade.is_finished());
            match refusal(control, obstacle, is_upgrading) {
                Some(reason) => report::remark(reason, Tone::Bad),
                None => upgrade = Some(tokio::spawn(self.clone().take_over(control.clone()))),
            }
        }
        std::future::pending().await
    }

    /// Starts the program and hands the server over to it. If that fails, the server serves as before.
    async fn take_over(self, control: Control) {
        report::remark("upgrading: starting the program again", Tone::Good);
        systemd::reloading();
        match self.try_take_over(&control).await {
            Ok(id) => {
                report::remark(&format!("process {id} serves; this one ends with its sandboxes"), Tone::Good);
            }
            Err(error) => {
                systemd::upgrade_failed();
                report::error(&error, Form::Text);
                report::remark("the upgrade failed, and this process continues to serve", Tone::Bad);
            }
        }
    }

    async fn try_take_over(&self, control: &Control) -> Result<u32> {
        let (own, theirs) = message::pair().map_err(|error| failed("cannot create a channel", error))?;
        let mut child = self.start(theirs)?;
        let id = child.id();
        let done = control.handoff(own, move || systemd::main_process(id)).await;
        if done.is_err() {
            // It has closed its end, or is of no use.
            let _ = child.kill();
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
        }
        done.map(|()| id)
    }
}

/// Returns the reason why a signal starts no upgrade.
fn refusal(control: &Control, obstacle: Option<&'static str>, is_upgrading: bool) -> Option<&'static str> {
    if std::process::id() == 1 {
        // The kernel ends all processes of the namespace with this one.
        Some("process 1 of a container is not upgraded; start a container of the new version instead")
    } else if obstacle.is_some() {
        obstacle
    } else if control.is_closed() {
        Some("cannot upgrade: this process was upgraded already; send the signal to the new process")
    } else if is_upgrading {
        Some("an upgrade is in progress already; this signal starts no other one")
    } else {
        None
    }
}

/// Returns the channel to the process before, which is standard input. Nothing else inherits it.
pub fn channel() -> Result<OwnedFd> {
    let channel = std::io::stdin().as_fd().try_clone_to_owned();
    let channel = channel.map_err(|error| failed("cannot use the channel", error))?;
    let null = OpenOptions::new().read(true).open("/dev/null");
    let null = null.map_err(|error| failed("cannot close the channel on exec", error))?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| failed("cannot close the channel on exec", error.into()))?;
    Ok(channel)
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "hand over", what.to_owned()).with_source(error)
}
