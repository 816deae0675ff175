//! One machine of Firecracker's: its process, its API, and the connection to its agent.
//!
//! ```text
//! runs --pause--> still --resume--> runs
//!                   '--snapshot--> still, its connection given up --resume--> connected again, runs
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
use tokio::sync::{Mutex, watch};

use super::broken;
use super::channel::Channel;
use super::client::Client;
use super::console::Console;
use super::model::{InstanceState, SnapshotCreate, SnapshotType, VmState};
use super::process::{End, Watched};
use super::request::Request;
use super::walls;
use crate::error::{Result, VmError, io, shown_end};
use crate::make::blocking;
use crate::qemu::MAX_DEVICES;
use crate::sparse;
use crate::vmm::{Ended, MachineState, Vm};

/// What states are written to, by their names in the machine's directory.
pub(super) const STATE_OUT: &str = "state.out";
pub(super) const MEMORY_OUT: &str = "memory.out";
/// Time that the kernel has to end a process that was killed, and its files to be removed.
const KILL_LIMIT: Duration = Duration::from_secs(30);
const WHAT: &str = "the state of a machine";

/// Files that Firecracker writes a state to: of the host's memory, without names.
#[derive(Debug)]
pub(super) struct Dumps {
    pub devices: File,
    pub memory: File,
}

/// Whether its processors run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    Runs,
    /// They do not; `connected` says whether the agent's connection is there.
    Still {
        connected: bool,
    },
}

/// A machine of Firecracker's. Dropping it kills it.
#[derive(Debug)]
pub(super) struct FirecrackerVm {
    client: Client,
    process: OwnedFd,
    end: watch::Receiver<Option<End>>,
    console: Console,
    kept: String,
    /// Where it has its sockets, if that is a directory of the host's.
    directory: Option<PathBuf>,
    channel: Channel,
    dumps: Arc<Dumps>,
    memory: u64,
    stand: Mutex<Stand>,
    patience: Duration,
}

impl FirecrackerVm {
    pub(super) fn new(
        watched: Watched,
        channel: Channel,
        (dumps, memory): (Dumps, u64),
        stand: Stand,
        patience: Duration,
    ) -> Self {
        let Watched { client, console, kept, process, end, directory, tree } = watched;
        Self {
            client,
            process,
            end,
            console,
            kept,
            directory: tree.is_none().then_some(directory),
            channel,
            dumps: Arc::new(dumps),
            memory,
            stand: Mutex::new(stand),
            patience,
        }
    }

    pub(super) async fn send(&self, operation: &'static str, request: &Request) -> Result<()> {
        Ok(self.client.send(operation, request).await?)
    }

    /// From here on it makes nothing in its directory. A jail is in a file system of its own, which has room for a few files.
    pub(super) async fn close_directory(&self) -> Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        blocking(move || walls::close(&directory).map_err(io("close", &directory))).await
    }

    /// Ends it because of this error, which is told with what the process said last.
    pub(super) async fn give_up(self, error: VmError) -> VmError {
        match self.kill().await {
            Ok(()) => told(error, &self.console.text()),
            Err(error) => error,
        }
    }

    /// Has Firecracker do what it was told by the machine before: its devices are served between the API's calls.
    async fn drained(&self, operation: &'static str) -> Result<InstanceState> {
        // The first may be answered in the turn in which the devices' last orders wait; the second comes after it.
        self.client.describe(operation).await?;
        Ok(self.client.describe(operation).await?.state)
    }
}

impl Dumps {
    /// Empty ones.
    pub(super) fn new() -> Result<Self> {
        let blank = || sparse::blank(0).map_err(io("make", WHAT));
        Ok(Self { devices: blank()?, memory: blank()? })
    }

    /// Copies what Firecracker wrote, which may be anything: memory of so many bytes, of which at most `most` are in use,
    /// and devices.
    fn copied(&self, length: u64, most: u64) -> Result<(File, File)> {
        let length_of = |file: &File| file.metadata().map(|found| found.len()).map_err(io("look at", WHAT));
        let found = length_of(&self.devices)?;
        if !(1..=MAX_DEVICES).contains(&found) {
            return Err(broken(format!("the state of its devices has {found} bytes")));
        }
        let found = length_of(&self.memory)?;
        if found != length {
            return Err(broken(format!("it wrote {found} bytes of memory for a machine with {length}")));
        }
        let devices = sparse::copy_memory(&self.devices, MAX_DEVICES).map_err(io("copy", WHAT))?;
        let memory = sparse::copy_memory(&self.memory, most).map_err(|error| match error.kind() {
            std::io::ErrorKind::QuotaExceeded => VmError::NoRoom { most },
            _ => io("copy", WHAT)(error),
        })?;
        Ok((memory, devices))
    }

    /// Gives the host's memory back that they take.
    fn empty(&self) -> Result<()> {
        [&self.devices, &self.memory].into_iter().try_for_each(|file| file.set_len(0)).map_err(io("empty", WHAT))
    }
}

