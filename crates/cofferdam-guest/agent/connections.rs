//! TCP connections of guests, which the host serves, connections of the host to guests, and queries to the resolver.
//!
//! ```text
//! free --Accept--> waiting --a guest connects: Connected--> open
//! free --Connect--> connecting --Connected--> open     (Done ends it, too)
//! open --both directions ended, broken: Done--> free
//!   '--Forget--> closing --the guest has read all bytes, its slot is needed--> free
//! ```
//!
//! The agent accepts a connection only for an `Accept` of the host. Further ones wait in the queues of the kernel. The
//! kernel refuses those to other ports. In a VM, the init gives the agent a raw socket that shows them.

use super::buffers::{Outbox, Pending};
use super::connection_attempts::{DESCRIPTOR, MAX_HEADERS};
use super::sys::{self, Endpoint, Fd, PollFd, Ready, Res};
use super::wire::{
    Answer, HEAD, MAX_CONNECTIONS, MAX_DATA, MAX_PORTS, MAX_QUERIES, MAX_QUERY, RESOLVER, RESOLVER_PORT,
};

/// The highest number of bytes per read.
const CHUNK: usize = 32 * 1024;
/// Space in the outbox that connections leave for answers.
const RESERVE: usize = 4 * (HEAD + MAX_DATA);
/// The length of the queue of each listening socket. If it overflows, the kernel resets connections rather than let them
/// wait, so it holds as many as a guest may open at once.
const BACKLOG: usize = MAX_CONNECTIONS;
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];
/// The addresses of the resolver. Programs ask the loopback address if the image has no `/etc/resolv.conf`.
const RESOLVERS: [[u8; 4]; 2] = [RESOLVER, LOOPBACK];
/// Listening sockets: the ports, and the resolver.
const LISTENERS: usize = MAX_PORTS + 1;
const EMFILE: i32 = 24;
const EBUSY: i32 = 16;
const ECONNREFUSED: i32 = 111;
/// The number of polled descriptors.
pub const POLLED: usize = 1 + RESOLVERS.len() + LISTENERS + 2 * MAX_CONNECTIONS;
/// The maximum of connection attempts that are reported in one turn, and of older ones that are dropped.
const MAX_SHOWN: usize = 128;
const MAX_DROPPED: usize = 4096;
/// The lowest number above all descriptors that an init passes on.
const FIRST_FREE: usize = 16;

enum State {
    Free,
    Waiting,
    Connecting(Fd, u16),
    Open(Fd),
    Closing(Fd),
}

struct Connection {
    id: u64,
    state: State,
    /// Bytes that the guest has not read yet.
    pending: Pending,
    /// True if no bytes of the host will follow, and once the guest was notified.
    input_ended: bool,
    input_shut: bool,
    /// True if no bytes of the guest will follow.
    output_ended: bool,
    /// Bytes of the guest that may be sent to the host.
    left: u32,
}

impl Connection {
    const NEW: Self = Self {
        id: 0,
        state: State::Free,
        pending: Pending::NEW,
        input_ended: false,
        input_shut: false,
        output_ended: false,
        left: 0,
    };

    fn is_used(&self) -> bool {
        !matches!(self.state, State::Free)
    }

    /// Ends the connection with an answer.
    fn finish(&mut self, errno: i32, out: &mut Outbox) {
        if !matches!(self.state, State::Closing(_)) {
            out.answer(self.id, &Answer::Done { errno, kind: 0 });
        }
        *self = Self::NEW;
    }

    fn open(&mut self, socket: Fd, local: Endpoint, out: &mut Outbox) {
        // If that fails, small segments take longer.
        let _ = sys::tcp_no_delay(&socket);
        self.state = State::Open(socket);
        out.answer(self.id, &Answer::Connected { address: local.address, port: local.port });
    }

    /// Starts to connect, or continues.
    fn connect(&mut self, out: &mut Outbox) {
        let State::Connecting(socket, port) = &self.state else { return };
        let to = Endpoint { address: LOOPBACK, port: *port };
        match sys::tcp_connect(socket, to) {
            Ok(false) => {}
            Ok(true) => {
                if let State::Connecting(socket, _) = core::mem::replace(&mut self.state, State::Free) {
                    self.open(socket, to, out);
                }
            }
            Err(errno) => self.finish(errno, out),
        }
    }

    /// Buffers bytes of the host. Fails if they exceed the window.
    fn take(&mut self, data: &[u8], out: &mut Outbox) -> Res<()> {
        match self.pending.add(data) {
            Ok(()) => self.feed(out),
            Err(sys::EBADMSG) => return Err(sys::EBADMSG),
            // There is no memory.
            Err(errno) => self.finish(errno, out),
        }
        Ok(())
    }

