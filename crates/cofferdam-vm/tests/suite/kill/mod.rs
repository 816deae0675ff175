//! Supervisors and monitors that are killed at every step. Nothing is left of them: no process at once, no control group,
//! file, mount or socket after the next start.
//!
//! ```text
//! test --starts, in a session of its own--> this program again: the supervisor --> monitors
//!   |<--- "step NAME" on standard output ------------|
//!   '--- SIGKILL, some milliseconds later ---------->'   then: a census of its session, and another start
//! ```

mod census;
mod images;
mod monitor;
mod supervisor;

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_vm::{VmConfig, doctor};

use crate::support::{self, NO_HANG};

/// Tells this program which supervisor it is.
const PART: &str = "COFFERDAM_TEST_KILLED";
/// The directory that is the supervisor's alone.
const PLACE: &str = "COFFERDAM_TEST_PLACE";
/// The step that it does again and again, so that it is killed in it.
const STAY: &str = "COFFERDAM_TEST_STAY";
/// What its kills are drawn from, to have the same again.
const SEED: &str = "COFFERDAM_TEST_SEED";

/// The directory of the supervisor that this process is to be, if it is to be this one.
fn place_of(part: &str) -> Option<PathBuf> {
    let is_it = std::env::var_os(PART).is_some_and(|found| found == part);
    is_it.then(|| std::env::var_os(PLACE).expect("it has a place").into())
}

/// Whether a supervisor stays at this step.
fn stays_at(step: &str) -> bool {
    std::env::var_os(STAY).is_some_and(|stay| stay == step)
}

/// Tells the test how far the supervisor is.
fn at(step: &str) {
    println!("\nstep {step}");
}

/// Where random moments come from; the number is printed, and can be given.
fn moments(test: &str) -> fastrand::Rng {
    let given = std::env::var(SEED).ok().map(|seed| seed.parse().expect("a number"));
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: {SEED}={seed}");
    fastrand::Rng::with_seed(seed)
}

fn millis(random: &mut fastrand::Rng, most: u64) -> Duration {
    Duration::from_millis(random.u64(..most))
}

/// Directories of supervisors that come one after the other.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        for name in ["disks", "probes", "tmp"] {
            std::fs::create_dir(place.path().join(name)).expect("a directory");
        }
        Self(place)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Nothing is remembered of this host, so that the next supervisor finds it out.
    fn forget(&self) {
        for entry in std::fs::read_dir(self.path().join("probes")).expect("a list") {
            std::fs::remove_file(entry.expect("an entry").path()).expect("it is removed");
        }
    }
}

/// How a supervisor with this directory is set up: images are those of all tests.
fn config(place: &Path) -> VmConfig {
    VmConfig { disks: place.join("disks"), probes: Some(place.join("probes")), ..support::config() }
}

/// A supervisor that runs.
struct Supervisor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Supervisor {
    /// Starts one: the test of this name, in a session of its own, by which all that it starts is known.
    fn start(test: &str, part: &str, place: &Path, stay: &str) -> Self {
        let mut command = Command::new("setsid");
        command.arg(std::env::current_exe().expect("this program has a path"));
        command.args(["--exact", test, "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env(PART, part).env(PLACE, place).env(STAY, stay).env("TMPDIR", place.join("tmp"));
        let mut child = command.spawn().expect("setsid is of the same package as mount");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, lines }
    }

    /// Waits until it says that it is at this step.
    fn reach(&mut self, step: &str) {
        let line = format!("step {step}");
        let reached = self.lines.by_ref().map_while(Result::ok).any(|said| said == line);
        assert!(reached, "it never came to the step {step}");
    }

    /// Waits until it has started a monitor.
    fn has_monitor(&self) {
        let begun = Instant::now();
        while census::monitors_of(self.child.id()).is_empty() {
            assert!(begun.elapsed() < NO_HANG, "it starts no monitor");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills it, waits for all that it started, and gives its number.
    fn kill(self, after: Duration) -> u32 {
        self.kill_unasked(after).asked_about()
    }

    /// The same, and does not ask how it ended: what is left of it stays in the table of processes.
    fn kill_unasked(mut self, after: Duration) -> Unasked {
        std::thread::sleep(after);
        let pid = self.child.id();
        let had = census::session(pid).len();
        self.child.kill().expect("it can be killed");
        let begun = Instant::now();
        loop {
            let left = census::session(pid);
            if left.is_empty() {
                println!("   of {had} processes none is left after {:?}", begun.elapsed());
                return Unasked(self.child);
            }
            assert!(begun.elapsed() < NO_HANG, "of a killed supervisor is left: {left:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A supervisor that was killed, and whose parent does not know it yet.
struct Unasked(Child);

impl Unasked {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Asks how it ended, and gives its number.
    fn asked_about(mut self) -> u32 {
        let status = self.0.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it had ended before: {status}");
        self.0.id()
    }
}

/// Nothing for a test of its own: what starts next, and sweeps.
#[tokio::test]
async fn next() {
    let Some(place) = place_of("next") else { return };
    doctor(&config(&place)).await;
}

/// Another supervisor of the same directories, which does no more than to start.
fn start_next(place: &Path) {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", "kill::next"]).env(PART, "next").env(PLACE, place).env("TMPDIR", place.join("tmp"));
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}
