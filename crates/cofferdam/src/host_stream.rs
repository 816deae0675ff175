//! Standard output and standard error of this process, written without a thread and without blocking the runtime.
//! Timeouts and signals must be handled even while a pager does not read.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes that a pipe accepts without blocking if it polls as writable (PIPE_BUF).
const PIECE: usize = 4096;

/// Standard output or standard error.
#[derive(Debug)]
pub struct HostStream {
    fd: BorrowedFd<'static>,
    /// Registration with the runtime, created when a write would block for the first time. Files never block.
    ready: Option<AsyncFd<BorrowedFd<'static>>>,
}

impl HostStream {
    /// Returns standard output.
    pub fn stdout() -> Self {
        Self { fd: rustix::stdio::stdout(), ready: None }
    }

    /// Returns standard error.
    pub fn stderr() -> Self {
        Self { fd: rustix::stdio::stderr(), ready: None }
    }

    /// Returns true if the stream is a terminal.
    pub fn is_terminal(&self) -> bool {
        rustix::termios::isatty(self.fd)
    }

    /// Writes all data, and waits while a write would block.
    pub async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            self.writable().await?;
            match rustix::io::write(self.fd, &data[..data.len().min(PIECE)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => data = &data[written..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn writable(&mut self) -> io::Result<()> {
        while !is_writable(self.fd)? {
            let ready = match self.ready.take() {
                Some(ready) => self.ready.insert(ready),
                None => match register(self.fd) {
                    Ok(ready) => self.ready.insert(ready),
                    // Writes to descriptors that cannot be polled may block.
                    Err(_) => return Ok(()),
                },
            };
            let mut guard = ready.writable().await?;
            if !is_writable(self.fd)? {
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

/// Returns true if a write does not block. A closed reader counts as writable: the write reports it.
fn is_writable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
