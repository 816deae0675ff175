//! Supervisors and VMMs that are killed at every step. Afterwards no process is left, and after the next start no
//! control group, file, mount or socket.
//!
//! ```text
//! test --starts, in a session of its own--> this program again: the supervisor --> VMMs
//!   |<--- "step NAME" on standard output ------------|
//!   '--- SIGKILL, some milliseconds later ---------->'   then: a census of its session, and another start
//! ```

mod census;
mod images;
mod supervisor;
mod vmm;

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_vm::{VmConfig, doctor};

use crate::support::{self, NO_HANG};

/// Name of the supervisor that this program is to be.
const PART: &str = "COFFERDAM_TEST_KILLED";
/// Directory of the supervisor.
const DIRECTORY: &str = "COFFERDAM_TEST_DIRECTORY";
/// The step that it repeats, so that it is killed in it.
const STAY: &str = "COFFERDAM_TEST_STAY";
/// Seed of the random moments, to repeat a run.
const SEED: &str = "COFFERDAM_TEST_SEED";

/// Returns the supervisor's directory, if this process is to be this supervisor.
fn directory_of(part: &str) -> Option<PathBuf> {
    let is_it = std::env::var_os(PART).is_some_and(|found| found == part);
    is_it.then(|| std::env::var_os(DIRECTORY).expect("a directory").into())
}

/// Returns true if the supervisor stays at this step.
fn stays_at(step: &str) -> bool {
    std::env::var_os(STAY).is_some_and(|stay| stay == step)
}

/// Reports the supervisor's step to the test.
fn at(step: &str) {
    println!("\nstep {step}");
}

/// Returns the source of random moments; its seed is printed, and can be set.
fn moments(test: &str) -> fastrand::Rng {
    let configured = std::env::var(SEED).ok().map(|seed| seed.parse().expect("a number"));
    let seed = configured.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: {SEED}={seed}");
    fastrand::Rng::with_seed(seed)
}

fn millis(random: &mut fastrand::Rng, max: u64) -> Duration {
    Duration::from_millis(random.u64(..max))
}

/// The directory of successive supervisors.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let temp = tempfile::tempdir().expect("a directory");
        for name in ["disks", "probes", "tmp"] {
            std::fs::create_dir(temp.path().join(name)).expect("a directory");
        }
        Self(temp)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Removes cached findings about this host, so that the next supervisor probes again.
    fn forget(&self) {
        for entry in std::fs::read_dir(self.path().join("probes")).expect("a list") {
            std::fs::remove_file(entry.expect("an entry").path()).expect("it is removed");
        }
    }
}

/// Returns the configuration of a supervisor with this directory, and the images of all tests.
fn config(temp: &Path) -> VmConfig {
    VmConfig { disks: temp.join("disks"), probes: Some(temp.join("probes")), ..support::config() }
}

/// A running supervisor.
struct Supervisor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Supervisor {
    /// Starts the test of this name in a session of its own, which identifies all processes that it starts.
    fn start(test: &str, part: &str, temp: &Path, stay: &str) -> Self {
        let mut command = Command::new("setsid");
        command.arg(std::env::current_exe().expect("this program has a path"));
        command.args(["--exact", test, "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env(PART, part).env(DIRECTORY, temp).env(STAY, stay).env("TMPDIR", temp.join("tmp"));
        let mut child = command.spawn().expect("setsid is of the same package as mount");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, lines }
    }

    /// Waits until it reports this step.
    fn reach(&mut self, step: &str) {
        let line = format!("step {step}");
        let reached = self.lines.by_ref().map_while(Result::ok).any(|text| text == line);
        assert!(reached, "the supervisor never reached the step {step}");
    }

    /// Waits until it has started a VMM.
    fn has_vmm(&self) {
        let begun = Instant::now();
        while census::vmms_of(self.child.id()).is_empty() {
            assert!(begun.elapsed() < NO_HANG, "the supervisor starts no VMM");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills it, waits for the end of all processes that it started, and returns its process ID.
    fn kill(self, after: Duration) -> u32 {
        self.kill_unreaped(after).reap()
    }

    /// Does the same without reaping it: it stays a zombie.
    fn kill_unreaped(mut self, after: Duration) -> Zombie {
        std::thread::sleep(after);
        let pid = self.child.id();
        let had = census::session(pid).len();
        self.child.kill().expect("it can be killed");
        let begun = Instant::now();
        loop {
            let left = census::session(pid);
            if left.is_empty() {
                println!("   of {had} processes none is left after {:?}", begun.elapsed());
                return Zombie(self.child);
            }
            assert!(begun.elapsed() < NO_HANG, "processes left by a killed supervisor: {left:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A killed supervisor that was not reaped.
struct Zombie(Child);

impl Zombie {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Reaps it, and returns its process ID.
    fn reap(mut self) -> u32 {
        let status = self.0.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it had ended before: {status}");
        self.0.id()
    }
}

/// The next start, which sweeps; not a test of its own.
#[tokio::test]
async fn next() {
    let Some(temp) = directory_of("next") else { return };
    doctor(&config(&temp)).await;
}

/// Starts another supervisor with the same directories, which only starts.
fn start_next(temp: &Path) {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", "kill::next"]).env(PART, "next").env(DIRECTORY, temp).env("TMPDIR", temp.join("tmp"));
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}
