//! TCP connections to the destinations that the policy allows. A component cannot listen or choose a local port.

use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use wasmtime::component::Resource;

use super::bindings::sockets::network::{ErrorCode, IpAddressFamily, IpSocketAddress};
use super::bindings::sockets::tcp::{Host as Tcp, HostTcpSocket, ShutdownType};
use super::bindings::sockets::tcp_create_socket;
use super::error::SocketFail;
use super::resources::{InputStream, Network, OutputStream, Pollable, TcpSocket};
use super::sockets::{from_guest, to_guest};
use crate::network::{Allowed, Connection, Family, Finished, Interest, is_not_single_host, is_own};
use crate::wasi::Host;

type Answer<T = ()> = Result<T, SocketFail>;
type Socket = Resource<TcpSocket>;

/// The kernel's limit on keep-alive times, in seconds.
const MAX_SECONDS: u64 = 32_767;
/// The kernel's limit on keep-alive probes.
const MAX_PROBES: u32 = 127;

impl tcp_create_socket::Host for Host {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> Answer<Socket> {
        if self.egress.is_none() {
            return Err(ErrorCode::AccessDenied.into());
        }
        // Later waits for this socket need the waker.
        self.waker()?;
        let family = match family {
            IpAddressFamily::Ipv4 => Family::V4,
            IpAddressFamily::Ipv6 => Family::V6,
        };
        let opened = self.egress.as_ref().map(|egress| egress.socket(family)).transpose()?.flatten();
        let connection = Arc::new(opened.ok_or(ErrorCode::NewSocketLimit)?);
        Ok(self.push_resource(TcpSocket { connection, remote: None })?)
    }
}

impl Host {
    fn connection(&self, socket: &Socket) -> wasmtime::Result<&Connection> {
        Ok(&self.resource(socket)?.connection)
    }

    /// Checks that the policy allows this socket to connect to this address, and that the address is valid for it.
    fn admit(&mut self, connection: &Connection, to: SocketAddr) -> Answer {
        let mapped = matches!(to, SocketAddr::V6(to) if to.ip().to_ipv4_mapped().is_some());
        if connection.family != Family::of(to.ip()) || mapped || is_not_single_host(to.ip()) || to.port() == 0 {
            return Err(ErrorCode::InvalidArgument.into());
        }
        let egress = self.egress.as_mut().ok_or(ErrorCode::AccessDenied)?;
        let allowed = egress.allows(to).map_err(|_| ErrorCode::AccessDenied)?;
        if matches!(allowed, Allowed::Elsewhere | Allowed::InRange) && is_own(to.ip()) {
            egress.note(format_args!("the connection to {to}"), "an allowed name resolves to it, but it is this host");
            return Err(ErrorCode::AccessDenied.into());
        }
        Ok(())
    }
}

fn positive<T: Default + PartialEq>(value: T) -> Answer<T> {
    if value == T::default() { Err(ErrorCode::InvalidArgument.into()) } else { Ok(value) }
}

