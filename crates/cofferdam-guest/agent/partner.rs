//! Requests to the VM's init for operations that need privileges, if there is such an init.

use super::asks::{self, ANSWER, DESCRIPTOR, REQUEST, Request};
use super::sys::{self, Fd, Ready, Res};

/// A number above all descriptors that an init passes on.
const FIRST_FREE: usize = 16;
/// Time limit for an answer of the init.
const ANSWER_TIMEOUT_MICROS: u64 = 20_000_000;
const ETIMEDOUT: i32 = 110;

/// The connection to the init. No guest can get this socket: executing a program closes it, and this process cannot be
/// inspected.
pub struct Partner {
    socket: Fd,
    number: u32,
}

impl Partner {
    /// Finds the init, if one started this process. Must run before this process opens any descriptor.
    pub fn find() -> Option<Self> {
        let stat = sys::stat_at(DESCRIPTOR, b"\0").ok()?;
        if stat.mode & sys::S_IFMT != sys::S_IFSOCK {
            return None;
        }
        let inherited = Fd::own(DESCRIPTOR);
        // Above the number at which a listening socket may be expected.
        sys::duplicate_above(&inherited, FIRST_FREE).ok().map(|socket| Self { socket, number: 0 })
    }

    /// Sends a request and waits for the answer until the timeout.
    pub fn ask(&mut self, request: &Request<'_>) -> Res<()> {
        self.number = self.number.wrapping_add(1);
        let mut message = [0; REQUEST];
        let sent = match asks::encode(self.number, request, &mut message) {
            Some(()) => sys::send(self.socket.number(), [&message, &[], &[]], &[]),
            None => Err(sys::EINVAL),
        };
        message.fill(0);
        // Keeps the compiler from removing the overwrite.
        core::hint::black_box(&message);
        sent?;
        self.answer()
    }

    fn answer(&self) -> Res<()> {
        let until = sys::now_micros().saturating_add(ANSWER_TIMEOUT_MICROS);
        loop {
            let left = until.saturating_sub(sys::now_micros());
            if left == 0 {
                return Err(ETIMEDOUT);
            }
            sys::wait([(self.socket.number(), Ready::Read), (-1, Ready::Read)], Some(left))?;
            let mut answer = [0; ANSWER];
            let length = match sys::receive(self.socket.number(), &mut answer) {
                Err(sys::EAGAIN) => continue,
                other => other?.0,
            };
            let read = asks::read_answer(answer.get(..length).unwrap_or_default());
            match read.ok_or(sys::EBADMSG)? {
                // An answer to a request that timed out.
                (number, _) if number != self.number => {}
                (_, 0) => return Ok(()),
                (_, errno) => return Err(errno),
            }
        }
    }
}
