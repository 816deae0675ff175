//! Servers whose host fails them: no descriptors, no space on the disk, no database. They answer meanwhile, lose nothing
//! that they acknowledged, and work again afterwards.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, geteuid, prlimit};
use serde_json::Value;

use super::kills::descendants;
use super::{Server, WEAKER, database_file, json, outcome, postgres, program};

/// Time for a server to notice a fault or its end.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + NOTICE_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pid(server: &Server) -> i32 {
    server.pid().as_raw_nonzero().get()
}

/// Returns the names of the sandboxes that a server lists.
fn names(server: &Server) -> Vec<String> {
    let listed = json(&server.ask(&["ls", "--json"]));
    listed["sandboxes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the execs that a server has recorded.
fn execs(server: &Server) -> i64 {
    let usage = server.get("/v1/usage");
    usage["usage"].as_array().unwrap().iter().map(|row| row["execs"].as_i64().unwrap()).sum()
}

/// Waits until a server creates sandboxes again, and closes the one that it creates.
fn until_it_creates(server: &Server) {
    until("no sandbox can be created again", || outcome(&mut server.client(&["create", "--name", "again"])).0 == 0);
    server.ask(&["rm", "again"]);
}

/// Checks that a server whose database fails answers, uses its sandbox `box` and creates none.
fn check_without_database(server: &Server) {
    assert_eq!(server.get("/v1/health")["status"], "ok");
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "there"]), "there\n");
    let (code, _, stderr) = outcome(&mut server.client(&["create", "--name", "other"]));
    assert!(code == 125 && stderr.contains("the database failed"), "{code} {stderr}");
    assert_eq!(names(server), ["box"], "a create that was refused leaves no sandbox");
}

/// Promise (Server): While its PostgreSQL database is down, a server answers and uses its sandboxes, and a create is
/// refused without a trace; when the database works again, so does the server, and no usage is lost.
#[test]
fn a_killed_database_stops_no_server() {
    let Some(mut database) = postgres::Postgres::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = database_file(directory.path(), &database.url);
    let server = Server::start(&["--database-file", file.to_str().unwrap()]);
    server.ask(&["create", "--name", "box"]);
    server.ask(&["exec", "box", "--", "true"]);
    database.stop(Signal::KILL);
    check_without_database(&server);
    database.run();
    until_it_creates(&server);
    until("the usage meanwhile is lost", || execs(&server) == 2);
    assert_eq!(names(&server), ["box"]);
    assert_eq!(server.stop(), Some(0));
}

/// Starts a server whose state is on a disk of a few megabytes, in a mount namespace of its own.
fn on_a_small_disk() -> (Server, PathBuf) {
    let state = tempfile::tempdir().unwrap();
    let disk = state.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let own = program(state.path());
    let mut command = Command::new("unshare");
    command.env_clear().envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(state.path()).stdin(Stdio::null());
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg(r#"mount -t tmpfs -o size=8m,mode=700 none "$0" && exec "$@""#).arg(&disk).arg(own.get_program());
    command.args(["serve", "--allow-weaker", WEAKER, "--backend", "process", "--backend", "simulated", "--state"]);
    let server = Server::spawn(state, command.arg(&disk));
    let seen = PathBuf::from(format!("/proc/{}/root{}", pid(&server), disk.display()));
    (server, seen)
}

/// Promise (Server): While the disk of its state is full, a server answers and uses its sandboxes, and creates and
/// snapshots are refused without a trace; when there is space again, the server works again, and no usage is lost.
#[test]
fn a_full_disk_stops_no_server() {
    if !geteuid().is_root() {
        println!("SKIP a_full_disk_stops_no_server: only root can mount a small file system for a server");
        return;
    }
    let (server, disk) = on_a_small_disk();
    server.ask(&["create", "--name", "box"]);
    server.ask(&["create", "--name", "files", "--backend", "simulated"]);
    let content = "some content\n".repeat(20_000);
    std::fs::write(server.state.path().join("content"), &content).unwrap();
    server.ask(&["cp", "content", "files:d/f"]);
    server.ask(&["snapshot", "take", "files", "--name", "first"]);
    let filler = disk.join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let (code, _, stderr) = outcome(&mut server.client(&["snapshot", "take", "files", "--name", "second"]));
    assert_eq!(code, 125, "{stderr}");
    server.ask(&["rm", "files"]);
    check_without_database(&server);
    std::fs::remove_file(&filler).unwrap();
    drop(file);
    until_it_creates(&server);
    until("the usage meanwhile is lost", || execs(&server) == 1);
    let listed = json(&server.ask(&["snapshot", "ls", "--json"]));
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 1, "{listed}");
    let files: Vec<_> = std::fs::read_dir(disk.join("snapshots")).unwrap().flatten().map(|file| file.path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    server.ask(&["create", "--name", "copy", "--snapshot", "first"]);
    server.ask(&["cp", "copy:d/f", "copied"]);
    assert_eq!(std::fs::read_to_string(server.state.path().join("copied")).unwrap(), content);
    assert_eq!(server.stop(), Some(0));
}

/// Sends a request on an open connection. Returns the status and the body of the answer.
fn send(stream: &mut TcpStream, request: &str, body: &str) -> (u16, Value) {
    let length = body.len();
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = Vec::new();
    loop {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&answer));
        answer.push(byte[0]);
        if answer.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_slice(&body).unwrap())
}

