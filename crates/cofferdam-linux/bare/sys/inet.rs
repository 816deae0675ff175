//! Sockets of IPv4. All are non-blocking, and executed programs do not inherit them.

use super::{Fd, Res, call, checked, ioctl, number, retried};

const AF_INET: usize = 2;
const SOCK_STREAM: usize = 1;
const SOCK_DGRAM: usize = 2;
const SOCK_RAW: usize = 3;
const FLAGS: usize = 0o2_004_000;
const IPPROTO_TCP: usize = 6;
const TCP_NODELAY: usize = 1;
const SOL_SOCKET: usize = 1;
const SO_REUSEADDR: usize = 2;
const SHUT_WR: usize = 1;
const MSG_DONTWAIT: usize = 0x40;
const SIOCGIFFLAGS: usize = 0x8913;
const SIOCSIFFLAGS: usize = 0x8914;
const IFF_UP: u16 = 1;
pub const EINPROGRESS: i32 = 115;
pub const EALREADY: i32 = 114;
pub const EISCONN: i32 = 106;

/// An address and a port.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Endpoint {
    pub address: [u8; 4],
    pub port: u16,
}

/// An address in the kernel's format.
#[repr(C)]
#[derive(Default)]
struct Address {
    family: u16,
    port: [u8; 2],
    address: [u8; 4],
    rest: [u8; 8],
}

const LENGTH: usize = size_of::<Address>();

impl Address {
    fn new(it: Endpoint) -> Self {
        Self { family: AF_INET as u16, port: it.port.to_be_bytes(), address: it.address, rest: [0; 8] }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { address: self.address, port: u16::from_be_bytes(self.port) }
    }
}

fn socket(kind: usize) -> Res<Fd> {
    socket_of(AF_INET, kind, 0)
}

fn socket_of(family: usize, kind: usize, protocol: usize) -> Res<Fd> {
    // SAFETY: plain numbers; the descriptor is new.
    unsafe { checked(call(number::SOCKET, [family, kind | FLAGS, protocol, 0, 0, 0])) }.map(|fd| Fd::own(fd as i32))
}

fn bind(socket: &Fd, to: Endpoint) -> Res<()> {
    let address = Address::new(to);
    let arguments = [socket.raw(), &raw const address as usize, LENGTH, 0, 0, 0];
    // SAFETY: the structure is the kernel's and has the length that is passed.
    unsafe { checked(call(number::BIND, arguments)) }.map(drop)
}

fn enable(socket: &Fd, level: usize, option: usize) -> Res<()> {
    let on = 1i32;
    let arguments = [socket.raw(), level, option, &raw const on as usize, size_of::<i32>(), 0];
    // SAFETY: the number has the length that is passed.
    unsafe { checked(call(number::SETSOCKOPT, arguments)) }.map(drop)
}

/// Listens on a TCP port of all addresses.
pub fn tcp_listen(port: u16, backlog: usize) -> Res<Fd> {
    let listener = socket(SOCK_STREAM)?;
    enable(&listener, SOL_SOCKET, SO_REUSEADDR)?;
    bind(&listener, Endpoint { address: [0; 4], port })?;
    // SAFETY: plain numbers.
    unsafe { checked(call(number::LISTEN, [listener.raw(), backlog, 0, 0, 0, 0])) }?;
    Ok(listener)
}

/// Accepts the next connection, or returns EAGAIN. Returns its local address.
pub fn tcp_accept(listener: &Fd) -> Res<(Fd, Endpoint)> {
    let arguments = [listener.raw(), 0, 0, FLAGS, 0, 0];
    // SAFETY: plain numbers; the descriptor is new.
    let accepted = retried(|| unsafe { checked(call(number::ACCEPT4, arguments)) }).map(|fd| Fd::own(fd as i32))?;
    let local = local(&accepted)?;
    Ok((accepted, local))
}

/// Returns the local address of a socket.
pub fn local(socket: &Fd) -> Res<Endpoint> {
    let (mut local, mut length) = (Address::default(), LENGTH as u32);
    let arguments = [socket.raw(), &raw mut local as usize, &raw mut length as usize, 0, 0, 0];
    // SAFETY: the kernel writes at most an address and its length.
    unsafe { checked(call(number::GETSOCKNAME, arguments)) }?;
    Ok(local.endpoint())
}

/// Creates a TCP socket to connect.
pub fn tcp_socket() -> Res<Fd> {
    socket(SOCK_STREAM)
}

