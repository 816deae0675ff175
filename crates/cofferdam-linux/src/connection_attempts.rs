//! A raw socket that shows connection attempts within a network namespace, also those that the kernel refuses.
//!
//! It needs `CAP_NET_RAW` in the user namespace that owns the network namespace.

use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, send, socket_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::message;
use crate::namespace::{self, kind};
use crate::process::{die_with_parent, exit_now};
use crate::spawn::{self, Fork};
use crate::sys::check_int;

#[expect(dead_code, reason = "shared with other programs, which use other parts")]
#[path = "../bare/connection_attempts.rs"]
mod bare;

/// The request of `ioctl` for the user namespace that owns a namespace.
const NS_GET_USERNS: libc::c_ulong = 0xb701;

/// Creates the raw socket in the network namespace of the calling thread. It receives all TCP over IPv4.
pub fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::TCP))?)
}

/// Lets a raw socket of TCP receive connection attempts only.
pub fn attach_syn_filter(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut filter = bare::FILTER;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr().cast() };
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
    check_int(set).map(drop)
}

/// Makes every IPv4 address one of the loopback interface's, in the network namespace of the calling thread. Programs
/// get `source` as their own address.
pub fn route_to_loopback(source: Ipv4Addr) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, bare::route(source.octets()).map(u32::to_le_bytes).as_flattened(), SendFlags::empty())?;
    let mut answer = [0; 64];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    // The answer is an error with the number 0 if there was none.
    match answer[..length].get(16..20).and_then(|error| error.try_into().ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(-errno)),
        None => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// Makes every IPv4 address one of the loopback interface's in the network namespace of another process, and opens the
/// raw socket there, with its filter. `process` is the process's directory in the proc file system.
///
/// Fails for the caller's own network, and for one with any interface but the loopback. The caller must be root, or own
/// the user namespace that the network belongs to.
pub fn open_beside(process: BorrowedFd<'_>, source: Ipv4Addr) -> io::Result<OwnedFd> {
    let open = |name: &str| openat(process, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let network = File::from(open("ns/net")?);
    let (theirs, own) = (network.metadata()?, std::fs::metadata("/proc/self/ns/net")?);
    if (theirs.dev(), theirs.ino()) == (own.dev(), own.ino()) {
        return Err(io::Error::other("the process has the network of this one"));
    }
    let mut interfaces = String::new();
    File::from(open("net/dev")?).read_to_string(&mut interfaces)?;
    // The first two lines are a head.
    if !interfaces.lines().skip(2).all(|line| line.trim_start().starts_with("lo:")) {
        return Err(io::Error::other("the network has other interfaces than the loopback"));
    }
    // SAFETY: the call takes no argument, and returns a new descriptor.
    let owner =
        unsafe { check_int(libc::ioctl(network.as_raw_fd(), NS_GET_USERNS)).map(|fd| OwnedFd::from_raw_fd(fd)) };
    let (ours, theirs) = message::pair()?;
    // The child takes no locks and allocates nothing, so threads of this process do not matter.
    let child = match spawn::fork(0, None, None)? {
        Fork::Child => {
            let owner = owner.as_ref().ok().map(AsFd::as_fd);
            let sent = send_from(network.as_fd(), owner, source, theirs.as_fd());
            exit_now(sent.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0))
        }
        Fork::Parent(child) => child,
    };
    let ended = retry_on_intr(|| waitpid(Pid::from_raw(child), WaitOptions::empty()))?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => {
            let (_, sockets) = message::receive(ours.as_fd(), &mut [0])?;
            sockets.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
        }
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("the process that joins the network was killed")),
    }
}

/// Sends the raw socket of a network from a child process, which joins it.
fn send_from(
    network: BorrowedFd<'_>,
    owner: Option<BorrowedFd<'_>>,
    source: Ipv4Addr,
    to: BorrowedFd<'_>,
) -> io::Result<()> {
    die_with_parent()?;
    if let Err(error) = namespace::join(network, kind::NET) {
        namespace::join(owner.ok_or(error)?, kind::USER)?;
        namespace::join(network, kind::NET)?;
    }
    let socket = open()?;
    attach_syn_filter(socket.as_fd())?;
    // Last, so that it is set only if connection attempts are seen.
    route_to_loopback(source)?;
    message::send(to, &[0], &[socket.as_fd()])
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;
    use std::time::Duration;

    use rustix::fs::CWD;
    use rustix::process::{Signal, kill_process};

    use super::*;

    const TO: [u8; 4] = [8, 8, 8, 8];
    const PORT: u16 = 4711;

    fn directory(process: &str) -> OwnedFd {
        openat(CWD, format!("/proc/{process}"), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn connection_attempts_in_the_network_of_another_process_are_seen() {
        let child = match spawn::fork(kind::USER | kind::NET, None, None) {
            Ok(Fork::Child) => {
                let _ = die_with_parent().and_then(|()| namespace::loopback_up());
                loop {
                    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
                    let to = SocketAddrV4::new(TO.into(), PORT);
                    let _ = socket.and_then(|socket| rustix::net::connect(socket, &to));
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            Ok(Fork::Parent(child)) => child,
            Err(error) => {
                return println!("SKIP connection_attempts_in_the_network_of_another_process_are_seen: {error}");
            }
        };
        let opened = open_beside(directory(&child.to_string()).as_fd(), Ipv4Addr::LOCALHOST);
        let mut packet = [0; 200];
        let received = opened.map(|socket| recv(&socket, &mut packet[..], RecvFlags::empty()).unwrap().0);
        let child = Pid::from_raw(child).unwrap();
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
        let length = received.unwrap();
        assert!(
            length <= bare::MAX_HEADERS && packet[16..20] == TO && packet[22..24] == PORT.to_be_bytes(),
            "{length}"
        );
    }

    #[test]
    fn an_own_network_is_left_as_it_is() {
        let error = open_beside(directory("self").as_fd(), Ipv4Addr::LOCALHOST).unwrap_err();
        assert!(error.to_string().contains("network of this one"), "{error}");
    }
}
