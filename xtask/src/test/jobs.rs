//! The tests of all users, a few programs at once.
//!
//! While the tests of one program wait for containers, VMs and timers, those of another compute. What failed is run
//! again when nothing else runs.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, bail};

use super::build::Program;
use super::installs::Installs;
use super::outcome::Outcome;
use super::user::User;
use super::{Run, doc_tests, sdk};
use crate::dashboard;

/// Number of jobs that run at once.
const LANES: usize = 2;
/// Maximum number of failed tests of one program that are run again alone. If more fail, something is broken.
const MAX_RETRIED: usize = 3;
/// A test program that runs alone, because it looks for what its sandboxes left on the whole host.
const ALONE: &str = "cofferdam test suite";
/// Test programs that take minutes. They start first, so that no lane waits for another at the end.
const LONG: &[&str] = &["cofferdam-container test suite", "cofferdam-vm test suite"];
/// Name prefixes of test programs that run once, as the current user. Their tests do not depend on the user, or become
/// an ordinary user themselves.
const ONCE: &[&str] = &[
    "cofferdam-archive ",
    "cofferdam-bench ",
    "cofferdam-conformance ",
    "cofferdam-container test ",
    "cofferdam-contract ",
    "cofferdam-e2b ",
    "cofferdam-engine ",
    "cofferdam-fuzz ",
    "cofferdam-image lib ",
    "cofferdam-image test debian ",
    "cofferdam-screen ",
    "cofferdam-simulated ",
    "cofferdam-tree ",
    "cofferdam-util ",
    "cofferdam-vm lib ",
    "cofferdam-wasm test ",
    "xtask ",
];

/// Tests to run as one user.
#[derive(Debug, Clone, Copy)]
struct Job<'a> {
    user: &'a User,
    tests: Tests<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Tests<'a> {
    Program(&'a Program),
    Documentation,
    Sdks,
    Dashboard,
    Installs,
}

impl Job<'_> {
    fn is_one_of(&self, names: &[&str]) -> bool {
        matches!(self.tests, Tests::Program(program) if names.contains(&program.name.as_str()))
    }
}

/// Runs all tests, and returns the outcome for each user.
pub fn run(run: &Run<'_>, users: &[User]) -> Result<Vec<(String, Outcome)>> {
    let installs = Installs::new(run.sources, run.built, run.filter);
    let mut jobs: Vec<Job<'_>> = users.iter().flat_map(|user| jobs_of(user, &run.built.programs)).collect();
    jobs.sort_by_key(|job| !job.is_one_of(LONG));
    let work = |job: Job<'_>| match job.tests {
        Tests::Program(program) => run.program(program, job.user, run.filter.as_slice()),
        Tests::Documentation => doc_tests(run.sources, run.built, run.filter),
        Tests::Sdks => sdk::run(run.sources, run.built, run.filter),
        Tests::Dashboard => Ok(dashboard::test(run.sources, run.built.tool(dashboard::VARIABLE), run.filter)),
        Tests::Installs => installs.run(job.user),
    };
    let (alone, others) = jobs.into_iter().partition(|job| job.is_one_of(&[ALONE]));
    let mut outcomes = in_lanes(alone, 1, work)?;
    outcomes.extend(in_lanes(others, LANES, work)?);
    let mut totals: Vec<_> = users.iter().map(|user| (user.name(), Outcome::default())).collect();
    for (job, mut outcome) in outcomes {
        if let Tests::Program(program) = job.tests {
            again(run, program, job.user, &mut outcome)?;
        }
        let name = job.user.name();
        totals.iter_mut().filter(|(user, _)| *user == name).for_each(|(_, total)| total.add(outcome.clone()));
    }
    Ok(totals)
}

fn jobs_of<'a>(user: &'a User, programs: &'a [Program]) -> impl Iterator<Item = Job<'a>> {
    let is_once = |program: &&Program| ONCE.iter().any(|start| program.name.starts_with(start));
    let programs = programs.iter().filter(move |program| user.is_current() || !is_once(program));
    let once = [Tests::Documentation, Tests::Sdks, Tests::Dashboard];
    let others = once.into_iter().filter(|_| user.is_current()).chain([Tests::Installs]);
    programs.map(Tests::Program).chain(others).map(move |tests| Job { user, tests })
}

/// Runs the failed tests of a program again, each alone.
fn again(run: &Run<'_>, program: &Program, user: &User, outcome: &mut Outcome) -> Result<()> {
    let failed: Vec<String> =
        outcome.failed_tests(&program.name).unwrap_or_default().into_iter().map(str::to_owned).collect();
    if !(1..=MAX_RETRIED).contains(&failed.len()) {
        return Ok(());
    }
    for test in failed {
        println!("   again, alone, as {}: {test}", user.name());
        let again = run.program(program, user, &["--exact", &test])?;
        outcome.again(&format!("{}: {test}", program.name), &again);
    }
    Ok(())
}

/// Works on jobs in their order, `lanes` at once. Returns each job with its result. After an error, starts no more.
fn in_lanes<J: Copy + Send, T: Send>(
    jobs: Vec<J>,
    lanes: usize,
    work: impl Fn(J) -> Result<T> + Sync,
) -> Result<Vec<(J, T)>> {
    let waiting = Mutex::new(VecDeque::from(jobs));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let lane = || {
        let mut done = Vec::new();
        while let Some(job) = next() {
            match work(job) {
                Ok(result) => done.push((job, result)),
                Err(error) => {
                    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    return Err(error);
                }
            }
        }
        Ok(done)
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let mut all = Vec::new();
        for lane in lanes {
            all.extend(lane.join().unwrap_or_else(|_| bail!("a thread panicked"))?);
        }
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn jobs_run_at_once_and_an_error_starts_no_more() {
        let both = Barrier::new(2);
        let mut done = in_lanes(vec![1, 2], 2, |job| {
            both.wait();
            Ok(job * 10)
        })
        .unwrap();
        done.sort_unstable();
        assert_eq!(done, [(1, 10), (2, 20)]);
        let started = Mutex::new(Vec::new());
        let failed = in_lanes(vec![1, 2, 3], 1, |job| {
            started.lock().unwrap().push(job);
            if job == 2 { bail!("no") } else { Ok(()) }
        });
        assert!(failed.is_err());
        assert_eq!(*started.lock().unwrap(), [1, 2]);
    }
}
