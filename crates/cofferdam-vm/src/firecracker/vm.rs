//! A VM of Firecracker: its process, its API, and the connection to its agent.
//!
//! ```text
//! running --pause--> paused --resume--> running
//!                   '--snapshot--> paused and disconnected --resume--> reconnected, running
//! ```

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::ByteSize;
use cofferdam_linux::process;
use cofferdam_util::text::excerpt;
use tokio::sync::{Mutex, watch};

use super::broken;
use super::channel::Channel;
use super::client::Client;
use super::confinement;
use super::console::Console;
use super::model::{self, InstanceState, SnapshotCreate};
use super::process::{End, Watched};
use super::request::Request;
use crate::error::{Result, VmError, excerpt_end, io};
use crate::sparse;
use crate::task::blocking;
use crate::vmm::{Ended, MAX_DEVICES, Vm, VmState};

/// Names of the files that states are written to, in the VM's directory.
pub(super) const STATE_OUT: &str = "state.out";
pub(super) const MEMORY_OUT: &str = "memory.out";
/// Time for a killed process to end, and for its files to be removed.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
const STATE: &str = "the state of a VM";

/// Unnamed files in the host's memory that Firecracker writes a state to.
#[derive(Debug)]
pub(super) struct Dumps {
    pub devices: File,
    pub memory: File,
}

/// The state of its processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunState {
    Running,
    /// Stopped; `connected` says whether the connection to the agent is open.
    Paused {
        connected: bool,
    },
}

/// A VM of Firecracker. Dropping it kills it.
#[derive(Debug)]
pub(super) struct FirecrackerVm {
    client: Client,
    process: OwnedFd,
    end: watch::Receiver<Option<End>>,
    console: Console,
    vmm_limits: String,
    /// The directory of its sockets, if it is one of the host.
    directory: Option<PathBuf>,
    channel: Channel,
    dumps: Arc<Dumps>,
    memory: u64,
    state: Mutex<RunState>,
    attach_timeout: Duration,
}

impl FirecrackerVm {
    pub(super) fn new(
        watched: Watched,
        channel: Channel,
        (dumps, memory): (Dumps, u64),
        state: RunState,
        attach_timeout: Duration,
    ) -> Self {
        let Watched { client, console, vmm_limits, process, end, directory, tree } = watched;
        Self {
            client,
            process,
            end,
            console,
            vmm_limits,
            directory: tree.is_none().then_some(directory),
            channel,
            dumps: Arc::new(dumps),
            memory,
            state: Mutex::new(state),
            attach_timeout,
        }
    }

    pub(super) async fn send(&self, operation: &'static str, request: &Request) -> Result<()> {
        Ok(self.client.send(operation, request).await?)
    }

    /// Prevents Firecracker from creating files in its directory from here on. A jail has a file system of its own,
    /// with a limited number of files.
    pub(super) async fn close_directory(&self) -> Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        blocking(move || confinement::close(&directory).map_err(io("restrict", &directory))).await
    }

    /// Kills it because of this error, and adds the end of the console output to the error.
    pub(super) async fn kill_for(self, error: VmError) -> VmError {
        match self.kill().await {
            Ok(()) => with_console(error, &self.console.text()),
            Err(error) => error,
        }
    }

    /// Waits until Firecracker has processed the VM's pending requests: it serves devices between the API's calls.
    async fn drain_devices(&self, operation: &'static str) -> Result<InstanceState> {
        // The first answer may come before the last device events are processed; the second one comes after them.
        self.client.describe(operation).await?;
        Ok(self.client.describe(operation).await?.state)
    }
}

impl Dumps {
    /// Creates empty files.
    pub(super) fn new() -> Result<Self> {
        let blank = || sparse::blank(0).map_err(io("create", STATE));
        Ok(Self { devices: blank()?, memory: blank()? })
    }

    /// Copies the untrusted files that Firecracker wrote: memory of so many bytes, of which at most `max` are in use,
    /// and devices.
    fn copy(&self, length: u64, max: u64) -> Result<(File, File)> {
        let length_of = |file: &File| file.metadata().map(|found| found.len()).map_err(io("inspect", STATE));
        let found = length_of(&self.devices)?;
        if !(1..=MAX_DEVICES).contains(&found) {
            return Err(broken(format!("the state of its devices has an invalid size of {found} bytes")));
        }
        let found = length_of(&self.memory)?;
        if found != length {
            return Err(broken(format!("it wrote {found} bytes of memory for a VM with {length}")));
        }
        let devices = sparse::copy_memory(&self.devices, MAX_DEVICES).map_err(io("copy", STATE))?;
        let memory = sparse::copy_memory(&self.memory, max).map_err(|error| match error.kind() {
            std::io::ErrorKind::QuotaExceeded => VmError::SnapshotMemoryExhausted { left: max },
            _ => io("copy", STATE)(error),
        })?;
        Ok((memory, devices))
    }