    /// Writes as many bytes as the guest takes.
    fn feed(&mut self, out: &mut Outbox) {
        let (State::Open(socket) | State::Closing(socket)) = &self.state else { return };
        let closing = matches!(self.state, State::Closing(_));
        let (written, result) = self.pending.write_to(socket);
        if let Err(errno) = result {
            return self.finish(errno, out);
        }
        if written > 0 && !closing {
            out.answer(self.id, &Answer::Credit { bytes: written as u32 });
        }
        if !self.pending.is_empty() {
            return;
        }
        if self.input_ended && !self.input_shut {
            self.input_shut = true;
            // If that fails, the connection is broken.
            let _ = sys::shut_sending(socket);
        }
        if closing || (self.input_shut && self.output_ended) {
            self.finish(0, out);
        }
    }

    /// Sends one chunk of the guest's bytes.
    fn send(&mut self, out: &mut Outbox) {
        let State::Open(socket) = &self.state else { return };
        let max = CHUNK.min(self.left as usize);
        let kind = Answer::Data { data: &[] }.kind();
        match out.fill(kind, self.id, &[], max, |space| sys::read(socket.number(), space)) {
            Err(sys::EAGAIN) => {}
            Ok(0) => {
                self.output_ended = true;
                out.answer(self.id, &Answer::DataEnd);
                self.feed(out);
            }
            Ok(length) => self.left -= length as u32,
            Err(errno) => self.finish(errno, out),
        }
    }

    /// Closes the connection for a host that has no more interest in it. The guest gets the bytes that were sent.
    fn forget(&mut self, out: &mut Outbox) {
        match core::mem::replace(&mut self.state, State::Free) {
            State::Open(socket) if !self.pending.is_empty() => {
                self.state = State::Closing(socket);
                self.feed(out);
            }
            _ => *self = Self::NEW,
        }
    }
}

/// All connections, and the sockets that accept them.
pub struct Connections {
    /// The id of the request to listen; 0 without one.
    id: u64,
    /// A raw socket that shows connection attempts.
    connection_attempts: Option<Fd>,
    resolvers: [Option<Fd>; RESOLVERS.len()],
    listeners: [Option<Fd>; LISTENERS],
    /// Queries without a response.
    queries: usize,
    list: [Connection; MAX_CONNECTIONS],
    /// The index of the connection with which a round begins.
    first: usize,
}

impl Connections {
    /// A list without connections.
    pub const NEW: Self = Self {
        id: 0,
        connection_attempts: None,
        resolvers: [const { None }; RESOLVERS.len()],
        listeners: [const { None }; LISTENERS],
        queries: 0,
        list: [const { Connection::NEW }; MAX_CONNECTIONS],
        first: 0,
    };

    /// Finds the raw socket, if an init opened one. Must run before this process opens any descriptor.
    pub fn find_connection_attempts(&mut self) {
        if sys::stat_at(DESCRIPTOR, b"\0").is_ok_and(|stat| stat.mode & sys::S_IFMT == sys::S_IFSOCK) {
            self.connection_attempts = sys::duplicate_above(&Fd::own(DESCRIPTOR), FIRST_FREE).ok();
        }
    }

    /// Returns true if this process sees connection attempts.
    pub fn sees_connection_attempts(&self) -> bool {
        self.connection_attempts.is_some()
    }

    /// Listens on these ports and as resolver.
    pub fn listen(&mut self, id: u64, ports: &[u8]) -> Res<()> {
        if self.id != 0 || ports.len() > 2 * MAX_PORTS || !ports.len().is_multiple_of(2) {
            return Err(EBUSY);
        }
        for (slot, address) in self.resolvers.iter_mut().zip(RESOLVERS) {
            *slot = Some(sys::udp_bind(Endpoint { address, port: RESOLVER_PORT })?);
        }
        let ports = ports.chunks_exact(2).filter_map(|port| port.try_into().ok()).map(u16::from_le_bytes);
        for (slot, port) in self.listeners.iter_mut().zip([RESOLVER_PORT].into_iter().chain(ports)) {
            *slot = Some(sys::tcp_listen(port, BACKLOG)?);
        }
        // A former host, or none, had a policy when these arrived.
        (0..MAX_DROPPED).take_while(|_| self.next_connection_attempt().is_some()).for_each(drop);
        self.id = id;
        Ok(())
    }

    /// Returns the number of listening sockets.
    pub fn listeners(&self) -> u64 {
        self.listeners.iter().flatten().count() as u64
    }

    /// Drops all connections and sockets, whose host has gone.
    pub fn reset(&mut self) {
        self.resolvers.iter_mut().chain(&mut self.listeners).for_each(|slot| *slot = None);
        self.list.iter_mut().for_each(|connection| *connection = Connection::NEW);
        (self.id, self.queries) = (0, 0);
    }

