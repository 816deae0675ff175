//! One TCP connection of a guest, over a nonblocking host socket.
//!
//! ```text
//! new --start--> connecting --finish--> connected --shut down--> half-closed or closed
//!                    '--refused | failed | 30 s--> closed
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::slots::Permit;
use super::wake::Waker;

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum socket buffer size in each direction. The kernel allocates twice as much.
const MAX_BUFFER: usize = 256 << 10;
/// The minimum socket buffer size, so that a writable socket takes a whole permitted write.
const MIN_BUFFER: usize = 128 << 10;
/// The maximum bytes of one write.
pub(crate) const PERMITTED: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The event that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    /// Writable, or connected.
    Write,
}

/// The state of a connection attempt.
#[derive(Debug)]
pub(crate) enum Finished {
    Connected,
    NotYet,
    NotBegun,
    Failed(io::Error),
}

#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    pub(crate) family: Family,
    state: Mutex<State>,
    _permit: Permit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    Connecting { until: Instant },
    Connected,
    Closed,
}

#[derive(Debug, Clone, Copy)]
struct State {
    phase: Phase,
    reads: bool,
    writes: bool,
}

impl Connection {
    pub(super) fn new(family: Family, permit: Permit) -> io::Result<Self> {
        let domain = match family {
            Family::V4 => AddressFamily::INET,
            Family::V6 => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(domain, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        if family == Family::V6 {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        // A size that is set explicitly does not grow.
        sockopt::set_socket_recv_buffer_size(&socket, MAX_BUFFER)?;
        sockopt::set_socket_send_buffer_size(&socket, MAX_BUFFER)?;
        let state = Mutex::new(State { phase: Phase::New, reads: true, writes: true });
        Ok(Self { socket: socket.into(), family, state, _permit: permit })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn is_new(&self) -> bool {
        self.state().phase == Phase::New
    }

    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.state().phase, Phase::Connecting { .. })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state().phase == Phase::Connected
    }

    /// Starts to connect to an address that the policy allows.
    pub(crate) fn start(&self, to: SocketAddr) -> io::Result<()> {
        let begun = rustix::net::connect(&self.socket, &to);
        let mut state = self.state();
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => {
                state.phase = Phase::Connecting { until: Instant::now() + CONNECT_TIMEOUT };
                Ok(())
            }
            Err(error) => {
                state.phase = Phase::Closed;
                Err(error.into())
            }
        }
    }

    pub(crate) fn finish(&self) -> Finished {
        let Phase::Connecting { until } = self.state().phase else { return Finished::NotBegun };
        let (phase, finished) = if self.is_set(Interest::Write) {
            match self.socket.take_error() {
                Ok(None) => (Phase::Connected, Finished::Connected),
                Ok(Some(error)) | Err(error) => (Phase::Closed, Finished::Failed(error)),
            }
        } else if Instant::now() >= until {
            // Abort the attempt.
            let _ = self.socket.shutdown(Shutdown::Both);
            (Phase::Closed, Finished::Failed(ErrorKind::TimedOut.into()))
        } else {
            return Finished::NotYet;
        };
        self.state().phase = phase;
        finished
    }

    /// Reads the available bytes: `None` if there are none yet, and 0 at the end.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.state().reads {
            return Ok(Some(0));
        }
        nonblocking(|| (&self.socket).read(buffer))
    }

    /// Writes as many bytes as the buffer takes: `None` if it is full.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        if !self.writes() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        nonblocking(|| (&self.socket).write(bytes))
    }

    pub(crate) fn writes(&self) -> bool {
        self.state().writes
    }

    /// Shuts down one direction, or both.
    pub(crate) fn shut_down(&self, how: Shutdown) {
        let mut state = self.state();
        state.reads &= how == Shutdown::Write;
        state.writes &= how == Shutdown::Read;
        // The peer may have closed the connection already.
        let _ = self.socket.shutdown(how);
    }

    /// Returns true if the socket is ready, or if the connection attempt timed out.
    pub(crate) fn is_ready(&self, interest: Interest) -> bool {
        self.until().is_some_and(|until| Instant::now() >= until) || self.is_set(interest)
    }

    /// Returns the time at which the connection attempt times out.
    pub(crate) fn until(&self) -> Option<Instant> {
        match self.state().phase {
            Phase::Connecting { until } => Some(until),
            _ => None,
        }
    }

    fn is_set(&self, interest: Interest) -> bool {
        let mut polled = [self.polled(interest)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|set| set > 0)
    }

    fn polled(&self, interest: Interest) -> PollFd<'_> {
        let flags = match interest {
            Interest::Read => PollFlags::IN,
            Interest::Write => PollFlags::OUT,
        };
        PollFd::new(&self.socket, flags)
    }

    pub(crate) fn set_receive_buffer(&self, size: u64) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.socket, clamped_buffer(size))?)
    }

    pub(crate) fn set_send_buffer(&self, size: u64) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&self.socket, clamped_buffer(size))?)
    }
}

fn clamped_buffer(size: u64) -> usize {
    usize::try_from(size).unwrap_or(MAX_BUFFER).clamp(MIN_BUFFER, MAX_BUFFER)
}

/// Calls until it is not interrupted, and returns `None` if it would block.
fn nonblocking(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until one of these is ready, the thread is woken, or `until` has passed.
pub(crate) fn await_any(waker: &Waker, connections: &[(&Connection, Interest)], until: Instant) {
    let mut distinct: Vec<(&Connection, Interest)> = Vec::new();
    for (connection, interest) in connections {
        if !distinct.iter().any(|(known, wanted)| std::ptr::eq(*known, *connection) && wanted == interest) {
            distinct.push((connection, *interest));
        }
    }
    let mut polled = vec![PollFd::from_borrowed_fd(waker.as_fd(), PollFlags::IN)];
    polled.extend(distinct.iter().map(|(connection, interest)| connection.polled(*interest)));
    let left = until.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    // The caller checks for readiness again.
    let _ = poll(&mut polled, Some(&left));
}
