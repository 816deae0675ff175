//! Freezing the programs of a sandbox while its files are copied.

use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, Result, SandboxUsage};
use cofferdam_guest::Guest;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The programs of a sandbox, which can be frozen unless they are paused.
#[derive(Clone)]
pub(crate) struct Freezer {
    guest: Guest,
    /// The usage at the time of the pause, while the sandbox is paused.
    pub paused: Arc<Mutex<Option<SandboxUsage>>>,
}

impl Freezer {
    pub(crate) fn new(guest: Guest) -> Self {
        Self { guest, paused: Arc::default() }
    }

    /// Prevents a pause.
    ///
    /// # Errors
    /// - `Conflict` if the programs are paused.
    pub(crate) async fn running(&self, operation: &'static str) -> Result<Running> {
        let paused = Arc::clone(&self.paused).lock_owned().await;
        if paused.is_some() {
            return Err(
                Error::new(ErrorKind::Conflict, operation, "the sandbox is paused").with_remedy("resume it first")
            );
        }
        Ok(Running { guest: self.guest.clone(), paused })
    }
}

/// The programs of a sandbox, which are not paused meanwhile.
pub(crate) struct Running {
    guest: Guest,
    paused: OwnedMutexGuard<Option<SandboxUsage>>,
}

impl Running {
    /// Completes work while the programs are frozen.
    pub(crate) async fn frozen<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Self { guest, paused } = self;
        let mut guard = Thaw(Some((guest.clone(), paused)));
        guest.freeze().await?;
        let done = work.await;
        let thawed = guest.thaw().await;
        if thawed.is_ok() {
            guard.0 = None;
        }
        let done = done?;
        thawed?;
        Ok(done)
    }
}

/// Thaws a guest when it is dropped, as with an operation that the caller cancels, and prevents a pause until then.
struct Thaw(Option<(Guest, OwnedMutexGuard<Option<SandboxUsage>>)>);

impl Drop for Thaw {
    fn drop(&mut self) {
        if let (Some((guest, paused)), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move {
                // If this fails, the connection is lost, which ends the sandbox.
                let _ = guest.thaw().await;
                drop(paused);
            });
        }
    }
}
