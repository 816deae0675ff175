//! How a [`crate::VmBackend`] is set up. Nothing here is read from the environment, and nothing is started.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, Result};

use crate::firecracker::FirecrackerConfig;
use crate::image::Source;
use crate::qemu::QemuConfig;
use crate::vmm::{Acceleration, Driver};

/// What is done about an image that was not made yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MakePolicy {
    /// The create fails, and says how to get it.
    #[default]
    Never,
    /// It is made, which takes a network and some time.
    Missing,
}

/// What machines start from whose spec names nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RootChoice {
    /// What the configured [`Source`] makes.
    #[default]
    Source,
    /// The image that was made under this name; without it no machine is made.
    Made(String),
    /// The image that was made under this name, if there is one, else what the source makes.
    MadeOrSource(String),
}

/// How long a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// To boot until its agent has greeted and built its walls.
    pub boot: Duration,
    /// To answer once it runs.
    pub answer: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { boot: Duration::from_secs(120), answer: Duration::from_secs(60) }
    }
}

/// How a [`crate::VmBackend`] is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmConfig {
    /// Where images are kept.
    pub images: PathBuf,
    /// Where packages are kept that images are made from.
    pub packages: PathBuf,
    /// What machines start from whose spec names nothing.
    pub root: RootChoice,
    /// What the default image is made from.
    pub source: Source,
    /// What is done about an image that is missing.
    pub make: MakePolicy,
    /// Where the disks of sandboxes are made; the directory is made when it is first needed. They have no names there, and
    /// take the room that is used of them.
    pub disks: PathBuf,
    /// Memory of a machine whose spec asks for no limit.
    pub memory: ByteSize,
    /// Processors of a machine whose spec asks for no share of them.
    pub processors: u32,
    /// What all snapshots together may take of the host's memory, those included that warm machines come from, until the last
    /// machine that was made from one is closed: what was in use of it, and all of its memory once it is restored.
    /// Default 4 GiB.
    pub snapshots: ByteSize,
    /// How many snapshots are kept ready for warm machines, one for each kind that was asked for.
    pub ready: usize,
    /// How long one is kept that nobody asks for.
    pub ready_idle: Duration,
    /// Machines that may boot at once.
    pub boots: usize,
    /// Which monitor makes machines.
    pub driver: Driver,
    /// QEMU. Its accelerator is what [`Self::acceleration`] comes to.
    pub qemu: QemuConfig,
    /// Firecracker.
    pub firecracker: FirecrackerConfig,
    /// How its accelerator is chosen.
    pub acceleration: Acceleration,
    /// A directory for what was found out about this host, made when it is first needed. Without it nothing is remembered.
    pub probes: Option<PathBuf>,
    /// How long a machine has.
    pub deadlines: Deadlines,
}

impl VmConfig {
    /// Everything below one directory of the caller's, which is made when it is first needed.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self {
            images: directory.join("images"),
            packages: directory.join("packages"),
            root: RootChoice::default(),
            source: Source::default(),
            make: MakePolicy::default(),
            disks: directory.join("disks"),
            acceleration: Acceleration::default(),
            probes: Some(directory.join("probes")),
            memory: ByteSize::from_mebibytes(512),
            processors: 1,
            snapshots: ByteSize::from_mebibytes(4096),
            ready: 4,
            ready_idle: Duration::from_secs(15 * 60),
            boots: std::thread::available_parallelism().map_or(1, usize::from),
            driver: Driver::default(),
            qemu: QemuConfig::default(),
            firecracker: FirecrackerConfig::new(directory.join("monitors")),
            deadlines: Deadlines::default(),
        }
    }

    /// Refuses what lets no machine run.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid("configure", what));
        if self.processors == 0 || self.processors > MAX_PROCESSORS {
            return bad("a machine has from 1 to 64 processors");
        }
        if self.memory < LEAST_MEMORY {
            return bad("a machine needs at least 32 MiB of memory for its guests");
        }
        if self.boots == 0 {
            return bad("where no machine may boot, none is made");
        }
        Ok(())
    }
}

/// The most processors of a machine.
pub(crate) const MAX_PROCESSORS: u32 = 64;
/// What a machine without a limit has at least.
const LEAST_MEMORY: ByteSize = ByteSize::from_mebibytes(32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_no_machine_run_is_refused() {
        let good = VmConfig::new("/x");
        assert!(good.check().is_ok());
        for bad in [
            VmConfig { processors: 0, ..good.clone() },
            VmConfig { processors: 1000, ..good.clone() },
            VmConfig { memory: ByteSize::from_mebibytes(1), ..good.clone() },
            VmConfig { boots: 0, ..good.clone() },
        ] {
            assert!(bad.check().is_err());
        }
    }
}
