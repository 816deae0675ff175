//! The connection to the host: descriptors 0 and 1, which are there from the start, or which the host makes itself.
//!
//! ```text
//! inherited --end--> over
//! listening --taken, and told so--> connected --end before a greeting, or while held--> listening
//!                                       '--end--> over
//! ```
//!
//! A connection through a device of the machine's does not outlive a copy of the machine, so a host that held this
//! process may come back by another one. Nothing of anybody's is under way then.

use super::asks::{DESCRIPTOR, LISTENER};
use super::sys::{self, Fd, Res};
use super::wire::TAKEN;

/// How the host is heard.
pub struct Line {
    listener: Option<Fd>,
    lost: bool,
}

impl Line {
    /// To be asked before this process opens anything, or looks for its partner: what is opened takes the first free number.
    /// Only an init hands a listening socket over, beside its own.
    pub fn find() -> Self {
        let inherited = is_socket(DESCRIPTOR) && is_socket(LISTENER);
        let listener = if inherited { sys::duplicate(&Fd::own(LISTENER)).ok() } else { None };
        Self { lost: listener.is_some(), listener }
    }

    /// The descriptor at which there is something to hear, and whether something can be said.
    pub fn hears(&self) -> (i32, bool) {
        match &self.listener {
            Some(listener) if self.lost => (listener.number(), false),
            _ => (0, true),
        }
    }

    /// Whether there is no connection, and may be one again.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Gives a connection up; `false` where there will be no other one.
    pub fn lose(&mut self) -> bool {
        self.lost = self.listener.is_some();
        self.lost
    }

    /// Takes the next connection, if there is one.
    pub fn take(&mut self) -> Res<()> {
        let Some(listener) = self.listener.as_ref().filter(|_| self.lost) else { return Ok(()) };
        let Ok(taken) = sys::vsock_accept(listener) else {
            // Whoever came is gone again.
            return Ok(());
        };
        // One that nobody hears shows as ended soon.
        let _ = sys::write(taken.number(), &[TAKEN]);
        sys::duplicate_to(taken.number(), 0)?;
        sys::duplicate_to(taken.number(), 1)?;
        self.lost = false;
        Ok(())
    }
}

fn is_socket(number: i32) -> bool {
    sys::stat_at(number, b"\0").is_ok_and(|stat| stat.mode & sys::S_IFMT == sys::S_IFSOCK)
}
