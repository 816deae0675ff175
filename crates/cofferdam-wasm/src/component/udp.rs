//! UDP sockets, which are not supported: creating one fails.

use wasmtime::component::Resource;

use super::bindings::sockets::network::{ErrorCode, IpAddressFamily, IpSocketAddress};
use super::bindings::sockets::udp::{
    Host as Udp, HostIncomingDatagramStream, HostOutgoingDatagramStream, HostUdpSocket, IncomingDatagram,
    OutgoingDatagram,
};
use super::bindings::sockets::udp_create_socket;
use super::error::SocketFail;
use super::resources::{Network, Nothing, Pollable};
use crate::wasi::Host;

type Answer<T = ()> = Result<T, SocketFail>;
type Socket = Resource<Nothing>;

impl udp_create_socket::Host for Host {
    fn create_udp_socket(&mut self, _: IpAddressFamily) -> Answer<Socket> {
        Err(ErrorCode::AccessDenied.into())
    }
}

impl Udp for Host {}

impl HostUdpSocket for Host {
    fn start_bind(&mut self, socket: Socket, _: Resource<Network>, _: IpSocketAddress) -> Answer {
        self.unmade(&socket)
    }

    fn finish_bind(&mut self, socket: Socket) -> Answer {
        self.unmade(&socket)
    }

    fn stream(&mut self, socket: Socket, _: Option<IpSocketAddress>) -> Answer<(Socket, Socket)> {
        self.unmade(&socket)
    }

    fn local_address(&mut self, socket: Socket) -> Answer<IpSocketAddress> {
        self.unmade(&socket)
    }

    fn remote_address(&mut self, socket: Socket) -> Answer<IpSocketAddress> {
        self.unmade(&socket)
    }

    fn address_family(&mut self, socket: Socket) -> wasmtime::Result<IpAddressFamily> {
        self.unmade(&socket)
    }

    fn unicast_hop_limit(&mut self, socket: Socket) -> Answer<u8> {
        self.unmade(&socket)
    }

    fn set_unicast_hop_limit(&mut self, socket: Socket, _: u8) -> Answer {
        self.unmade(&socket)
    }

    fn receive_buffer_size(&mut self, socket: Socket) -> Answer<u64> {
        self.unmade(&socket)
    }

    fn set_receive_buffer_size(&mut self, socket: Socket, _: u64) -> Answer {
        self.unmade(&socket)
    }

    fn send_buffer_size(&mut self, socket: Socket) -> Answer<u64> {
        self.unmade(&socket)
    }

    fn set_send_buffer_size(&mut self, socket: Socket, _: u64) -> Answer {
        self.unmade(&socket)
    }

    fn subscribe(&mut self, socket: Socket) -> wasmtime::Result<Resource<Pollable>> {
        self.unmade(&socket)
    }

    fn drop(&mut self, socket: Socket) -> wasmtime::Result<()> {
        self.unmade(&socket)
    }
}

impl HostIncomingDatagramStream for Host {
    fn receive(&mut self, socket: Socket, _: u64) -> Answer<Vec<IncomingDatagram>> {
        self.unmade(&socket)
    }

    fn subscribe(&mut self, socket: Socket) -> wasmtime::Result<Resource<Pollable>> {
        self.unmade(&socket)
    }

    fn drop(&mut self, socket: Socket) -> wasmtime::Result<()> {
        self.unmade(&socket)
    }
}

impl HostOutgoingDatagramStream for Host {
    fn check_send(&mut self, socket: Socket) -> Answer<u64> {
        self.unmade(&socket)
    }

    fn send(&mut self, socket: Socket, _: Vec<OutgoingDatagram>) -> Answer<u64> {
        self.unmade(&socket)
    }

    fn subscribe(&mut self, socket: Socket) -> wasmtime::Result<Resource<Pollable>> {
        self.unmade(&socket)
    }

    fn drop(&mut self, socket: Socket) -> wasmtime::Result<()> {
        self.unmade(&socket)
    }
}
