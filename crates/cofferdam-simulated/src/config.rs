//! Configuration of a simulated backend.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contract::{Capabilities, Capability, Protection, ProtectionState};

use crate::FaultPlan;

/// Configuration of a simulated backend. The default has all capabilities, on a host that enforces every limit.
#[derive(Debug, Clone)]
pub struct SimulatedConfig {
    /// The declared capabilities. Operations that need others fail with `Unsupported`. Host directories, root
    /// directories, network allowlists and Unix programs are never supported and never declared.
    pub capabilities: Capabilities,
    /// Protections that the simulated host does not fully enforce, and their states.
    pub shortfalls: BTreeMap<Protection, ProtectionState>,
    /// Limits that are fixed when a sandbox is prepared. A spec with another value than the template is not compatible.
    /// Default: the CPU share. Protections that are not limits are never fixed, except for the workspace's access.
    pub fixed_when_warm: BTreeSet<Protection>,
    /// The faults to inject.
    pub faults: FaultPlan,
}

impl SimulatedConfig {
    /// All capabilities that the simulation supports.
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

impl Default for SimulatedConfig {
    fn default() -> Self {
        Self {
            capabilities: Self::KNOWN.into_iter().collect(),
            shortfalls: BTreeMap::new(),
            fixed_when_warm: BTreeSet::from([Protection::Cpus]),
            faults: FaultPlan::default(),
        }
    }
}
