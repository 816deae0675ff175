//! State that all sandboxes of one backend share: the configuration, the faults, and the live sandboxes.

use std::collections::BTreeSet;

use cofferdam_contract::SandboxId;
use parking_lot::{Mutex, MutexGuard};

use crate::SimulatedConfig;
use crate::fault::Faults;

/// The simulated host of one backend.
#[derive(Debug)]
pub(crate) struct SimulatedHost {
    pub(crate) config: SimulatedConfig,
    pub(crate) faults: Faults,
    living: Mutex<BTreeSet<SandboxId>>,
}

impl SimulatedHost {
    pub(crate) fn new(config: SimulatedConfig) -> Self {
        let faults = Faults::new(config.faults.clone());
        Self { config, faults, living: Mutex::default() }
    }

    /// Returns the sandboxes that were created and not closed.
    pub(crate) fn living(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.living.lock()
    }
}
