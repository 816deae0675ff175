//! The owner's side of a launcher.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_linux::message;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::OnceCell;

use crate::config::LauncherStart;
use crate::forked::{Forked, IdleLauncher};
use crate::protocol::{
    self, Adapt, Configure, Create, Evidence, Failure, Hello, HostFacts, LauncherRequest, Probes, SandboxSockets,
};
use crate::sys::watch::watch;
use crate::{error, sys};

/// The maximum of different requests with stored measurements.
const MAX_STORED_EVIDENCE: usize = 256;
/// Time for a launcher to build its template, on a host under heavy load.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running launcher. Dropping it ends the launcher and all its sandboxes, and waits until nothing remains.
pub struct Launcher {
    socket: Option<OwnedFd>,
    process: Mutex<Process>,
    facts: OnceCell<HostFacts>,
    serial: AtomicU64,
    probes: Mutex<HashMap<Kind, Arc<Probes>>>,
    accepted: Mutex<HashMap<Create, Arc<Evidence>>>,
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher").field("process", &self.process).finish_non_exhaustive()
    }
}

/// The launcher's process.
#[derive(Debug)]
enum Process {
    Executed(Child),
    Forked(Forked),
}

impl Process {
    fn id(&self) -> u32 {
        match self {
            Self::Executed(child) => child.id(),
            Self::Forked(forked) => forked.id(),
        }
    }

    fn is_alive(&mut self) -> bool {
        match self {
            Self::Executed(child) => matches!(child.try_wait(), Ok(None)),
            Self::Forked(forked) => forked.is_alive(),
        }
    }

    fn wait(&mut self) {
        match self {
            Self::Executed(child) => drop(child.wait()),
            Self::Forked(forked) => forked.wait(),
        }
    }
}

/// A launcher's answer, and the descriptors that came with it.
type Answer = (std::result::Result<(), Failure>, Vec<OwnedFd>);

/// The settings that can change the probe results of one launcher's sandboxes: whether the workspace is a host
/// directory, whether it is copy-on-write, and whether it is read-only.
pub type Kind = (bool, bool, bool);

impl Launcher {
    /// Starts a launcher and sends its configuration. Requests may be sent at once; see [`Self::ready`].
    pub fn start(from: &LauncherStart, configure: &Configure) -> Result<Self> {
        let forked = match from {
            LauncherStart::Forked(forked) => forked.take().and_then(IdleLauncher::into_parts),
            LauncherStart::Execute | LauncherStart::ExecuteProgram(_) => None,
        };
        let (socket, process) = match (forked, from) {
            (Some((socket, forked)), _) => (socket, Process::Forked(forked)),
            (None, LauncherStart::ExecuteProgram(program)) => execute(program)?,
            (None, _) => execute(Path::new("/proc/self/exe"))?,
        };
        let launcher = Self {
            socket: Some(socket),
            process: Mutex::new(process),
            facts: OnceCell::new(),
            serial: AtomicU64::new(0),
            probes: Mutex::default(),
            accepted: Mutex::default(),
        };
        let socket = launcher.socket()?;
        protocol::send(socket, configure, &[], Duration::from_secs(5))
            .map_err(|error| error::os("create", "cannot configure the launcher", error))?;
        Ok(launcher)
    }

    /// Returns true if the launcher creates a single sandbox.
    pub fn is_single(&self) -> bool {
        matches!(*self.process.lock(), Process::Forked(_))
    }

    /// Tells a launcher whose only sandbox ends that it can end as well.
    pub fn retire(&self) {
        if let (true, Some(socket)) = (self.is_single(), &self.socket) {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        }
    }

    /// Waits until the launcher is prepared. Returns the facts about the host that it found.
    pub async fn ready(&self) -> Result<&HostFacts> {
        self.facts.get_or_try_init(|| self.hello()).await
    }

