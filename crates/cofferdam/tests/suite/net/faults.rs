//! Faults of the gateway, of servers and of clients: each one ends what it concerns, and nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use super::{Fixture, ORDINARY, PRELUDE, USERS};
use crate::census;

/// Time for the kernel and the servers to see the end of a connection.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Ticks of processor time in a second, as Linux reports them.
const TICKS: u64 = 100;

/// Functions of guests that a test leads through their stages.
const STAGES: &str = r"
import threading, time
held = []
def hold(name, port, data=b'x'):
    c = socket.create_connection((name, port), 15); c.sendall(data); held.append(c)
def stage(*text):
    print(*text, flush=True); sys.stdin.readline()
def is_open(c):
    c.settimeout(0.01)
    try: return c.recv(1, socket.MSG_PEEK) != b''
    except TimeoutError: return True
    except ConnectionResetError: return False
";

/// A run whose guest prints a line at each stage, and continues after a line of input.
struct Stages {
    run: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    /// The process that holds the sandbox and its gateway.
    supervisor: Process,
}

/// A process of this host.
struct Process(u32);

impl Stages {
    fn start(mut run: Command, code: &str) -> Self {
        run.args(["--stdin", "--", "python3", "-c", &format!("{PRELUDE}{STAGES}{code}")]);
        let mut run =
            run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(run.stdout.take().expect("piped")).lines();
        Self { supervisor: Process(run.id()), run, lines }
    }

    /// Waits for the next line.
    fn next(&mut self) -> String {
        let Some(line) = self.lines.next() else { panic!("the run ended: {}", self.stderr()) };
        // The run is the child of `nsenter` from its first line on.
        let id = self.run.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("children");
        self.supervisor = Process(children.trim().parse().expect("one child"));
        line.expect("a line of UTF-8")
    }

    /// Lets the guest continue.
    fn proceed(&mut self) {
        self.run.stdin.as_mut().expect("piped").write_all(b"\n").expect("the guest reads");
    }

    fn stderr(&mut self) -> String {
        let mut text = String::new();
        let _ = self.run.stderr.take().expect("piped").read_to_string(&mut text);
        text
    }

    /// Waits for the end. Returns the exit status and standard error.
    fn end(mut self) -> (i32, String) {
        let stderr = self.stderr();
        (self.run.wait().expect("it ends").code().unwrap_or(-1), stderr)
    }
}

impl Process {
    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0)).expect("the process lives")
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0)).expect("the process lives").count()
    }

    /// Returns a size in KiB: `VmRSS`, or its maximum, `VmHWM`.
    fn memory(&self, name: &str) -> u64 {
        let status = self.read("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a size");
        line.trim_matches(|letter: char| !letter.is_ascii_digit()).parse().expect("a number")
    }

    /// Returns the processor time that it used.
    fn cpu_time(&self) -> Duration {
        let stat = self.read("stat");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 1000 / TICKS)
    }
}

