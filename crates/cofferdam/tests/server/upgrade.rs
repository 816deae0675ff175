//! Upgrades of a running server, and sockets of a service manager.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use super::{Server, WEAKER, json, outcome, program};

const TIME: Duration = Duration::from_secs(60);
/// The path of a server's socket below its state.
const SOCKET: &str = "own.sock";

impl Server {
    /// Starts a server with a socket that can be handed over.
    fn start_on_socket(words: &[&str]) -> Self {
        Self::start_on_socket_in(tempfile::tempdir().unwrap(), words)
    }

    fn start_on_socket_in(state: tempfile::TempDir, words: &[&str]) -> Self {
        let path = state.path().join(SOCKET);
        Self::start_in(state, &[&["--socket", path.to_str().unwrap()], words].concat())
    }

    /// Starts the program at a path, with a socket that can be handed over.
    fn spawn_from(state: tempfile::TempDir, path: &Path) -> Self {
        let base = program(state.path());
        let mut command = Command::new(path);
        command.env_clear().envs(base.get_envs().filter_map(|(key, value)| Some((key, value?)))).stdin(Stdio::null());
        command.current_dir(state.path()).args(["serve", "--allow-weaker", WEAKER, "--socket"]);
        command.arg(state.path().join(SOCKET));
        Self::spawn(state, &mut command)
    }

