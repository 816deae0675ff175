//! Container engines for tests and benchmarks, started in namespaces of their own and stopped again.
//!
//! ```text
//! unshare: mount, network and pid namespace --> sh, process 1 there --> dockerd, registry | podman
//! ```
//!
//! All processes of an engine end with its process 1, even if this program is killed. An engine that the host has
//! already is neither changed nor used.
//!
//! Mounts of the host do not appear in those namespaces, except below [`DISKS`]: there the container backend mounts disks
//! for an engine, which usually shares its mount namespace.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{exists, is_root, step};
use crate::test::user;
use crate::{packages, temporary_directory};

/// The directory of mounted disks, see `crates/cofferdam-container/src/disks.rs`.
const DISKS: &str = "/run/cofferdam-disks";
/// The time in which an engine must answer for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time in which an engine must end when it is asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The time in which an engine must answer a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which an engine is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The script of process 1. Engines store state that must not remain in a `/run` of their own. Some runtimes fail on
/// hosts with both versions of control groups mounted, so engines see only the first.
const PROCESS_ONE: &str = r#"
ip link set lo up || exit 1
mount --bind /run/cofferdam-disks /mnt && mount -t tmpfs tmpfs /run && mkdir -p /run/cofferdam-disks || exit 1
mount --move /mnt /run/cofferdam-disks || exit 1
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
registry=$1; shift
if [ -n "$registry" ]; then docker-registry serve "$registry" & fi
"$@" & main=$!
trap 'kill $main' TERM
while kill -0 $main 2>/dev/null; do wait $main; done
"#;
/// The parent directory of the engines' files. Its file system supports images.
const PARENT: &str = "/var/tmp";
/// The prefix of the directories' names. The id of the process that started the engine follows.
const PREFIX: &str = "cofferdam-engines-";
/// The address of the registry in the engine's network namespace.
const REGISTRY: &str = "127.0.0.1:5000";

/// Runs `cargo xtask engines COMMAND`.
pub fn run(program: &str, arguments: &[&str]) -> Result<()> {
    packages::ensure(packages::FOR_TESTS);
    let engines = Engines::start(user::ORDINARY)?;
    let variables = engines.variables();
    for (name, value) in &variables {
        println!("{name}={value}");
    }
    let status = Command::new(program).args(arguments).envs(variables).status();
    let status = status.with_context(|| format!("cannot start {program}"))?;
    for left in engines.census() {
        println!("left behind: {left}");
    }
    if status.success() { Ok(()) } else { bail!("{program}: {status}") }
}

/// Running engines.
#[derive(Debug)]
pub struct Engines {
    root: PathBuf,
    running: Vec<Running>,
    shared: Option<SharedDisks>,
    /// Control groups that existed before.
    groups: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct Running {
    name: &'static str,
    socket: PathBuf,
    child: Child,
}

impl Engines {
    /// Starts every installed engine, for this user and a group. Requires root. Prints what is skipped otherwise.
    pub fn start(group: u32) -> Result<Self> {
        let mut engines = Self { root: PathBuf::new(), running: Vec::new(), shared: None, groups: groups() };
        if !is_root() {
            println!(
                "SKIP container engines: only root can start them; name sockets in COFFERDAM_TEST_DOCKER and \
                 COFFERDAM_TEST_PODMAN to test with ones that run"
            );
            return Ok(engines);
        }
        let root = temporary_directory::make(Path::new(PARENT), PREFIX, 0o755, &[0])?;
        engines.root = root.clone();
        engines.shared = Some(SharedDisks::mount()?);
        for (name, start) in [("docker", docker as fn(&Path, u32) -> Result<Command>), ("podman", podman)] {
            let program = if name == "docker" { "dockerd" } else { name };
            if !exists(program) {
                println!("SKIP the engine {name}: {program} is not installed");
                continue;
            }
            let begun = Instant::now();
            match engines.bring_up(name, start(&root, group)?, group) {
                Ok(()) => println!("== {name} is running, {:.1} s", begun.elapsed().as_secs_f64()),
                Err(error) => println!("SKIP the engine {name}: {error:#}"),
            }
        }
        Ok(engines)
    }