    fn find(&mut self, id: u64) -> Option<&mut Connection> {
        let wanted = |it: &&mut Connection| it.is_used() && it.id == id && !matches!(it.state, State::Closing(_));
        self.list.iter_mut().find(wanted)
    }

    /// Returns true if this is the id of a connection.
    pub fn has(&mut self, id: u64) -> bool {
        self.find(id).is_some()
    }

    /// Adds a connection. A guest that reads nothing keeps the slot of a closed connection only while no other needs
    /// it.
    fn add(&mut self, id: u64, state: State, left: u32, out: &mut Outbox) -> Option<&mut Connection> {
        let free = self.list.iter().position(|it| !it.is_used());
        let slot = free.or_else(|| self.list.iter().position(|it| matches!(it.state, State::Closing(_))));
        let Some(slot) = slot.and_then(|at| self.list.get_mut(at)) else {
            out.answer(id, &Answer::Done { errno: EMFILE, kind: 0 });
            return None;
        };
        *slot = Connection { id, state, left, ..Connection::NEW };
        Some(slot)
    }

    /// Waits for a connection of a guest.
    pub fn accept(&mut self, id: u64, window: u32, out: &mut Outbox) {
        self.add(id, State::Waiting, window, out);
    }

    /// Connects to a port.
    pub fn connect(&mut self, id: u64, port: u16, window: u32, out: &mut Outbox) {
        let refused = |errno, out: &mut Outbox| out.answer(id, &Answer::Done { errno, kind: 0 });
        match sys::tcp_socket() {
            // It would accept its own connection.
            Ok(_) if self.id != 0 && self.is_own(port) => refused(ECONNREFUSED, out),
            Ok(socket) => {
                if let Some(connection) = self.add(id, State::Connecting(socket, port), window, out) {
                    connection.connect(out);
                }
            }
            Err(errno) => refused(errno, out),
        }
    }

    fn is_own(&self, port: u16) -> bool {
        self.listeners.iter().flatten().any(|listener| sys::local(listener).is_ok_and(|local| local.port == port))
    }

    /// Buffers bytes for a connection. Ignores bytes for one that has ended.
    pub fn input(&mut self, id: u64, data: &[u8], out: &mut Outbox) -> Res<()> {
        self.find(id).map_or(Ok(()), |connection| connection.take(data, out))
    }

    /// Ends the host's direction of a connection.
    pub fn end_input(&mut self, id: u64, out: &mut Outbox) {
        if let Some(connection) = self.find(id) {
            connection.input_ended = true;
            connection.feed(out);
        }
    }

    /// Allows more bytes of a connection to be sent.
    pub fn more(&mut self, id: u64, bytes: u32) {
        if let Some(connection) = self.find(id) {
            connection.left = connection.left.saturating_add(bytes);
        }
    }

    /// Closes a connection.
    pub fn forget(&mut self, id: u64, out: &mut Outbox) {
        if let Some(connection) = self.find(id) {
            connection.forget(out);
        }
    }

    /// Sends the response to a query to its sender.
    pub fn respond(&mut self, from: &[u8; 7], data: &[u8]) {
        self.queries = self.queries.saturating_sub(1);
        let [socket, a, b, c, d, high, low] = *from;
        let to = Endpoint { address: [a, b, c, d], port: u16::from_be_bytes([high, low]) };
        if let Some(Some(socket)) = self.resolvers.get(usize::from(socket)).filter(|_| !data.is_empty()) {
            // The sender asks again if it gets no response.
            let _ = sys::send_to(socket, data, to);
        }
    }

    /// Fills a list with the descriptors to poll. Returns the number of used items.
    pub fn wait_for(&self, polls: &mut [PollFd], out: &Outbox) -> usize {
        if self.id == 0 && !self.list.iter().any(Connection::is_used) {
            return 0;
        }
        let reading = out.free() >= RESERVE;
        let accepting = reading && self.list.iter().any(|it| matches!(it.state, State::Waiting));
        let asking = reading && self.queries < MAX_QUERIES;
        let attempts = [(self.connection_attempts.as_ref(), reading && self.id != 0, Ready::Read)].into_iter();
        let resolvers = self.resolvers.iter().map(|socket| (socket.as_ref(), asking, Ready::Read));
        let listeners = self.listeners.iter().map(|socket| (socket.as_ref(), accepting, Ready::Read));
        let connections = self.list.iter().flat_map(|it| {
            let (socket, reads, writes) = match &it.state {
                State::Open(socket) => {
                    (Some(socket), reading && it.left > 0 && !it.output_ended, !it.pending.is_empty())
                }
                State::Closing(socket) => (Some(socket), false, true),
                State::Connecting(socket, _) => (Some(socket), false, reading),
                State::Free | State::Waiting => (None, false, false),
            };
            [(socket, reads, Ready::Read), (socket, writes, Ready::Write)]
        });
        let wanted = attempts.chain(resolvers).chain(listeners).chain(connections);
        for (poll, (fd, wanted, ready)) in polls.iter_mut().zip(wanted) {
            *poll = fd.filter(|_| wanted).map_or(PollFd::NONE, |fd| PollFd::new(fd.number(), ready));
        }
        POLLED
    }

