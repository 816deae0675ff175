//! The server as a process of its own, on a loopback port with an empty state directory.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cofferdam_server::client::Client;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::host::{groups, tree};

/// Time for a server to start, and to stop.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two polls for processes that end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The program and the state of a server that does not run yet.
#[derive(Debug)]
pub struct ServerHome {
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl ServerHome {
    /// Creates an empty state directory for a server of this program.
    pub fn create(program: &Path) -> Result<Self> {
        ensure!(program.exists(), "there is no program {}; build it, or name one", program.display());
        let directory = tempfile::Builder::new().prefix("cofferdam-server-").tempdir()?;
        Ok(Self { program: program.to_owned(), directory })
    }

    fn command(&self) -> Command {
        let directory = self.directory.path();
        let mut command = Command::new(&self.program);
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        for variable in ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"] {
            command.env(variable, directory);
        }
        command.current_dir(directory).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Creates a key of a tenant with these scopes.
    pub async fn key(&self, tenant: &str, scopes: &[&str]) -> Result<String> {
        let mut command = self.command();
        command.args(["keys", "create", "--tenant", tenant]);
        for scope in scopes {
            command.args(["--scope", scope]);
        }
        let output = command.output().await?;
        ensure!(output.status.success(), "cannot create a key: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Starts the server, without prepared interpreters, and waits until it listens.
    pub async fn start(self, options: &[&str]) -> Result<Server> {
        let mut command = self.command();
        command.args(["serve", "--listen", "127.0.0.1:0", "--python", "0", "--node", "0"]).args(options);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start the server")?;
        let mut lines = BufReader::new(child.stderr.take().context("the server has no output")?).lines();
        let url = tokio::time::timeout(START_TIMEOUT, address(&mut lines)).await;
        let url = url.context("the server does not listen in time")??;
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{line}");
            }
        });
        let pid = child.id().context("the server has ended")?;
        Ok(Server { child, pid, url, _place: self })
    }
}

/// Returns the address that a server prints when it listens.
async fn address(lines: &mut Lines<BufReader<ChildStderr>>) -> Result<String> {
    while let Some(line) = lines.next_line().await? {
        if let Some((_, url)) = line.split_once("serving ") {
            return Ok(url.to_owned());
        }
        eprintln!("{line}");
    }
    bail!("the server does not listen; is it a build with the feature 'server'?")
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Its process id.
    pub pid: u32,
    url: String,
    _place: ServerHome,
}

impl Server {
    /// Returns a client with a connection of its own.
    pub fn client(&self, key: Option<&str>) -> Result<Client> {
        Ok(Client::new(&self.url, key, None)?)
    }

    /// Returns the resident memory of the server's own process, in KiB.
    pub fn resident(&self) -> Option<u64> {
        tree::memory(&[self.pid]).map(|memory| memory.resident)
    }

    /// Stops the server, and checks that it ends in order and leaves neither a process nor a control group.
    pub async fn stop(mut self) -> Result<()> {
        let below = tree::descendants_of(self.pid);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("the server has no process id")?;
        kill_process(pid, Signal::TERM)?;
        let status = tokio::time::timeout(START_TIMEOUT, self.child.wait()).await;
        let status = status.context("the server does not stop")??;
        ensure!(status.success(), "the server failed: {status}");
        let is_left = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
        let ended = async {
            while below.iter().any(is_left) || !groups::of_launchers(&below).is_empty() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let ended = tokio::time::timeout(START_TIMEOUT, ended).await;
        ended.context("processes or control groups are left of a server that stopped")
    }
}
