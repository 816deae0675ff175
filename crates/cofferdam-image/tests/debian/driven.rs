//! Builds in a process of their own, with an environment of their own, which can be killed at defined points.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cofferdam_image::debian::Progress;
use cofferdam_image::{Cache, DebianError, Plan, Recipe, resolve};

use crate::root::is_no_archive;

const CACHE: &str = "COFFERDAM_DEBIAN_TEST_CACHE";
const STOP: &str = "COFFERDAM_DEBIAN_TEST_STOP";
const PREFIX: &str = "driven: ";

/// A shell and its dependencies, about 8 MB.
pub fn small() -> Recipe {
    Recipe::new(["dash"])
}

/// The point at which a build halts forever, to be killed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    Never,
    Fetching,
    Writing,
}

/// A build in `cache` into `cache.tar`, in another process.
pub struct Build {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

/// The result of a build.
#[derive(Debug)]
pub struct Ended {
    /// The key, or the error's kind and message.
    pub result: Result<String, String>,
    pub notes: String,
}

pub fn tar_in(cache: &Path) -> PathBuf {
    cache.with_extension("tar")
}

impl Build {
    pub fn start(cache: &Path, stop: Stop, environment: &[(&str, &Path)]) -> Self {
        // All its descendants can be found by its session.
        let mut command = Command::new("/usr/bin/setsid");
        command.arg(std::env::current_exe().expect("this program"));
        command.args(["--exact", "driven::a_build_in_its_own_process", "--nocapture"]);
        command.env(CACHE, cache).env(STOP, format!("{stop:?}")).stdout(Stdio::piped());
        let mut child = command.envs(environment.iter().copied()).spawn().expect("this program again");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line).expect("its output") == 0 {
                return None;
            }
            // The test harness may have begun the line.
            if let Some((_, line)) = line.trim_end().split_once(PREFIX) {
                return Some(line.to_owned());
            }
        }
    }

    /// Waits until the build halts at its stop point, and kills it there.
    pub fn kill_where_it_stops(mut self) -> Result<(), Ended> {
        let line = self.line().unwrap_or_default();
        if line != "stopped" {
            return Err(Ended { result: Err(line), notes: String::new() });
        }
        self.kill();
        Ok(())
    }

    /// Returns true if the build has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Kills the build and checks that no descendant remains.
    pub fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("killed");
        let begun = std::time::Instant::now();
        loop {
            let left = session(self.child.id());
            if left.is_empty() {
                return;
            }
            assert!(
                begun.elapsed() < std::time::Duration::from_secs(60),
                "processes of a killed build remain: {left:?}"
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    pub fn end(mut self) -> Ended {
        let mut ended = Ended { result: Err("it printed nothing".to_owned()), notes: String::new() };
        while let Some(line) = self.line() {
            match line.split_once(' ') {
                Some(("note", note)) => ended.notes.push_str(note),
                Some(("built", key)) => ended.result = Ok(key.to_owned()),
                Some(("failed", error)) => ended.result = Err(error.to_owned()),
                _ => panic!("it printed {line}"),
            }
        }
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its output");
        self.child.wait().expect("ended");
        ended
    }
}

/// Returns the live processes of a session, by name.
fn session(leader: u32) -> Vec<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        (fields[3] == leader.to_string() && !["Z", "X"].contains(&fields[0])).then(|| name.to_owned())
    };
    pids.filter_map(of).collect()
}

impl Drop for Build {
    fn drop(&mut self) {
        // Usually it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds from nothing when run alone. Other tests start it with parameters.
#[test]
fn a_build_in_its_own_process() {
    if let Some(cache) = std::env::var_os(CACHE) {
        return obey(Path::new(&cache));
    }
    let temp = tempfile::tempdir().expect("a directory");
    let cache = temp.path().join("cache");
    let (plan, built) = build(&cache, &mut |_| ());
    match built {
        Ok(()) => assert!(tar_in(&cache).is_file() && plan.is_some_and(|plan| plan.packages().len() > 3)),
        Err(error) if is_no_archive("a_build_in_its_own_process", &error) => {}
        Err(error) => panic!("{error}"),
    }
}

fn obey(cache: &Path) {
    let stop = std::env::var(STOP).unwrap_or_default();
    let mut progress = |step: Progress| {
        let here = match step {
            Progress::Fetching { done, .. } => stop == "Fetching" && done > 0,
            Progress::Writing { done, .. } => stop == "Writing" && done > 0,
            _ => false,
        };
        if here {
            println!("{PREFIX}stopped");
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
    };
    let (plan, built) = build(cache, &mut progress);
    for note in plan.iter().flat_map(|plan| plan.notes().to_vec()) {
        println!("{PREFIX}note {}", note.replace('\n', " "));
    }
    match (plan, built) {
        (Some(plan), Ok(())) => println!("{PREFIX}built {}", plan.key()),
        (_, Err(error)) => {
            let kind = format!("{error:?}");
            let kind = kind.split([' ', '{', '(']).next().unwrap_or_default();
            println!("{PREFIX}failed {kind} {}", error.to_string().replace('\n', " "));
        }
        (None, Ok(())) => unreachable!("a build without a plan"),
    }
}

fn build(cache: &Path, progress: &mut dyn FnMut(Progress)) -> (Option<Plan>, Result<(), DebianError>) {
    match resolve(&small(), &Cache::new(cache), progress) {
        Ok(plan) => {
            let built = plan.write_file(&tar_in(cache), progress);
            (Some(plan), built)
        }
        Err(error) => (None, Err(error)),
    }
}
