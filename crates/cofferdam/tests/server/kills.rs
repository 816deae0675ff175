//! Servers that are killed at many moments: what they acknowledged is there at the next start, and nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{Server, database_file, json, outcome, postgres, program};

/// The moments of the kills, after the begin of the work.
const MOMENTS: [u64; 7] = [40, 90, 170, 260, 400, 650, 1500];

/// Sends a request. Returns the status and the body, if the answer is complete.
fn send(url: &str, head: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
    let mut stream = UnixStream::connect(&url["unix:".len()..]).ok()?;
    let head = format!("{head}Host: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let body = answer[end + 4..].to_vec();
    let length =
        text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
    (length.unwrap_or(0) == body.len()).then_some((status, body))
}

fn line(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\n")
}

/// The answers that a server has acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// The content of the file in each snapshot.
    snapshots: BTreeMap<String, String>,
    /// The ids of sandboxes, by idempotency key.
    creates: BTreeMap<String, String>,
    /// The weights of tenants.
    quotas: BTreeMap<String, u64>,
    /// The names of volumes.
    volumes: BTreeSet<String>,
    /// Exits of execs.
    execs: i64,
    /// Calls of the API, which the audit log must have.
    calls: Arc<AtomicUsize>,
}

impl Acknowledged {
    /// Uses a server with several clients until it is killed.
    fn work(&mut self, url: &str, round: usize) {
        let calls = Arc::clone(&self.calls);
        let ask = |head: &str, body: &str| {
            let answer = send(url, head, body.as_bytes())?;
            assert!(answer.0 < 500 || answer.0 == 503, "{head}: {}", String::from_utf8_lossy(&answer.1));
            calls.fetch_add(1, Ordering::SeqCst);
            (answer.0 < 400).then(|| String::from_utf8(answer.1).unwrap())
        };
        let Self { snapshots, creates, quotas, volumes, execs, .. } = self;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let created = ask(&line("POST", "/v1/sandboxes"), r#"{"name": "files", "backend": "simulated"}"#);
                for number in 0.. {
                    let content = format!("{round}-{number}-").repeat(2000);
                    let name = format!("s{round}-{number}");
                    let put = ask(&line("PUT", "/v1/sandboxes/files/files?path=d/f"), &content);
                    let taken = ask(&line("POST", "/v1/sandboxes/files/snapshot"), &format!(r#"{{"name": "{name}"}}"#));
                    match (&created, put, taken) {
                        (Some(_), Some(_), Some(_)) => snapshots.insert(name, content),
                        _ => break,
                    };
                }
            });
            scope.spawn(|| {
                for number in 0.. {
                    let key = format!("k{round}-{number}");
                    let head = format!("{}Idempotency-Key: {key}\r\n", line("POST", "/v1/sandboxes"));
                    let Some(created) = ask(&head, r#"{"backend": "process"}"#) else { break };
                    let id = json(&created)["id"].as_str().unwrap().to_owned();
                    let path = format!("/v1/sandboxes/{id}");
                    creates.insert(key, id);
                    let started = ask(&line("POST", &format!("{path}/execs")), r#"{"shell": "sleep 100"}"#);
                    // The second one of each pair stays.
                    if started.is_none() || number % 2 == 0 && ask(&line("DELETE", &path), "").is_none() {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                while ask(&line("POST", "/v1/runs"), r#"{"exec": {"argv": ["true"]}}"#).is_some() {
                    *execs += 1;
                }
            });
            scope.spawn(|| {
                for weight in 1..1000 {
                    let tenant = format!("t{round}-{weight}");
                    let head = line("PUT", &format!("/v1/admin/quotas/{tenant}"));
                    if ask(&head, &format!(r#"{{"weight": {weight}}}"#)).is_none() {
                        break;
                    }
                    quotas.insert(tenant, weight);
                }
            });
            scope.spawn(|| {
                for number in 0.. {
                    let name = format!("v{round}-{number}");
                    if ask(&line("POST", "/v1/volumes"), &format!(r#"{{"name": "{name}"}}"#)).is_none() {
                        break;
                    }
                    // Every second one stays.
                    if number % 2 == 0 && ask(&line("DELETE", &format!("/v1/volumes/{name}")), "").is_none() {
                        break;
                    }
                    if number % 2 == 1 {
                        volumes.insert(name);
                    }
                }
            });
        });
    }

    /// Compares with a server that was started again.
    fn check(&self, server: &Server, round: usize) {
        assert_eq!(server.get("/v1/sandboxes")["sandboxes"], Value::Array(Vec::new()));
        let state = server.get("/v1/quota");
        assert_eq!((&state["sandboxes"], &state["memory_mib"]), (&0.into(), &0.into()), "{state}");
        if !self.snapshots.is_empty() {
            let (status, body) = send(&server.url, &line("GET", "/v1/sandboxes/files"), b"").unwrap();
            assert_eq!(status, 410, "{}", String::from_utf8_lossy(&body));
        }
        let listed = json(&server.ask(&["snapshot", "ls", "--json"]));
        let listed = listed["snapshots"].as_array().unwrap();
        let names: BTreeSet<_> = listed.iter().filter_map(|one| one["name"].as_str()).collect();
        for name in self.snapshots.keys() {
            assert!(names.contains(&**name), "the snapshot {name} is lost");
        }
        assert_eq!(state["snapshots"], listed.len(), "{state}");
        let bytes: u64 = listed.iter().map(|one| one["bytes"].as_u64().unwrap()).sum();
        assert_eq!(state["snapshot_bytes"].as_u64().unwrap(), bytes, "{state}");
        // The last ones were written when the server was killed.
        let prefix = format!("s{round}-");
        for (name, content) in self.snapshots.iter().filter(|(name, _)| name.starts_with(&prefix)).take(5) {
            let created = server.ask(&["create", "--snapshot", name]);
            assert_eq!(server.ask(&["cp", &format!("{}:d/f", created.trim()), "-"]), *content);
            server.ask(&["rm", created.trim()]);
        }
        for (key, id) in &self.creates {
            let head = format!("{}Idempotency-Key: {key}\r\n", line("POST", "/v1/sandboxes"));
            let (status, body) = send(&server.url, &head, br#"{"backend": "process"}"#).unwrap();
            assert_eq!((status, json(&String::from_utf8(body).unwrap())["id"].as_str()), (201, Some(&**id)), "{key}");
        }
        let (mut quotas, mut after) = (BTreeMap::new(), String::new());
        loop {
            let page = server.get(&format!("/v1/admin/quotas?after={after}"));
            for (tenant, quota) in page["quotas"].as_object().unwrap() {
                quotas.insert(tenant.clone(), quota["weight"].as_u64());
            }
            let Some(next) = page["next"].as_str() else { break };
            after = next.to_owned();
        }
        for (tenant, weight) in &self.quotas {
            assert_eq!(quotas.get(tenant), Some(&Some(*weight)), "{tenant}");
        }
        let listed = &server.get("/v1/volumes?limit=1000")["volumes"];
        let names: BTreeSet<_> =
            listed.as_array().unwrap().iter().filter_map(|volume| volume["name"].as_str()).collect();
        for name in &self.volumes {
            assert!(names.contains(&**name), "the volume {name} is lost");
        }
        assert_eq!(state["volumes"], names.len(), "{state}");
        let usage = server.get("/v1/usage");
        let execs: i64 = usage["usage"].as_array().unwrap().iter().map(|row| row["execs"].as_i64().unwrap()).sum();
        assert!(execs >= self.execs, "{usage}: {} were reported", self.execs);
    }
}

/// Returns the processes below a process, with the times of their starts.
pub fn descendants(of: i32) -> Vec<(i32, String)> {
    let all: Vec<_> =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| stat(entry.path().as_path())).collect();
    let (mut found, mut parents) = (Vec::new(), BTreeSet::from([of]));
    loop {
        let more: Vec<_> =
            all.iter().filter(|(pid, parent, _)| parents.contains(parent) && !parents.contains(pid)).collect();
        if more.is_empty() {
            return found;
        }
        for (pid, _, start) in more {
            parents.insert(*pid);
            found.push((*pid, start.clone()));
        }
    }
}

/// Returns the id, the parent and the time of the start of a process.
fn stat(directory: &Path) -> Option<(i32, i32, String)> {
    let pid = directory.file_name()?.to_str()?.parse().ok()?;
    let text = std::fs::read_to_string(directory.join("stat")).ok()?;
    let rest: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
    (rest[0] != "Z").then_some(())?;
    Some((pid, rest[1].parse().ok()?, rest[19].to_owned()))
}

fn kill_at_all_moments(words: &[&str]) {
    let mut state = tempfile::tempdir().unwrap();
    let config = state.path().join("config.toml");
    std::fs::write(&config, format!("[audit]\ndirectory = {:?}\n", state.path().join("audit"))).unwrap();
    let config = config.to_str().unwrap().to_owned();
    let all = [&["--config", &config, "--backend", "process", "--backend", "simulated"][..], words].concat();
    let mut acknowledged = Acknowledged::default();
    for (round, moment) in MOMENTS.into_iter().enumerate() {
        let server = Server::start_in(state, &all);
        if let Some(last) = round.checked_sub(1) {
            acknowledged.check(&server, last);
        }
        let pid = server.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(moment));
            let below = descendants(pid.as_raw_nonzero().get());
            kill_process(pid, Signal::KILL).unwrap();
            below
        });
        acknowledged.work(&server.url, round);
        let below = killer.join().unwrap();
        state = server.kill();
        assert!(!below.is_empty(), "a sandbox needs a process");
        let deadline = Instant::now() + Duration::from_secs(20);
        for (pid, start) in below {
            let path = format!("/proc/{pid}");
            while stat(Path::new(&path)).is_some_and(|(_, _, now)| now == start) {
                assert!(Instant::now() < deadline, "the process {pid} of a sandbox is left");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    let server = Server::start_in(state, &all);
    acknowledged.check(&server, MOMENTS.len() - 1);
    let found: [usize; 5] = [
        acknowledged.volumes.len(),
        acknowledged.snapshots.len(),
        acknowledged.creates.len(),
        acknowledged.quotas.len(),
        usize::try_from(acknowledged.execs).unwrap(),
    ];
    assert!(found.iter().all(|count| *count >= 3), "too little work was done: {found:?}");
    let files = std::fs::read_dir(server.state.path().join("cofferdam/private-server/snapshots")).unwrap();
    let names: Vec<_> = files.flatten().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.ends_with(".part")), "{names:?}");

    let audit = server.state.path().join("audit");
    let (code, stdout, stderr) = outcome(program(server.state.path()).args(["audit", "verify"]).arg(&audit));
    assert!(code == 0, "{code} {stdout} {stderr}");
    let (_, lines, _) = outcome(program(server.state.path()).args(["audit", "query"]).arg(&audit));
    let recorded = lines.lines().filter(|line| line.contains("\"endpoint\"")).count();
    let calls = acknowledged.calls.load(Ordering::SeqCst);
    assert!(recorded >= calls, "{recorded} calls are recorded, {calls} were answered");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A server that is killed at any moment loses no acknowledged file of a snapshot, idempotent create,
/// quota, usage and audit line, and leaves no process and no file.
#[test]
fn nothing_acknowledged_is_lost_by_kills() {
    kill_at_all_moments(&[]);
}

/// Promise (Server): The same holds for a server whose state is in PostgreSQL.
#[test]
fn nothing_acknowledged_is_lost_by_kills_on_postgresql() {
    let Some(database) = postgres::Postgres::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = database_file(directory.path(), &database.url);
    kill_at_all_moments(&["--database-file", file.to_str().unwrap()]);
}
