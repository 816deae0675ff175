//! What clones of one snapshot hold: memory of their monitors, and what the supervisor grew by, divided by their number. First
//! while nothing has been run in any of them, then some of them alone, after each has run a program once and rests again: all of
//! them would keep the host's processors too busy to answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cofferdam_contract::Sandbox;

use super::field::{self, Field};
use crate::host::kernel;
use crate::host::tree::{self, Memory};

/// Numbers of clones at which is looked, besides the last.
const LOOKS: [usize; 4] = [10, 25, 50, 100];
/// How many run a program.
const RUN: usize = 10;
/// Of the host's memory, what must stay available: one part in so many.
const KEPT_FREE: u64 = 10;
/// Time for the monitors to come to rest.
const SETTLE: Duration = Duration::from_secs(2);

/// What so many clones hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// How many.
    pub clones: usize,
    /// KiB of each, what is shared divided, with the supervisor's part.
    pub proportional: f64,
    /// KiB of each that are nobody else's, without the supervisor's part.
    pub own: f64,
    /// KiB by which the supervisor grew for each.
    pub supervisor: f64,
    /// Processes of each.
    pub processes: f64,
}

impl Held {
    /// `grown` is what the supervisor has more than before, in KiB.
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

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// Clones that were restored: their agents have answered and measured their walls, and nothing else has run.
    pub idle: Vec<Held>,
    /// Some of them alone, after a program in each.
    pub after_exec: Option<Held>,
    /// Why there are not more.
    pub stopped: Option<String>,
}

/// Holds as many as wanted, or as can be, which is then told.
pub async fn measure(field: &Field, wanted: usize) -> Result<Found> {
    let before = Before::now();
    let (mut found, mut clones) = (Found::default(), Vec::<Arc<dyn Sandbox>>::new());
    while clones.len() < wanted && found.stopped.is_none() {
        match another(field).await {
            Ok(clone) => clones.push(clone),
            Err(why) => found.stopped = Some(why),
        }
        let last = clones.len() == wanted || found.stopped.is_some();
        if !clones.is_empty() && (last || LOOKS.contains(&clones.len())) {
            match before.look(clones.len()).await {
                Some(held) => found.idle.push(held),
                None => found.stopped = Some("this user may not look at the monitors' memory".to_owned()),
            }
        }
    }
    close(clones.split_off(clones.len().min(RUN))).await?;
    if !clones.is_empty() {
        match answered(&clones).await {
            Ok(()) => found.after_exec = before.look(clones.len()).await,
            // What was measured is not lost by it.
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
    if now.available < now.total / KEPT_FREE {
        return Err(format!("{} MiB of memory are left", now.available / 1024));
    }
    field.clone_of_snapshot().await.map_err(|error| format!("{error:#}"))
}

/// What there was before the first clone.
struct Before {
    others: BTreeSet<u32>,
    /// KiB that are the supervisor's alone.
    supervisor: Option<u64>,
}

impl Before {
    fn now() -> Self {
        Self { others: tree::descendants().into_iter().collect(), supervisor: supervisor() }
    }

    async fn look(&self, clones: usize) -> Option<Held> {
        tokio::time::sleep(SETTLE).await;
        let mut monitors = tree::descendants();
        monitors.retain(|pid| !self.others.contains(pid));
        let grown = supervisor()?.saturating_sub(self.supervisor?);
        Some(Held::new(clones, tree::memory(&monitors)?, grown, monitors.len()))
    }
}

/// KiB that are this process's alone.
fn supervisor() -> Option<u64> {
    tree::memory(&[std::process::id()]).map(|memory| memory.own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_hold_is_divided_among_them() {
        let memory = Memory { resident: 900, proportional: 500, own: 400 };
        let held = Held::new(10, memory, 30, 20);
        assert_eq!(held, Held { clones: 10, proportional: 53.0, own: 40.0, supervisor: 3.0, processes: 2.0 });
    }
}
