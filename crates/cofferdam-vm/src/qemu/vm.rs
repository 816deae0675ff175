//! One machine: the process that is its monitor, and its connections.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_linux::process;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::qmp::Qmp;
use super::{PROGRAM, broken};
use crate::bounds::Enclosure;
use crate::error::{Result, VmError, io, shown_end};
use crate::vmm::{Ended, Vm};
use crate::words::Words;

/// Time that the kernel has to end a process that was killed.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// A machine of QEMU's. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct QemuVm {
    qmp: Arc<Qmp>,
    process: Arc<OwnedFd>,
    ended: watch::Receiver<Option<Ended>>,
    console: Words,
    said: Words,
    kept: String,
}

impl QemuVm {
    /// Takes the process over; a task waits for its end. `words` are the console's and the monitor's own.
    pub(crate) fn watch(
        mut child: Child,
        qmp: Qmp,
        (console, said): (Words, Words),
        enclosure: Enclosure,
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
        let (asked, words) = (Arc::clone(&qmp), said.clone());
        tokio::spawn(async move {
            // A descriptor that cannot be waited for is no reason to forget the process.
            let _ = process.readable().await;
            let status = child.wait();
            // Removing its group may have to wait for the kernel a little.
            let _ = tokio::task::spawn_blocking(move || drop(enclosure)).await;
            sender.send_replace(Some(end_of(asked.shutdown(), status.ok(), &words.text())));
        });
        Ok(Self { qmp, process: Arc::new(killer), ended, console, said, kept })
    }

    /// Waits until the monitor has greeted.
    pub(crate) async fn greet(&self) -> Result<()> {
        let mut ended = self.ended.clone();
        let greeted = tokio::select! {
            greeted = self.qmp.greet() => greeted,
            _ = ended.wait_for(Option::is_some) => Err(broken("it ended")),
        };
        let Err(error) = greeted else { return Ok(()) };
        self.kill().await?;
        let said = self.said.text();
        if said.is_empty() { Err(error) } else { Err(broken(format!("{error}; it says: {}", shown_end(&said)))) }
    }

    async fn command(&self, name: &'static str) -> Result<()> {
        self.qmp.command(name).await
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
        (_, Some(status)) if said.trim().is_empty() => ended(&format!("its monitor ended ({status})"), false),
        (_, Some(status)) => ended(&format!("its monitor ended ({status}): {}", shown_end(said)), false),
        (_, None) => ended("its monitor ended", false),
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
