//! Constants for a raw socket that shows connection attempts within a network. Programs with and without a C
//! library are compiled from this file.

/// The number of bytes that the filter passes of a packet: the longest headers of IPv4 and the fixed ones of TCP.
pub const MAX_HEADERS: usize = 60 + 20;

/// The descriptor at which a VM's agent finds the raw socket.
pub const DESCRIPTOR: i32 = 5;

/// The instructions of classic BPF that pass the headers of packets with SYN and without ACK, and drop all others.
pub const FILTER: [u64; 6] = [
    // X is the length of the header of IPv4, and A the flags of TCP.
    instruction(0xb1, 0, 0, 0),
    instruction(0x50, 0, 0, 13),
    instruction(0x54, 0, 0, 0x12),
    instruction(0x15, 0, 1, 0x02),
    instruction(0x06, 0, 0, MAX_HEADERS as u64),
    instruction(0x06, 0, 0, 0),
];

/// Returns an instruction in the kernel's format, which is little-endian.
const fn instruction(code: u64, if_true: u64, if_false: u64, operand: u64) -> u64 {
    code | if_true << 16 | if_false << 24 | operand << 32
}

/// Returns the request to the kernel, by a socket of netlink, for a route that makes every IPv4 address one of the
/// loopback interface's. Programs get `source` as their own address. The words are little-endian.
pub const fn route(source: [u8; 4]) -> [u32; 11] {
    const AF_INET: u32 = 2;
    const RTM_NEWROUTE: u32 = 24;
    const REQUEST_ACK_CREATE_EXCLUSIVE: u32 = 1 | 4 | 0x400 | 0x200;
    const TABLE_LOCAL: u32 = 255;
    const BY_ADMINISTRATOR: u32 = 4;
    const SCOPE_HOST: u32 = 254;
    const KIND_LOCAL: u32 = 2;
    const INTERFACE: u32 = 4;
    const SOURCE: u32 = 7;
    /// The number of the loopback interface, the first one of every network namespace.
    const LOOPBACK: u32 = 1;
    [
        // The length, the kind, and no sequence number or sender.
        44,
        RTM_NEWROUTE | REQUEST_ACK_CREATE_EXCLUSIVE << 16,
        0,
        0,
        // The family with the lengths of prefixes, the route, and no flags.
        AF_INET,
        TABLE_LOCAL | BY_ADMINISTRATOR << 8 | SCOPE_HOST << 16 | KIND_LOCAL << 24,
        0,
        // Two attributes with their lengths.
        8 | INTERFACE << 16,
        LOOPBACK,
        8 | SOURCE << 16,
        u32::from_le_bytes(source),
    ]
}
