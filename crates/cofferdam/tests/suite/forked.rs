//! The command line's forked launcher: memory that it must not inherit from its caller, and the order of deaths.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cofferdam::registry::{self, ForkedLauncher, Setup};
use cofferdam::{ExecRequest, Spec};

use crate::census;

/// Size of one memory read.
const PIECE: usize = 1 << 20;

/// A command line that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn id(&self) -> u32 {
        self.0.id()
    }
}

/// Starts a run that prints `ready` from inside, with one secret in its environment and one in its arguments.
fn supervisor(environment: &str, argument: &str) -> Running {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .args(["run", "--label", &format!("note={argument}"), "--", "sh", "-c", "echo ready; sleep 1002"])
        .env("TEST_SECRET", environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command line starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it can be read");
    assert_eq!(line, "ready\n");
    Running(child)
}

fn only_child(pid: u32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children are listed");
    let children: Vec<u32> = text.split_whitespace().map(|pid| pid.parse().expect("a number")).collect();
    assert_eq!(children.len(), 1, "of {pid}: {children:?}");
    children[0]
}

/// Minimum memory size of a process, in bytes.
const SMALLEST: usize = 64 * 1024;

/// Returns true if the bytes are in the readable memory of a process.
fn memory_holds(pid: u32, needle: &str) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("root reads it");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("root opens it");
    let mut looked_at = 0;
    let found = maps.lines().filter(|line| !line.contains("[v")).any(|line| {
        let (range, rest) = line.split_once(' ').expect("a line of maps");
        let (start, stop) = range.split_once('-').expect("a range");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let (start, stop) = (hex(start), hex(stop));
        if !rest.starts_with('r') {
            return false;
        }
        let mut contents = vec![0; (stop - start) as usize];
        for (index, piece) in contents.chunks_mut(PIECE).enumerate() {
            looked_at += memory.read_at(piece, start + (index * PIECE) as u64).unwrap_or(0);
        }
        contents.windows(needle.len()).any(|window| window == needle.as_bytes())
    });
    // An init is small, but has a stack, data and code.
    assert!(found || looked_at > SMALLEST, "only {looked_at} bytes of {pid} could be read");
    found
}

/// Returns a field of `/proc/PID/stat`, counted from the state, which is 0.
fn stat_field(pid: u32, index: usize) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it exists");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
    rest.split_whitespace().nth(index).expect("a field").to_owned()
}

/// Promise (Process isolation): The launcher and the init of the command line have nothing of its environment and
/// arguments.
#[test]
fn launcher_and_init_drop_the_callers_environment_and_arguments() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP launcher_and_init_drop_the_callers_environment_and_arguments: only root reads it");
        return;
    }
    // Concatenated here, so that the text is not in the binary, which all processes map.
    let (environment, argument) = ["E", "A"].map(|which| format!("{which}-secret-{}", std::process::id())).into();
    let child = supervisor(&environment, &argument);
    let launcher = only_child(child.id());
    let init = only_child(launcher);
    for secret in [&environment, &argument] {
        assert!(memory_holds(child.id(), secret), "the search finds what is there");
        assert!(!memory_holds(launcher, secret), "{secret} in the launcher");
        assert!(!memory_holds(init, secret), "{secret} in the init");
    }
    let environ = std::fs::read(format!("/proc/{launcher}/environ")).expect("root reads it");
    assert!(!environ.is_empty() && environ.iter().all(|byte| *byte == 0), "it is a fork, and wiped: {environ:?}");
    let named = std::fs::read(format!("/proc/{launcher}/cmdline")).expect("it can be read");
    assert!(named.starts_with(b"cofferdam-launcher\0"), "{named:?}");
}

/// Promise (Process isolation): A forked launcher has one thread, a session of its own, no signal handler and no file
/// of its caller.
#[test]
fn a_forked_launcher_starts_as_an_executed_one_does() {
    let child = supervisor("x", "y");
    let launcher = only_child(child.id());
    assert_eq!(stat_field(launcher, 3), launcher.to_string(), "a session of its own");
    assert_eq!(stat_field(launcher, 17), "1", "one thread");
    let status = std::fs::read_to_string(format!("/proc/{launcher}/status")).expect("it exists");
    let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
    let handled = u64::from_str_radix(handled.trim(), 16).expect("a mask");
    // The C library uses the signals above these.
    assert_eq!(handled & 0x7fff_ffff, 0, "no signal is handled");
    if rustix::process::geteuid().is_root() {
        let mut open: Vec<String> = std::fs::read_dir(format!("/proc/{launcher}/fd"))
            .expect("root reads it")
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .map(|target| target.display().to_string())
            .filter(|target| target.starts_with('/') && target != "/dev/null" && !target.starts_with("/sys/fs/cgroup"))
            .collect();
        open.dedup();
        let own = ["/proc", "/memfd:cofferdam-init (deleted)"];
        assert!(open.iter().all(|target| own.contains(&target.as_str())), "files of the caller: {open:?}");
    }
}

/// Promise (Process isolation): Killing the command line at any moment leaves nothing.
#[test]
fn killing_the_command_line_at_any_moment_leaves_nothing_behind() {
    let before = census::census();
    for delay in 0..40 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
            .args(["run", "--", "sleep", "1003"])
            .stdin(Stdio::null())
            .spawn()
            .expect("the command line starts");
        std::thread::sleep(Duration::from_micros(delay * 200));
        child.kill().expect("it can be killed");
        assert_eq!(child.wait().expect("it ends").signal(), Some(9));
    }
    // If its launcher had been killed too, the next start would remove the rest. Here the launcher lived.
    let left = census::left_behind(&before, Duration::from_secs(60));
    assert!(left.is_empty(), "{left:?}");
}

/// Promise (Process isolation): A process with several threads executes its launcher and does not fork it.
#[tokio::test]
async fn a_process_with_threads_is_not_forked_and_executes_its_launcher() {
    // This harness runs each test in a separate thread.
    let forked = ForkedLauncher::fork();
    assert!(forked.is_none());
    let backend =
        registry::backend_forked(registry::DEFAULT_BACKEND, forked, &Setup::default(), std::sync::Arc::new(|_| {}))
            .expect("there is one");
    let weaker = ["memory", "cpu", "cpus", "pids", "disk"];
    let spec = weaker.iter().fold(Spec::builder(), |spec, name| spec.allow_weaker(name.parse().expect("a protection")));
    let request = ExecRequest::argv(["echo", "hello"]).build().expect("a request");
    let (completed, _) = backend.run(spec.build().expect("a spec"), request).await.expect("it runs");
    assert_eq!(completed.stdout, "hello\n");
}
