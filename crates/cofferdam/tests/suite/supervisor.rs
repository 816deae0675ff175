//! Sandboxes whose supervisor is killed, or has fewer rights than it seems to have.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{census, hostile};

/// Options of a run whose limits allow [`spinners`].
pub const SPINNERS_ALLOWED: [&str; 6] = ["--timeout", "900s", "--cpu-time", "1000s", "--pids", "550"];

/// Returns a shell line that starts 500 busy processes and prints `ready`.
pub fn spinners() -> String {
    // All begin at once, since a running one would delay the start of the next.
    let one = "(: </tmp/begin; while :; do :; done) &";
    let start = format!("mkfifo /tmp/begin; i=0; while [ $i -lt 500 ]; do {one} i=$((i+1)); done");
    format!("{start}; sleep 1; echo ready; : >/tmp/begin; wait")
}

/// Waits until the processes of [`spinners`] are busy, after `ready`.
pub fn wait_until_busy() {
    std::thread::sleep(Duration::from_secs(1));
}

/// Starts a run that prints `ready` from inside its sandbox, and leaves daemons there.
fn supervisor() -> std::process::Child {
    let script = "(setsid sleep 1000 &) ; sleep 1001 & echo ready; sleep 1002";
    start(&["--timeout", "900s"], script)
}

/// Starts a run with these options, and waits until it prints `ready`.
fn start(options: &[&str], script: &str) -> std::process::Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .arg("run")
        .args(options)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command line starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("it can be read");
    assert_eq!(line, "ready\n");
    child
}

/// Promise (Process isolation): Killing the supervisor with SIGKILL leaves nothing.
#[test]
fn killing_the_supervisor_leaves_nothing_behind() {
    let before = census::census();
    for signal in ["KILL", "TERM"] {
        let mut child = supervisor();
        let status = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(status.success());
        child.wait().expect("it ends");
        let left = census::left_behind(&before, Duration::from_secs(60));
        assert!(left.is_empty(), "after SIG{signal}: {left:?}");
    }
}

#[test]
fn killed_supervisor_leaves_none_of_five_hundred_spinners() {
    // The spinners would starve attacks of the hostile tests.
    let _turn = hostile::turn();
    let before = census::census();
    let mut child = start(&SPINNERS_ALLOWED, &spinners());
    wait_until_busy();
    child.kill().expect("it is our child");
    child.wait().expect("it ends");
    let left = census::left_behind(&before, Duration::from_secs(60));
    assert!(left.is_empty(), "{left:?}");
}

/// Returns the child of a process with this name: the launcher of a supervisor, or the init of a launcher.
fn child_of(pid: u32, named: &str) -> Option<u32> {
    let mut children = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let parent: u32 = rest.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, parent, name == named))
    });
    children.find(|(_, parent, named)| *parent == pid && *named).map(|(pid, ..)| pid)
}

/// Promise (Process isolation): A killed launcher is reported, and the next start removes what it left.
#[test]
fn killing_the_launcher_is_reported_and_the_next_start_sweeps() {
    let before = census::census();
    let mut child = supervisor();
    let launcher = child_of(child.id(), "cofferdam").expect("the supervisor has a launcher");
    let status = Command::new("kill").args(["-s", "KILL", &launcher.to_string()]).status().expect("kill runs");
    assert!(status.success());
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(125), "a lost launcher is Cofferdam's failure, not the command's");
    // Empty control groups cannot remove themselves. The next start removes them.
    let next = Command::new(env!("CARGO_BIN_EXE_cofferdam")).args(["run", "--", "true"]).status().expect("it starts");
    assert!(next.success());
    let left = census::left_behind(&before, Duration::from_secs(60));
    assert!(left.is_empty(), "{left:?}");
}

/// Promise (Process isolation): An init has nothing of the launcher's memory.
#[test]
fn an_init_is_a_program_of_its_own() {
    let mut child = supervisor();
    let launcher = child_of(child.id(), "cofferdam").expect("the supervisor has a launcher");
    let init = child_of(launcher, "cofferdam-init").expect("the launcher has an init");
    let maps = std::fs::read_to_string(format!("/proc/{init}/maps"));
    let environment = std::fs::read(format!("/proc/{init}/environ"));
    let status = Command::new("kill").arg(child.id().to_string()).status().expect("kill runs");
    assert!(status.success());
    child.wait().expect("it ends");
    // Guests cannot inspect their init; the creator of the namespaces can.
    let maps = maps.expect("the host may look");
    assert!(maps.contains("cofferdam-init"), "{maps}");
    assert!(!maps.contains(env!("CARGO_BIN_EXE_cofferdam")), "it has pages of the launcher's program: {maps}");
    assert!(maps.lines().count() < 12, "{maps}");
    if let Ok(environment) = environment {
        assert_eq!(environment, b"", "readable for root alone");
    }
}