    fn bring_up(&mut self, name: &'static str, mut command: Command, group: u32) -> Result<()> {
        let log = self.root.join(format!("{name}.log"));
        let output = fs::File::create(&log)?;
        let temporary = self.root.join("tmp");
        fs::create_dir_all(&temporary)?;
        command.env("TMPDIR", temporary).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().context("cannot start unshare")?;
        let socket = self.root.join(format!("{name}.sock"));
        let mut running = Running { name, socket: socket.clone(), child };
        let begun = Instant::now();
        while ask(&socket, "/_ping").is_err() {
            let ended = running.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > START_TIMEOUT {
                running.stop();
                let text = fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(3).collect();
                bail!("it does not answer: {}", last.into_iter().rev().collect::<Vec<_>>().join(" / "));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        // Only root and the user of the tests may connect to an engine that runs as root.
        chown(&socket, Some(0), Some(group))?;
        fs::set_permissions(&socket, Permissions::from_mode(0o660))?;
        self.running.push(running);
        Ok(())
    }

    /// Returns the socket of each engine, by its name.
    pub fn sockets(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.running.iter().map(|running| (running.name, running.socket.as_path()))
    }

    /// Returns the environment variables for tests.
    pub fn variables(&self) -> Vec<(String, String)> {
        let variable = |(name, socket): (&str, &Path)| {
            (format!("COFFERDAM_TEST_{}", name.to_uppercase()), socket.display().to_string())
        };
        let mut variables: Vec<_> = self.sockets().map(variable).collect();
        if self.has_registry() {
            variables.push(("COFFERDAM_TEST_REGISTRY".to_owned(), REGISTRY.to_owned()));
        }
        variables
    }

    /// Creates the default image of sandboxes with the program under test. Its downloads are kept in `cache`.
    pub fn make_base_image(&self, cofferdam: &Path, cache: &Path) {
        for (name, socket) in self.sockets() {
            let mut build = Command::new(cofferdam);
            build.args(["image", "build", "--engine"]).env("XDG_CACHE_HOME", cache);
            build.env("DOCKER_HOST", format!("unix://{}", socket.display()));
            if let Err(error) = step(&format!("create the base image for {name}"), &mut build) {
                println!("SKIP tests that need an image of {name}: {error:#}");
            }
        }
    }

    fn has_registry(&self) -> bool {
        exists("docker-registry") && self.running.iter().any(|running| running.name == "docker")
    }

    /// Returns containers, volumes except those of the agent, and mounted disks. At the end there must be none.
    pub fn census(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (name, socket) in self.sockets() {
            let containers = ask(socket, "/v1.40/containers/json?all=1").unwrap_or_default();
            found.extend(names(&containers, "Id").map(|id| format!("container {id} of {name}")));
            let volumes = ask(socket, "/v1.40/volumes").unwrap_or_default();
            let volumes = names(&volumes["Volumes"], "Name").filter(|volume| !volume.starts_with("cofferdam-agent-"));
            found.extend(volumes.map(|volume| format!("volume {volume} of {name}")));
        }
        let disks = fs::read_dir(DISKS).into_iter().flatten().flatten();
        found.extend(disks.map(|disk| format!("mounted disk {}", disk.path().display())));
        found
    }
}

fn names<'a>(list: &'a Value, key: &'static str) -> impl Iterator<Item = String> + 'a {
    list.as_array().into_iter().flatten().filter_map(move |entry| entry[key].as_str().map(str::to_owned))
}

impl Drop for Engines {
    fn drop(&mut self) {
        for running in &mut self.running {
            running.stop();
        }
        for group in &groups() - &self.groups {
            remove_groups(&group);
        }
        if self.root.exists()
            && let Err(error) = fs::remove_dir_all(&self.root)
        {
            println!("cannot remove {}: {error}", self.root.display());
        }
    }
}

/// The directory of mounted disks as a mount that passes on what is mounted below it.
#[derive(Debug)]
struct SharedDisks;

impl SharedDisks {
    fn mount() -> Result<Self> {
        if !Path::new(DISKS).is_dir() {
            fs::create_dir(DISKS)?;
            fs::set_permissions(DISKS, Permissions::from_mode(0o700))?;
        }
        let mut mount = Command::new("mount");
        let status = mount.args(["--bind", "--make-shared", DISKS, DISKS]).status()?;
        if status.success() { Ok(Self) } else { bail!("mount --bind {DISKS}: {status}") }
    }
}

impl Drop for SharedDisks {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--recursive", "--lazy", DISKS]).status();
        let _ = fs::remove_dir(DISKS);
    }
}

impl Running {
    /// Asks the engine to end, and kills it if it does not.
    fn stop(&mut self) {
        let one = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.child.id())).unwrap_or_default();
        for pid in one.split_whitespace() {
            let _ = Command::new("sh").args(["-c", "kill -TERM \"$1\"", "sh", pid]).stderr(Stdio::null()).status();
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < STOP_TIMEOUT && !one.is_empty() {
            std::thread::sleep(POLL_INTERVAL);
        }
        // Its process 1 ends with it, and everything else with that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command in namespaces of its own.
fn enclosed(registry: Option<&Path>) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation=slave",
        "--net",
        "--pid",
        "--fork",
        "--kill-child=SIGKILL",
        "--mount-proc",
    ]);
    command.args(["sh", "-c", PROCESS_ONE, "sh"]).arg(registry.unwrap_or(Path::new("")));
    command
}