    async fn hello(&self) -> Result<HostFacts> {
        let waiting = self
            .socket()?
            .try_clone_to_owned()
            .and_then(|socket| watch(socket, Interest::READABLE))
            .map_err(|error| error::os("create", "cannot watch the launcher's socket", error))?;
        match tokio::time::timeout(START_TIMEOUT, receive::<Hello>(&waiting)).await {
            Ok(Ok(Some((Hello::Ready(facts), _)))) => Ok(facts),
            Ok(Ok(Some((Hello::Failed(failure), _)))) => Err(error::launcher(&failure)),
            Ok(Ok(None)) | Ok(Err(_)) => Err(Error::new(
                ErrorKind::Unavailable,
                "create",
                "the launcher ended before it was ready",
            )
            .with_retry(Retry::Never)
            .with_remedy(
                "link the running program with cofferdam-process, or set ProcessConfig::launcher to one that is linked",
            )),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "create", "the launcher was not ready within 30 s")),
        }
    }

    fn socket(&self) -> Result<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd).ok_or_else(|| Error::closed("create"))
    }

    /// Returns a number that is unique among the sandboxes of this launcher.
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the probe results of an earlier sandbox of the same kind.
    pub fn known_probes(&self, kind: Kind) -> Option<Arc<Probes>> {
        self.probes.lock().get(&kind).cloned()
    }

    /// Returns the measurements of an accepted sandbox with the same request.
    pub fn expected(&self, create: &Create) -> Option<Arc<Evidence>> {
        self.accepted.lock().get(&without_unique_fields(create)).cloned()
    }

    /// Stores the measurements of an accepted sandbox.
    pub fn accept(&self, create: &Create, evidence: &Evidence) {
        let mut accepted = self.accepted.lock();
        if accepted.len() >= MAX_STORED_EVIDENCE {
            accepted.clear();
        }
        accepted.entry(without_unique_fields(create)).or_insert_with(|| Arc::new(evidence.clone()));
    }

    /// Stores probe results.
    pub fn store_probes(&self, kind: Kind, probes: &Arc<Probes>) {
        self.probes.lock().insert(kind, Arc::clone(probes));
    }

    /// Returns true if the launcher still runs.
    pub fn is_alive(&self) -> bool {
        self.process.lock().is_alive()
    }

    /// Returns the launcher's process id.
    pub fn pid(&self) -> u32 {
        self.process.lock().id()
    }

    /// Requests a sandbox. Its init answers on the returned socket, which closes once nothing of the sandbox remains.
    pub fn create(&self, create: &Create) -> Result<OwnedFd> {
        let io = |error| error::os("create", "cannot request a sandbox from the launcher", error);
        let (control, init) = message::pair().map_err(io)?;
        protocol::send(
            self.socket()?,
            &LauncherRequest::Create(Box::new(create.clone())),
            &[init.as_fd()],
            Duration::from_secs(10),
        )
        .map_err(|error| match message::is_crowded(&error) {
            true => io(error),
            false => Error::new(ErrorKind::Unavailable, "create", "the launcher has ended").with_source(error),
        })?;
        Ok(control)
    }

    /// Changes the limits of a sandbox in which no program has run yet.
    pub async fn adapt(&self, adapt: Adapt) -> Result<()> {
        let answer = self.ask(&LauncherRequest::Adapt(adapt)).await;
        match answer.map_err(|error| error::os("claim", "cannot request other limits from the launcher", error))? {
            Some((Ok(()), _)) => Ok(()),
            Some((Err(failure), _)) => Err(error::create(&failure)),
            None => {
                Err(Error::new(ErrorKind::Unavailable, "claim", "the launcher has ended").with_retry(Retry::MayHelp))
            }
        }
    }

    /// Creates TCP sockets in the network of a sandbox, which are not connected: for IPv4, and perhaps for IPv6.
    pub async fn sockets(&self, serial: u64) -> Result<Vec<OwnedFd>> {
        let answer = self.ask(&LauncherRequest::Sockets(SandboxSockets { serial })).await;
        match answer.map_err(|error| error::os("connect", "cannot request a socket from the launcher", error))? {
            Some((Ok(()), fds)) => Ok(fds),
            Some((Err(failure), _)) => Err(error::connect(&failure)),
            None => Err(Error::new(ErrorKind::Unavailable, "connect", "the launcher has ended")),
        }
    }

    /// Sends a request and waits for its answer. Returns `None` if the launcher ends without one.
    async fn ask(&self, request: &LauncherRequest) -> std::io::Result<Option<Answer>> {
        let socket = self.socket.as_ref().ok_or(std::io::ErrorKind::NotConnected)?;
        let (ours, theirs) = message::pair()?;
        protocol::send(socket.as_fd(), request, &[theirs.as_fd()], Duration::from_secs(10))?;
        drop(theirs);
        let answer = watch(ours, Interest::READABLE)?;
        match tokio::time::timeout(START_TIMEOUT, receive(&answer)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // It ends by itself once its socket closes, after it has removed what remains of its sandboxes.
        if let Some(socket) = &self.socket {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        }
        self.process.get_mut().wait();
    }
}

