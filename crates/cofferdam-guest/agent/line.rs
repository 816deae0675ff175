//! The connection to the host: descriptors 0 and 1, either inherited or accepted from a listening socket.
//!
//! ```text
//! inherited --end--> over
//! listening --accepted, TAKEN sent--> connected --end before a greeting, or while quiesced--> listening
//!                                         '--end--> over
//! ```
//!
//! A connection through a device of the VM does not survive copying the VM. So a host that quiesced this process may
//! return through another connection. No request is pending then.

use super::asks::{DESCRIPTOR, LISTENER};
use super::sys::{self, Fd, Res};
use super::wire::TAKEN;

/// The connection to the host.
pub struct Line {
    listener: Option<Fd>,
    lost: bool,
}

impl Line {
    /// Finds the listening socket, if an init passed one in addition to its own socket. Must run before this process
    /// opens any descriptor or looks for its partner, since opening takes the first free number.
    pub fn find() -> Self {
        let inherited = is_socket(DESCRIPTOR) && is_socket(LISTENER);
        let listener = if inherited { sys::duplicate(&Fd::own(LISTENER)).ok() } else { None };
        Self { lost: listener.is_some(), listener }
    }

    /// Returns the descriptor to read, and true if answers can be written.
    pub fn readable(&self) -> (i32, bool) {
        match &self.listener {
            Some(listener) if self.lost => (listener.number(), false),
            _ => (0, true),
        }
    }

    /// Returns true if there is no connection, but another one can follow.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Drops the connection. Returns false if no other one can follow.
    pub fn drop_connection(&mut self) -> bool {
        self.lost = self.listener.is_some();
        self.lost
    }

    /// Accepts the next connection, if there is one.
    pub fn accept(&mut self) -> Res<()> {
        let Some(listener) = self.listener.as_ref().filter(|_| self.lost) else { return Ok(()) };
        let Ok(accepted) = sys::vsock_accept(listener) else {
            // The client has closed the connection already.
            return Ok(());
        };
        // If the write fails, reading soon returns the end.
        let _ = sys::write(accepted.number(), &[TAKEN]);
        sys::duplicate_to(accepted.number(), 0)?;
        sys::duplicate_to(accepted.number(), 1)?;
        self.lost = false;
        Ok(())
    }
}

fn is_socket(number: i32) -> bool {
    sys::stat_at(number, b"\0").is_ok_and(|stat| stat.mode & sys::S_IFMT == sys::S_IFSOCK)
}