/// Converts nanoseconds to whole seconds, at least one.
fn seconds(nanos: u64) -> Answer<Duration> {
    let seconds = positive(nanos)?.div_ceil(1_000_000_000);
    Ok(Duration::from_secs(seconds.min(MAX_SECONDS)))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn os<T>(result: rustix::io::Result<T>) -> Answer<T> {
    result.map_err(|error| std::io::Error::from(error).into())
}

impl Tcp for Host {}

impl HostTcpSocket for Host {
    fn start_bind(&mut self, socket: Socket, _: Resource<Network>, _: IpSocketAddress) -> Answer {
        self.connection(&socket)?;
        Err(ErrorCode::AccessDenied.into())
    }

    fn finish_bind(&mut self, socket: Socket) -> Answer {
        self.connection(&socket)?;
        Err(ErrorCode::NotInProgress.into())
    }

    fn start_connect(&mut self, socket: Socket, network: Resource<Network>, to: IpSocketAddress) -> Answer {
        self.resource(&network)?;
        let connection = Arc::clone(&self.resource(&socket)?.connection);
        if connection.is_connecting() {
            return Err(ErrorCode::ConcurrencyConflict.into());
        }
        if !connection.is_new() {
            return Err(ErrorCode::InvalidState.into());
        }
        let to = from_guest(to)?;
        self.admit(&connection, to)?;
        connection.start(to)?;
        self.resource_mut(&socket)?.remote = Some(to);
        Ok(())
    }

    fn finish_connect(&mut self, socket: Socket) -> Answer<(Resource<InputStream>, Resource<OutputStream>)> {
        let connection = Arc::clone(&self.resource(&socket)?.connection);
        match connection.finish() {
            Finished::Connected => {
                let input = self.push_resource(InputStream::Socket(Arc::clone(&connection)))?;
                Ok((input, self.push_resource(OutputStream::Socket(connection))?))
            }
            Finished::NotYet => Err(ErrorCode::WouldBlock.into()),
            Finished::NotBegun => Err(ErrorCode::NotInProgress.into()),
            Finished::Failed(error) => Err(error.into()),
        }
    }

    fn start_listen(&mut self, socket: Socket) -> Answer {
        self.connection(&socket)?;
        Err(ErrorCode::AccessDenied.into())
    }

    fn finish_listen(&mut self, socket: Socket) -> Answer {
        self.connection(&socket)?;
        Err(ErrorCode::NotInProgress.into())
    }

    fn accept(&mut self, socket: Socket) -> Answer<(Socket, Resource<InputStream>, Resource<OutputStream>)> {
        self.connection(&socket)?;
        Err(ErrorCode::InvalidState.into())
    }

    fn local_address(&mut self, socket: Socket) -> Answer<IpSocketAddress> {
        let connection = self.connection(&socket)?;
        if !connection.is_connecting() && !connection.is_connected() {
            return Err(ErrorCode::InvalidState.into());
        }
        Ok(to_guest(connection.socket().local_addr()?))
    }

    fn remote_address(&mut self, socket: Socket) -> Answer<IpSocketAddress> {
        let TcpSocket { connection, remote } = self.resource(&socket)?;
        let remote = remote.filter(|_| connection.is_connected());
        Ok(to_guest(remote.ok_or(ErrorCode::InvalidState)?))
    }

    fn is_listening(&mut self, socket: Socket) -> wasmtime::Result<bool> {
        self.connection(&socket).map(|_| false)
    }

    fn address_family(&mut self, socket: Socket) -> wasmtime::Result<IpAddressFamily> {
        Ok(match self.connection(&socket)?.family {
            Family::V4 => IpAddressFamily::Ipv4,
            Family::V6 => IpAddressFamily::Ipv6,
        })
    }

    fn set_listen_backlog_size(&mut self, socket: Socket, _: u64) -> Answer {
        self.connection(&socket)?;
        Err(ErrorCode::NotSupported.into())
    }

    fn keep_alive_enabled(&mut self, socket: Socket) -> Answer<bool> {
        os(sockopt::socket_keepalive(self.connection(&socket)?.socket()))
    }

    fn set_keep_alive_enabled(&mut self, socket: Socket, enabled: bool) -> Answer {
        os(sockopt::set_socket_keepalive(self.connection(&socket)?.socket(), enabled))
    }

    fn keep_alive_idle_time(&mut self, socket: Socket) -> Answer<u64> {
        os(sockopt::tcp_keepidle(self.connection(&socket)?.socket())).map(nanos)
    }

    fn set_keep_alive_idle_time(&mut self, socket: Socket, time: u64) -> Answer {
        os(sockopt::set_tcp_keepidle(self.connection(&socket)?.socket(), seconds(time)?))
    }

    fn keep_alive_interval(&mut self, socket: Socket) -> Answer<u64> {
        os(sockopt::tcp_keepintvl(self.connection(&socket)?.socket())).map(nanos)
    }

    fn set_keep_alive_interval(&mut self, socket: Socket, time: u64) -> Answer {
        os(sockopt::set_tcp_keepintvl(self.connection(&socket)?.socket(), seconds(time)?))
    }

    fn keep_alive_count(&mut self, socket: Socket) -> Answer<u32> {
        os(sockopt::tcp_keepcnt(self.connection(&socket)?.socket()))
    }

    fn set_keep_alive_count(&mut self, socket: Socket, count: u32) -> Answer {
        let count = positive(count)?.min(MAX_PROBES);
        os(sockopt::set_tcp_keepcnt(self.connection(&socket)?.socket(), count))
    }

    fn hop_limit(&mut self, socket: Socket) -> Answer<u8> {
        let connection = self.connection(&socket)?;
        match connection.family {
            Family::V4 => os(sockopt::ip_ttl(connection.socket())).map(|hops| u8::try_from(hops).unwrap_or(u8::MAX)),
            Family::V6 => os(sockopt::ipv6_unicast_hops(connection.socket())),
        }
    }

    fn set_hop_limit(&mut self, socket: Socket, hops: u8) -> Answer {
        let (connection, hops) = (self.connection(&socket)?, positive(hops)?);
        match connection.family {
            Family::V4 => os(sockopt::set_ip_ttl(connection.socket(), hops.into())),
            Family::V6 => os(sockopt::set_ipv6_unicast_hops(connection.socket(), Some(hops))),
        }
    }

    fn receive_buffer_size(&mut self, socket: Socket) -> Answer<u64> {
        os(sockopt::socket_recv_buffer_size(self.connection(&socket)?.socket())).map(|size| size as u64)
    }

    fn set_receive_buffer_size(&mut self, socket: Socket, size: u64) -> Answer {
        Ok(self.connection(&socket)?.set_receive_buffer(positive(size)?)?)
    }

    fn send_buffer_size(&mut self, socket: Socket) -> Answer<u64> {
        os(sockopt::socket_send_buffer_size(self.connection(&socket)?.socket())).map(|size| size as u64)
    }

    fn set_send_buffer_size(&mut self, socket: Socket, size: u64) -> Answer {
        Ok(self.connection(&socket)?.set_send_buffer(positive(size)?)?)
    }

    /// Returns a pollable that is ready when the connection is established or has failed.
    fn subscribe(&mut self, socket: Socket) -> wasmtime::Result<Resource<Pollable>> {
        let connection = Arc::clone(&self.resource(&socket)?.connection);
        self.push_resource(Pollable::Connection(connection, Interest::Write))
    }

    fn shutdown(&mut self, socket: Socket, how: ShutdownType) -> Answer {
        let connection = self.connection(&socket)?;
        if !connection.is_connected() {
            return Err(ErrorCode::InvalidState.into());
        }
        connection.shut_down(match how {
            ShutdownType::Receive => Shutdown::Read,
            ShutdownType::Send => Shutdown::Write,
            ShutdownType::Both => Shutdown::Both,
        });
        Ok(())
    }

    fn drop(&mut self, socket: Socket) -> wasmtime::Result<()> {
        self.delete_resource(socket).map(drop)
    }
}
