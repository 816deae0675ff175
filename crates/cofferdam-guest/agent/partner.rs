//! Asking the machine's init for what needs a right, where there is such an init.

use super::asks::{self, ANSWER, DESCRIPTOR, REQUEST, Request};
use super::sys::{self, Fd, Ready, Res};

/// Above all descriptors that an init hands over.
const FIRST_FREE: usize = 16;
/// Time that the init has for an answer.
const LIMIT_MICROS: u64 = 20_000_000;
const ETIMEDOUT: i32 = 110;

/// The init, by a socket that no guest can come by: it is closed when a program is executed, and nobody can look into
/// this process.
pub struct Partner {
    socket: Fd,
    number: u32,
}

impl Partner {
    /// The init, if this process was started by one. To be asked before this process opens anything.
    pub fn find() -> Option<Self> {
        let stat = sys::stat_at(DESCRIPTOR, b"\0").ok()?;
        if stat.mode & sys::S_IFMT != sys::S_IFSOCK {
            return None;
        }
        let inherited = Fd::own(DESCRIPTOR);
        // Not where a listening socket may be looked for.
        sys::duplicate_above(&inherited, FIRST_FREE).ok().map(|socket| Self { socket, number: 0 })
    }

    /// Asks, and waits for the answer, but not for ever.
    pub fn ask(&mut self, request: &Request<'_>) -> Res<()> {
        self.number = self.number.wrapping_add(1);
        let mut message = [0; REQUEST];
        let sent = match asks::encode(self.number, request, &mut message) {
            Some(()) => sys::send(self.socket.number(), [&message, &[], &[]], &[]),
            None => Err(sys::EINVAL),
        };
        message.fill(0);
        // Looked at, so that it is really written over.
        core::hint::black_box(&message);
        sent?;
        self.answer()
    }

    fn answer(&self) -> Res<()> {
        let until = sys::now_micros().saturating_add(LIMIT_MICROS);
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
                // The answer to what was given up.
                (number, _) if number != self.number => {}
                (_, 0) => return Ok(()),
                (_, errno) => return Err(errno),
            }
        }
    }
}
