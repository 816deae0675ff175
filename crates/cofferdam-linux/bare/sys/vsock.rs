//! Connections between a VM and its host, by the VM's vsock device.

use super::{EAGAIN, Fd, Res, call, checked, number, retried};

const AF_VSOCK: usize = 40;
const SOCK_STREAM: usize = 1;
const SOCK_NONBLOCK: usize = 0o4000;
const SOCK_CLOEXEC: usize = 0o2_000_000;
/// The address that means all addresses of the VM.
const ANY: u32 = u32::MAX;
/// The host's address.
const HOST: u32 = 2;
/// The backlog of connections. There is one host, which makes one connection at a time.
const BACKLOG: usize = 4;

/// An address in the kernel's format.
#[repr(C)]
#[derive(Default)]
struct Address {
    family: u16,
    reserved: u16,
    port: u32,
    machine: u32,
    rest: [u8; 4],
}

/// Listens on a port. The socket is non-blocking, and executed programs do not inherit it.
pub fn vsock_listen(port: u32) -> Res<Fd> {
    let kind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
    // SAFETY: plain numbers; the descriptor is new.
    let socket = unsafe { checked(call(number::SOCKET, [AF_VSOCK, kind, 0, 0, 0, 0])) }.map(|fd| Fd::own(fd as i32))?;
    let address = Address { family: AF_VSOCK as u16, port, machine: ANY, ..Address::default() };
    let arguments = [socket.raw(), &raw const address as usize, size_of::<Address>(), 0, 0, 0];
    // SAFETY: the structure is the kernel's and has the length that is passed.
    unsafe { checked(call(number::BIND, arguments)) }?;
    // SAFETY: plain numbers.
    unsafe { checked(call(number::LISTEN, [socket.raw(), BACKLOG, 0, 0, 0, 0])) }?;
    Ok(socket)
}

/// Accepts the next connection of the host, or returns EAGAIN. Closes connections of others.
pub fn vsock_accept(listener: &Fd) -> Res<Fd> {
    let mut peer = Address::default();
    let mut length = size_of::<Address>() as u32;
    let pointers = [&raw mut peer as usize, &raw mut length as usize];
    let arguments = [listener.raw(), pointers[0], pointers[1], SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0];
    // SAFETY: the kernel writes at most an address and its length; the descriptor is new.
    let taken = retried(|| unsafe { checked(call(number::ACCEPT4, arguments)) }).map(|fd| Fd::own(fd as i32))?;
    if peer.family as usize == AF_VSOCK && peer.machine == HOST { Ok(taken) } else { Err(EAGAIN) }
}