/// An error, with the end of what a process said before it ended.
pub(super) fn told(error: VmError, said: &str) -> VmError {
    match error {
        VmError::Api(error) if !said.trim().is_empty() => {
            VmError::Api(Box::new(error.with_context("console", shown_end(said))))
        }
        error => error,
    }
}

/// How a machine ended, from how its monitor did.
fn ended_as(status: Option<ExitStatus>, said: &str) -> Ended {
    let ended = |why: String, by_itself| Ended { why, by_itself };
    match status {
        // A panic restarts it as well.
        Some(status) if status.success() => ended("its kernel restarted".to_owned(), true),
        Some(status) if said.trim().is_empty() => ended(format!("its monitor ended ({status})"), false),
        Some(status) => ended(format!("its monitor ended ({status}): {}", shown_end(said)), false),
        None => ended("its monitor ended".to_owned(), false),
    }
}

#[async_trait]
impl Vm for FirecrackerVm {
    async fn pause(&self) -> Result<()> {
        let mut stand = self.stand.lock().await;
        if *stand != Stand::Runs {
            return Ok(());
        }
        self.send("pause", &Request::Change(VmState::Paused)).await?;
        *stand = Stand::Still { connected: true };
        match self.drained("pause").await? {
            InstanceState::Paused => Ok(()),
            other => Err(broken(format!("it was paused, and says that it is {other:?}"))),
        }
    }

    async fn resume(&self) -> Result<()> {
        let mut stand = self.stand.lock().await;
        let Stand::Still { connected } = *stand else { return Ok(()) };
        self.send("resume", &Request::Change(VmState::Resumed)).await?;
        if !connected {
            self.channel.attach(self.patience).await?;
        }
        *stand = Stand::Runs;
        Ok(())
    }

    async fn snapshot(&self, most: ByteSize) -> Result<MachineState> {
        let mut stand = self.stand.lock().await;
        if *stand == Stand::Runs {
            return Err(broken("a machine that runs cannot be written down"));
        }
        self.channel.detach().await;
        *stand = Stand::Still { connected: false };
        if self.drained("snapshot").await? != InstanceState::Paused {
            return Err(broken("a machine that runs cannot be written down"));
        }
        self.dumps.empty()?;
        let create = SnapshotCreate {
            snapshot_type: SnapshotType::Full,
            snapshot_path: STATE_OUT.into(),
            mem_file_path: MEMORY_OUT.into(),
        };
        let written = self.send("snapshot", &Request::CreateSnapshot(create)).await;
        let (dumps, length, most) = (Arc::clone(&self.dumps), self.memory, most.as_bytes());
        let copying = tokio::task::spawn_blocking(move || {
            let copied = written.and_then(|()| dumps.copied(length, most));
            // Whatever came of it, nothing is held twice for longer.
            dumps.empty().and(copied)
        });
        let copied = copying.await.map_err(|_| broken("the copying of its state was interrupted"))?;
        let (memory, devices) = copied?;
        MachineState::new(memory, devices)
    }

    async fn ended(&self) -> Ended {
        let mut end = self.end.clone();
        let status = match end.wait_for(Option::is_some).await {
            Ok(found) => found.as_ref().and_then(|end| end.status),
            // The task that waits went away with its runtime.
            Err(_) => None,
        };
        ended_as(status, &self.console.text())
    }

    fn is_ended(&self) -> Option<Ended> {
        let end = self.end.borrow();
        end.as_ref().map(|end| ended_as(end.status, &self.console.text()))
    }

    fn console(&self) -> String {
        self.console.text()
    }

    fn kept(&self) -> String {
        self.kept.clone()
    }

    fn cpu_micros(&self) -> Option<u64> {
        process::cpu_micros(self.process.as_fd())
    }

    async fn kill(&self) -> Result<()> {
        process::kill_by_pidfd(self.process.as_fd()).map_err(io("kill", super::PROGRAM))?;
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(KILL_LIMIT, end.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(end)) => match end.as_ref().and_then(|end| end.left.as_ref()) {
                None => Ok(()),
                Some(why) => Err(broken(format!("what it left could not be removed: {}", crate::error::shown(why)))),
            },
            Ok(Err(_)) => Ok(()),
            Err(_) => Err(broken(format!("its process was killed, and did not end within {KILL_LIMIT:?}"))),
        }
    }
}

impl Drop for FirecrackerVm {
    fn drop(&mut self) {
        // One that has ended already needs nothing; the task that waits reaps it.
        let _ = process::kill_by_pidfd(self.process.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn an_end_is_told_with_its_reason() {
        let status = |raw| Some(ExitStatus::from_raw(raw));
        assert!(ended_as(status(0), "").by_itself);
        let said = ended_as(status(148 << 8), "bad system call\u{1b}[2J");
        assert!(!said.by_itself && said.why.contains("bad system call") && !said.why.contains('\u{1b}'), "{said:?}");
        assert!(!ended_as(status(9), "").by_itself);
    }
}