/// Runs `run -- true` under another program. Returns status and standard error.
fn run_under(wrapper: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .args([env!("CARGO_BIN_EXE_cofferdam"), "run", "--", "true"])
        .output()
        .expect("util-linux is installed");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Promise (Process isolation): A supervisor that is the host's root in a user namespace cannot run sandboxes.
#[test]
fn root_of_a_user_namespace_that_is_the_hosts_root_is_refused() {
    let root = rustix::process::geteuid().is_root();
    let (status, text) = run_under(&["unshare", "--map-root-user"]);
    if root {
        assert_eq!(status, Some(125), "a sandbox ran as the host's root: {text}");
        assert!(text.contains("not root's"), "{text}");
    } else {
        assert_eq!(status, Some(0), "{text}");
    }
}

/// Promise (Process isolation): A root supervisor without the capability to mount runs its sandboxes as another user.
#[test]
fn root_without_mount_capability_runs_as_another_user() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP root_without_mount_capability_runs_as_another_user: only root can give that right up");
        return;
    }
    let (status, text) = run_under(&["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]);
    assert_eq!(status, Some(0), "{text}");
}

/// Tests a delayed launcher: it creates its sandboxes late, but the commands in them have their full time.
///
/// Promise (Process isolation): The wall time of a command starts with the command, not with its sandbox.
#[tokio::test]
async fn a_commands_time_begins_with_it_and_not_with_its_sandbox() {
    use cofferdam::{ExecRequest, Spec, registry};
    let backend = registry::backend("process").expect("there is one");
    let first = backend.create(Spec::default()).await.expect("a sandbox");
    let launcher: i32 = first.id().as_str().split('-').nth(1).and_then(|pid| pid.parse().ok()).expect("its launcher");
    first.close().await.expect("it closes");
    let signal =
        |signal| rustix::process::kill_process(rustix::process::Pid::from_raw(launcher).expect("a pid"), signal);
    // First by its own measurement, then by comparison.
    for _ in 0..2 {
        signal(rustix::process::Signal::STOP).expect("it stops");
        let request = ExecRequest::argv(["true"]).timeout(Duration::from_millis(400)).build().expect("valid");
        let late = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            signal(rustix::process::Signal::CONT).expect("it continues");
        };
        let (started, ()) = tokio::join!(backend.start_one(Spec::default(), request), late);
        let (sandbox, handle) = started.expect("it starts");
        let exit = handle.exit().await.expect("it ends");
        assert!(exit.success() && exit.duration < Duration::from_millis(400), "{exit:?}");
        sandbox.close().await.expect("it closes");
    }
}

/// Tests an init that refuses to start a command in a sandbox with missing protections, and reports it while the
/// supervisor still accepts the report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_comes_early_is_not_lost() {
    use cofferdam::{Access, ExecRequest, Spec, Workspace, registry};
    let directory = tempfile::tempdir().expect("a directory");
    let workspace = Workspace::HostDir { path: directory.path().to_owned(), access: Access::ReadWrite };
    let mut spec = Spec::builder().workspace(workspace);
    for protection in crate::cli::WEAKER.split(',') {
        spec = spec.allow_weaker(protection.parse().expect("a name"));
    }
    let spec = spec.build().expect("valid");
    for _ in 0..20 {
        // The first sandbox is not compared, and a host directory has no disk limit.
        let backend = registry::backend("process").expect("there is one");
        let request = ExecRequest::argv(["true"]).build().expect("valid");
        let run = tokio::time::timeout(Duration::from_secs(60), backend.run(spec.clone(), request));
        let (completed, _) = run.await.expect("the refusal is heard").expect("it runs");
        assert!(completed.exit.success(), "{completed:?}");
    }
}

/// Returns the peak memory of a run's supervisor whose output is not read before its program has ended.
fn supervisors_peak(form: &str, max_output: &str, script: &str) -> u64 {
    let workspace = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(workspace.path(), std::fs::Permissions::from_mode(0o777)).expect("ours");
    let ended = workspace.path().join("ended");
    let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .args(["run", "--level", "process", "--timeout", "120s", form, "--max-output", max_output, "--disk", "none"])
        .arg("--workspace")
        .arg(format!("{}:rw", workspace.path().display()))
        .args(["--", "python3", "-c", &format!("{script}\nopen('ended', 'w').close()")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command line starts");
    let mut stdout = child.stdout.take().expect("it is piped");
    let begun = Instant::now();
    while !ended.exists() {
        assert!(child.try_wait().expect("it is a child").is_none(), "the run ended before its program");
        assert!(begun.elapsed() < Duration::from_secs(120), "the program did not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The output is larger than a pipe, so its writer is still running.
    stdout.read_exact(&mut [0]).expect("there is output");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it exists");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    if form == "--json" {
        std::io::copy(&mut stdout, &mut std::io::sink()).expect("it can be read");
        assert!(child.wait().expect("it ends").success());
    } else {
        // Live output in small pieces takes long to write.
        drop(stdout);
        child.wait().expect("it ends");
    }
    peak.map(|kibibytes: u64| kibibytes << 10).expect("the kernel gives the peak")
}

#[test]
fn output_costs_the_supervisor_a_small_multiple_of_its_limit() {
    const MIB: u64 = 1 << 20;
    // Each of these bytes becomes six in the document.
    let large = "import os\nfor _ in range(768): os.write(1, b'\\x01' * 65536)";
    // Writes single bytes to both streams alternately.
    let small = "import os\nfor _ in range(400000): os.write(1, b'o'); os.write(2, b'e')";
    for (form, max, script) in [
        ("--json", 5 * 48 * MIB, large),
        ("--json", 96 * MIB, small),
        // Live output waits in the supervisor for a slow reader.
        ("--quiet", 96 * MIB, large),
        ("--events", 96 * MIB, large),
        ("--events", 96 * MIB, small),
    ] {
        let peak = supervisors_peak(form, "48M", script);
        assert!(peak < max + 64 * MIB, "{} MiB with {form} for {script}", peak / MIB);
    }
}
