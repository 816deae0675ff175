//! The owner's side of a launcher.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_linux::message;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::protocol::{self, Adapt, Ask, Configure, Create, Evidence, Failure, Hello, HostFacts, Walls};
use crate::sys::watch::watch;
use crate::{error, sys};

/// Different requests whose measurements are remembered.
const MOST_ACCEPTED: usize = 256;
/// Time a launcher has to build its template, on a machine under heavy load.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A running launcher. Dropping it ends the launcher and all its sandboxes, and waits until nothing is left.
#[derive(Debug)]
pub struct Launcher {
    socket: Option<OwnedFd>,
    child: Mutex<Child>,
    facts: HostFacts,
    serial: AtomicU64,
    walls: Mutex<HashMap<Kind, Arc<Walls>>>,
    accepted: Mutex<HashMap<Create, Arc<Evidence>>>,
}

/// What may make a difference for the walls of one launcher's sandboxes: whether the workspace is a host directory, and
/// whether it is read-only.
pub type Kind = (bool, bool);

impl Launcher {
    /// Starts a launcher from `program`, the running program by default.
    pub async fn start(program: Option<&Path>, configure: &Configure) -> Result<Self> {
        let (ours, theirs) = message::pair().map_err(|error| error::os("create", "cannot make a socket", error))?;
        let own = PathBuf::from("/proc/self/exe");
        let child = Command::new(program.unwrap_or(&own))
            .arg0(sys::entry::LAUNCHER_NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "create", "cannot start the launcher").with_source(error)
            })?;
        let mut launcher = Self {
            socket: None,
            child: Mutex::new(child),
            facts: HostFacts::none(),
            serial: AtomicU64::new(0),
            walls: Mutex::default(),
            accepted: Mutex::default(),
        };
        let socket = launcher.socket.insert(ours);
        protocol::send(socket.as_fd(), configure, &[], Duration::from_secs(5))
            .map_err(|error| error::os("create", "cannot configure the launcher", error))?;
        let waiting = socket
            .try_clone()
            .and_then(|socket| watch(socket, Interest::READABLE))
            .map_err(|error| error::os("create", "cannot wait for the launcher", error))?;
        let hello = tokio::time::timeout(START_LIMIT, receive::<Hello>(&waiting)).await;
        drop(waiting);
        match hello {
            Ok(Ok(Some((Hello::Ready(facts), _)))) => {
                launcher.facts = facts;
                Ok(launcher)
            }
            Ok(Ok(Some((Hello::Failed(failure), _)))) => Err(error::launcher(&failure)),
            Ok(Ok(None)) | Ok(Err(_)) => Err(Error::new(
                ErrorKind::Unavailable,
                "create",
                "the launcher ended before it was ready",
            )
            .with_retry(Retry::Never)
            .with_remedy(
                "the running program must be linked with cofferdam-process; else name one in ProcessConfig::launcher",
            )),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "create", "the launcher was not ready within 30 s")),
        }
    }

    /// What it found out about the host.
    pub fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// A number that no other sandbox of this launcher has.
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What trying the walls gave for an earlier sandbox of the same kind.
    pub fn known_walls(&self, kind: Kind) -> Option<Arc<Walls>> {
        self.walls.lock().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned()
    }

    /// What an accepted sandbox measured that was asked for in the same words.
    pub fn expected(&self, create: &Create) -> Option<Arc<Evidence>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).get(&generalised(create)).cloned()
    }

    /// Keeps what an accepted sandbox measured.
    pub fn accept(&self, create: &Create, evidence: &Evidence) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        if accepted.len() >= MOST_ACCEPTED {
            accepted.clear();
        }
        accepted.entry(generalised(create)).or_insert_with(|| Arc::new(evidence.clone()));
    }

    /// Keeps what trying the walls gave.
    pub fn remember_walls(&self, kind: Kind, walls: &Arc<Walls>) {
        self.walls.lock().unwrap_or_else(PoisonError::into_inner).insert(kind, Arc::clone(walls));
    }

    /// Whether the launcher still runs.
    pub fn is_alive(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(child.try_wait(), Ok(None))
    }

    /// The launcher's process number.
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// Asks for a sandbox. Its init answers on the socket, which reads as closed when nothing of it is left.
    pub fn create(&self, create: &Create) -> Result<OwnedFd> {
        let io = |error| error::os("create", "cannot ask the launcher for a sandbox", error);
        let (control, init) = message::pair().map_err(io)?;
        let socket = self.socket.as_ref().ok_or_else(|| Error::closed("create"))?;
        protocol::send(socket.as_fd(), &Ask::Create(create.clone()), &[init.as_fd()], Duration::from_secs(10))
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "create", "the launcher has ended").with_source(error)
            })?;
        Ok(control)
    }

    /// Gives a sandbox other bounds, in which nothing has run yet.
    pub async fn adapt(&self, adapt: Adapt) -> Result<()> {
        let io = |error| error::os("claim", "cannot ask the launcher for other bounds", error);
        let (ours, theirs) = message::pair().map_err(io)?;
        let socket = self.socket.as_ref().ok_or_else(|| Error::closed("claim"))?;
        protocol::send(socket.as_fd(), &Ask::Adapt(adapt), &[theirs.as_fd()], Duration::from_secs(10)).map_err(io)?;
        drop(theirs);
        let answer = watch(ours, Interest::READABLE).map_err(io)?;
        match tokio::time::timeout(START_LIMIT, receive::<std::result::Result<(), Failure>>(&answer)).await {
            Ok(Ok(Some((Ok(()), _)))) => Ok(()),
            Ok(Ok(Some((Err(failure), _)))) => Err(error::create(&failure)),
            _ => Err(Error::new(ErrorKind::Unavailable, "claim", "the launcher has ended").with_retry(Retry::MayHelp)),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.socket = None;
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It ends by itself when its socket closes, after removing what is left of its sandboxes.
        let _ = child.wait();
    }
}

impl HostFacts {
    fn none() -> Self {
        Self {
            cgroup_version: 0,
            cgroup_layout: Vec::new(),
            cgroup_reason: String::new(),
            cgroup_cpu: false,
            cgroup_counts: (false, false),
            landlock_abi: 0,
            privileged: false,
            namespaces: [0; 7],
        }
    }
}

/// Waits for the next message; `None` when the other end is closed.
pub async fn receive<T: serde::de::DeserializeOwned>(
    socket: &AsyncFd<OwnedFd>,
) -> std::io::Result<Option<(T, Vec<OwnedFd>)>> {
    loop {
        let mut ready = socket.readable().await?;
        match protocol::receive::<T>(socket.get_ref().as_fd()) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => ready.clear_ready(),
            other => return other,
        }
    }
}

/// A request without what is its own.
fn generalised(create: &Create) -> Create {
    Create { serial: 0, probe: false, expected: None, ..create.clone() }
}