    /// Waits for a line with the text.
    fn line(&self, text: &str) -> String {
        let deadline = Instant::now() + TIME;
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if line.contains(text) {
                return line;
            }
            seen.push(line);
        }
        panic!("'{text}' is not printed: {seen:?}");
    }

    /// Upgrades a process of the server, and returns the next one.
    fn upgrade(&self, process: Pid) -> Pid {
        kill_process(process, Signal::USR2).unwrap();
        self.next_process()
    }

    /// Waits until another process serves, and returns it.
    fn next_process(&self) -> Pid {
        let line = self.line("serves; this one ends");
        let id = line.split(' ').skip_while(|word| *word != "process").nth(1).and_then(|id| id.parse().ok());
        Pid::from_raw(id.unwrap_or_else(|| panic!("{line}"))).unwrap()
    }

    /// Waits until the first process has ended, and returns its exit status.
    fn first_exit(&mut self) -> Option<i32> {
        wait_until("the first process ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIME;
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that is no child of this one. It is killed at the end.
struct Other(Pid);

impl Other {
    /// Asks it to stop, and waits until it has.
    fn stop(self) {
        kill_process(self.0, Signal::TERM).unwrap();
        wait_until("the process stops", || !self.lives());
    }

    fn lives(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero())).unwrap_or_default();
        test_kill_process(self.0).is_ok() && !stat.contains(") Z ")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Installs the program at a path.
fn install_program(path: &Path) {
    if std::fs::hard_link(env!("CARGO_BIN_EXE_cofferdam"), path).is_err() {
        std::fs::copy(env!("CARGO_BIN_EXE_cofferdam"), path).unwrap();
    }
}

/// Writes a script that can be executed.
fn write_script(path: &Path, script: &str) {
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Sends requests until it is stopped, and counts those that fail.
struct Traffic {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<usize>>,
}

impl Traffic {
    fn start(url: &str) -> Self {
        let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let body = r#"{"exec": {"argv": ["true"]}}"#;
        let run = format!(
            "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let list = "GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned();
        let threads = [run, list].map(|request| {
            let (stop, failed, path) = (Arc::clone(&stop), Arc::clone(&failed), url["unix:".len()..].to_owned());
            std::thread::spawn(move || {
                let mut sent = 0;
                while !stop.load(Ordering::SeqCst) {
                    let mut answer = String::new();
                    let answered = UnixStream::connect(&path).and_then(|mut stream| {
                        stream.write_all(request.as_bytes())?;
                        stream.read_to_string(&mut answer)
                    });
                    if answered.is_err() || !answer.starts_with("HTTP/1.1 200") {
                        eprintln!("{answered:?}: {answer}");
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                    sent += 1;
                }
                sent
            })
        });
        Self { stop, failed, threads: threads.into() }
    }

    fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        let sent: Vec<_> = self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(sent.iter().all(|sent| *sent > 3), "{sent:?}");
        self.failed.load(Ordering::SeqCst)
    }
}

/// Promise (Server): An upgrade refuses no request, and sandboxes of the process before remain usable until they end.
#[test]
fn an_upgrade_refuses_nothing_and_keeps_sandboxes() {
    let mut server = Server::start_on_socket(&["--backend", "process", "--backend", "simulated"]);
    server.ask(&["create", "--name", "box"]);
    server.ask(&["create", "--name", "sim", "--backend", "simulated"]);
    server.ask(&["exec", "box", "--", "sh", "-c", "echo kept > file"]);
    let exec = server.ask(&["exec", "--detach", "box", "--", "sh", "-c", "echo one; sleep 3; echo two; exit 4"]);
    let mut attached = server.client(&["attach", "box", exec.trim()]).stdout(Stdio::piped()).spawn().unwrap();
    let traffic = Traffic::start(&server.url);
    std::thread::sleep(Duration::from_millis(300));
    let second = Other(server.upgrade(server.pid()));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(traffic.stop(), 0, "requests failed");

    // Sandboxes of both processes.
    server.ask(&["create", "--name", "new"]);
    let listed = json(&server.ask(&["ls", "--json"]));
    let names: Vec<_> = listed["sandboxes"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["box", "sim", "new"].map(Value::from));
    let page = server.get("/v1/sandboxes?limit=2");
    let rest = server.get(&format!("/v1/sandboxes?limit=2&after={}", page["next"].as_str().unwrap()));
    assert_eq!((&rest["sandboxes"][0]["name"], &rest["next"]), (&Value::from("new"), &Value::Null), "{page} {rest}");
    // A run that the first process ended is counted for a moment more.
    wait_until("three sandboxes are counted", || server.get("/v1/quota")["sandboxes"] == 3);
    let (code, stdout, stderr) = outcome(&mut server.client(&["exec", "box", "--", "sh", "-c", "cat file; exit 7"]));
    assert_eq!((code, stdout.as_str()), (7, "kept\n"), "{stderr}");
    std::fs::write(server.state.path().join("up"), "x".repeat(300_000)).unwrap();
    server.ask(&["cp", "up", "box:d/up"]);
    server.ask(&["cp", "box:d/up", "down"]);
    assert_eq!(std::fs::read(server.state.path().join("down")).unwrap().len(), 300_000);
    std::fs::create_dir(server.state.path().join("out")).unwrap();
    server.ask(&["cp", "box:d", "out"]);
    assert!(server.state.path().join("out/d/up").exists());
    for words in [&["create", "--name", "box"][..], &["rename", "new", "box"], &["rename", "box", "other"]] {
        let (code, _, stderr) = outcome(&mut server.client(words));
        assert!(code == 125 && stderr.contains("before the upgrade"), "{words:?}: {code} {stderr}");
    }
    // A snapshot that the other process takes is listed at once.
    server.ask(&["snapshot", "take", "--name", "base", "sim"]);
    server.ask(&["create", "--name", "again", "--snapshot", "base"]);
    let mut output = String::new();
    attached.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert_eq!((attached.wait().unwrap().code(), output.as_str()), (Some(4), "one\ntwo\n"));

    kill_process(second.0, Signal::USR2).unwrap();
    server.line("still has sandboxes");
    server.ask(&["rm", "box", "sim"]);
    assert_eq!(server.first_exit(), Some(0), "it ends with its sandboxes");
    let third = Other(server.upgrade(second.0));
    server.ask(&["rm", "new", "again"]);
    wait_until("the second process ends", || !second.lives());
    server.ask(&["create", "--name", "left"]);
    assert_eq!(server.get("/v1/quota")["sandboxes"], 1);
    let usage = server.get("/v1/usage");
    let sandboxes: i64 = usage["usage"].as_array().unwrap().iter().map(|row| row["sandboxes"].as_i64().unwrap()).sum();
    assert!(sandboxes >= 4, "{usage}");
    third.stop();
    assert!(!Path::new(&server.url["unix:".len()..]).exists(), "the socket remains");
}

/// Promise (Server): A new version that cannot serve changes nothing, and the next one takes over.
#[test]
fn a_broken_version_does_not_take_over() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("cofferdam-bin");
    let install = |broken: Option<&str>| {
        let _ = std::fs::remove_file(&path);
        match broken {
            Some(script) => write_script(&path, script),
            None => install_program(&path),
        }
    };
    install(None);
    let mut server = Server::spawn_from(state, &path);
    server.ask(&["create", "--name", "box"]);
    for script in ["#!/bin/sh\nexit 3\n", "nonsense", "#!/bin/sh\necho nonsense >&0; exit\n"] {
        install(Some(script));
        kill_process(server.pid(), Signal::USR2).unwrap();
        server.line("this process continues to serve");
        assert_eq!(server.ask(&["exec", "box", "--", "echo", "on"]), "on\n");
    }
    install(None);
    let second = Other(server.upgrade(server.pid()));
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "on"]), "on\n");
    server.ask(&["rm", "box"]);
    assert_eq!(server.first_exit(), Some(0));
    second.stop();
}

