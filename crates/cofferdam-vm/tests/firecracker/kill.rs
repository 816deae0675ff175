//! A supervisor with VMs of Firecracker, killed by SIGKILL at each of its steps. Afterwards no process is left, and
//! after the next start no control group, directory, mount or socket. Tested with a program in place of Firecracker,
//! with Cofferdam's isolation and in jails.

#[expect(dead_code, reason = "the other suite looks for more")]
#[path = "../suite/kill/census.rs"]
mod census;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_contract::ByteSize;
use cofferdam_vm::vmm::{Started, Vmm};

use crate::stage::{Stage, description_in, driver_in};
use crate::support::NO_HANG;

/// Stage directory of this program, if it is to be a supervisor.
const DIRECTORY: &str = "COFFERDAM_TEST_WALKED";
/// Stage directory of this program, if it is to be the next one that starts.
const NEXT: &str = "COFFERDAM_TEST_NEXT";
/// The step that it repeats, so that it is killed in it.
const STAY: &str = "COFFERDAM_TEST_STAY";
/// Seed of the random moments, to repeat a run.
const SEED: &str = "COFFERDAM_TEST_SEED";
const VERSION: &str = "1.16.2";
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_STATE: ByteSize = ByteSize::from_mebibytes(64);
/// The steps in order, each with the maximum delay of the kill in milliseconds, and the number of kills.
const STEPS: [(&str, u64, usize); 8] = [
    ("begin", 2, 1),
    ("create", 150, 6),
    ("run", 5, 1),
    ("pause", 20, 2),
    ("snapshot", 80, 3),
    ("restore", 200, 5),
    ("destroy", 100, 3),
    ("end", 1, 1),
];

fn at(step: &str) {
    println!("\nstep {step}");
}

fn stays_at(step: &str) -> bool {
    std::env::var_os(STAY).is_some_and(|stay| stay == step)
}

/// The process that the test kills, not a test of its own. It goes through all steps, and repeats the one that it is to
/// stay at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supervisor() {
    let Some(temp) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    at("begin");
    let driver = driver_in(&temp, TIMEOUT);
    driver.version().await.unwrap();
    let create = || async { driver.start(description_in(&temp).0).await.unwrap() };
    at("create");
    let Started { vm, .. } = create().await;
    while stays_at("create") {
        create().await.vm.kill().await.unwrap();
    }
    at("run");
    at("pause");
    vm.pause().await.unwrap();
    while stays_at("pause") {
        vm.resume().await.unwrap();
        vm.pause().await.unwrap();
    }
    at("snapshot");
    let mut state = vm.snapshot(MAX_STATE).await.unwrap();
    while stays_at("snapshot") {
        state = vm.snapshot(MAX_STATE).await.unwrap();
    }
    at("restore");
    let restore = || async {
        let hardware = description_in(&temp).0.into_parts().0;
        let restored = driver.restore(hardware, &state).await.unwrap();
        restored.vm.resume().await.unwrap();
        restored
    };
    let mut restored = vec![restore().await];
    while stays_at("restore") {
        // The previous one is dropped while the next one runs.
        restored = vec![restore().await, restore().await];
    }
    at("destroy");
    for Started { vm, .. } in restored {
        vm.kill().await.unwrap();
    }
    vm.kill().await.unwrap();
    while stays_at("destroy") {
        drop(create().await);
    }
    at("end");
    std::future::pending::<()>().await;
}

/// A supervisor in a session of its own, which identifies all processes that it starts.
struct Supervisor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Supervisor {
    fn start(temp: &Path, stay: &str) -> Self {
        let mut command = Command::new("setsid");
        command.arg(std::env::current_exe().expect("this program has a path"));
        command.args(["--exact", "kill::supervisor", "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env(DIRECTORY, temp).env(STAY, stay);
        let mut child = command.spawn().expect("setsid is of the same package as mount");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, lines }
    }

    fn reach(&mut self, step: &str) {
        let line = format!("step {step}");
        let reached = self.lines.by_ref().map_while(Result::ok).any(|text| text == line);
        assert!(reached, "the supervisor never reached the step {step}");
    }

    /// Kills it, waits for the end of all processes that it started, and returns its process ID.
    fn kill(mut self, after: Duration) -> u32 {
        std::thread::sleep(after);
        let pid = self.child.id();
        let had = census::session(pid).len();
        self.child.kill().expect("it can be killed");
        let status = self.child.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it had ended before: {status}");
        let begun = Instant::now();
        while !census::session(pid).is_empty() {
            let left = census::session(pid);
            assert!(begun.elapsed() < NO_HANG, "processes left by a killed supervisor: {left:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        println!("   of {had} processes none is left after {:?}", begun.elapsed());
        pid
    }
}

/// The next start, which sweeps; not a test of its own. It runs in a separate process, because the sweep depends on the
/// other tests of this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next() {
    let Some(temp) = std::env::var_os(NEXT).map(PathBuf::from) else { return };
    let started = driver_in(&temp, TIMEOUT).start(description_in(&temp).0).await.unwrap();
    started.vm.kill().await.unwrap();
}

fn start_next(temp: &Path) {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    let output = command.args(["--exact", "kill::next"]).env(NEXT, temp).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}

/// Returns mounts and sockets that contain the stage's name.
fn of_stage(temp: &Path) -> BTreeSet<String> {
    let name = temp.file_name().expect("a name").to_str().expect("text");
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let (mounts, sockets) = (read("/proc/self/mountinfo"), read("/proc/net/unix"));
    mounts.lines().chain(sockets.lines()).filter(|line| line.contains(name)).map(str::to_owned).collect()
}

/// Promise (Virtual machines): A supervisor of Firecracker VMs killed with SIGKILL at any step leaves no process, and
/// nothing else remains after the next start, jailed or not.
#[test]
fn a_supervisor_of_firecrackers_killed_at_any_step_leaves_nothing() {
    let test = "a_supervisor_of_firecrackers_killed_at_any_step_leaves_nothing";
    if cofferdam_linux::landlock::abi() == 0 {
        println!("SKIP {test}: no Landlock here");
        return;
    }
    let configured = std::env::var(SEED).ok().map(|seed| seed.parse().expect("a number"));
    let seed = configured.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: {SEED}={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let before = census::host();
    for stage in Stage::each(test, "", VERSION) {
        for (step, within, times) in STEPS {
            for time in 0..times {
                // Once in the first run of the step, then in one of many repetitions.
                let mut supervisor = Supervisor::start(stage.path(), if time == 0 { "" } else { step });
                supervisor.reach(step);
                let after = Duration::from_millis(random.u64(..within));
                println!("jailed: {}, at {step}, after {after:?}", stage.is_jailed());
                let pid = supervisor.kill(after);
                start_next(stage.path());
                assert_eq!(stage.left(), Vec::<PathBuf>::new());
                assert_eq!(census::groups_of(pid), BTreeSet::new());
                assert_eq!(of_stage(stage.path()), BTreeSet::new());
            }
        }
    }
    assert_eq!(census::host_left(&before), BTreeSet::new());
}
