//! Bait on the host: files, sockets, a server, a process and a secret that guests must neither reach nor change.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tempfile::{NamedTempFile, TempDir};

use super::guests::open_temporary_directory;

/// The environment variable with the supervisor's secret, set by the test that starts this binary again.
pub const SECRET_VARIABLE: &str = "HOSTILE_SUPERVISOR_SECRET";
/// Contents of marker files.
pub const MARKER_TEXT: &str = "only the host may read this";

/// The bait, which is removed on drop.
pub struct Host {
    directory: TempDir,
    markers: Vec<NamedTempFile>,
    abstract_name: String,
    server: TcpListener,
    _listeners: [UnixListener; 2],
    canary: Mutex<Child>,
    victims: Mutex<Vec<Child>>,
    state: BTreeMap<PathBuf, Vec<u8>>,
}

impl Host {
    /// Creates the bait.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let abstract_name = format!("hostile-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = open_temporary_directory(0o777);
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a short name");
        let listeners = [
            UnixListener::bind_addr(&address).expect("an abstract socket"),
            UnixListener::bind(directory.path().join("socket")).expect("a socket"),
        ];
        let markers: Vec<_> = marker_directories().iter().filter_map(|parent| marker(parent)).collect();
        assert!(!markers.is_empty(), "no directory for a marker file");
        let state = watched_files(&markers);
        Self {
            server: TcpListener::bind("127.0.0.1:0").expect("a loopback port"),
            directory,
            markers,
            abstract_name,
            _listeners: listeners,
            canary: Mutex::new(sleeper()),
            victims: Mutex::default(),
            state,
        }
    }

    /// Returns files of the host in the temporary directories and the home directory.
    pub fn markers(&self) -> Vec<String> {
        self.markers.iter().map(|file| file.path().display().to_string()).collect()
    }

    /// Returns the path of a listening Unix socket.
    pub fn socket(&self) -> String {
        self.directory.path().join("socket").display().to_string()
    }

    /// Returns the abstract name of a listening Unix socket.
    pub fn abstract_name(&self) -> String {
        self.abstract_name.clone()
    }

    /// Returns a listening port on the loopback interface.
    pub fn port(&self) -> String {
        self.server.local_addr().expect("it is bound").port().to_string()
    }

    /// Returns a process that must survive.
    pub fn canary(&self) -> String {
        self.canary.lock().id().to_string()
    }

    /// Starts a new process that a control may kill.
    pub fn victim(&self) -> String {
        let child = sleeper();
        let id = child.id().to_string();
        self.victims.lock().push(child);
        id
    }

    /// Returns this test process, whose `/proc` entries a control reads.
    pub fn supervisor(&self) -> String {
        std::process::id().to_string()
    }

    /// Returns the secret of this process's environment reversed, so that the guest's command line does not contain it.
    pub fn secret_backwards(&self) -> String {
        std::env::var(SECRET_VARIABLE).unwrap_or_default().chars().rev().collect()
    }

    /// Describes the damage of an attack on the host; empty if there is none.
    pub fn damage(&self) -> Vec<String> {
        let mut damage = Vec::new();
        if !matches!(self.canary.lock().try_wait(), Ok(None)) {
            damage.push("the host's process was killed".to_owned());
        }
        for (path, before) in &self.state {
            if fs::read(path).unwrap_or_default() != *before {
                damage.push(format!("{} was changed", path.display()));
            }
        }
        damage
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let canary = std::iter::once(self.canary.get_mut());
        for child in canary.chain(self.victims.get_mut()) {
            // The process may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn sleeper() -> Child {
    Command::new("sleep").arg("900").stdin(Stdio::null()).spawn().expect("sleep is part of every system")
}

fn marker_directories() -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::from("/tmp"), PathBuf::from("/var/tmp"), std::env::temp_dir()];
    directories.extend(std::env::var_os("HOME").map(PathBuf::from));
    directories.sort();
    directories.dedup();
    directories
}

fn marker(parent: &Path) -> Option<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("hostile-marker-").tempfile_in(parent).ok()?;
    file.write_all(MARKER_TEXT.as_bytes()).ok()?;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).ok()?;
    Some(file)
}

/// Returns files that an attack would change, with their current contents.
fn watched_files(markers: &[NamedTempFile]) -> BTreeMap<PathBuf, Vec<u8>> {
    let fixed = [
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/domainname",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/sysrq",
        "/etc/passwd",
        "/etc/group",
        "/etc/hosts",
    ];
    let paths = fixed.iter().map(PathBuf::from).chain(markers.iter().map(|file| file.path().to_owned()));
    paths.map(|path| (path.clone(), fs::read(&path).unwrap_or_default())).collect()
}