/// Promise (Server): A server without a free descriptor answers on its connections, refuses what needs more descriptors,
/// and works again when clients leave; nothing is left of what it refused.
#[test]
fn exhausted_descriptors_stop_no_server() {
    const SPARE: usize = 48;
    const RUN: &str = r#"{"exec": {"argv": ["true"]}}"#;
    let server =
        Server::start(&["--listen", "127.0.0.1:0", "--without-keys", "--warm", "0", "--python", "0", "--node", "0"]);
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    server.ask(&["create", "--name", "box"]);
    let mut open = TcpStream::connect(&address).unwrap();
    open.set_read_timeout(Some(NOTICE_TIMEOUT)).unwrap();
    assert_eq!(send(&mut open, "POST /v1/runs", RUN).0, 200);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", pid(&server))).unwrap().count();
    let processes = || descendants(pid(&server)).len();
    let (before, below) = (descriptors(), processes());
    let max = Some((before + SPARE) as u64);
    prlimit(Some(server.pid()), Resource::Nofile, Rlimit { current: max, maximum: max }).unwrap();

    let connect = |_| TcpStream::connect(&address).unwrap();
    let many: Vec<_> = (0..2 * SPARE).map(connect).collect();
    until("the server accepts as many connections as it can", || descriptors() + 2 > before + SPARE);
    assert_eq!(send(&mut open, "GET /v1/health", ""), (200, serde_json::json!({ "status": "ok" })));
    let (status, refused) = send(&mut open, "POST /v1/runs", RUN);
    assert!(status == 200 || status >= 500, "{status} {refused}");
    assert_eq!(send(&mut open, "GET /v1/sandboxes", "").1["sandboxes"].as_array().unwrap().len(), 1);

    drop(many);
    // Connections to the database may have been added.
    until("descriptors are left", || descriptors() < before + SPARE / 2);
    until("processes are left", || processes() <= below);
    // Connections that waited to be accepted may take descriptors once more.
    // Descriptors that other processes of this user have in flight count against the small limit.
    until("no exec starts again", || {
        let (status, stdout, _) = outcome(&mut server.client(&["exec", "box", "--", "echo", "there"]));
        status == 0 && stdout == "there\n"
    });
    until("no run starts again", || send(&mut open, "POST /v1/runs", RUN).0 == 200);
    assert_eq!(names(&server), ["box"]);
    let reported = server.lines.try_iter().collect::<Vec<_>>().join("\n");
    assert!(reported.contains("cannot accept a connection"), "{reported}");
    assert_eq!(server.stop(), Some(0));
}
