//! What a simulated backend pretends to be.

use std::collections::BTreeMap;

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
    /// What fails, and when.
    pub faults: FaultPlan,
}

impl Config {
    /// All that it can do.
    pub(crate) const KNOWN: [Capability; 6] = [
        Capability::MultipleExecs,
        Capability::StreamingStdin,
        Capability::Terminal,
        Capability::Files,
        Capability::Snapshot,
        Capability::Fork,
    ];
}

impl Default for Config {
    fn default() -> Self {
        Self {
            capabilities: Self::KNOWN.into_iter().collect(),
            shortfalls: BTreeMap::new(),
            faults: FaultPlan::default(),
        }
    }
}