/// Connects a socket, or continues to. Returns true once it is connected.
pub fn tcp_connect(socket: &Fd, to: Endpoint) -> Res<bool> {
    let address = Address::new(to);
    let arguments = [socket.raw(), &raw const address as usize, LENGTH, 0, 0, 0];
    // SAFETY: the structure is the kernel's and has the length that is passed.
    match retried(|| unsafe { checked(call(number::CONNECT, arguments)) }) {
        Ok(_) | Err(EISCONN) => Ok(true),
        Err(EINPROGRESS | EALREADY) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Sends small segments at once.
pub fn tcp_no_delay(socket: &Fd) -> Res<()> {
    enable(socket, IPPROTO_TCP, TCP_NODELAY)
}

/// Ends the sending direction of a connection.
pub fn shut_sending(socket: &Fd) -> Res<()> {
    // SAFETY: plain numbers.
    unsafe { checked(call(number::SHUTDOWN, [socket.raw(), SHUT_WR, 0, 0, 0, 0])) }.map(drop)
}

/// Creates a UDP socket with this address.
pub fn udp_bind(to: Endpoint) -> Res<Fd> {
    let bound = socket(SOCK_DGRAM)?;
    bind(&bound, to)?;
    Ok(bound)
}

/// Receives a datagram, or returns EAGAIN. Returns its length, which is at most that of the buffer, and its sender.
pub fn receive_from(socket: &Fd, into: &mut [u8]) -> Res<(usize, Endpoint)> {
    let (mut from, mut length) = (Address::default(), LENGTH as u32);
    let pointers = [&raw mut from as usize, &raw mut length as usize];
    let arguments = [socket.raw(), into.as_mut_ptr() as usize, into.len(), MSG_DONTWAIT, pointers[0], pointers[1]];
    // SAFETY: the buffer has the length that is passed; the kernel writes at most an address and its length.
    let received = retried(|| unsafe { checked(call(number::RECVFROM, arguments)) })?;
    Ok((received, from.endpoint()))
}

/// Sends a datagram, or returns EAGAIN.
pub fn send_to(socket: &Fd, data: &[u8], to: Endpoint) -> Res<()> {
    let address = Address::new(to);
    let arguments =
        [socket.raw(), data.as_ptr() as usize, data.len(), MSG_DONTWAIT, &raw const address as usize, LENGTH];
    // SAFETY: buffer and structure have the lengths that are passed.
    retried(|| unsafe { checked(call(number::SENDTO, arguments)) }).map(drop)
}

/// Creates a raw socket of TCP that receives the packets which a filter passes.
pub fn raw_tcp(filter: &[u64]) -> Res<Fd> {
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const u64,
    }
    const SO_ATTACH_FILTER: usize = 26;
    let socket = socket_of(AF_INET, SOCK_RAW, IPPROTO_TCP)?;
    let program = Program { length: filter.len() as u16, filter: filter.as_ptr() };
    let arguments =
        [socket.raw(), SOL_SOCKET, SO_ATTACH_FILTER, &raw const program as usize, size_of::<Program>(), 0];
    // SAFETY: the structure and its instructions are as the kernel expects, and have the lengths that are passed.
    unsafe { checked(call(number::SETSOCKOPT, arguments)) }?;
    Ok(socket)
}

/// Sends a request about routes to the kernel, and returns its answer.
pub fn change_routes(request: &[u32]) -> Res<()> {
    const AF_NETLINK: usize = 16;
    let socket = socket_of(AF_NETLINK, SOCK_RAW, 0)?;
    let arguments = [socket.raw(), request.as_ptr() as usize, size_of_val(request), 0, 0, 0];
    // SAFETY: the buffer has the length that is passed, and there is no address.
    unsafe { checked(call(number::SENDTO, arguments)) }?;
    let mut answer = [0; 64];
    let length = super::read(socket.number(), &mut answer)?;
    let error = answer.get(..length).and_then(|answer| answer.get(16..20)?.try_into().ok());
    match error.map(i32::from_le_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(-error),
        None => Err(super::EBADMSG),
    }
}

/// Brings the loopback interface up. The kernel gives it the address 127.0.0.1/8.
pub fn raise_loopback() -> Res<()> {
    #[repr(C)]
    struct Interface {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    let mut interface = Interface { name: *b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0", flags: 0, rest: [0; 22] };
    let socket = socket(SOCK_DGRAM)?;
    ioctl(socket.number(), SIOCGIFFLAGS, &raw mut interface as usize)?;
    interface.flags |= IFF_UP;
    ioctl(socket.number(), SIOCSIFFLAGS, &raw mut interface as usize).map(drop)
}
