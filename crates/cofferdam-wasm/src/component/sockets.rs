//! The network of a component: its handle, its errors, and the conversion of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wasmtime::component::Resource;

use super::bindings::sockets::instance_network;
use super::bindings::sockets::network::{
    ErrorCode, Host as Networks, HostNetwork, IpAddress, IpSocketAddress, Ipv4SocketAddress, Ipv6SocketAddress,
};
use super::error::SocketFail;
use super::resources::{IoError, Network, Nothing};
use crate::wasi::Host;

impl Networks for Host {
    fn convert_error_code(&mut self, error: SocketFail) -> wasmtime::Result<ErrorCode> {
        error.into_code()
    }

    fn network_error_code(&mut self, error: Resource<IoError>) -> wasmtime::Result<Option<ErrorCode>> {
        Ok(self.resource(&error)?.network)
    }
}

impl HostNetwork for Host {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        self.delete_resource(network).map(drop)
    }
}

impl instance_network::Host for Host {
    fn instance_network(&mut self) -> wasmtime::Result<Resource<Network>> {
        self.push_resource(Network)
    }
}

impl Host {
    /// Handles a call on a socket of a kind that is never created.
    pub(super) fn unmade<T, E>(&self, handle: &Resource<Nothing>) -> Result<T, E>
    where
        E: From<wasmtime::Error>,
    {
        match *self.resource(handle)? {}
    }
}

/// Converts an address for the guest.
pub(super) fn address(address: IpAddr) -> IpAddress {
    match address {
        IpAddr::V4(address) => IpAddress::Ipv4(address.octets().into()),
        IpAddr::V6(address) => IpAddress::Ipv6(address.segments().into()),
    }
}

/// Converts an address and port for the guest.
pub(super) fn to_guest(address: SocketAddr) -> IpSocketAddress {
    match address {
        SocketAddr::V4(address) => {
            IpSocketAddress::Ipv4(Ipv4SocketAddress { port: address.port(), address: address.ip().octets().into() })
        }
        SocketAddr::V6(address) => IpSocketAddress::Ipv6(Ipv6SocketAddress {
            port: address.port(),
            flow_info: address.flowinfo(),
            address: address.ip().segments().into(),
            scope_id: address.scope_id(),
        }),
    }
}

/// Converts an address and port from the guest. IPv6 scope ids are not supported, and flow labels are ignored.
pub(super) fn from_guest(address: IpSocketAddress) -> Result<SocketAddr, ErrorCode> {
    match address {
        IpSocketAddress::Ipv4(Ipv4SocketAddress { port, address: (a, b, c, d) }) => {
            Ok((Ipv4Addr::new(a, b, c, d), port).into())
        }
        IpSocketAddress::Ipv6(Ipv6SocketAddress { scope_id, .. }) if scope_id != 0 => Err(ErrorCode::NotSupported),
        IpSocketAddress::Ipv6(Ipv6SocketAddress { port, address: (a, b, c, d, e, f, g, h), .. }) => {
            Ok((Ipv6Addr::new(a, b, c, d, e, f, g, h), port).into())
        }
    }
}
