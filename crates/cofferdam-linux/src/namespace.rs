//! Creation and joining of namespaces, and mapping of ids.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use crate::process;
use crate::sys::check_int;

/// The flag of each kind of namespace (`CLONE_NEW*`).
pub mod kind {
    /// Mounts.
    pub const MOUNT: u64 = libc::CLONE_NEWNS as u64;
    /// Process ids.
    pub const PID: u64 = libc::CLONE_NEWPID as u64;
    /// System V and POSIX message objects.
    pub const IPC: u64 = libc::CLONE_NEWIPC as u64;
    /// Host name.
    pub const UTS: u64 = libc::CLONE_NEWUTS as u64;
    /// Network.
    pub const NET: u64 = libc::CLONE_NEWNET as u64;
    /// User ids.
    pub const USER: u64 = libc::CLONE_NEWUSER as u64;
    /// Not a namespace: a thread needs its own root and working directory before it can join a mount namespace.
    pub const FILE_SYSTEM_VIEW: u64 = libc::CLONE_FS as u64;
    /// Control groups.
    pub const CGROUP: u64 = libc::CLONE_NEWCGROUP as u64;
}

/// Moves the calling thread into new namespaces of these kinds.
pub fn unshare(kinds: u64) -> io::Result<()> {
    // SAFETY: the call takes flags only.
    unsafe { check_int(libc::unshare(kinds as libc::c_int)).map(drop) }
}

/// Moves the calling thread into an existing namespace of one kind.
pub fn join(namespace: BorrowedFd<'_>, kind: u64) -> io::Result<()> {
    // SAFETY: the descriptor is valid, the flag is a number.
    unsafe { check_int(libc::setns(namespace.as_raw_fd(), kind as libc::c_int)).map(drop) }
}

/// Opens a namespace of the calling thread: `thread-self/ns/<name>` of the proc file system with the root `proc`.
pub fn open_own(proc: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(proc, format!("thread-self/ns/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Sets the host name of the current UTS namespace.
pub fn set_hostname(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}

/// Maps one user and one group id of the process with the proc directory `dir` (`self` or a process id): `inside` there
/// is `outside` in the parent user namespace.
pub fn map_ids(proc: BorrowedFd<'_>, dir: &str, inside: (u32, u32), outside: (u32, u32)) -> io::Result<()> {
    let write = |name: &str, text: String| -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(proc, format!("{dir}/{name}"), flags, Mode::empty())?);
        file.write_all(text.as_bytes())
    };
    write("uid_map", format!("{} {} 1\n", inside.0, outside.0))?;
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{} {} 1\n", inside.1, outside.1))
}

/// Returns a user namespace that maps ids as in [`map_ids`], for [`crate::mount::map_owners`]. `proc` is the mounted
/// proc file system. No process remains in the namespace.
pub fn with_ids(proc: BorrowedFd<'_>, inside: (u32, u32), outside: (u32, u32)) -> io::Result<OwnedFd> {
    let users = UnmappedUsers::create(proc)?;
    users.map(inside, outside)?;
    let [namespace, ..] = users.fds;
    Ok(namespace)
}

/// A user namespace without processes, whose ids are mapped later.
#[derive(Debug)]
pub struct UnmappedUsers {
    /// The namespace and its maps of users and of groups.
    fds: [OwnedFd; 3],
}

impl UnmappedUsers {
    /// Creates the namespace. `proc` is the mounted proc file system.
    pub fn create(proc: BorrowedFd<'_>) -> io::Result<Self> {
        let helper = ended_child(kind::USER)?;
        // Until it is reaped, its directory leads to its user namespace, and no other process has its id.
        let open = |name: &str, flags| openat(proc, format!("{helper}/{name}"), flags | OFlags::CLOEXEC, Mode::empty());
        let opened = || -> io::Result<_> {
            File::from(open("setgroups", OFlags::WRONLY)?).write_all(b"deny")?;
            Ok([open("ns/user", OFlags::RDONLY)?, open("uid_map", OFlags::WRONLY)?, open("gid_map", OFlags::WRONLY)?])
        };
        let opened = opened();
        // SAFETY: the call accepts null for a status that is not wanted.
        unsafe { libc::waitpid(helper, std::ptr::null_mut(), libc::__WCLONE) };
        Ok(Self { fds: opened? })
    }

    /// Maps one user and one group id: `inside` there is `outside` in the parent user namespace. Fails the second time.
    pub fn map(&self, inside: (u32, u32), outside: (u32, u32)) -> io::Result<()> {
        let [_, users, groups] = &self.fds;
        rustix::io::write(users, format!("{} {} 1\n", inside.0, outside.0).as_bytes())?;
        rustix::io::write(groups, format!("{} {} 1\n", inside.1, outside.1).as_bytes())?;
        Ok(())
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> BorrowedFd<'_> {
        self.fds[0].as_fd()
    }

    /// Returns the descriptors, from which another process can create the same value.
    pub fn fds(&self) -> &[OwnedFd; 3] {
        &self.fds
    }
}

impl From<[OwnedFd; 3]> for UnmappedUsers {
    fn from(fds: [OwnedFd; 3]) -> Self {
        Self { fds }
    }
}

/// Returns the id of a child in new namespaces of these kinds that has already ended. The caller reaps it, with
/// `__WCLONE`: its end sends no signal, so other code of this process neither sees nor reaps it.
///
/// It borrows this process's memory and descriptors. A copy, as a fork makes it, is most of the time of a mount.
fn ended_child(kinds: u64) -> io::Result<i32> {
    extern "C" fn end(_: *mut libc::c_void) -> libc::c_int {
        process::exit_now(0)
    }
    // Much more than it needs: a signal handler may run there.
    let mut stack = MaybeUninit::<[u128; 4096]>::uninit();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | kinds as libc::c_int;
    // SAFETY: the child starts at the aligned end of the stack, which only it uses: with CLONE_VFORK, this thread waits
    // until it has ended. It takes no locks and writes to nothing else.
    unsafe { check_int(libc::clone(end, stack.as_mut_ptr().add(1).cast(), flags, std::ptr::null_mut())) }
}

/// Brings the loopback interface of the current network namespace up.
pub fn loopback_up() -> io::Result<()> {
    let socket = interface_socket()?;
    // SAFETY: an all-zero ifreq is valid; name and flags are set before the call reads them.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check_int(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request)).map(drop)
    }
}