/// Promise (Server): An upgrade starts the version at the path by which the server was started, behind a changed symbolic
/// link, too.
#[test]
fn an_upgrade_follows_a_changed_symbolic_link() {
    let state = tempfile::tempdir().unwrap();
    let path = |name: &str| state.path().join(name);
    let (link, own, other, next) = (path("cofferdam-bin"), path("version-1"), path("version-2"), path("next"));
    install_program(&own);
    write_script(&other, &format!("#!/bin/sh\necho version two >&2\nexec {} \"$@\"\n", own.display()));
    std::os::unix::fs::symlink(&own, &link).unwrap();
    std::os::unix::fs::symlink(&other, &next).unwrap();
    let mut server = Server::spawn_from(state, &link);
    server.ask(&["create", "--name", "box"]);
    std::fs::rename(&next, &link).unwrap();
    kill_process(server.pid(), Signal::USR2).unwrap();
    server.line("version two");
    let second = Other(server.next_process());
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "on"]), "on\n");
    server.ask(&["rm", "box"]);
    assert_eq!(server.first_exit(), Some(0));
    second.stop();
}

/// Promise (Server): A new version that fails after it has received the sockets leaves the file of a Unix socket.
#[test]
fn a_failed_new_version_leaves_the_socket() {
    let state = tempfile::tempdir().unwrap();
    let (quota, socket) = (state.path().join("quota.json"), state.path().join(SOCKET));
    std::fs::write(&quota, "{}").unwrap();
    let mut server = Server::start_on_socket_in(state, &["--quota", quota.to_str().unwrap()]);
    server.ask(&["create", "--name", "box"]);
    std::fs::write(&quota, "nonsense").unwrap();
    kill_process(server.pid(), Signal::USR2).unwrap();
    server.line("the upgrade failed");
    assert!(socket.exists(), "the new version removed the socket");
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "on"]), "on\n");
    std::fs::write(&quota, "{}").unwrap();
    let second = Other(server.upgrade(server.pid()));
    server.ask(&["rm", "box"]);
    assert_eq!(server.first_exit(), Some(0));
    assert!(socket.exists(), "the old process removed the socket");
    second.stop();
    assert!(!socket.exists(), "the socket remains");
}

/// Promise (Server): A process that was upgraded refuses another upgrade, and ends with its sandboxes nevertheless.
#[test]
fn an_upgraded_process_refuses_another_upgrade() {
    let mut server = Server::start_on_socket(&[]);
    server.ask(&["create", "--name", "box"]);
    let second = Other(server.upgrade(server.pid()));
    for _ in 0..2 {
        kill_process(server.pid(), Signal::USR2).unwrap();
        server.line("this process was upgraded already");
    }
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "on"]), "on\n");
    server.ask(&["rm", "box"]);
    assert_eq!(server.first_exit(), Some(0));
    second.stop();
}