    /// Frees the host's memory that they take.
    fn empty(&self) -> Result<()> {
        [&self.devices, &self.memory].into_iter().try_for_each(|file| file.set_len(0)).map_err(io("empty", STATE))
    }
}

/// Adds the end of a process's output to an error.
pub(super) fn with_console(error: VmError, output: &str) -> VmError {
    match error {
        VmError::Contract(error) if !output.trim().is_empty() => {
            VmError::Contract(Box::new(error.with_context("console", excerpt_end(output))))
        }
        error => error,
    }
}

/// Returns the end of a VM, given the exit status of its VMM.
fn end_of(status: Option<ExitStatus>, output: &str) -> Ended {
    let ended = |why: String, by_itself| Ended { why, by_itself };
    match status {
        // A kernel panic restarts it as well.
        Some(status) if status.success() => ended("its kernel restarted".to_owned(), true),
        Some(status) if output.trim().is_empty() => ended(format!("its VMM ended ({status})"), false),
        Some(status) => ended(format!("its VMM ended ({status}): {}", excerpt_end(output)), false),
        None => ended("its VMM ended".to_owned(), false),
    }
}

#[async_trait]
impl Vm for FirecrackerVm {
    async fn pause(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        if *state != RunState::Running {
            return Ok(());
        }
        self.send("pause", &Request::Change(model::VmState::Paused)).await?;
        *state = RunState::Paused { connected: true };
        match self.drain_devices("pause").await? {
            InstanceState::Paused => Ok(()),
            other => Err(broken(format!("it was paused, and reports the state {other:?}"))),
        }
    }

    async fn resume(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        let RunState::Paused { connected } = *state else { return Ok(()) };
        self.send("resume", &Request::Change(model::VmState::Resumed)).await?;
        if !connected {
            self.channel.attach(self.attach_timeout).await?;
        }
        *state = RunState::Running;
        Ok(())
    }

    async fn snapshot(&self, max: ByteSize) -> Result<VmState> {
        let mut state = self.state.lock().await;
        if *state == RunState::Running {
            return Err(broken("a running VM cannot be saved"));
        }
        self.channel.detach().await;
        *state = RunState::Paused { connected: false };
        if self.drain_devices("snapshot").await? != InstanceState::Paused {
            return Err(broken("a running VM cannot be saved"));
        }
        self.dumps.empty()?;
        let create = Request::CreateSnapshot(SnapshotCreate::new(STATE_OUT, MEMORY_OUT));
        let written = self.send("snapshot", &create).await;
        let (dumps, length, max) = (Arc::clone(&self.dumps), self.memory, max.as_bytes());
        let copying = tokio::task::spawn_blocking(move || {
            let copied = written.and_then(|()| dumps.copy(length, max));
            // The files are emptied in any case, so that the state is not stored twice.
            dumps.empty().and(copied)
        });
        let copied = copying.await.map_err(|_| broken("the copy of its state was interrupted"))?;
        let (memory, devices) = copied?;
        VmState::new(memory, devices)
    }

    async fn ended(&self) -> Ended {
        let mut end = self.end.clone();
        let status = match end.wait_for(Option::is_some).await {
            Ok(found) => found.as_ref().and_then(|end| end.status),
            // The task that waits was cancelled with its runtime.
            Err(_) => None,
        };
        end_of(status, &self.console.text())
    }

    fn is_ended(&self) -> Option<Ended> {
        let end = self.end.borrow();
        end.as_ref().map(|end| end_of(end.status, &self.console.text()))
    }

    fn console(&self) -> String {
        self.console.text()
    }

    fn vmm_limits(&self) -> String {
        self.vmm_limits.clone()
    }

    fn cpu_micros(&self) -> Option<u64> {
        process::cpu_micros(self.process.as_fd())
    }

    async fn kill(&self) -> Result<()> {
        process::kill_by_pidfd(self.process.as_fd()).map_err(io("kill", super::PROGRAM))?;
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(KILL_TIMEOUT, end.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(end)) => match end.as_ref().and_then(|end| end.left.as_ref()) {
                None => Ok(()),
                Some(why) => Err(broken(format!("cannot remove its files: {}", excerpt(why)))),
            },
            Ok(Err(_)) => Ok(()),
            Err(_) => Err(broken(format!("its process did not end within {KILL_TIMEOUT:?} after it was killed"))),
        }
    }
}

impl Drop for FirecrackerVm {
    fn drop(&mut self) {
        // If it has ended already, this fails without harm; the task that waits reaps it.
        let _ = process::kill_by_pidfd(self.process.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn end_of_the_vmm_is_reported_with_its_reason() {
        let status = |raw| Some(ExitStatus::from_raw(raw));
        assert!(end_of(status(0), "").by_itself);
        let ended = end_of(status(148 << 8), "bad system call\u{1b}[2J");
        assert!(
            !ended.by_itself && ended.why.contains("bad system call") && !ended.why.contains('\u{1b}'),
            "{ended:?}"
        );
        assert!(!end_of(status(9), "").by_itself);
    }
}
