//! A launcher that is forked before its configuration is known, and the owner's handle of it.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::sys;

/// A launcher that was forked from this process, for [`crate::LauncherStart::Forked`]. Dropping the last copy ends it,
/// unless a backend has taken it.
///
/// It saves a program that creates a single sandbox the time to execute itself again. Use it at the very start of
/// `main`: the contents of this process's memory at the fork are in the launcher's memory as well, though never in a
/// sandbox's. Arguments and environment are erased from it.
#[derive(Debug, Clone)]
pub struct ForkedLauncher(Arc<Mutex<Option<IdleLauncher>>>);

/// Arguments, or the strings of the environment.
pub type Words = Box<dyn Iterator<Item = &'static CStr>>;

impl PartialEq for ForkedLauncher {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ForkedLauncher {}

impl ForkedLauncher {
    /// Forks a launcher. Returns `None` if this process has more than one thread, or no process can be created: then
    /// launchers must be executed.
    pub fn fork() -> Option<Self> {
        let (socket, pid) = sys::fork::fork().ok()??;
        Some(Self(Arc::new(Mutex::new(Some(IdleLauncher { socket: Some(socket), pid })))))
    }

    /// Forks a launcher if `wanted` returns true for the arguments, the program's name first, and for the environment's
    /// `NAME=value` strings. Both are read at their original addresses, without a copy that the launcher would inherit.
    pub fn fork_when(wanted: impl FnOnce(Words, Words) -> bool) -> Option<Self> {
        if wanted(Box::new(sys::fork::arguments()), Box::new(sys::fork::environment())) { Self::fork() } else { None }
    }

    /// Takes the launcher, if it was not taken before.
    pub(crate) fn take(&self) -> Option<IdleLauncher> {
        self.0.lock().take()
    }
}

/// A forked launcher that waits for its configuration. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct IdleLauncher {
    socket: Option<OwnedFd>,
    pid: i32,
}

impl IdleLauncher {
    /// Returns its socket, and the process to wait for in the end.
    pub(crate) fn into_parts(mut self) -> Option<(OwnedFd, Forked)> {
        Some((self.socket.take()?, Forked { pid: self.pid, ended: false }))
    }
}

impl Drop for IdleLauncher {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            drop(socket);
            Forked { pid: self.pid, ended: false }.wait();
        }
    }
}

/// A child process that the standard library did not create.
#[derive(Debug)]
pub(crate) struct Forked {
    pid: i32,
    ended: bool,
}

impl Forked {
    pub(crate) fn id(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.ended = self.ended || self.reap(WaitOptions::NOHANG);
        !self.ended
    }

    pub(crate) fn wait(&mut self) {
        self.ended = self.ended || self.reap(WaitOptions::empty());
    }

    /// Returns true if the process was reaped, here or by other code.
    fn reap(&self, options: WaitOptions) -> bool {
        !matches!(rustix::io::retry_on_intr(|| waitpid(Pid::from_raw(self.pid), options)), Ok(None))
    }
}