impl Fixture {
    /// Returns the number of open connections of this network to the servers.
    fn established(&self) -> usize {
        let table = Process(self.first).read("net/tcp");
        // The remote address is 11.22.33.44 or 11.22.33.45, and the state is ESTABLISHED.
        table
            .lines()
            .filter(|line| line.contains(" 2C21160B:") || line.contains(" 2D21160B:"))
            .filter(|line| line.split_whitespace().nth(3) == Some("01"))
            .count()
    }
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < END_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Promise (Network): A killed gateway takes its sandbox and all connections with it. Servers see their end, nothing is
/// left, and the next run works.
#[test]
fn a_killed_gateway_leaves_nothing() {
    let Some(fixture) = Fixture::new("a_killed_gateway_leaves_nothing") else { return };
    let code = "for n in range(5): hold('web.example', 7); hold('web.example', 9)\n\
                hold('web.example', 19, b''); hold('198.18.0.1', 3128); stage('ready'); stage('never')";
    let policy = "web.example:7,web.example:9,web.example:19";
    for user in USERS {
        let (before, ends) = (census::census(), fixture.log("ends").lines().count());
        let mut run = Stages::start(fixture.command(user, &["--net", policy]), code);
        assert_eq!(run.next(), "ready");
        wait_until("the connections are open", || fixture.established() == 11);
        kill_process(Pid::from_raw(run.supervisor.0 as i32).expect("a process"), Signal::KILL).expect("it is killed");
        assert!(run.lines.next().is_none(), "the guest ended");
        run.end();
        let left = census::left_behind(&before, Duration::from_secs(60));
        assert!(left.is_empty(), "{user}: {left:?}");
        wait_until("the connections end", || fixture.established() == 0);
        wait_until("the server sees the end", || fixture.log("ends").lines().count() == ends + 5);
        fixture.check((user, policy), "print(talk('web.example', 7, b'abc'))", "b'3 bytes'", "");
    }
}

/// Promise (Network): Connections to servers that are not there, or do not answer, end within the time to connect. They
/// free their places and delay no other connection.
#[test]
fn servers_that_hang_delay_no_other_connection() {
    let Some(fixture) = Fixture::new("servers_that_hang_delay_no_other_connection") else { return };
    let code = r"
def ended(name):
    begun = time.monotonic()
    with socket.create_connection((name, 7), 30) as c:
        try: c.sendall(b'abc'); answer = c.recv(1)
        except OSError as error: answer = type(error).__name__
    results.append((answer in (b'', 'ConnectionResetError'), time.monotonic() - begun < 20))
results = []
# The last ones accept, and never answer.
for n in range(20): hold('web.example', 9)
threads = [threading.Thread(target=ended, args=[name]) for name in ('hole.example', 'absent.example') * 20]
for thread in threads: thread.start()
time.sleep(0.5)
for n in range(5):
    print(talk('web.example', 7, b'abc'), len(results) < 40)
    time.sleep(0.1)
for thread in threads: thread.join()
print(len(results), set(results), all(is_open(c) for c in held))
for n in range(44): hold('web.example', 7)
time.sleep(0.2)
print(all(is_open(c) for c in held))";
    let policy = "hole.example:7,absent.example:7,web.example:9,web.example:7";
    let (status, stdout, stderr) = fixture.python(ORDINARY, policy, &format!("{STAGES}{code}"));
    let expected = format!("{}40 {{(True, True)}} True\nTrue\n", "b'3 bytes' True\n".repeat(5));
    assert_eq!((status, stdout.as_str()), (0, expected.as_str()), "{stderr}");
}

/// Promise (Network): Clients and servers that do not read cost the gateway a bounded amount of memory, and delay no other
/// connection.
#[test]
fn slow_readers_cost_little_memory() {
    let Some(fixture) = Fixture::new("slow_readers_cost_little_memory") else { return };
    let policy = fixture.policy(
        "[[allow]]\nhost = \"web.example:19\"\n[[allow]]\nhost = \"web.example:9\"\n[[allow]]\nhost = \
         \"web.example:7\"\n[[allow]]\nhost = \"api.example:80\"\n[[allow]]\nhost = \"api.example:443\"\nprotocol = \
         \"https\"\n",
    );
    let code = r"
get = b'GET /endless HTTP/1.1\r\nHost: api.example\r\n\r\n'
context = ssl.create_default_context()
def secure():
    c = context.wrap_socket(socket.create_connection(('api.example', 443), 15), server_hostname='api.example')
    c.sendall(get); held.append(c)
def upload():
    c = socket.create_connection(('web.example', 9), 15); held.append(c); c.setblocking(False)
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline:
        try: c.send(bytes(65536)); deadline = time.monotonic() + 0.1
        except BlockingIOError: time.sleep(0.01)
secure()
stage('begin')
for n in range(14):
    hold('web.example', 19, b''); hold('api.example', 80, get); secure(); upload()
time.sleep(1)
stage('held', len(held))
for n in range(3): print(talk('web.example', 7, b'abc'), flush=True)
stage('end')";
    let mut run = Stages::start(fixture.command(ORDINARY, &["--net-policy", &policy]), code);
    assert_eq!(run.next(), "begin");
    let before = run.supervisor.memory("VmRSS:");
    run.proceed();
    assert_eq!(run.next(), "held 57");
    run.proceed();
    for _ in 0..3 {
        assert_eq!(run.next(), "b'3 bytes'");
    }
    assert_eq!(run.next(), "end");
    let used = run.supervisor.memory("VmHWM:") - before;
    println!("57 connections use {used} KiB");
    assert!(used < 64 << 10, "57 connections use {used} KiB");
    run.proceed();
    let (status, stderr) = run.end();
    assert_eq!(status, 0, "{stderr}");
}

/// Promise (Network): Of a thousand connections at once, 64 are open and the others are closed. The gateway's descriptors
/// are bounded, and new connections work afterwards.
#[test]
fn a_thousand_connections_at_once_are_bounded() {
    let Some(fixture) = Fixture::new("a_thousand_connections_at_once_are_bounded") else { return };
    // Several processes, since each has fewer descriptors. The server greets first: the kernel completes connections of
    // which the gateway never hears.
    let code = r"
import os
def child(ours):
    for n in range(250):
        c = socket.socket(); c.setblocking(False); c.connect_ex((address, 22)); held.append(c)
    ours.send(b'!')
    while ours.recv(1): ours.send(bytes([sum(map(is_greeted, held))]))
def is_greeted(c):
    try: return c.recv(1, socket.MSG_PEEK) == b'b'
    except OSError: return False
def ask(c):
    c.send(b'?'); return c.recv(1)[0]
address = socket.gethostbyname('web.example')
stage('begin', talk('web.example', 7, b'abc'))
children = []
for n in range(4):
    theirs, ours = socket.socketpair()
    if os.fork() == 0:
        theirs.close()
        for other in children: other.close()
        child(ours); os._exit(0)
    ours.close(); children.append(theirs)
for c in children: c.recv(1)
deadline = time.monotonic() + 20
while (total := sum(map(ask, children))) < 64 and time.monotonic() < deadline: time.sleep(0.1)
# Time for further ones, which must be closed.
time.sleep(1)
stage('held', sum(map(ask, children)))
for c in children: c.close()
while True:
    try: answer = talk('web.example', 7, b'abc')
    except OSError: answer = b''
    if answer: break
stage('end', answer)";
    let mut run = Stages::start(fixture.command(ORDINARY, &["--net", "web.example:7,web.example:22"]), code);
    assert_eq!(run.next(), "begin b'3 bytes'");
    let before = run.supervisor.descriptors();
    run.proceed();
    assert_eq!(run.next(), "held 64");
    let (now, max) = (run.supervisor.descriptors(), before + 2 * 64 + 8);
    assert!(now <= max, "{now} of {max}");
    run.proceed();
    assert_eq!(run.next(), "end b'3 bytes'");
    wait_until("the descriptors are closed", || run.supervisor.descriptors() <= before + 8);
    run.proceed();
    let (status, stderr) = run.end();
    assert!(status == 0 && stderr.contains("too many are open"), "{status} {stderr}");
}

/// Holds many connections, and works again after their end.
const EXHAUST: &str = r"
stage('begin')
for n in range(64): hold('web.example', 7)
time.sleep(2)
stage('held', sum(map(is_open, held)))
for c in held: c.close()
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    try: answer = talk('web.example', 7, b'abc')
    except OSError: answer = b''
    if answer: break
stage('end', answer); sys.exit(7)";

/// Promise (Network): A gateway without free descriptors closes connections, does not spin, and serves again once it has
/// some. The run ends as usual, and names the reason.
#[test]
fn a_gateway_without_descriptors_recovers() {
    let Some(fixture) = Fixture::new("a_gateway_without_descriptors_recovers") else { return };
    let mut run = Stages::start(fixture.command("0", &["--net", "web.example:7"]), EXHAUST);
    assert_eq!(run.next(), "begin");
    // Enough for a few connections. The others are closed, or wait to be accepted.
    let current = run.supervisor.descriptors() as u64 + 9;
    let pid = Pid::from_raw(run.supervisor.0 as i32);
    let limit = Rlimit { current: Some(current), maximum: Some(current) };
    prlimit(pid, Resource::Nofile, limit).expect("the limit is lowered");
    let before = run.supervisor.cpu_time();
    run.proceed();
    let held = run.next();
    let used = run.supervisor.cpu_time() - before;
    assert!(used < Duration::from_secs(1), "{held}: {used:?} of 2 s");
    run.proceed();
    assert_eq!(run.next(), "end b'3 bytes'");
    run.proceed();
    let (status, stderr) = run.end();
    assert_eq!(status, 7, "{stderr}");
    assert!(stderr.contains("7: this process has no free descriptor; raise its limit"), "{held} {stderr}");
}

/// Promise (Network): The connections of a process use at most half of its descriptors.
#[test]
fn connections_use_half_of_the_descriptors() {
    let Some(fixture) = Fixture::new("connections_use_half_of_the_descriptors") else { return };
    let mut limited = Command::new("prlimit");
    let run = fixture.command(ORDINARY, &["--net", "web.example:7"]);
    limited.arg("--nofile=80:").arg(run.get_program()).args(run.get_args());
    limited.env_clear().envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut run = Stages::start(limited, EXHAUST);
    assert_eq!(run.next(), "begin");
    run.proceed();
    assert_eq!(run.next(), "held 20");
    run.proceed();
    assert_eq!(run.next(), "end b'3 bytes'");
    run.proceed();
    let (status, stderr) = run.end();
    assert!(status == 7 && stderr.contains("too many are open"), "{status} {stderr}");
}
