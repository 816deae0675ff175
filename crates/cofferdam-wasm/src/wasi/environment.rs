//! Arguments, environment, random numbers, and exit.

use super::abi::{Answer, Errno};
use super::host::Call;
use crate::termination::Termination;

/// Random bytes between two checks of the guest's limits.
const PIECE: usize = 1 << 20;
/// The maximum bytes of arguments or environment. The contract's limit is lower.
const MAX_BYTES: usize = 4 << 20;

impl Call<'_> {
    pub(super) fn args_sizes_get(&mut self, count: u32, size: u32) -> Answer {
        let strings = std::mem::take(&mut self.host.args);
        let answer = self.sizes(&strings, count, size);
        self.host.args = strings;
        answer
    }

    pub(super) fn args_get(&mut self, pointers: u32, buffer: u32) -> Answer {
        let strings = std::mem::take(&mut self.host.args);
        let answer = self.strings(&strings, pointers, buffer);
        self.host.args = strings;
        answer
    }

    pub(super) fn environ_sizes_get(&mut self, count: u32, size: u32) -> Answer {
        let strings = std::mem::take(&mut self.host.env);
        let answer = self.sizes(&strings, count, size);
        self.host.env = strings;
        answer
    }

    pub(super) fn environ_get(&mut self, pointers: u32, buffer: u32) -> Answer {
        let strings = std::mem::take(&mut self.host.env);
        let answer = self.strings(&strings, pointers, buffer);
        self.host.env = strings;
        answer
    }

    fn sizes(&mut self, strings: &[String], count: u32, size: u32) -> Answer {
        let bytes: usize = strings.iter().map(|text| text.len() + 1).sum();
        if bytes > MAX_BYTES {
            return Err(Errno::Overflow.into());
        }
        self.memory.put_u32(count, strings.len() as u32)?;
        Ok(self.memory.put_u32(size, bytes as u32)?)
    }

    fn strings(&mut self, strings: &[String], pointers: u32, buffer: u32) -> Answer {
        let (mut pointer, mut at) = (pointers, buffer);
        for text in strings {
            self.memory.put_u32(pointer, at)?;
            self.memory.put(at, text.as_bytes())?;
            let end = at.checked_add(text.len() as u32).ok_or(Errno::Fault)?;
            self.memory.put(end, &[0])?;
            at = end.checked_add(1).ok_or(Errno::Fault)?;
            pointer = pointer.checked_add(4).ok_or(Errno::Fault)?;
        }
        Ok(())
    }

    pub(super) fn random_get(&mut self, buffer: u32, length: u32) -> Answer {
        let target = self.memory.slice_mut(buffer, length)?;
        for piece in target.chunks_mut(PIECE) {
            self.host.random.fill(piece).map_err(|_| Errno::Io)?;
            self.host.check()?;
        }
        Ok(())
    }

    pub(super) fn proc_exit(&mut self, code: u32) -> Answer {
        Err(Termination::Exit((code & 0xff) as u8).into())
    }

    /// Raises a signal. WASI's signal numbers equal those of Linux.
    pub(super) fn proc_raise(&mut self, signal: u32) -> Answer {
        match i32::try_from(signal) {
            Ok(0) => Ok(()),
            Ok(signal @ 1..=30) => Err(Termination::Raised(signal).into()),
            _ => Err(Errno::Inval.into()),
        }
    }

    pub(super) fn sched_yield(&mut self) -> Answer {
        std::thread::yield_now();
        Ok(self.host.check()?)
    }

    pub(super) fn sock_accept(&mut self, fd: u32, _flags: u32, _result: u32) -> Answer {
        self.no_socket(fd)
    }

    pub(super) fn sock_recv(&mut self, fd: u32, _: u32, _: u32, _: u32, _: u32, _: u32) -> Answer {
        self.no_socket(fd)
    }

    pub(super) fn sock_send(&mut self, fd: u32, _: u32, _: u32, _: u32, _: u32) -> Answer {
        self.no_socket(fd)
    }

    pub(super) fn sock_shutdown(&mut self, fd: u32, _how: u32) -> Answer {
        self.no_socket(fd)
    }

    /// Fails, since no descriptor is a socket.
    fn no_socket(&self, fd: u32) -> Answer {
        self.host.descriptors.get(fd)?;
        Err(Errno::Notsock.into())
    }
}
