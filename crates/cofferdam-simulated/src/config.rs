//! What a simulated backend pretends to be.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contract::{Capabilities, Capability, Protection, ProtectionState};

use crate::FaultPlan;

/// What a simulated backend pretends to be. The default can do all it knows, on a host that enforces every limit.
#[derive(Debug, Clone)]
pub struct Config {
    /// What it declares; the rest answers `Unsupported`. Host directories, root directories, network allowlists and
    /// Unix programs are beyond it, and never declared.
    pub capabilities: Capabilities,
    /// Protections in which the pretended host falls short, and how.
    pub shortfalls: BTreeMap<Protection, ProtectionState>,
    /// Limits that are fixed when a sandbox is made ahead of its request: a spec that asks for another value than the
    /// template does not fit. Default: the processor share. Protections that are no limit, the workspace's access aside, are never
    /// fixed.
    pub fixed_when_warm: BTreeSet<Protection>,
    /// What fails, and when.
    pub faults: FaultPlan,
}

impl Config {
    /// All that it can do.
    pub(crate) const KNOWN: [Capability; 8] = [
        Capability::MultipleExecs,
        Capability::StreamingStdin,
        Capability::Terminal,
        Capability::Files,
        Capability::Snapshot,
        Capability::Fork,
        Capability::Pause,
        Capability::Warm,
    ];
}

impl Default for Config {
    fn default() -> Self {
        Self {
            capabilities: Self::KNOWN.into_iter().collect(),
            shortfalls: BTreeMap::new(),
            fixed_when_warm: BTreeSet::from([Protection::Cpus]),
            faults: FaultPlan::default(),
        }
    }
}
