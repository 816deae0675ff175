//! Limits on the kernel memory that connections of a sandbox's own network may hold.
//!
//! The kernel charges a connection to a control group only once it is accepted, and to nothing if there is no group. So
//! a listening socket gets a short queue, and a connection small buffers. Short queues and small buffers cost little on
//! the network's only interface, the loopback.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};

use cofferdam_egress::{NETWORK, RESOLVER};
use cofferdam_linux::{connection_attempts, namespace};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::protocol::NetworkPlan;

/// Settings of a network namespace, with their highest values for a sandbox. Lower values of the host stay.
const SETTINGS: [(&str, &[u64]); 4] = [
    ("core/somaxconn", &[16]),
    ("ipv4/tcp_rmem", &[4096, 65_536, 65_536]),
    ("ipv4/tcp_wmem", &[4096, 16_384, 131_072]),
    ("ipv4/tcp_max_tw_buckets", &[1024]),
];

/// The maximum of connections to one of the owner's sockets that wait to be accepted.
const BACKLOG: i32 = 64;

/// Older kernels (seen: 6.1) hide settings of this directory in the network namespace of an ordinary user.
const MAYBE_HIDDEN: &str = "core/";

/// Limits the network namespace of the calling process through a writable proc file system. Returns false if the kernel
/// hides the setting for the length of queues: the init then shortens each queue.
pub fn bound(proc: BorrowedFd<'_>) -> io::Result<bool> {
    let mut whole = true;
    for (name, highest) in SETTINGS {
        let path = format!("sys/net/{name}");
        let open = |flags| openat(proc, &path, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from);
        let mut text = String::new();
        match open(OFlags::RDONLY) {
            Err(Errno::NOENT) if name.starts_with(MAYBE_HIDDEN) => {
                whole = false;
                continue;
            }
            file => file?.read_to_string(&mut text)?,
        };
        open(OFlags::WRONLY)?.write_all(lowered(&text, highest).as_bytes())?;
    }
    Ok(whole)
}

/// Creates the sockets through which the gateway serves the network namespace of the calling process. The kernel delivers
/// everything for IPv4 addresses to them, and to nothing else: there is no other interface than the loopback.
pub fn open_sockets(plan: &NetworkPlan) -> io::Result<Vec<OwnedFd>> {
    namespace::add_loopback_address(1, RESOLVER, NETWORK.1)?;
    connection_attempts::route_to_loopback(RESOLVER)?;
    let mut sockets = vec![socket(SocketType::DGRAM, RESOLVER, 53)?, socket(SocketType::STREAM, RESOLVER, 53)?];
    for (address, port) in plan.listeners() {
        sockets.push(socket(SocketType::STREAM, address, port)?);
    }
    // A host may withhold the capability. Then only refusals of other ports are not reported.
    sockets.extend(connection_attempts::open());
    Ok(sockets)
}

/// Moves the calling process to a network, and creates TCP sockets there that are not connected: for IPv4, and for IPv6
/// if the kernel has it. The owner connects them, so that nothing here waits for a guest.
pub fn client_sockets(network: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    namespace::join(network, namespace::kind::NET)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = |family| socket_with(family, SocketType::STREAM, flags, None);
    let mut sockets = vec![socket(AddressFamily::INET)?];
    sockets.extend(socket(AddressFamily::INET6));
    Ok(sockets)
}

fn socket(kind: SocketType, address: Ipv4Addr, port: u16) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(address, port))?;
    if kind == SocketType::STREAM {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

fn lowered(text: &str, highest: &[u64]) -> String {
    let values = text.split_whitespace().map(|value| value.parse().unwrap_or(u64::MAX));
    let lowered: Vec<String> = values.zip(highest).map(|(value, highest)| value.min(*highest).to_string()).collect();
    lowered.join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_hidden_setting_is_passed_over_and_a_missing_one_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let proc = rustix::fs::open(temp.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let ipv4 = temp.path().join("sys/net/ipv4");
        std::fs::create_dir_all(&ipv4).unwrap();
        assert_eq!(bound(proc.as_fd()).unwrap_err().kind(), io::ErrorKind::NotFound);
        for name in ["tcp_rmem", "tcp_wmem", "tcp_max_tw_buckets"] {
            std::fs::write(ipv4.join(name), "8192 131072 6291456\n").unwrap();
        }
        assert!(!bound(proc.as_fd()).unwrap());
        assert!(std::fs::read_to_string(ipv4.join("tcp_rmem")).unwrap().starts_with("4096 65536 65536"));
        let core = temp.path().join("sys/net/core");
        std::fs::create_dir_all(&core).unwrap();
        std::fs::write(core.join("somaxconn"), "4096\n").unwrap();
        assert!(bound(proc.as_fd()).unwrap());
    }

    #[test]
    fn settings_are_lowered_and_never_raised() {
        assert_eq!(lowered("4096\n", &[16]), "16");
        assert_eq!(lowered("8\n", &[16]), "8");
        assert_eq!(lowered("4096\t131072\t33554432\n", &[4096, 65_536, 131_072]), "4096 65536 131072");
        assert_eq!(lowered("?", &[16]), "16");
    }

    /// Promise (Network): A connection to a port or address that the policy does not have is refused and reported.
    #[cfg(feature = "net")]
    #[test]
    fn refused_connections_are_reported_on_every_port() {
        use std::net::TcpStream;

        use cofferdam_contract::NetworkPolicy;

        let in_network = || {
            if let Err(error) = namespace::unshare(namespace::kind::NET) {
                return println!("SKIP refused_connections_are_reported_on_every_port: {error}");
            }
            namespace::loopback_up().unwrap();
            let ports = (1000..1127).map(|port| format!("web.example:{port}"));
            let policy = NetworkPolicy::Allow { hosts: ports.chain(["10.1.2.3:7".to_owned()]).collect() };
            let (plan, rules) = crate::network::plan(&policy).unwrap().unwrap();
            let sockets = open_sockets(&plan).unwrap();
            assert_eq!(sockets.len(), 2 + 128 + 1 + 1, "the last one sees refused connections");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let access = crate::network::access(&policy, rules).await.unwrap();
                let gateway = crate::network::start(sockets, &plan, access).unwrap();
                let connect = |to: &str| TcpStream::connect(to).map(drop).map_err(|error| error.kind());
                let refused = Err(io::ErrorKind::ConnectionRefused);
                let unserved = [
                    "198.18.1.0:6667",
                    "10.1.2.3:22",
                    "169.254.169.254:80",
                    "8.8.8.8:53",
                    "198.18.0.1:1",
                    "9.9.9.9:3128",
                ];
                for to in unserved {
                    assert_eq!(connect(to), refused, "{to}");
                }
                assert_eq!(connect("127.0.0.1:9"), refused, "the sandbox itself");
                let reported: Vec<String> = gateway.denials().into_iter().map(|denial| denial.what).collect();
                assert_eq!(reported, unserved.map(|to| format!("the connection to {to}")));
                // These connections arrive at the gateway itself.
                for to in ["198.18.1.0:1000", "11.22.33.44:7", "198.18.0.1:3128"] {
                    assert_eq!(connect(to), Ok(()), "{to}");
                }
                assert_eq!(gateway.denials().len(), unserved.len(), "each is reported once");
                assert_eq!(crate::network::usage(&gateway).refused, unserved.len() as u64);
                gateway.close().await;
            });
        };
        std::thread::spawn(in_network).join().unwrap();
    }
}
