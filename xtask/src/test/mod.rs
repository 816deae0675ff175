//! Implementation of `cargo xtask test`: every test, as root and as an ordinary user if possible.
//!
//! ```text
//! packages -> (root: copy of the sources that every user can read) -> build once -> run as root and as a user -> census
//! ```
//!
//! Paths are compiled into tests, so both runs must find the same files in the same place. A checkout below `/root` is
//! closed to the ordinary user. Nothing is built twice, and no time is measured.
//!
//! The last tests of each user install the packages of `cargo xtask dist`, created from the tested program, and run
//! them.

pub mod build;
mod installs;
mod jobs;
mod outcome;
mod processors;
pub mod sdk;
mod shared;
pub mod user;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::census::{census, left_behind};
use crate::command::{Ended, is_root, step, wait_until};
use crate::dist;
use crate::engines::Engines;
use crate::packages;
use crate::repository::Repository;
use crate::tools;
use build::{Built, Program};
pub use outcome::Outcome;
use outcome::Printed;
use processors::Processors;
use user::User;

/// The variable that makes tests start VMs, which are emulated and slow. It is set for one user. `all` runs every case
/// of the conformance suite on VMs that booted, rather than on claimed ones.
const MACHINES: &str = "COFFERDAM_TEST_MACHINES";
/// Filters of the fast run for the suite of the command line.
const FAST_FILTERS: &[&str] =
    &["conformance::process", "cli::run::", "cli::usage::", "cli::forms::", "cli::kills::", "cli::signals::"];
/// The variable that makes every test program report the time of each test. The slowest are printed. The test harness
/// has this as an unstable option, so `RUSTC_BOOTSTRAP` is set as well.
const TIMES: &str = "COFFERDAM_TEST_TIMES";
/// The number of slow tests to print for one program, and the seconds from which a test is slow.
const SLOWEST: usize = 12;
const SLOW_SECONDS: f64 = 5.0;
/// Name prefixes of test programs whose tests mostly wait, for timers and ends of processes. They run this many tests for
/// each processor at once.
const WAITING: &[&str] = &["cofferdam test "];
const WAITING_SHARE: usize = 3;
/// The variable with the number of tests that a program runs at once.
const THREADS: &str = "RUST_TEST_THREADS";
/// Maximum number of tests that may fail in parallel and pass alone. Each is reported, and is a defect to fix. Two
/// programs at once make a slow processor slower.
const MAX_UNSTEADY: usize = 4;
/// Maximum time of one test program. The program of the command line starts tens of VMs.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// The environment variable through which tests find the interpreters for WebAssembly.
const WASM: &str = "COFFERDAM_TEST_WASM_CACHE";

/// Runs all tests whose name contains `filter`.
pub fn run(repository: &Repository, filter: Option<&str>) -> Result<()> {
    let start = Instant::now();
    packages::ensure(packages::FOR_TESTS);
    let (sources, target) = if is_root() {
        let copy = shared::copy(repository)?;
        let target = copy.root().join("target");
        fs::create_dir_all(&target)?;
        fs::set_permissions(&target, Permissions::from_mode(0o755))?;
        (copy, Some(target))
    } else {
        (repository.clone(), None)
    };
    // Compilers use all processors, and installers wait for the network.
    let (built, tools) = thread::scope(|scope| {
        let cache = target.as_ref().map(|target| target.join("cache"));
        let sources = &sources;
        let tools = cache.map(|cache| scope.spawn(move || tools::prepare(sources, &cache)));
        (build::build(sources, target.clone()), tools.and_then(|tools| tools.join().ok()))
    });
    let mut built = built?;
    let engines = Engines::start(user::ORDINARY)?;
    if let Some(cofferdam) = built.program() {
        engines.make_base_image(cofferdam, &built.target.join("cache"));
    }
    built.tools = tools.unwrap_or_else(|| tools::prepare(&sources, &built.target.join("cache")));
    built.wasm =
        built.program().and_then(|cofferdam| install_interpreters(cofferdam, &built.target.join("cache/wasm")));
    let before = census(&built.target);
    let mut users = vec![User::current()];
    if is_root() {
        users.push(User::ordinary().context("cannot prepare a run as an ordinary user")?);
    } else {
        println!("SKIP the run as root: this is an ordinary user; `sudo` cargo xtask test runs as both");
    }
    println!("== tests as {}", users.iter().map(User::name).collect::<Vec<_>>().join(" and as "));
    let run = Run { sources: &sources, built: &built, engines: Some(&engines), filter };
    let processors = Processors::now();
    let totals = jobs::run(&run, &users)?;
    let busy = processors::busy(processors);
    drop(users);
    let mut left = left_behind(&before, &built.target);
    left.extend(engines.census());
    drop(engines);
    for what in &left {
        println!("left behind: {what}");
    }
    summarise(&totals, start.elapsed());
    if let Some(percent) = busy {
        println!("processors busy while tests ran: {percent} %");
    }
    let all = totals.into_iter().fold(Outcome::default(), |mut all, (_, total)| {
        all.add(total);
        all
    });
    if filter.is_some() && all.passed + all.failed() == 0 {
        bail!("no test's name contains '{}'", filter.unwrap_or_default());
    }
    if all.unsteady.len() > MAX_UNSTEADY {
        bail!("{} tests passed only when run alone, at most {MAX_UNSTEADY} are allowed", all.unsteady.len());
    }
    if all.failed() > 0 || !left.is_empty() {
        bail!("{} tests failed, {} objects were left behind", all.failed(), left.len());
    }
    Ok(())
}

