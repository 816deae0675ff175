//! The filter of the raw socket that shows requests for connections.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The instructions of classic BPF that pass the headers of packets with SYN and without ACK, and drop all others.
const REQUESTS: [(u16, u8, u8, u32); 6] = [
    // X is the length of the header of IPv4, and A the flags of TCP.
    (0xb1, 0, 0, 0),
    (0x50, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 80),
    (0x06, 0, 0, 0),
];

/// Lets a raw socket of TCP receive nothing but requests for connections.
pub fn pass_requests(socket: &OwnedFd) -> io::Result<()> {
    let mut filter = REQUESTS.map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the kernel reads the program and its instructions, which live until the call returns.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