/// Promise (Server): A signal during an upgrade starts no other one.
#[test]
fn a_signal_during_an_upgrade_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("cofferdam-bin");
    let slow = state.path().join("slow");
    install_program(&path);
    write_script(&slow, "#!/bin/sh\nexec sleep 3\n");
    let mut server = Server::spawn_from(state, &path);
    std::fs::rename(&slow, &path).unwrap();
    kill_process(server.pid(), Signal::USR2).unwrap();
    server.line("starting the program again");
    kill_process(server.pid(), Signal::USR2).unwrap();
    server.line("an upgrade is in progress already");
    server.line("this process continues to serve");
    server.ask(&["create", "--name", "box"]);
    kill_process(server.pid(), Signal::TERM).unwrap();
    assert_eq!(server.first_exit(), Some(0));
}

/// Promise (Server): The reason for the end of a sandbox is reported during an upgrade, too, and its name can be used.
#[test]
fn the_reason_of_a_lost_sandbox_is_reported_during_an_upgrade() {
    let server = Server::start_on_socket(&[]);
    for name in ["lost", "box"] {
        server.ask(&["create", "--name", name]);
    }
    let mut server = Server::start_on_socket_in(server.kill(), &[]);
    server.ask(&["create", "--name", "box"]);
    let second = Other(server.upgrade(server.pid()));
    let (code, _, stderr) = outcome(&mut server.client(&["exec", "lost", "--", "true"]));
    assert!(code == 125 && stderr.contains("the server's process was killed"), "{code} {stderr}");
    // A sandbox of the old process has the name of a lost one.
    let (_, _, stderr) = outcome(&mut server.client(&["cp", "box:missing", "-"]));
    assert!(!stderr.is_empty() && !stderr.contains("killed"), "{stderr}");
    server.ask(&["create", "--name", "lost"]);
    assert_eq!(server.ask(&["exec", "lost", "--", "echo", "new"]), "new\n");
    server.ask(&["rm", "box"]);
    assert_eq!(server.first_exit(), Some(0));
    second.stop();
}

/// Promise (Server): Quotas of usage and snapshots count both processes of an upgrade, in each of them.
#[test]
fn quotas_count_both_processes_of_an_upgrade() {
    let state = tempfile::tempdir().unwrap();
    let quota = state.path().join("quota.json");
    std::fs::write(&quota, r#"{"cpu_seconds_per_day": 1, "snapshots": 1}"#).unwrap();
    let backends = ["--backend", "process", "--backend", "simulated"];
    let words = [&backends[..], &["--quota", quota.to_str().unwrap()]].concat();
    let mut server = Server::start_on_socket_in(state, &words);
    server.ask(&["create", "--name", "box"]);
    server.ask(&["create", "--name", "sim", "--backend", "simulated"]);
    let second = Other(server.upgrade(server.pid()));
    // The old process takes the snapshots, and the new one deletes them.
    let take = ["snapshot", "take", "--name", "base", "sim"];
    server.ask(&take);
    let (code, _, stderr) = outcome(&mut server.client(&take));
    assert_ne!(code, 0, "{stderr}");
    server.ask(&["snapshot", "rm", "base"]);
    wait_until("the name and the quota are free", || outcome(&mut server.client(&take)).0 == 0);
    // The new process uses the CPU time.
    server.ask(&["create", "--name", "new"]);
    let burn = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done";
    for (name, script) in [("new", burn), ("box", "true")] {
        let mut stderr = String::new();
        wait_until("the quota is used up", || {
            let (code, _, printed) = outcome(&mut server.client(&["exec", name, "--", "sh", "-c", script]));
            stderr = printed;
            code != 0
        });
        assert!(stderr.contains("cpu_seconds_per_day"), "{stderr}");
    }
    server.ask(&["rm", "box", "sim"]);
    assert_eq!(server.first_exit(), Some(0));
    second.stop();
}

/// Promise (Server): A server with the private socket of its user is not upgraded, and continues to serve.
#[test]
fn a_private_socket_is_not_handed_over() {
    let server = Server::start(&[]);
    server.ask(&["create", "--name", "box"]);
    kill_process(server.pid(), Signal::USR2).unwrap();
    let line = server.line("this one continues to serve");
    assert!(line.contains("only a server with --listen or --socket is upgraded"), "{line}");
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "on"]), "on\n");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): Each process of an upgrade can be killed: the other one settles what it left, and nothing remains.
#[test]
fn both_processes_of_an_upgrade_can_be_killed() {
    let mut server = Server::start_on_socket(&[]);
    server.ask(&["create", "--name", "box"]);
    let second = Other(server.upgrade(server.pid()));
    assert_eq!(server.get("/v1/quota")["sandboxes"], 1);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    wait_until("its sandbox is settled", || server.get("/v1/quota")["sandboxes"] == 0);
    let (code, _, stderr) = outcome(&mut server.client(&["exec", "box", "--", "true"]));
    assert!(code == 125 && stderr.contains("the server's process was killed"), "{code} {stderr}");
    let usage = server.get("/v1/usage");
    assert_eq!(usage["usage"][0]["sandboxes"], 1, "{usage}");
    second.stop();

    let mut server = Server::start_on_socket(&[]);
    server.ask(&["create", "--name", "box"]);
    let second = Other(server.upgrade(server.pid()));
    kill_process(second.0, Signal::KILL).unwrap();
    assert_eq!(server.first_exit(), Some(0), "without a successor, it drains");
    let state = std::mem::replace(&mut server.state, tempfile::tempdir().unwrap());
    let server = Server::start_on_socket_in(state, &[]);
    assert_eq!(server.get("/v1/usage")["usage"][0]["sandboxes"], 1);
    assert_eq!(server.stop(), Some(0));
}

