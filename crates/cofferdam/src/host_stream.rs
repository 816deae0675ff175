//! Our own standard output and error, written without a thread and without ever blocking the runtime: while a pager
//! holds the output back, time-outs and signals must still be dealt with.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A pipe that polls as writable takes this much at once without blocking (PIPE_BUF).
const PIECE: usize = 4096;

/// Standard output or standard error.
#[derive(Debug)]
pub struct HostStream {
    fd: BorrowedFd<'static>,
    /// Made when the stream first has no room; never for files, which always have.
    ready: Option<AsyncFd<BorrowedFd<'static>>>,
}

impl HostStream {
    /// Standard output.
    pub fn stdout() -> Self {
        Self { fd: rustix::stdio::stdout(), ready: None }
    }

    /// Standard error.
    pub fn stderr() -> Self {
        Self { fd: rustix::stdio::stderr(), ready: None }
    }

    /// Whether a person's terminal is on the other side.
    pub fn is_terminal(&self) -> bool {
        rustix::termios::isatty(self.fd)
    }

    /// Writes everything, waiting for room as needed.
    pub async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            self.room().await?;
            match rustix::io::write(self.fd, &data[..data.len().min(PIECE)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => data = &data[written..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn room(&mut self) -> io::Result<()> {
        while !has_room(self.fd)? {
            let ready = match self.ready.take() {
                Some(ready) => self.ready.insert(ready),
                None => match register(self.fd) {
                    Ok(ready) => self.ready.insert(ready),
                    // What cannot be waited for is written to, at the risk of blocking.
                    Err(_) => return Ok(()),
                },
            };
            let mut guard = ready.writable().await?;
            if !has_room(self.fd)? {
                guard.clear_ready();
            }
        }
        Ok(())
    }
}

#[expect(deprecated, reason = "unsound only for descriptors that may be closed; a `BorrowedFd<'static>` never is")]
fn register(fd: BorrowedFd<'static>) -> io::Result<AsyncFd<BorrowedFd<'static>>> {
    AsyncFd::with_interest(fd, Interest::WRITABLE)
}

/// Whether a write would not block; a closed reader counts, because the write then says so.
fn has_room(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
