//! A PostgreSQL server for tests, on a Unix socket.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The user that runs the server if the test runs as root, which PostgreSQL refuses.
const USER: u32 = 65534;

/// A running server.
pub struct Postgres {
    /// The URL of its database.
    pub url: String,
    server: Child,
    _directory: tempfile::TempDir,
}

/// Finds a program in the `PATH`, or where Debian has those of PostgreSQL.
fn find(name: &str) -> Option<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = debian.map(|version| version.path().join("bin")).chain(std::env::split_paths(&path));
    directories.map(|directory| directory.join(name)).find(|program| program.exists())
}

impl Postgres {
    /// Starts a server. Returns `None`, and prints it, if the host has no PostgreSQL.
    pub fn start() -> Option<Self> {
        let (Some(initdb), Some(postgres)) = (find("initdb"), find("postgres")) else {
            println!("SKIP PostgreSQL: the programs initdb and postgres are not installed");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path();
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o777)).expect("permissions");
        let run = |program: &Path| {
            let mut command = Command::new(program);
            if rustix::process::geteuid().is_root() {
                command.uid(USER).gid(USER);
            }
            command.current_dir(place).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let data = place.join("data");
        let made = run(&initdb).args(["-U", "test", "-A", "trust", "-N", "-D"]).arg(&data).status().expect("initdb");
        if !made.success() {
            // A user without a name, such as that of some tests, cannot own a database.
            println!("SKIP PostgreSQL: initdb fails for this user");
            return None;
        }
        let mut server = run(&postgres);
        server.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-k"]).arg(place);
        let server = server.spawn().expect("postgres");
        let url = format!("postgres://test@{}/postgres", place.to_str().expect("a path").replace('/', "%2F"));
        let started = Self { url, server, _directory: directory };
        let socket = started._directory.path().join(".s.PGSQL.5432");
        for _ in 0..600 {
            if UnixStream::connect(&socket).is_ok() {
                return Some(started);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("postgres does not listen");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT is a fast shutdown: it ends the processes that the server has started.
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.server), rustix::process::Signal::INT);
        let _ = self.server.wait();
    }
}