/// Executes a program that becomes a launcher.
fn execute(program: &Path) -> Result<(OwnedFd, Process)> {
    let (ours, theirs) = message::pair().map_err(|error| error::os("create", "cannot create a socket", error))?;
    let child = Command::new(program)
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
    Ok((ours, Process::Executed(child)))
}

/// Waits for the next message. Returns `None` if the other end is closed.
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

/// Returns a request without the fields that are unique to it.
fn without_unique_fields(create: &Create) -> Create {
    Create { serial: 0, probe: false, expected: None, ..create.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_linux::message;
    use proptest::prelude::*;
    use std::time::Instant;

    /// Time for a launcher to end on a host under load.
    const END_TIMEOUT: Duration = Duration::from_secs(20);

    fn configure() -> Configure {
        Configure {
            root: None,
            read_only: Vec::new(),
            interpreters: Vec::new(),
            hidden: Vec::new(),
            mount_points: Vec::new(),
            use_cgroups: false,
            prepare_ahead: false,
        }
    }

    fn create(serial: u64) -> Create {
        Create {
            serial,
            workspace: protocol::WorkspacePlan::Private,
            inside: crate::protocol::INSIDE,
            mounts: Vec::new(),
            network: None,
            read_only: false,
            disk: Some(1 << 20),
            memory: None,
            tasks: None,
            processes: None,
            cpu_millis: None,
            cpu_micros: None,
            probe: false,
            expected: None,
        }
    }

    /// Starts a launcher and waits for its hello.
    fn started() -> (OwnedFd, Child) {
        let (socket, process) = execute(Path::new("/proc/self/exe")).unwrap();
        let Process::Executed(child) = process else { unreachable!("executed just now") };
        protocol::send(socket.as_fd(), &configure(), &[], END_TIMEOUT).unwrap();
        assert!(message::wait_readable(&socket, Some(END_TIMEOUT)).unwrap());
        assert!(matches!(protocol::receive::<Hello>(socket.as_fd()).unwrap(), Some((Hello::Ready(_), _))));
        (socket, child)
    }

    /// Returns true if a launcher whose owner has ended exits in order, not by a signal or a panic.
    fn ends_in_order(mut child: Child) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code() == Some(0);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    /// Generates messages to a launcher: noise, requests with changed bytes, truncated requests, and valid ones.
    fn any_body() -> impl Strategy<Value = Vec<u8>> {
        let encoded = |serial| protocol::encode(&LauncherRequest::Create(Box::new(create(serial)))).unwrap();
        let changed = (any::<u64>(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4));
        let changed = changed.prop_map(move |(serial, changes)| {
            let mut body = encoded(serial);
            for (index, byte) in changes {
                let at = index.index(body.len());
                body[at] = byte;
            }
            body
        });
        let cut = (changed, any::<prop::sample::Index>()).prop_map(|(body, at)| body[..at.index(body.len())].to_vec());
        let changed = (0u64..9).prop_map(encoded);
        prop_oneof![prop::collection::vec(any::<u8>(), 0..200), cut, changed]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_message_makes_a_launcher_end_in_disorder(
            messages in prop::collection::vec((any_body(), 0usize..4), 1..4),
        ) {
            let (socket, child) = started();
            let pairs: Vec<_> = (0..4).map(|_| message::pair().unwrap()).collect();
            for (body, fds) in &messages {
                let fds: Vec<_> = pairs[..*fds].iter().map(|(_, theirs)| theirs.as_fd()).collect();
                // The launcher may have closed its end after an earlier message.
                let _ = message::send(socket.as_fd(), body, &fds);
            }
            drop((socket, pairs));
            prop_assert!(ends_in_order(child), "{messages:?}");
        }
    }

    #[test]
    fn a_launcher_serves_on_after_a_request_without_a_socket() {
        let (socket, child) = started();
        protocol::send(socket.as_fd(), &LauncherRequest::Create(Box::new(create(1))), &[], END_TIMEOUT).unwrap();
        let (ours, theirs) = message::pair().unwrap();
        protocol::send(socket.as_fd(), &LauncherRequest::Create(Box::new(create(2))), &[theirs.as_fd()], END_TIMEOUT)
            .unwrap();
        drop(theirs);
        assert!(message::wait_readable(&ours, Some(END_TIMEOUT)).unwrap());
        let event = protocol::receive::<protocol::Event>(ours.as_fd()).unwrap();
        assert!(matches!(event, Some((protocol::Event::Ready { .. }, _))), "{event:?}");
        drop((socket, ours));
        assert!(ends_in_order(child));
    }
}
