//! Looking up names: those that the policy has, by the resolver of the host.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::sockets::ip_name_lookup;
use super::bindings::sockets::network::{ErrorCode, IpAddress};
use super::error::SocketFail;
use super::resources::{Addresses, Network, Pollable};
use super::sockets::address;
use crate::network::{Answer as Told, Refusal, Sought};
use crate::wasi::Host;

type Answer<T = ()> = Result<T, SocketFail>;
type Stream = Resource<Addresses>;

impl ip_name_lookup::Host for Host {
    fn resolve_addresses(&mut self, network: Resource<Network>, name: String) -> Answer<Stream> {
        self.resource(&network)?;
        let egress = self.egress.as_mut().ok_or(ErrorCode::AccessDenied)?;
        let addresses = match egress.sought(&name) {
            Err(Refusal::NoName) => return Err(ErrorCode::InvalidArgument.into()),
            Err(_) => return Err(ErrorCode::AccessDenied.into()),
            Ok(Sought::Address(address)) => Addresses::Found(VecDeque::from([address])),
            Ok(Sought::Name(target)) => {
                self.waker()?;
                let begun = self.egress.as_mut().map(|egress| egress.look_up(&target)).transpose()?.flatten();
                let lookup = begun.ok_or(ErrorCode::TemporaryResolverFailure)?;
                Addresses::Sought { lookup, target }
            }
        };
        Ok(self.keep(addresses)?)
    }
}

impl ip_name_lookup::HostResolveAddressStream for Host {
    fn resolve_next_address(&mut self, stream: Stream) -> Answer<Option<IpAddress>> {
        self.settle(&stream)?;
        match self.resource_mut(&stream)? {
            Addresses::Found(addresses) => Ok(addresses.pop_front().map(address)),
            Addresses::Refused(error) => Err((*error).into()),
            Addresses::Sought { .. } => Err(ErrorCode::WouldBlock.into()),
        }
    }

    fn subscribe(&mut self, stream: Stream) -> wasmtime::Result<Resource<Pollable>> {
        let pollable = match self.resource(&stream)? {
            Addresses::Sought { lookup, .. } => Pollable::Lookup(Arc::clone(lookup)),
            Addresses::Found(_) | Addresses::Refused(_) => Pollable::Ready,
        };
        self.keep(pollable)
    }

    fn drop(&mut self, stream: Stream) -> wasmtime::Result<()> {
        self.forget(stream).map(drop)
    }
}

impl Host {
    /// Takes the resolver's answer, if it has come.
    fn settle(&mut self, stream: &Stream) -> wasmtime::Result<()> {
        let Addresses::Sought { lookup, target } = self.resource(stream)? else { return Ok(()) };
        let (answer, target) = (lookup.answer(), Arc::clone(target));
        let settled = match (answer, &mut self.egress) {
            (Err(Told::NotYet), _) => return Ok(()),
            (Err(Told::Later), _) => Addresses::Refused(ErrorCode::TemporaryResolverFailure),
            (Err(Told::None), _) => Addresses::Refused(ErrorCode::NameUnresolvable),
            (Ok(_), None) => Addresses::Refused(ErrorCode::AccessDenied),
            (Ok(found), Some(egress)) => {
                let allowed: VecDeque<IpAddr> = egress.found(&target, &found);
                if allowed.is_empty() { Addresses::Refused(ErrorCode::AccessDenied) } else { Addresses::Found(allowed) }
            }
        };
        *self.resource_mut(stream)? = settled;
        Ok(())
    }
}