/// Starts a server with a sandbox whose exec runs, upgrades it, and waits for the exit through the second process. The
/// request delays the end of the first one. The file of an unfinished snapshot must remain while the first process lives.
fn upgraded_with_running_exec() -> (Server, Other, UnixStream, std::path::PathBuf) {
    let server = Server::start_on_socket(&["--drain", "3s"]);
    server.ask(&["create", "--name", "box"]);
    let second = Other(server.upgrade(server.pid()));
    let exec = server.ask(&["exec", "--detach", "box", "--", "sleep", "60"]);
    let mut waiting = UnixStream::connect(&server.url["unix:".len()..]).unwrap();
    let exec = exec.trim();
    write!(waiting, "GET /v1/sandboxes/box/execs/{exec}/wait HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // The request has no effect that could be waited for.
    std::thread::sleep(Duration::from_millis(500));
    let part = server.state.path().join("cofferdam/server/snapshots/sn-test.part");
    std::fs::write(&part, "unfinished").unwrap();
    (server, second, waiting, part)
}

/// Starts the server again, and checks that its first process settled its sandbox, once.
fn assert_settled_once(state: tempfile::TempDir) {
    let server = Server::start_on_socket_in(state, &[]);
    let usage = server.get("/v1/usage");
    assert_eq!(usage["usage"][0]["sandboxes"], 1, "{usage}");
    let (code, _, stderr) = outcome(&mut server.client(&["exec", "box", "--", "true"]));
    assert!(code == 125 && stderr.contains("it was closed when the server stopped"), "{code} {stderr}");
    assert_eq!(server.get("/v1/quota")["sandboxes"], 0);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): The old process of an upgrade can be stopped: it settles its own sandboxes while the new one serves.
#[test]
fn a_stopped_old_process_settles_its_own_sandboxes() {
    let (mut server, second, _waiting, part) = upgraded_with_running_exec();
    kill_process(server.pid(), Signal::TERM).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        // The private connections refuse new requests, and the new process answers without them.
        assert!(server.get("/v1/sandboxes")["sandboxes"].is_array());
        assert!(part.exists(), "the new process settles while the old one drains");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.child.try_wait().unwrap().is_none(), "the request delays its end");
    server.ask(&["create", "--name", "other"]);
    server.ask(&["rm", "other"]);
    assert_eq!(server.first_exit(), Some(0));
    wait_until("its files are set aside", || !part.exists());
    let (code, _, stderr) = outcome(&mut server.client(&["exec", "box", "--", "true"]));
    assert!(code == 125 && stderr.contains("it was closed when the server stopped"), "{code} {stderr}");
    let usage = server.get("/v1/usage");
    assert_eq!(usage["usage"][0]["sandboxes"], 2, "{usage}");
    second.stop();
    let printed: Vec<_> = server.lines.try_iter().collect();
    assert!(!printed.iter().any(|line| line.contains("settled")), "{printed:?}");
}

