//! Checks of the process at the other end of a socket, beyond its user and user namespace.
//!
//! A process of the same user may be confined. A run through a server has the server's view and limits, so the client
//! must have the same.

use std::collections::BTreeMap;
use std::fs::{read_link, read_to_string};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_linux::peer::{self, Distrust};
use cofferdam_linux::{cgroup, process};

/// Namespaces that a process and its sandboxes share.
const NAMESPACES: [&str; 7] = ["mnt", "net", "pid", "ipc", "uts", "cgroup", "time"];
/// Lines of `/proc/PID/status` with the process's privileges and resources.
const RIGHTS: [&str; 13] = [
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Cpus_allowed",
    "Mems_allowed",
];

/// The process at the other end of a socket, of this user and in this user namespace.
#[derive(Debug)]
pub(crate) struct Peer(peer::Peer);

/// The side that asks the other to run something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// This process.
    Us,
    /// The process at the other end.
    Peer,
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Denied, "serve", format!("the peer process {why}"))
}

fn distrusted(distrust: Distrust) -> Error {
    match distrust {
        Distrust::Unknown(error) => crate::error::os("cannot identify the peer", error),
        distrust => refused(&distrust.to_string()),
    }
}

impl Peer {
    /// Returns the process at the other end, if it has this process's user and user namespace.
    pub(crate) fn of(socket: impl AsFd) -> Result<Self> {
        peer::Peer::of(socket).map(Self).map_err(distrusted)
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Returns true if the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        process::has_ended(self.0.process())
    }

    /// Checks that the process has the same view and privileges as this one, and that the caller of the two is under no
    /// bound that the other is not under. Landlock domains cannot be compared.
    pub(crate) fn confined_alike(&self, caller: Caller) -> Result<()> {
        let differs = |what: &str| refused(&format!("is confined differently: {what} differs"));
        for name in NAMESPACES {
            // Older kernels lack some namespaces, for both processes.
            if self.0.namespace(name) != read_link(format!("/proc/self/ns/{name}")).ok() {
                return Err(differs(&format!("its {name} namespace")));
            }
        }
        let root =
            |entry: &str| std::fs::metadata(format!("/proc/{entry}/root")).map(|meta| (meta.dev(), meta.ino())).ok();
        let theirs = root(&self.pid().to_string());
        if theirs.is_none() || theirs != root("self") {
            return Err(differs("its root directory"));
        }
        let both = |file: &str| {
            let text = |entry: &str| read_to_string(format!("/proc/{entry}/{file}")).ok();
            (text(&self.pid().to_string()), text("self"))
        };
        if !matches!(both("limits"), (Some(theirs), Some(ours)) if theirs == ours) {
            return Err(differs("a resource limit"));
        }
        let (Some(theirs), Some(ours)) = both("status") else { return Err(refused("cannot be inspected")) };
        let (theirs, ours) = (rights(&theirs), rights(&ours));
        if let Some(name) = RIGHTS.into_iter().find(|name| theirs.get(name) != ours.get(name)) {
            return Err(differs(name));
        }
        // The label of security modules. Without one, there is nothing to read.
        let (theirs, ours) = both("attr/current");
        if theirs != ours {
            return Err(differs("its security label"));
        }
        let (Some(theirs), Some(ours)) = both("cgroup") else { return Err(refused("cannot be inspected")) };
        let bounded_no_more = match caller {
            Caller::Us => cgroup::is_bounded_no_more(&ours, &theirs),
            Caller::Peer => cgroup::is_bounded_no_more(&theirs, &ours),
        };
        if !bounded_no_more {
            return Err(differs("its control group"));
        }
        self.0.still().map_err(distrusted)
    }
}

fn rights(status: &str) -> BTreeMap<&str, &str> {
    status.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| RIGHTS.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    #[test]
    fn this_process_is_confined_as_itself() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        assert_eq!(peer.pid(), std::process::id());
        for caller in [Caller::Us, Caller::Peer] {
            peer.confined_alike(caller).unwrap();
        }
    }

    /// Accepts a connection from a program under another confinement, which keeps the socket open.
    #[test]
    fn differently_confined_process_is_detected() {
        let temp = tempfile::tempdir().unwrap();
        for (name, words, expected) in [
            ("same", &["env"][..], None),
            ("limits", &["prlimit", "--nofile=64"], Some("a resource limit")),
            ("mounts", &["unshare", "--mount"], Some("mnt namespace")),
            ("network", &["unshare", "--net"], Some("net namespace")),
            ("ipc", &["unshare", "--ipc"], Some("ipc namespace")),
            ("rights", &["setpriv", "--no-new-privs"], Some("NoNewPrivs")),
        ] {
            let path = temp.path().join(name);
            let listener = UnixListener::bind(&path).unwrap();
            let connect = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)";
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).args(["python3", "-c", connect]).arg(&path);
            let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
            let Ok(mut child) = child else {
                println!("SKIP differently_confined_process_is_detected {name}: no {}", words[0]);
                continue;
            };
            listener.set_nonblocking(true).unwrap();
            let stream = loop {
                match listener.accept() {
                    Ok((stream, _)) => break Some(stream),
                    Err(_) if child.try_wait().unwrap().is_some() => break None,
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
                }
            };
            match stream {
                Some(stream) => {
                    let peer = Peer::of(&stream).unwrap();
                    let found = peer.confined_alike(Caller::Peer).err().map(|error| error.message().to_owned());
                    match expected {
                        None => assert_eq!(found, None, "{name}"),
                        Some(expected) => {
                            assert!(found.as_ref().is_some_and(|found| found.contains(expected)), "{name}: {found:?}")
                        }
                    }
                    drop(stream);
                }
                None => println!("SKIP differently_confined_process_is_detected {name}: not allowed or no python3"),
            }
            let _ = child.wait();
        }
    }

    #[test]
    fn ended_process_is_not_identified() {
        let temp = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(temp.path().join("socket")).unwrap();
        let connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
        let mut command = Command::new("python3");
        if !command.args(["-c", connect]).arg(temp.path().join("socket")).status().is_ok_and(|status| status.success())
        {
            println!("SKIP ended_process_is_not_identified: no python3");
            return;
        }
        let (stream, _) = listener.accept().unwrap();
        // Its id may belong to another process by now.
        assert!(Peer::of(&stream).is_err());
    }
}