/// Runs the tests that finish within minutes: unit tests, and the suite of the command line without container engines
/// and VMs. Runs as this user only, in the checkout's own build directory.
pub fn run_fast(repository: &Repository) -> Result<()> {
    let start = Instant::now();
    let built = build::build(repository, None)?;
    let user = User::current();
    let run = Run { sources: repository, built: &built, engines: None, filter: None };
    let mut total = Outcome::default();
    for program in built.programs.iter().filter(|program| is_fast(&program.name)) {
        let filters = if program.name.contains(" test ") { FAST_FILTERS } else { &[] };
        total.add(run.program(program, &user, filters)?);
    }
    let failed = total.failed();
    summarise(&[(user.name(), total)], start.elapsed());
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    Ok(())
}

/// Returns true if a test program belongs to the fast run: unit tests, and the suite of the command line.
fn is_fast(name: &str) -> bool {
    name.contains(" lib ") || name.contains(" bin ") || name == "cofferdam test suite"
}

fn summarise(totals: &[(String, Outcome)], took: Duration) {
    println!("== summary, {:.0} s", took.as_secs_f64());
    for (name, total) in totals {
        println!("as {name}: {}", total.line());
        for failure in &total.failures {
            println!("   FAILED {failure}");
        }
        for test in &total.unsteady {
            println!("   UNSTEADY {test}: failed in parallel with others, see above, and passed alone");
        }
    }
    let sum = |count: fn(&Outcome) -> usize| totals.iter().map(|(_, total)| count(total)).sum::<usize>();
    println!(
        "{} passed, {} failed, {} skipped",
        sum(|total| total.passed),
        sum(Outcome::failed),
        sum(|total| total.skips.len())
    );
}

/// A run of tests.
struct Run<'a> {
    sources: &'a Repository,
    built: &'a Built,
    /// Without engines, slow tests are left out.
    engines: Option<&'a Engines>,
    filter: Option<&'a str>,
}

impl Run<'_> {
    /// Runs a test program with these arguments.
    fn program(&self, program: &Program, user: &User, arguments: &[&str]) -> Result<Outcome> {
        let mut command = self.command(program, user);
        command.args(arguments);
        finish(command, &program.name, user, Printed::ByOne)
    }

    fn command(&self, program: &Program, user: &User) -> Command {
        let mut command = user.command(&program.path);
        command
            .args(["--show-output", "--color", "never"])
            .current_dir(&program.directory)
            .env("CARGO_MANIFEST_DIR", &program.directory)
            .env("INSTA_WORKSPACE_ROOT", self.sources.root())
            .env("INSTA_UPDATE", "no")
            .envs(self.engines.map(Engines::variables).into_iter().flatten());
        if self.engines.is_some() && user.is_current() && std::env::var_os(MACHINES).is_none() {
            command.env(MACHINES, "1");
        }
        if std::env::var_os(THREADS).is_none() && WAITING.iter().any(|prefix| program.name.starts_with(prefix)) {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            command.env(THREADS, (processors * WAITING_SHARE).to_string());
        }
        if std::env::var_os(TIMES).is_some() {
            command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
        }
        for tool in self.built.tools.iter().filter(|tool| tool.is_shared || user.is_current()) {
            command.env(tool.variable, &tool.directory);
        }
        // The cache belongs to the current user.
        if let Some(wasm) = self.built.wasm.as_ref().filter(|_| user.is_current()) {
            command.env(WASM, wasm);
        }
        for (name, path) in &self.built.binaries {
            command.env(format!("CARGO_BIN_EXE_{name}"), path);
        }
        command
    }
}