    /// Returns true in every other round.
    pub fn serve_first(&self) -> bool {
        self.first.is_multiple_of(2)
    }

    /// Serves ready descriptors. Each round begins with another connection, so that none is always last.
    pub fn serve(&mut self, polls: &[PollFd], out: &mut Outbox) {
        let Some((resolvers, rest)) = polls.get(1..).and_then(|rest| rest.split_at_checked(RESOLVERS.len())) else {
            return;
        };
        let Some((listeners, rest)) = rest.split_at_checked(LISTENERS) else { return };
        for (at, _) in resolvers.iter().enumerate().filter(|(_, poll)| poll.is_ready()) {
            self.ask(at, out);
        }
        for (at, _) in listeners.iter().enumerate().filter(|(_, poll)| poll.is_ready()) {
            self.accept_from(at, out);
        }
        self.first = (self.first + 1) % MAX_CONNECTIONS;
        for index in (self.first..MAX_CONNECTIONS).chain(0..self.first) {
            let Some(connection) = self.list.get_mut(index).filter(|it| it.is_used()) else { continue };
            let ready = |at: usize| rest.get(2 * index + at).is_some_and(PollFd::is_ready);
            if ready(1) && out.free() >= RESERVE / 2 {
                connection.connect(out);
                connection.feed(out);
            }
            if ready(0) && out.free() >= RESERVE {
                connection.send(out);
            }
        }
    }

    /// Reports connection attempts. Does not rely on a poll, so that those of an exec are reported before its end,
    /// as far as the host takes them at once.
    pub fn report_connection_attempts(&self, out: &mut Outbox) {
        for _ in 0..MAX_SHOWN {
            if self.id == 0 || out.free() < RESERVE {
                return;
            }
            let Some(packet) = self.next_connection_attempt() else { return };
            // The addresses of names are above all that programs use to reach the sandbox itself.
            if let Some(Endpoint { address, port }) = destination(&packet)
                && !(address[0] == LOOPBACK[0] && address[1] < RESOLVER[1])
            {
                out.answer(self.id, &Answer::Requested { address, port });
            }
        }
    }

    /// Reads the next connection attempt.
    fn next_connection_attempt(&self) -> Option<[u8; MAX_HEADERS]> {
        let mut packet = [0; MAX_HEADERS];
        sys::receive_from(self.connection_attempts.as_ref()?, &mut packet).ok().map(|_| packet)
    }

    /// Sends one query to the host.
    fn ask(&mut self, at: usize, out: &mut Outbox) {
        let Some(Some(socket)) = self.resolvers.get(at) else { return };
        if self.queries >= MAX_QUERIES || out.free() < RESERVE {
            return;
        }
        // One byte more shows that a query is too long.
        let mut query = [0; MAX_QUERY + 1];
        let Ok((length, from)) = sys::receive_from(socket, &mut query) else { return };
        let Some(data) = query.get(..length).filter(|_| (1..=MAX_QUERY).contains(&length)) else { return };
        let ([a, b, c, d], [high, low]) = (from.address, from.port.to_be_bytes());
        out.answer(self.id, &Answer::Query { from: &[at as u8, a, b, c, d, high, low], data });
        self.queries += 1;
    }

    /// Accepts the connections for which the host waits.
    fn accept_from(&mut self, at: usize, out: &mut Outbox) {
        let Some(Some(listener)) = self.listeners.get(at) else { return };
        for connection in self.list.iter_mut().filter(|it| matches!(it.state, State::Waiting)) {
            if out.free() < RESERVE {
                return;
            }
            // The guest may have closed the connection already.
            let Ok((socket, local)) = sys::tcp_accept(listener) else { return };
            connection.open(socket, local, out);
        }
    }
}

/// Returns the destination of a packet with headers of IPv4 and TCP.
fn destination(packet: &[u8]) -> Option<Endpoint> {
    let tcp = packet.get(usize::from(packet.first()? & 0x0f) * 4..)?;
    let (address, port) = (packet.get(16..20)?.try_into().ok()?, tcp.get(2..4)?.try_into().ok()?);
    Some(Endpoint { address, port: u16::from_be_bytes(port) })
}
