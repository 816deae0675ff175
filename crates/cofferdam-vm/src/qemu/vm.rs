//! One machine: the process that is its monitor, and its connections.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::ByteSize;
use cofferdam_linux::process;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::memory::Memory;
use super::pages::Owner;
use super::qmp::Qmp;
use super::{PROGRAM, broken, state};
use crate::bounds::Enclosure;
use crate::error::{Result, VmError, io, shown_end};
use crate::vmm::{Ended, MachineState, Vm};
use crate::words::OutputTail;

/// Time that a process has to be seen to have ended whose connection has.
const NOTICE_LIMIT: Duration = Duration::from_millis(500);
/// Time that the kernel has to end a process that was killed.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// A machine of QEMU's. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct QemuVm {
    qmp: Arc<Qmp>,
    process: Arc<OwnedFd>,
    ended: watch::Receiver<Option<Ended>>,
    console: OutputTail,
    said: OutputTail,
    /// What bounds it from outside.
    kept: String,
    /// `None` once the machine has ended: what it had is not kept for longer.
    memory: Arc<Mutex<Option<Memory>>>,
    owner: Owner,
    /// One state at a time.
    saving: tokio::sync::Mutex<()>,
}

impl QemuVm {
    /// Takes the process over; a task waits for its end. `words` are the console's and the monitor's own.
    pub(crate) fn watch(
        (mut child, enclosure): (Child, Enclosure),
        qmp: Qmp,
        (console, said): (OutputTail, OutputTail),
        (memory, owner): (Memory, Owner),
    ) -> Result<Self> {
        let kept = enclosure.shown.clone();
        #[expect(
            deprecated,
            reason = "an owned descriptor stays what it is, which its successor has its caller promise"
        )]
        let register = AsyncFd::new;
        let process = process::pidfd(i32::try_from(child.id()).unwrap_or(i32::MAX)).and_then(register);
        let process = match process {
            Ok(process) => process,
            Err(error) => {
                // It is not to run where nobody sees its end.
                let _ = child.kill();
                let _ = child.wait();
                return Err(io("watch", PROGRAM)(error));
            }
        };
        let killer = process.get_ref().try_clone().map_err(io("watch", PROGRAM));
        let killer = killer.inspect_err(|_| drop((child.kill(), child.wait())))?;
        let qmp = Arc::new(qmp);
        let (sender, ended) = watch::channel(None);
        let memory = Arc::new(Mutex::new(Some(memory)));
        let (asked, words, had) = (Arc::clone(&qmp), said.clone(), Arc::clone(&memory));
        tokio::spawn(async move {
            // A descriptor that cannot be waited for is no reason to forget the process.
            let _ = process.readable().await;
            let status = child.wait();
            drop(had.lock().unwrap_or_else(PoisonError::into_inner).take());
            // Removing its group may have to wait for the kernel a little.
            let _ = tokio::task::spawn_blocking(move || drop(enclosure)).await;
            sender.send_replace(Some(end_of(asked.shutdown(), status.ok(), &words.text())));
        });
        let saving = tokio::sync::Mutex::default();
        Ok(Self { qmp, process: Arc::new(killer), ended, console, said, kept, memory, owner, saving })
    }

    /// Waits until the monitor has greeted.
    pub(crate) async fn greet(&self) -> Result<()> {
        self.or_its_end(self.qmp.greet()).await
    }

    /// Has it take a state in. When it does not, it is ended.
    pub(crate) async fn load(&self, devices: &File, limit: Duration) -> Result<()> {
        self.or_its_end(state::load(&self.qmp, devices, limit)).await
    }

    /// Waits for the first that it has to do. When that fails, it is ended, and what it said is told.
    async fn or_its_end(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        let mut ended = self.ended.clone();
        let done = tokio::select! {
            done = work => done,
            _ = ended.wait_for(Option::is_some) => Err(broken("it ended")),
        };
        let Err(error) = done else { return Ok(()) };
        let error = self.explained(error).await;
        self.kill().await?;
        let said = self.said.text();
        let (what, said) = (bare(&error), shown_end(&said));
        if said.is_empty() || what.contains(&said) {
            Err(error)
        } else {
            Err(broken(format!("{what}; it says: {said}")))
        }
    }

    /// An error with how the process ended, where it did: then that is the reason.
    async fn explained(&self, error: VmError) -> VmError {
        let may_be = match &error {
            VmError::Monitor { .. } => self.qmp.is_over() || self.is_gone(),
            // The memory of a process goes first, its connections next, itself last.
            VmError::Io { .. } => true,
            _ => false,
        };
        if !may_be {
            return error;
        }
        match tokio::time::timeout(NOTICE_LIMIT, self.ended()).await {
            Ok(ended) => broken(format!("{}: {}", bare(&error), ended.why)),
            Err(_) => error,
        }
    }

    async fn command(&self, name: &'static str) -> Result<()> {
        match self.qmp.command(name).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.explained(error).await),
        }
    }

    async fn written_down(&self, most: ByteSize) -> Result<MachineState> {
        if state::is_running(&self.qmp).await? {
            return Err(broken("a machine that runs cannot be written down"));
        }
        let devices = state::save(&self.qmp).await?;
        let memory = self.copied_memory(most).await?;
        // Of a process that was being killed, some of the memory may have been gone already. Such a one answers nothing.
        if state::is_running(&self.qmp).await? {
            return Err(broken("the machine went on while it was written down"));
        }
        MachineState::new(memory, devices)
    }

    /// A copy of the machine's memory, which stands still.
    async fn copied_memory(&self, most: ByteSize) -> Result<File> {
        let gone = || broken("it ended while its memory was copied");
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(gone)?;
        let owner = self.owner;
        let copying = tokio::task::spawn_blocking(move || memory.copy(owner, most.as_bytes()));
        let copied = copying.await.map_err(|_| gone())?;
        // If its process has ended, what was read may be another's that has its number.
        if self.is_gone() { Err(gone()) } else { copied }
    }

    /// Whether the process has ended, or nobody can tell.
    fn is_gone(&self) -> bool {
        let mut process = [PollFd::new(&*self.process, PollFlags::IN)];
        !matches!(poll(&mut process, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }
}

/// An error without the monitor's name before it.
fn bare(error: &VmError) -> String {
    match error {
        VmError::Monitor { what, .. } => what.clone(),
        error => error.to_string(),
    }
}

/// How a machine ended, from what its monitor said and how that ended.
fn end_of(shutdown: Option<String>, status: Option<ExitStatus>, said: &str) -> Ended {
    let ended = |why: &str, by_itself| Ended { why: why.to_owned(), by_itself };
    match (shutdown.as_deref(), status) {
        (Some("guest-shutdown"), _) => ended("it powered itself off", true),
        (Some("guest-reset"), _) => ended("its kernel restarted", true),
        (Some("guest-panic"), _) => ended("its kernel panicked", true),
        (Some(reason), _) if !reason.is_empty() => ended(&format!("its monitor stopped it ({reason})"), false),
        (_, Some(status)) if said.trim().is_empty() => ended(&format!("its VMM ended ({status})"), false),
        (_, Some(status)) => ended(&format!("its VMM ended ({status}): {}", shown_end(said)), false),
        (_, None) => ended("its VMM ended", false),
    }
}

#[async_trait]
impl Vm for QemuVm {
    async fn pause(&self) -> Result<()> {
        self.command("stop").await
    }

    async fn resume(&self) -> Result<()> {
        self.command("cont").await
    }

    async fn snapshot(&self, most: ByteSize) -> Result<MachineState> {
        let _turn = self.saving.lock().await;
        match self.written_down(most).await {
            Ok(state) => Ok(state),
            Err(error) => Err(self.explained(error).await),
        }
    }

    async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(found) => found.clone().unwrap_or_else(|| end_of(None, None, "")),
            // The task that waits went away with its runtime.
            Err(_) => end_of(None, None, ""),
        }
    }

    fn is_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
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
        process::kill_by_pidfd(self.process.as_fd()).map_err(io("kill", PROGRAM))?;
        match tokio::time::timeout(KILL_LIMIT, self.ended()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(VmError::Monitor {
                monitor: "qemu",
                what: format!("its process was killed, and did not end within {KILL_LIMIT:?}"),
            }),
        }
    }
}

impl Drop for QemuVm {
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
        let status = Some(ExitStatus::from_raw(256));
        assert!(end_of(Some("guest-reset".to_owned()), status, "").by_itself);
        assert!(!end_of(Some("host-signal".to_owned()), status, "").by_itself);
        let said = end_of(None, status, "qemu: no such machine\u{1b}[2J").why;
        assert!(said.contains("no such machine") && !said.contains('\u{1b}'), "{said}");
    }
}
