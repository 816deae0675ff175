//! A PostgreSQL server for tests, on a Unix socket.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The user that runs the server if the test runs as root, which PostgreSQL refuses.
const USER: u32 = 65534;

/// A running server.
pub struct Postgres {
    /// The URL of its database.
    pub url: String,
    program: PathBuf,
    server: Option<Child>,
    directory: tempfile::TempDir,
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
        let path = directory.path();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("permissions");
        let data = path.join("data");
        let status = command(&initdb, path).args(["-U", "test", "-A", "trust", "-N", "-D"]).arg(&data).status();
        if !status.expect("initdb").success() {
            // A user without a name, such as that of some tests, cannot own a database.
            println!("SKIP PostgreSQL: initdb fails for this user");
            return None;
        }
        let url = format!("postgres://test@{}/postgres", path.to_str().expect("a path").replace('/', "%2F"));
        let mut created = Self { url, program: postgres, server: None, directory };
        created.run();
        Some(created)
    }

    /// Starts the server, also after it was stopped, and waits until it listens.
    pub fn run(&mut self) {
        let directory = self.directory.path();
        for _ in 0..600 {
            // The first start after a kill fails while processes of the killed server live.
            let has_ended = match &mut self.server {
                Some(server) => server.try_wait().expect("postgres").is_some(),
                None => true,
            };
            if has_ended {
                let mut server = command(&self.program, directory);
                server.arg("-D").arg(directory.join("data")).args(["-c", "listen_addresses=", "-k"]).arg(directory);
                self.server = Some(server.spawn().expect("postgres"));
            } else if UnixStream::connect(directory.join(".s.PGSQL.5432")).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("postgres does not listen");
    }

    /// Sends a signal to the server and waits until it has ended.
    pub fn stop(&mut self, signal: Signal) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), signal);
            let _ = server.wait();
        }
    }
}

/// Returns a command in a directory, by a user that PostgreSQL accepts.
fn command(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        command.uid(USER).gid(USER);
    }
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT is a fast shutdown: it ends the processes that the server has started.
        self.stop(Signal::INT);
    }
}
