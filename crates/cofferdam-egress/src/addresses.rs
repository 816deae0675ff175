//! Classification of addresses as public. All others belong, or may belong, to this host or its networks.
//!
//! The owner of a name controls the addresses that it resolves to. A name must not lead to this host, to its network,
//! or to cloud services that trust any client.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// IPv4 blocks that are not public: the first address, and the prefix length.
const NOT_PUBLIC: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(168, 63, 129, 16), 32), // Azure's services for its VMs.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// IPv6 blocks that a translator maps to IPv4, with the length of their prefixes: NAT64 and 6to4. A network may use its
/// own prefix for NAT64, which cannot be distinguished from other addresses.
const TRANSLATED: [(Ipv6Addr, u8); 3] = [
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
];

/// Addresses of metadata services: of most clouds, Azure, Alibaba, and AWS by IPv6.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Returns true for an address of a metadata service, in any of its representations.
pub fn is_metadata(address: IpAddr) -> bool {
    let IpAddr::V6(v6) = address else { return METADATA.contains(&address) };
    let [_, a, b, _, _, _, c, d] = v6.segments();
    let of = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    // Mapped and NAT64 addresses have it at the end, 6to4 after the prefix.
    [address, of(c, d), of(a, b)].iter().any(|address| METADATA.contains(address))
}

/// Returns true if an address is public, in any of its representations.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_in = |(block, bits): (Ipv4Addr, u32)| (block.to_bits() ^ address.to_bits()) >> (32 - bits) == 0;
    !NOT_PUBLIC.into_iter().any(is_in)
}

/// Returns true if an IPv6 address is known to be public: global unicast without its special blocks. IPv4-mapped
/// addresses are not public, and the sockets here do not accept them.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    match segments {
        // The translator decides where these lead.
        _ if is_translated(address, 128) => false,
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] if !is_public_v4(embedded(high, low)) => false,
        // Protocol assignments, including Teredo; both documentation blocks.
        [0x2001, 0..0x200, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..0x1000, ..] => false,
        [first, ..] => first >> 13 == 1,
    }
}

/// Returns true if all addresses with this prefix are those of NAT64 or 6to4.
pub fn is_translated(address: Ipv6Addr, bits: u8) -> bool {
    let is_in = |(block, own): (Ipv6Addr, u8)| bits >= own && (block.to_bits() ^ address.to_bits()) >> (128 - own) == 0;
    TRANSLATED.into_iter().any(is_in)
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

/// Returns true if an address is one of this host's own, or if that cannot be found out.
pub fn is_own(address: IpAddr) -> bool {
    find_own(address).unwrap_or(true)
}

/// Returns true if an address is one of this host's own. Fails if no socket can be created.
pub fn find_own(address: IpAddr) -> io::Result<bool> {
    let binds = |address: IpAddr| match UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(true),
        Err(error) if is_exhausted(&error) => Err(error),
        // If in doubt, assume that the address is the host's own.
        Err(error) => Ok(!matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::Unsupported)),
    };
    let unassigned: IpAddr = match address {
        IpAddr::V4(_) => [192, 0, 2, 1].into(),
        IpAddr::V6(_) => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
    };
    // Some hosts allow binding to any address. A packet to an own address has that address as its source.
    Ok(binds(address)? && (!binds(unassigned)? || is_source_of_itself(address)?))
}

/// Returns true if an error means that this process or host has no free descriptor.
pub fn is_exhausted(error: &io::Error) -> bool {
    // EMFILE and ENFILE, which have no kind.
    matches!(error.raw_os_error(), Some(23 | 24))
}

fn is_source_of_itself(address: IpAddr) -> io::Result<bool> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    match source {
        Ok(source) => Ok(source.ip() == address),
        Err(error) if is_exhausted(&error) => Err(error),
        Err(_) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap_or_else(|_| panic!("{text}")))
    }

    /// Promise (Network): Private, local and reserved addresses are not public.
    #[test]
    fn private_and_reserved_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "192.168.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::8.8.8.8",
            "64:ff9b:1:ffff::1",
            "100::1",
            "2001::1",
            "2001:0:808:808::1",
            "2001:10::1",
            "2001:20::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::1",
            "2002:c0a8:1::",
            "2002:808:808::1",
            "3fff::1",
            "3fff:fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2600::5efe:10.0.0.1",
            "2600::200:5efe:127.0.0.1",
            "4000::1",
            "1fff::1",
        ] {
            assert!(!public(text), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "2000::1",
            "3ffe::1",
            "3fff:1000::1",
            "2600::5efe:8.8.8.8",
        ] {
            assert!(public(text), "{text}");
        }
    }

    /// Returns true if the standard library classifies an address as special.
    fn is_special(address: Ipv4Addr) -> bool {
        address.is_loopback()
            || address.is_private()
            || address.is_link_local()
            || address.is_multicast()
            || address.is_broadcast()
            || address.is_documentation()
            || address.is_unspecified()
    }

    proptest! {
        #[test]
        fn no_special_address_is_public(bits in any::<u32>(), first in prop::sample::select(vec![0, 10, 127, 169, 172, 192, 224, 255])) {
            for address in [Ipv4Addr::from_bits(bits), Ipv4Addr::from_bits(bits & 0xff_ffff | first << 24)] {
                prop_assert!(!(is_special(address) && is_public(address.into())), "{}", address);
            }
        }

        /// Promise (Network): Another form of an address is never more public than the address.
        #[test]
        fn an_address_in_another_form_is_never_more_public(bits in any::<u32>(), tail in any::<[u16; 5]>()) {
            let (high, low) = ((bits >> 16) as u16, bits as u16);
            let [a, b, c, d, e] = tail;
            let public = is_public(Ipv4Addr::from_bits(bits).into());
            let isatap = [0x2600, a, b, c, 0x200, 0x5efe, high, low];
            prop_assert_eq!(is_public(Ipv6Addr::from(isatap).into()), public, "{:x?}", isatap);
            for form in [
                [0x64, 0xff9b, 0, 0, 0, 0, high, low],
                [0x64, 0xff9b, 1, a, b, c, high, low],
                [0x2002, high, low, a, b, c, d, e],
                [0, 0, 0, 0, 0, 0xffff, high, low],
                [0, 0, 0, 0, 0, 0, high, low],
                [0, 0, 0, 0, 0xffff, 0, high, low],
            ] {
                prop_assert!(!is_public(Ipv6Addr::from(form).into()), "{:x?}", form);
            }
        }

        #[test]
        fn only_global_unicast_is_public(segments in any::<[u16; 8]>()) {
            let address = Ipv6Addr::from(segments);
            if is_public(address.into()) {
                prop_assert!(segments[0] >> 13 == 1 && segments[0] != 0x2002);
            }
        }
    }

    /// Promise (Network): The addresses of this host are known, and no name leads to them.
    #[test]
    fn addresses_of_this_host_are_known() {
        for (address, own) in [
            (IpAddr::from([127, 0, 0, 1]), true),
            (IpAddr::from([127, 9, 9, 9]), true),
            (IpAddr::from([8, 8, 8, 8]), false),
            (IpAddr::from([192, 0, 2, 7]), false),
        ] {
            assert_eq!(is_own(address), own, "{address}");
        }
    }
}
