//! Memory of the clones of one snapshot: that of their VMMs and the growth of the supervisor, divided by their number.
//! First without any exec, then of a few clones after each has run a program once and is idle again. If all clones ran
//! one, the host's processors would be too busy to answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cofferdam_contract::Sandbox;

use super::field::{self, Field};
use crate::host::kernel;
use crate::host::tree::{self, Memory};

/// Numbers of clones at which memory is sampled, besides the last.
const SAMPLES: [usize; 4] = [10, 25, 50, 100];
/// Number of clones that run a program.
const RUN: usize = 10;
/// Divisor of the host's memory that must stay available.
const MIN_AVAILABLE_DIVISOR: u64 = 10;
/// Time for the VMMs to become idle.
const SETTLE: Duration = Duration::from_secs(2);

/// Memory of a number of clones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// The number of clones.
    pub clones: usize,
    /// Proportional set size of each in KiB, with the supervisor's part.
    pub proportional: f64,
    /// Unique set size of each in KiB, without the supervisor's part.
    pub own: f64,
    /// Growth of the supervisor for each, in KiB.
    pub supervisor: f64,
    /// Number of processes of each.
    pub processes: f64,
}

impl Held {
    /// Creates a sample. `grown` is the growth of the supervisor, in KiB.
    fn new(clones: usize, memory: Memory, grown: u64, processes: usize) -> Self {
        let each = |all: f64| all / clones as f64;
        Self {
            clones,
            proportional: each((memory.proportional + grown) as f64),
            own: each(memory.own as f64),
            supervisor: each(grown as f64),
            processes: each(processes as f64),
        }
    }
}

/// The results.
#[derive(Debug, Default)]
pub struct Found {
    /// Restored clones: their agents have answered and measured their isolation, and nothing else has run.
    pub idle: Vec<Held>,
    /// A few clones, after a program in each.
    pub after_exec: Option<Held>,
    /// The reason why there are no more.
    pub stopped: Option<String>,
}

/// Holds the requested number of clones, or as many as possible. In that case, reports the reason.
pub async fn measure(field: &Field, wanted: usize) -> Result<Found> {
    let before = Before::now();
    let (mut found, mut clones) = (Found::default(), Vec::<Arc<dyn Sandbox>>::new());
    while clones.len() < wanted && found.stopped.is_none() {
        match another(field).await {
            Ok(clone) => clones.push(clone),
            Err(why) => found.stopped = Some(why),
        }
        let last = clones.len() == wanted || found.stopped.is_some();
        if !clones.is_empty() && (last || SAMPLES.contains(&clones.len())) {
            match before.sample(clones.len()).await {
                Some(held) => found.idle.push(held),
                None => found.stopped = Some("this user may not inspect the VMMs' memory".to_owned()),
            }
        }
    }
    close(clones.split_off(clones.len().min(RUN))).await?;
    if !clones.is_empty() {
        match answered(&clones).await {
            Ok(()) => found.after_exec = before.sample(clones.len()).await,
            // The results so far are kept.
            Err(why) => found.stopped = Some(format!("a program in a clone: {why:#}")),
        }
    }
    close(clones).await?;
    Ok(found)
}

async fn answered(clones: &[Arc<dyn Sandbox>]) -> Result<()> {
    for clone in clones {
        field::answered(clone).await?;
    }
    Ok(())
}

async fn close(clones: Vec<Arc<dyn Sandbox>>) -> Result<()> {
    for clone in clones {
        clone.close().await?;
    }
    Ok(())
}

async fn another(field: &Field) -> Result<Arc<dyn Sandbox>, String> {
    let now = kernel::memory();
    if now.available < now.total / MIN_AVAILABLE_DIVISOR {
        return Err(format!("only {} MiB of memory are left", now.available / 1024));
    }
    field.clone_of_snapshot().await.map_err(|error| format!("{error:#}"))
}

/// The state before the first clone.
struct Before {
    others: BTreeSet<u32>,
    /// Unique set size of the supervisor, in KiB.
    supervisor: Option<u64>,
}

impl Before {
    fn now() -> Self {
        Self { others: tree::descendants().into_iter().collect(), supervisor: supervisor() }
    }

    async fn sample(&self, clones: usize) -> Option<Held> {
        tokio::time::sleep(SETTLE).await;
        let mut vmms = tree::descendants();
        vmms.retain(|pid| !self.others.contains(pid));
        let grown = supervisor()?.saturating_sub(self.supervisor?);
        Some(Held::new(clones, tree::memory(&vmms)?, grown, vmms.len()))
    }
}

/// Returns the unique set size of this process, in KiB.
fn supervisor() -> Option<u64> {
    tree::memory(&[std::process::id()]).map(|memory| memory.own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_shared_by_all_is_divided_among_them() {
        let memory = Memory { resident: 900, proportional: 500, own: 400 };
        let held = Held::new(10, memory, 30, 20);
        assert_eq!(held, Held { clones: 10, proportional: 53.0, own: 40.0, supervisor: 3.0, processes: 2.0 });
    }
}