fn docker(root: &Path, group: u32) -> Result<Command> {
    let runtimes: serde_json::Map<String, Value> =
        [("crun", "crun", &[][..]), ("runsc", "runsc", &["--network=none", "--platform=ptrace"])]
            .into_iter()
            .filter_map(|(name, program, arguments)| {
                let path = found(program)?;
                Some((name.to_owned(), serde_json::json!({ "path": path, "runtimeArgs": arguments })))
            })
            .collect();
    let configuration = root.join("docker.json");
    fs::write(&configuration, serde_json::json!({ "runtimes": runtimes }).to_string())?;
    let registry = root.join("registry.yml");
    let storage = root.join("registry");
    fs::write(
        &registry,
        format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {REGISTRY}\n",
            storage.display()
        ),
    )?;
    let mut command = enclosed(exists("docker-registry").then_some(&*registry));
    command.arg("dockerd").arg("--config-file").arg(configuration);
    command.arg("--host").arg(format!("unix://{}", root.join("docker.sock").display()));
    command.arg("--data-root").arg(root.join("docker")).arg("--exec-root").arg(root.join("docker.run"));
    command.arg("--pidfile").arg(root.join("docker.pid")).arg("--group").arg(group.to_string());
    command.args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]);
    command.args(["--log-level=warn", "--cgroup-parent=/xtask-engines"]);
    Ok(command)
}

fn podman(root: &Path, _: u32) -> Result<Command> {
    let directory = root.join("podman");
    fs::create_dir_all(&directory)?;
    let mut command = enclosed(None);
    // Its monitors leave a file named `oom` in their working directory.
    command.current_dir(&directory);
    command.args(["podman", "--cgroup-manager=cgroupfs", "--events-backend=file", "--log-level=warn", "--root"]);
    command.arg(directory.join("root")).arg("--runroot").arg(directory.join("run"));
    command.arg("--tmpdir").arg(directory.join("tmp")).args(["system", "service", "--time=0"]);
    command.arg(format!("unix://{}", root.join("podman.sock").display()));
    Ok(command)
}

fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// Returns an engine's JSON answer to a request, or null.
fn ask(socket: &Path, path: &str) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP response")?;
    if head.split(' ').nth(1) != Some("200") {
        bail!("{}", head.lines().next().unwrap_or_default());
    }
    Ok(serde_json::from_str(body).unwrap_or_default())
}

/// Returns control groups that engines create at the top level and that outlive them.
fn groups() -> BTreeSet<PathBuf> {
    let controllers = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    controllers
        .flat_map(|controller| ["xtask-engines", "libpod_parent"].map(|name| controller.join(name)))
        .filter(|group| group.is_dir())
        .collect()
}

/// Removes a group and its subgroups, unless processes run in them.
fn remove_groups(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_engine_socket_is_an_error() {
        assert!(ask(Path::new("/nowhere/engine.sock"), "/_ping").is_err());
    }

    #[test]
    fn lists_are_read_by_their_keys() {
        let list = serde_json::json!([{ "Id": "a" }, { "Id": 1 }, { "Name": "b" }, { "Id": "c" }]);
        assert_eq!(names(&list, "Id").collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(names(&Value::Null, "Id").count(), 0);
    }
}
