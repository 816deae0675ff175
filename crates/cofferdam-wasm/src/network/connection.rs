//! One TCP connection of a guest: a socket of the host that never blocks.
//!
//! ```text
//! new --start--> connecting --finish--> connected --shut down--> half or not at all
//!                    '--refused | failed | 30 s--> closed
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::places::Place;
use super::wake::Waker;

/// How long it may take to be connected.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the kernel holds for a connection, in each direction; it takes twice as much for it.
const MAX_BUFFER: usize = 256 << 10;
/// At least so much, so that what may be written goes in one piece when there is room at all.
const MIN_BUFFER: usize = 128 << 10;
/// The most that may be written in one call.
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

/// What a connection is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    /// Or to be connected.
    Write,
}

/// What became of connecting.
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
    _place: Place,
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
    pub(super) fn new(family: Family, place: Place) -> io::Result<Self> {
        let domain = match family {
            Family::V4 => AddressFamily::INET,
            Family::V6 => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(domain, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        if family == Family::V6 {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        // Sizes that are set do not grow.
        sockopt::set_socket_recv_buffer_size(&socket, MAX_BUFFER)?;
        sockopt::set_socket_send_buffer_size(&socket, MAX_BUFFER)?;
        let state = Mutex::new(State { phase: Phase::New, reads: true, writes: true });
        Ok(Self { socket: socket.into(), family, state, _place: place })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Begins to connect to an address that was checked.
    pub(crate) fn start(&self, to: SocketAddr) -> io::Result<()> {
        let begun = rustix::net::connect(&self.socket, &to);
        let mut state = self.state();
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => {
                state.phase = Phase::Connecting { until: Instant::now() + PATIENCE };
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
            // What is on its way is taken back.
            let _ = self.socket.shutdown(Shutdown::Both);
            (Phase::Closed, Finished::Failed(ErrorKind::TimedOut.into()))
        } else {
            return Finished::NotYet;
        };
        self.state().phase = phase;
        finished
    }

    /// Reads what is there: `None` if nothing is yet, and 0 at the end.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.state().reads {
            return Ok(Some(0));
        }
        later(|| (&self.socket).read(buffer))
    }

    /// Writes what fits: `None` if nothing does now.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        if !self.writes() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        later(|| (&self.socket).write(bytes))
    }

    pub(crate) fn writes(&self) -> bool {
        self.state().writes
    }

    /// Ends one direction, or both.
    pub(crate) fn shut_down(&self, how: Shutdown) {
        let mut state = self.state();
        state.reads &= how == Shutdown::Write;
        state.writes &= how == Shutdown::Read;
        // The other side may be gone already.
        let _ = self.socket.shutdown(how);
    }

    /// Whether there is something to do, if only to hear of an end.
    pub(crate) fn is_ready(&self, interest: Interest) -> bool {
        self.until().is_some_and(|until| Instant::now() >= until) || self.is_set(interest)
    }

    /// When it gives up to connect.
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
        Ok(sockopt::set_socket_recv_buffer_size(&self.socket, fitting(size))?)
    }

    pub(crate) fn set_send_buffer(&self, size: u64) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&self.socket, fitting(size))?)
    }
}

fn fitting(size: u64) -> usize {
    usize::try_from(size).unwrap_or(MAX_BUFFER).clamp(MIN_BUFFER, MAX_BUFFER)
}

fn later(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until one of these has something to do, the thread is woken, or `until` has come.
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
    // Whoever waits looks again for what has come.
    let _ = poll(&mut polled, Some(&left));
}

/// Whether an address is one of this machine's own.
pub(crate) fn is_own(address: IpAddr) -> bool {
    let binds = |address: IpAddr| match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        // What cannot be told is taken for the worse.
        Err(error) => !matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::Unsupported),
    };
    let nobodys: IpAddr = match Family::of(address) {
        Family::V4 => [192, 0, 2, 1].into(),
        Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
    };
    // Some hosts let anybody bind to anything. What is sent to oneself is sent from there.
    binds(address) && (!binds(nobodys) || is_source_of_itself(address))
}

fn is_source_of_itself(address: IpAddr) -> bool {
    let any: IpAddr = match Family::of(address) {
        Family::V4 => [0; 4].into(),
        Family::V6 => [0; 16].into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.map_or(true, |source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_knows_its_own_addresses() {
        for (address, own) in [
            (IpAddr::from([127, 0, 0, 1]), true),
            (IpAddr::from([127, 9, 9, 9]), true),
            (IpAddr::from([8, 8, 8, 8]), false),
            (IpAddr::from([192, 0, 2, 7]), false),
        ] {
            assert_eq!(is_own(address), own, "{address}");
        }
    }
}
