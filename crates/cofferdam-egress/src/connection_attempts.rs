//! Connections to ports that no rule has. The kernel refuses them, and a raw socket in the sandbox's network shows them.
//!
//! The socket is a listener only: it gets copies of packets, and changes nothing. Its filter passes connection
//! attempts alone, and what does not fit in its queue is lost.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, recv};
use tokio::net::UdpSocket;

/// The maximum length of the part of a packet that is read: the longest headers of IPv4 and the fixed ones of TCP.
const MAX_HEADERS: usize = 60 + 20;
/// The maximum of packets that are read at once.
const MAX_READ: usize = 1024;
/// The flags of TCP in its header, and those that only a connection attempt has.
const FLAGS: usize = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A raw socket that receives connection attempts within a sandbox's network.
#[derive(Debug)]
pub struct ConnectionAttempts {
    socket: UdpSocket,
    /// The addresses and ports on which the gateway listens.
    served: Vec<SocketAddrV4>,
}

impl ConnectionAttempts {
    /// Takes over a raw socket. Must be called in a tokio runtime.
    pub fn new(socket: OwnedFd, served: Vec<SocketAddrV4>) -> io::Result<Self> {
        // Only the calls to receive are used, which are those of any socket with messages.
        let socket = std::net::UdpSocket::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UdpSocket::from_std(socket)?, served })
    }

    /// Waits for the next attempt that the gateway does not serve.
    pub async fn next(&self) -> io::Result<SocketAddrV4> {
        let mut packet = [0; MAX_HEADERS];
        loop {
            let length = self.socket.recv(&mut packet).await?;
            if let Some(to) = self.unserved(&packet[..length]) {
                return Ok(to);
            }
        }
    }

    /// Returns the attempts that have arrived and are not read yet. The kernel queues an attempt before it refuses it, so
    /// none is missing that a program knows of.
    pub fn arrived(&self) -> Vec<SocketAddrV4> {
        let mut packet = [0; MAX_HEADERS];
        let mut found = Vec::new();
        for _ in 0..MAX_READ {
            let Ok((length, _)) = recv(&self.socket, &mut packet, RecvFlags::DONTWAIT) else { break };
            found.extend(self.unserved(&packet[..length]));
        }
        found
    }

    fn unserved(&self, packet: &[u8]) -> Option<SocketAddrV4> {
        let to = attempted(packet)?;
        let serves = |at: &SocketAddrV4| at.port() == to.port() && (at.ip().is_unspecified() || at.ip() == to.ip());
        (!self.served.iter().any(serves)).then_some(to)
    }
}

/// Returns the destination of a packet that begins a connection.
fn attempted(packet: &[u8]) -> Option<SocketAddrV4> {
    let (ip, tcp) = packet.split_at_checked(usize::from(packet.first()? & 0x0f) * 4)?;
    let address: [u8; 4] = ip.get(16..20)?.try_into().ok()?;
    let port: [u8; 2] = tcp.get(2..4)?.try_into().ok()?;
    (tcp.get(FLAGS)? & (SYN | ACK) == SYN).then(|| SocketAddrV4::new(Ipv4Addr::from(address), u16::from_be_bytes(port)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(options: usize, to: SocketAddrV4, flags: u8) -> Vec<u8> {
        let mut packet = vec![0; 40 + options];
        packet[0] = 0x40 | u8::try_from(5 + options / 4).unwrap();
        packet[16..20].copy_from_slice(&to.ip().octets());
        packet[22 + options..24 + options].copy_from_slice(&to.port().to_be_bytes());
        packet[20 + options + FLAGS] = flags;
        packet
    }

    #[test]
    fn connection_attempts_are_recognised_by_their_flags() {
        let to = SocketAddrV4::new(Ipv4Addr::new(198, 18, 1, 7), 6667);
        for options in [0, 4, 40] {
            assert_eq!(attempted(&packet(options, to, SYN)), Some(to));
            // With congestion notification.
            assert_eq!(attempted(&packet(options, to, SYN | 0xc0)), Some(to));
            for flags in [0, ACK, SYN | ACK, 0x14] {
                assert_eq!(attempted(&packet(options, to, flags)), None, "{flags}");
            }
        }
    }

    #[tokio::test]
    async fn served_ports_are_left_out() {
        let at = |address: [u8; 4], port| SocketAddrV4::new(address.into(), port);
        let (ours, _theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let served = vec![at([0, 0, 0, 0], 443), at([198, 18, 0, 1], 3128)];
        let attempts = ConnectionAttempts::new(ours.into(), served).unwrap();
        for (to, unserved) in [
            (at([198, 18, 1, 0], 443), false),
            (at([8, 8, 8, 8], 443), false),
            (at([198, 18, 0, 1], 3128), false),
            (at([198, 18, 1, 0], 3128), true),
            (at([198, 18, 1, 0], 22), true),
        ] {
            assert_eq!(attempts.unserved(&packet(0, to, SYN)).is_some(), unserved, "{to}");
        }
    }

    proptest! {
        #[test]
        fn no_packet_does_harm(packet in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = attempted(&packet);
        }
    }
}
