//! A VM of QEMU: the VMM's process and its connections.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::ByteSize;
use cofferdam_linux::process;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::memory::Memory;
use super::pages::Owner;
use super::qmp::Qmp;
use super::{PROGRAM, broken, state};
use crate::bounds::Enclosure;
use crate::console_tail::ConsoleTail;
use crate::error::{Result, VmError, excerpt_end, io};
use crate::vmm::{Ended, Vm, VmState};

/// Time until the end of a process is seen after its connection has ended.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for a killed process to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// A VM of QEMU. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct QemuVm {
    qmp: Arc<Qmp>,
    process: Arc<OwnedFd>,
    ended: watch::Receiver<Option<Ended>>,
    console: ConsoleTail,
    errors: ConsoleTail,
    /// The host resource limits of the VMM.
    vmm_limits: String,
    /// `None` once the VM has ended, so that its memory is freed.
    memory: Arc<Mutex<Option<Memory>>>,
    owner: Owner,
    /// Serializes snapshots.
    saving: tokio::sync::Mutex<()>,
}

impl QemuVm {
    /// Hands the process to a task that waits for its end. `console` and `errors` are the tails of the serial console
    /// and of the VMM's standard error.
    pub(crate) fn watch(
        (mut child, enclosure): (Child, Enclosure),
        qmp: Qmp,
        (console, errors): (ConsoleTail, ConsoleTail),
        (memory, owner): (Memory, Owner),
    ) -> Result<Self> {
        let vmm_limits = enclosure.shown.clone();
        #[expect(
            deprecated,
            reason = "an owned descriptor stays what it is, which its successor has its caller promise"
        )]
        let register = AsyncFd::new;
        let process = process::pidfd(i32::try_from(child.id()).unwrap_or(i32::MAX)).and_then(register);
        let process = match process {
            Ok(process) => process,
            Err(error) => {
                // A process whose end is not seen must not run.
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
        let (connection, output, held) = (Arc::clone(&qmp), errors.clone(), Arc::clone(&memory));
        tokio::spawn(async move {
            // If waiting for the descriptor fails, the process is still reaped.
            let _ = process.readable().await;
            let status = child.wait();
            drop(held.lock().take());
            // Removing its control group may block for a short time.
            let _ = tokio::task::spawn_blocking(move || drop(enclosure)).await;
            sender.send_replace(Some(end_of(connection.shutdown(), status.ok(), &output.text())));
        });
        let saving = tokio::sync::Mutex::default();
        Ok(Self { qmp, process: Arc::new(killer), ended, console, errors, vmm_limits, memory, owner, saving })
    }

    /// Waits for the VMM's greeting.
    pub(crate) async fn greet(&self) -> Result<()> {
        self.or_kill(self.qmp.greet()).await
    }

    /// Loads a state. Kills the VMM on failure.
    pub(crate) async fn load(&self, devices: &File, timeout: Duration) -> Result<()> {
        self.or_kill(state::load(&self.qmp, devices, timeout)).await
    }

    /// Waits for the first work of the VMM. Kills it on failure, and adds its output to the error.
    async fn or_kill(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        let mut ended = self.ended.clone();
        let done = tokio::select! {
            done = work => done,
            _ = ended.wait_for(Option::is_some) => Err(broken("it ended")),
        };
        let Err(error) = done else { return Ok(()) };
        let error = self.explained(error).await;
        self.kill().await?;
        let output = self.errors.text();
        let (what, output) = (bare(&error), excerpt_end(&output));
        if output.is_empty() || what.contains(&output) {
            Err(error)
        } else {
            Err(broken(format!("{what}; its output: {output}")))
        }
    }

    /// Adds the end of the process to an error, if it has ended: then that is the reason.
    async fn explained(&self, error: VmError) -> VmError {
        let may_have_ended = match &error {
            VmError::Vmm { .. } => self.qmp.is_over() || self.is_gone(),
            // When a process is killed, its memory is freed first, then its connections are closed, and then it ends.
            VmError::Io { .. } => true,
            _ => false,
        };
        if !may_have_ended {
            return error;
        }
        match tokio::time::timeout(EXIT_TIMEOUT, self.ended()).await {
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

    async fn save(&self, max: ByteSize) -> Result<VmState> {
        if state::is_running(&self.qmp).await? {
            return Err(broken("a running VM cannot be saved"));
        }
        let devices = state::save(&self.qmp).await?;
        let memory = self.copied_memory(max).await?;
        // If the process was being killed, some memory may have been freed already. Then it does not answer.
        if state::is_running(&self.qmp).await? {
            return Err(broken("the VM was resumed while it was saved"));
        }
        VmState::new(memory, devices)
    }

    /// Copies the memory of the paused VM.
    async fn copied_memory(&self, max: ByteSize) -> Result<File> {
        let gone = || broken("it ended while its memory was copied");
        let memory = self.memory.lock().clone().ok_or_else(gone)?;
        let owner = self.owner;
        let copying = tokio::task::spawn_blocking(move || memory.copy(owner, max.as_bytes()));
        let copied = copying.await.map_err(|_| gone())?;
        // If the process has ended, the data may belong to another process with its ID.
        if self.is_gone() { Err(gone()) } else { copied }
    }

    /// Returns true if the process has ended, or if its state is unknown.
    fn is_gone(&self) -> bool {
        let mut process = [PollFd::new(&*self.process, PollFlags::IN)];
        !matches!(poll(&mut process, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }
}

/// Returns the text of an error without the VMM's name.
fn bare(error: &VmError) -> String {
    match error {
        VmError::Vmm { what, .. } => what.clone(),
        error => error.to_string(),
    }
}

/// Returns the end of a VM, given its VMM's last message and exit status.
fn end_of(shutdown: Option<String>, status: Option<ExitStatus>, output: &str) -> Ended {
    let ended = |why: &str, by_itself| Ended { why: why.to_owned(), by_itself };
    match (shutdown.as_deref(), status) {
        (Some("guest-shutdown"), _) => ended("it powered itself off", true),
        (Some("guest-reset"), _) => ended("its kernel restarted", true),
        (Some("guest-panic"), _) => ended("its kernel panicked", true),
        (Some(reason), _) if !reason.is_empty() => ended(&format!("its VMM stopped it ({reason})"), false),
        (_, Some(status)) if output.trim().is_empty() => ended(&format!("its VMM ended ({status})"), false),
        (_, Some(status)) => ended(&format!("its VMM ended ({status}): {}", excerpt_end(output)), false),
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

    async fn snapshot(&self, max: ByteSize) -> Result<VmState> {
        let _turn = self.saving.lock().await;
        match self.save(max).await {
            Ok(state) => Ok(state),
            Err(error) => Err(self.explained(error).await),
        }
    }

    async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(found) => found.clone().unwrap_or_else(|| end_of(None, None, "")),
            // The task that waits was cancelled with its runtime.
            Err(_) => end_of(None, None, ""),
        }
    }

    fn is_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
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
        process::kill_by_pidfd(self.process.as_fd()).map_err(io("kill", PROGRAM))?;
        match tokio::time::timeout(KILL_TIMEOUT, self.ended()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(VmError::Vmm {
                vmm: "qemu",
                what: format!("its process did not end within {KILL_TIMEOUT:?} after it was killed"),
            }),
        }
    }
}

impl Drop for QemuVm {
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
        let status = Some(ExitStatus::from_raw(256));
        assert!(end_of(Some("guest-reset".to_owned()), status, "").by_itself);
        assert!(!end_of(Some("host-signal".to_owned()), status, "").by_itself);
        let why = end_of(None, status, "qemu: no such machine\u{1b}[2J").why;
        assert!(why.contains("no such machine") && !why.contains('\u{1b}'), "{why}");
    }
}