/// Installs Python and JavaScript for WebAssembly below a cache directory, unless they are there. Returns the directory
/// of the interpreters. If that fails, prints that their tests are skipped.
fn install_interpreters(cofferdam: &Path, cache: &Path) -> Option<PathBuf> {
    let mut setup = Command::new(cofferdam);
    setup.arg("setup").env("XDG_CACHE_HOME", cache);
    match step("install the interpreters for WebAssembly", &mut setup) {
        Ok(()) => Some(cache.join("cofferdam/wasm")),
        Err(error) => {
            println!("SKIP scripts in WebAssembly (cofferdam, cofferdam-wasm): {error:#}");
            None
        }
    }
}

/// Runs the documentation tests. rustdoc compiles them, so they run only as the user that may do that.
fn doc_tests(sources: &Repository, built: &Built, filter: Option<&str>) -> Result<Outcome> {
    let mut command = build::cargo(sources, Some(&built.target));
    command
        .args([
            "test",
            "--quiet",
            "--workspace",
            "--features",
            build::FULL,
            "--doc",
            "--no-fail-fast",
            "--",
            "--color",
            "never",
        ])
        .args(filter);
    finish(command, "documentation", &User::current(), Printed::BySeveral)
}

/// Runs a command that prints the output of test programs. The output goes to a file, because a leftover daemon would
/// keep a pipe open.
fn finish(mut command: Command, name: &str, user: &User, printed: Printed) -> Result<Outcome> {
    let start = Instant::now();
    let log = user.log()?;
    command.stdin(std::process::Stdio::null()).stdout(log.writer()?).stderr(log.writer()?);
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let Ended { status, cpu } = wait_until(&mut child, name, PROGRAM_TIMEOUT)?;
    let text = log.read()?;
    let ended = status.map(|status| status.to_string());
    let mut outcome = Outcome::parse(name, &text, printed);
    match status {
        Some(status) if status.success() => {}
        _ if outcome.failed() > 0 && status.is_some() => {}
        _ => outcome.failures.push(match ended {
            Some(ended) => format!("{name}: ended with {ended}"),
            None => format!("{name}: killed after {} minutes", PROGRAM_TIMEOUT.as_secs() / 60),
        }),
    }
    print!("{}", report(name, user, &outcome, &text, (start.elapsed(), cpu)));
    Ok(outcome)
}

/// Formats the result of a program. It is printed at once, because several programs run at the same time.
fn report(name: &str, user: &User, outcome: &Outcome, text: &str, (took, cpu): (Duration, Duration)) -> String {
    let mut lines = Vec::new();
    if outcome.failed() > 0 {
        // The failures come last, with their output. Passed tests are then not printed.
        lines.push(text.find("\nfailures:\n\n----").map_or(text, |at| &text[at..]).trim_end().to_owned());
    }
    if outcome.ran() {
        let (took, cpu) = (took.as_secs_f64(), cpu.as_secs_f64());
        lines.push(format!("   {name}, as {}: {}, {took:.0} s, {cpu:.0} CPU s", user.name(), outcome.line()));
    }
    for (seconds, test) in outcome.slowest(SLOW_SECONDS).into_iter().take(SLOWEST) {
        lines.push(format!("      {seconds:7.1} s {test}"));
    }
    for (skip, times) in outcome.distinct_skips() {
        let times = if times > 1 { format!(" ({times} times)") } else { String::new() };
        lines.push(format!("      {skip}{times}"));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}
