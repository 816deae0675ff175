//! Synthetic addresses of names. A guest connects to such an address, and the gateway knows the name that it stands for.

use std::collections::HashMap;
use std::net::Ipv4Addr;

/// The first address of a name in [`crate::NETWORK`].
pub const FIRST_NAME: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
/// The maximum of names of one sandbox. A rule such as `*.example.com` allows any number.
const MAX_NAMES: usize = 4096;

/// The names of a sandbox and their addresses. A name keeps its address for the life of the sandbox.
#[derive(Debug)]
pub struct Names {
    first: Ipv4Addr,
    addresses: HashMap<String, Ipv4Addr>,
    names: Vec<String>,
}

impl Names {
    /// Creates a table whose addresses begin with this one.
    pub fn new(first: Ipv4Addr) -> Self {
        Self { first, addresses: HashMap::new(), names: Vec::new() }
    }

    /// Returns the address of a name. Returns `None` if the sandbox has the maximum of names.
    pub fn address(&mut self, name: &str) -> Option<Ipv4Addr> {
        if let Some(address) = self.addresses.get(name) {
            return Some(*address);
        }
        if self.names.len() >= MAX_NAMES {
            return None;
        }
        let address = Ipv4Addr::from_bits(self.first.to_bits() + self.names.len() as u32);
        self.names.push(name.to_owned());
        self.addresses.insert(name.to_owned(), address);
        Some(address)
    }

    /// Returns the name that an address stands for.
    pub fn name(&self, address: Ipv4Addr) -> Option<&str> {
        let at = address.to_bits().checked_sub(self.first.to_bits())?;
        self.names.get(usize::try_from(at).ok()?).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NETWORK, RESOLVER};

    #[test]
    fn each_name_has_one_address_in_the_network() {
        let mut names = Names::new(FIRST_NAME);
        let first = names.address("a.example").unwrap();
        assert_eq!(names.address("a.example"), Some(first));
        let second = names.address("b.example").unwrap();
        assert_ne!(first, second);
        assert_eq!(names.name(second), Some("b.example"));
        for address in [RESOLVER, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(198, 18, 1, 2)] {
            assert_eq!(names.name(address), None, "{address}");
        }
        for number in 0..MAX_NAMES * 2 {
            if let Some(address) = names.address(&format!("{number}.example")) {
                assert_eq!(address.to_bits() >> (32 - NETWORK.1), NETWORK.0.to_bits() >> (32 - NETWORK.1));
                assert_ne!(address, RESOLVER);
            }
        }
        assert_eq!(names.names.len(), MAX_NAMES);
        assert_eq!(names.address("c.example"), None);
        assert_eq!(names.address("a.example"), Some(first));
    }
}
