//! A launcher that was forked before anything was known of what it will be asked for, and what the owner holds of it.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::sys;

/// A launcher that was forked from this process, to be used by [`crate::LauncherStart::Forked`]. Dropping the last copy
/// ends it, unless a backend has taken it.
///
/// It saves a program that makes a single sandbox the time that executing itself once more would take. It is for the
/// very start of `main`: what is in the memory of this process when it is forked is in the launcher's memory as well,
/// though never in a sandbox's. Arguments and environment are wiped from it.
#[derive(Debug, Clone)]
pub struct ForkedLauncher(Arc<Mutex<Option<Waiting>>>);

/// Arguments, or the strings of the environment.
pub type Words = Box<dyn Iterator<Item = &'static CStr>>;

impl PartialEq for ForkedLauncher {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ForkedLauncher {}

impl ForkedLauncher {
    /// Forks one. `None` if this process has more than one thread, or no process can be made: then launchers are to
    /// be executed.
    pub fn fork() -> Option<Self> {
        let (socket, pid) = sys::fork::fork().ok()??;
        Some(Self(Arc::new(Mutex::new(Some(Waiting { socket: Some(socket), pid })))))
    }

    /// Forks one if `wanted` says so of the arguments, the program's name first, and of the environment's
    /// `NAME=value`. Both are read where the kernel put them, without a copy that the launcher would inherit.
    pub fn fork_when(wanted: impl FnOnce(Words, Words) -> bool) -> Option<Self> {
        if wanted(Box::new(sys::fork::arguments()), Box::new(sys::fork::environment())) { Self::fork() } else { None }
    }

    /// Takes it, if nobody has and it still waits.
    pub(crate) fn take(&self) -> Option<Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A forked launcher that waits for its configuration. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Waiting {
    socket: Option<OwnedFd>,
    pid: i32,
}

impl Waiting {
    /// Its socket, and the process to wait for in the end.
    pub(crate) fn into_parts(mut self) -> Option<(OwnedFd, Forked)> {
        Some((self.socket.take()?, Forked { pid: self.pid, ended: false }))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            drop(socket);
            Forked { pid: self.pid, ended: false }.wait();
        }
    }
}

/// A child process that was not made by the standard library.
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

    /// Whether it is reaped, by us or by somebody else.
    fn reap(&self, options: WaitOptions) -> bool {
        !matches!(rustix::io::retry_on_intr(|| waitpid(Pid::from_raw(self.pid), options)), Ok(None))
    }
}
