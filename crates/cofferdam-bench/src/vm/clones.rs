//! What idle clones of one snapshot hold: memory of their monitors, divided by their number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cofferdam_contract::Sandbox;

use super::field::Field;
use crate::host::kernel;
use crate::host::tree::{self, Memory};

/// Numbers of clones at which is looked, besides the last.
const LOOKS: [usize; 4] = [10, 25, 50, 100];
/// Of the host's memory, what must stay available: one part in so many.
const KEPT_FREE: u64 = 10;
/// Time for the monitors to come to rest.
const SETTLE: Duration = Duration::from_secs(2);

/// What so many clones hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// How many.
    pub clones: usize,
    /// KiB of each, what is shared divided.
    pub proportional: f64,
    /// KiB of each that are nobody else's.
    pub own: f64,
    /// Processes of each.
    pub processes: f64,
}

impl Held {
    fn new(clones: usize, memory: Memory, processes: usize) -> Self {
        let each = |all: f64| all / clones as f64;
        let (proportional, own) = (each(memory.proportional as f64), each(memory.own as f64));
        Self { clones, proportional, own, processes: each(processes as f64) }
    }
}

/// Holds as many as wanted, or as can be, which is then told. Each has answered once.
pub async fn measure(field: &Field, wanted: usize) -> Result<(Vec<Held>, Option<String>)> {
    let others: BTreeSet<u32> = tree::descendants().into_iter().collect();
    let (mut looks, mut clones, mut stopped) = (Vec::new(), Vec::<Arc<dyn Sandbox>>::new(), None);
    while clones.len() < wanted && stopped.is_none() {
        match another(field).await {
            Ok(clone) => clones.push(clone),
            Err(why) => stopped = Some(why),
        }
        let last = clones.len() == wanted || stopped.is_some();
        if !clones.is_empty() && (last || LOOKS.contains(&clones.len())) {
            tokio::time::sleep(SETTLE).await;
            match look(&others, clones.len()) {
                Some(held) => looks.push(held),
                None => stopped = Some("this user may not look at the monitors' memory".to_owned()),
            }
        }
    }
    for clone in clones {
        clone.close().await?;
    }
    Ok((looks, stopped))
}

async fn another(field: &Field) -> Result<Arc<dyn Sandbox>, String> {
    let now = kernel::memory();
    if now.available < now.total / KEPT_FREE {
        return Err(format!("{} MiB of memory are left", now.available / 1024));
    }
    field.clone_that_answered().await.map_err(|error| format!("{error:#}"))
}

fn look(others: &BTreeSet<u32>, clones: usize) -> Option<Held> {
    let mut monitors = tree::descendants();
    monitors.retain(|pid| !others.contains(pid));
    Some(Held::new(clones, tree::memory(&monitors)?, monitors.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_hold_is_divided_among_them() {
        let memory = Memory { resident: 900, proportional: 500, own: 400 };
        let held = Held::new(10, memory, 20);
        assert_eq!(held, Held { clones: 10, proportional: 50.0, own: 40.0, processes: 2.0 });
    }
}
