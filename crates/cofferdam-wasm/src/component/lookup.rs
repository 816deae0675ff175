//! Name resolution: names that the policy allows, by the host's resolver.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::sockets::ip_name_lookup;
use super::bindings::sockets::network::{ErrorCode, IpAddress};
use super::error::SocketFail;
use super::resources::{Addresses, Network, Pollable};
use super::sockets::address;
use crate::network::{LookupError, Query, Refusal};
use crate::wasi::Host;

type Answer<T = ()> = Result<T, SocketFail>;
type Stream = Resource<Addresses>;

impl ip_name_lookup::Host for Host {
    fn resolve_addresses(&mut self, network: Resource<Network>, name: String) -> Answer<Stream> {
        self.resource(&network)?;
        let egress = self.egress.as_mut().ok_or(ErrorCode::AccessDenied)?;
        let addresses = match egress.query(&name) {
            Err(Refusal::InvalidName) => return Err(ErrorCode::InvalidArgument.into()),
            Err(_) => return Err(ErrorCode::AccessDenied.into()),
            Ok(Query::Address(address)) => Addresses::Found(VecDeque::from([address])),
            Ok(Query::Name(target)) => {
                self.waker()?;
                let lookup = self.egress.as_mut().map(|egress| egress.start_lookup(&target)).transpose()?.flatten();
                let lookup = lookup.ok_or(ErrorCode::TemporaryResolverFailure)?;
                Addresses::Pending { lookup, target }
            }
        };
        Ok(self.push_resource(addresses)?)
    }
}

impl ip_name_lookup::HostResolveAddressStream for Host {
    fn resolve_next_address(&mut self, stream: Stream) -> Answer<Option<IpAddress>> {
        self.settle(&stream)?;
        match self.resource_mut(&stream)? {
            Addresses::Found(addresses) => Ok(addresses.pop_front().map(address)),
            Addresses::Refused(error) => Err((*error).into()),
            Addresses::Pending { .. } => Err(ErrorCode::WouldBlock.into()),
        }
    }

    fn subscribe(&mut self, stream: Stream) -> wasmtime::Result<Resource<Pollable>> {
        let pollable = match self.resource(&stream)? {
            Addresses::Pending { lookup, .. } => Pollable::Lookup(Arc::clone(lookup)),
            Addresses::Found(_) | Addresses::Refused(_) => Pollable::Ready,
        };
        self.push_resource(pollable)
    }

    fn drop(&mut self, stream: Stream) -> wasmtime::Result<()> {
        self.delete_resource(stream).map(drop)
    }
}

impl Host {
    /// Takes the resolver's answer, if it is available.
    fn settle(&mut self, stream: &Stream) -> wasmtime::Result<()> {
        let Addresses::Pending { lookup, target } = self.resource(stream)? else { return Ok(()) };
        let (result, target) = (lookup.result(), Arc::clone(target));
        let settled = match (result, &mut self.egress) {
            (Err(LookupError::Pending), _) => return Ok(()),
            (Err(LookupError::Temporary), _) => Addresses::Refused(ErrorCode::TemporaryResolverFailure),
            (Err(LookupError::NotFound), _) => Addresses::Refused(ErrorCode::NameUnresolvable),
            (Ok(_), None) => Addresses::Refused(ErrorCode::AccessDenied),
            (Ok(found), Some(egress)) => {
                let allowed: VecDeque<IpAddr> = egress.resolved(&target, &found);
                if allowed.is_empty() { Addresses::Refused(ErrorCode::AccessDenied) } else { Addresses::Found(allowed) }
            }
        };
        *self.resource_mut(stream)? = settled;
        Ok(())
    }
}
