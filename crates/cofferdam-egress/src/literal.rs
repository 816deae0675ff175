//! Decisions about addresses that a guest names itself.

use std::io;
use std::net::SocketAddr;

use crate::addresses::find_own;
use crate::rules::{Allowed, Refusal, Rules};

/// Decides about a connection to an address that the guest named. A range of the rules includes no address of this host.
///
/// # Errors
///
/// Fails if this process or host has no free descriptor, which the search for addresses of this host needs.
pub fn decide_literal(rules: &Rules, to: SocketAddr) -> io::Result<Result<Allowed, Refusal>> {
    match rules.connect([], to) {
        Ok(Allowed::InRange) if find_own(to.ip())? => Ok(Err(Refusal::NotPublic)),
        decided => Ok(decided),
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::NetworkPolicy;

    use super::*;

    #[test]
    fn ranges_include_neither_this_host_nor_metadata_services() {
        let hosts = ["169.254.0.0/16:80", "127.0.0.0/8:80", "127.0.0.9:80", "10.0.0.0/8:80"].map(str::to_owned).into();
        let rules = Rules::of(&NetworkPolicy::Allow { hosts }).expect("a policy").expect("rules");
        for (to, expected) in [
            ("169.254.169.254:80", Err(Refusal::NotPublic)),
            ("169.254.7.7:80", Ok(Allowed::InRange)),
            ("127.0.0.1:80", Err(Refusal::NotPublic)),
            ("127.0.0.9:80", Ok(Allowed::Listed)),
            ("127.0.0.9:81", Err(Refusal::OtherPort)),
            ("8.8.8.8:80", Err(Refusal::NotLookedUp)),
        ] {
            let decided = decide_literal(&rules, to.parse().expect(to)).expect("a descriptor");
            assert_eq!(decided, expected, "{to}");
        }
    }
}