/// Gives the loopback interface an address under a label with this number. The kernel then delivers everything for its
/// network locally.
pub fn add_loopback_address(label: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let socket = interface_socket()?;
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    for (call, address) in [(libc::SIOCSIFADDR, address.octets()), (libc::SIOCSIFNETMASK, mask.to_be_bytes())] {
        // SAFETY: an all-zero ifreq is valid. The name is shorter than its field, so it ends with a zero. The address is
        // a sockaddr_in, which is as large as the sockaddr in the union.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            for (slot, byte) in request.ifr_name.iter_mut().zip(format!("lo:{label}").bytes().take(libc::IFNAMSIZ - 1))
            {
                *slot = byte as libc::c_char;
            }
            let of_ipv4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
                sin_zero: [0; 8],
            };
            request.ifr_ifru.ifru_addr = std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(of_ipv4);
            check_int(libc::ioctl(socket.as_raw_fd(), call as _, &request))?;
        }
    }
    Ok(())
}

fn interface_socket() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_once() {
        let proc = rustix::fs::open("/proc", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let users = match UnmappedUsers::create(proc.as_fd()) {
            Ok(users) => users,
            Err(error) => return println!("SKIP ids_are_mapped_once: no user namespaces: {error}"),
        };
        users.map((7, 8), own).unwrap();
        assert!(users.map((9, 9), own).is_err());
    }

    #[test]
    fn threads_map_ids_at_the_same_time() {
        let map = || {
            let proc = rustix::fs::open("/proc", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            with_ids(proc.as_fd(), (1000, 1000), (uid, gid)).map(drop)
        };
        if let Err(error) = map() {
            println!("SKIP threads_map_ids_at_the_same_time: no user namespaces: {error}");
            return;
        }
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(move || (0..20).try_for_each(|_| map()))).collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    }
}