/// Promise (Server): The new process of an upgrade can be stopped: it stops the old one, and ends after it.
#[test]
fn a_stopped_new_process_ends_after_the_old_one() {
    let (mut server, second, _waiting, _) = upgraded_with_running_exec();
    kill_process(second.0, Signal::TERM).unwrap();
    wait_until("the first process ends", || {
        let second_lives = second.lives();
        let first_ended = server.child.try_wait().unwrap().is_some();
        assert!(second_lives || first_ended, "the new process ended first");
        first_ended
    });
    assert_eq!(server.first_exit(), Some(0));
    wait_until("the second process ends", || !second.lives());
    let printed: Vec<_> = server.lines.try_iter().collect();
    assert!(!printed.iter().any(|line| line.contains("settled")), "{printed:?}");
    assert!(!Path::new(&server.url["unix:".len()..]).exists(), "the socket remains");
    assert_settled_once(std::mem::replace(&mut server.state, tempfile::tempdir().unwrap()));
}

/// Receives notifications until one has the text.
fn notified(socket: &UnixDatagram, text: &str) -> String {
    let mut buffer = [0; 4096];
    socket.set_read_timeout(Some(TIME)).unwrap();
    loop {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{text}: {error}"));
        let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if message.contains(text) {
            return message;
        }
    }
}

/// Promise (Server): A service manager passes the sockets, and learns when the server is ready, upgraded and stopping.
#[test]
fn a_service_manager_passes_sockets_and_is_notified() {
    let state = tempfile::tempdir().unwrap();
    let (path, tcp) = (state.path().join("passed.sock"), TcpListener::bind("127.0.0.1:0").unwrap());
    let (unix, address) = (UnixListener::bind(&path).unwrap(), tcp.local_addr().unwrap());
    let notify = UnixDatagram::bind(state.path().join("notify")).unwrap();
    let base = program(state.path());
    let mut command = Command::new("sh");
    // The shell has the process id that the program keeps.
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ exec \"$@\"";
    command.env_clear().envs(base.get_envs().filter_map(|(key, value)| Some((key, value?)))).current_dir(state.path());
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_cofferdam"), "serve", "--allow-weaker", WEAKER]);
    command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "local:net");
    command.env("NOTIFY_SOCKET", state.path().join("notify")).env("WATCHDOG_USEC", "600000");
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(unix))).stderr(Stdio::piped());
    let child = command.stdout(Stdio::from(std::os::fd::OwnedFd::from(tcp))).spawn().unwrap();
    let mut server = Server::of(state, child);
    drop(command);
    assert_eq!(server.url, format!("unix:{}", path.display()));
    notified(&notify, "READY=1");
    notified(&notify, "WATCHDOG=1");
    server.ask(&["create", "--name", "box"]);
    let unauthorized = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    };
    unauthorized();

    let second = Other(server.upgrade(server.pid()));
    notified(&notify, "RELOADING=1");
    assert_eq!(notified(&notify, "MAINPID=").trim(), format!("MAINPID={}", second.0.as_raw_nonzero()));
    notified(&notify, "READY=1");
    unauthorized();
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "on"]), "on\n");
    server.ask(&["rm", "box"]);
    assert_eq!(server.first_exit(), Some(0));
    notified(&notify, "WATCHDOG=1");
    notified(&notify, "WATCHDOG=1");
    second.stop();
    notified(&notify, "STOPPING=1");
    assert!(path.exists(), "the socket belongs to the service manager");
}
