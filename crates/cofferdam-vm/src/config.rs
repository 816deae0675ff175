//! Configuration of a [`crate::VmBackend`]. It reads nothing from the environment, and starts nothing.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, Result};
use cofferdam_image::Source;

use crate::firecracker::FirecrackerConfig;
use crate::qemu::QemuConfig;
use crate::vmm::{Acceleration, Driver};

/// The policy for an image that was not built yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MakePolicy {
    /// The create fails, and the error says how to build it.
    #[default]
    Never,
    /// It is built, which takes a network connection and some time.
    Missing,
}

/// The default root file system, for a spec that names none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RootChoice {
    /// The image that the configured [`Source`] builds.
    #[default]
    Source,
    /// The image that was built under this name; without it, no VM is created.
    Built(String),
    /// The image that was built under this name, if there is one, else that of the source.
    BuiltOrSource(String),
}

/// Deadlines of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Time to boot, until its agent has connected and confined itself.
    pub boot: Duration,
    /// Time to answer a request once it runs.
    pub answer: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { boot: Duration::from_secs(120), answer: Duration::from_secs(60) }
    }
}

/// Configuration of a [`crate::VmBackend`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmConfig {
    /// Directory of images.
    pub images: PathBuf,
    /// Directory of the packages that images are built from.
    pub packages: PathBuf,
    /// Directory of the store of container images. An image of it is built for VMs when a spec names it, unless a VM
    /// image has the same name.
    pub container_images: Option<PathBuf>,
    /// Default root file system, for a spec that names none.
    pub root: RootChoice,
    /// Source of the default image.
    pub source: Source,
    /// Policy for a missing image.
    pub make: MakePolicy,
    /// Directory for the disks of sandboxes, created when it is first needed. The disks are unnamed files, and take
    /// only the space that is used of them.
    pub disks: PathBuf,
    /// Memory of a VM whose spec has no memory limit.
    pub memory: ByteSize,
    /// Processors of a VM whose spec has no processor limit.
    pub processors: u32,
    /// Maximum of the host's memory for all snapshots together, including those for prepared VMs. A snapshot counts
    /// until the last VM that was created from it is closed: with the memory that was in use, and with all of its
    /// memory once it is restored. Default 4 GiB.
    pub snapshots: ByteSize,
    /// Maximum number of VMs that boot at once.
    pub boots: usize,
    /// The VMM that runs VMs.
    pub driver: Driver,
    /// QEMU's configuration. [`Self::acceleration`] determines its accelerator.
    pub qemu: QemuConfig,
    /// Firecracker's configuration.
    pub firecracker: FirecrackerConfig,
    /// Choice of the accelerator.
    pub acceleration: Acceleration,
    /// Directory for findings about this host, created when it is first needed. Without it, nothing is cached.
    pub probes: Option<PathBuf>,
    /// Deadlines of a VM.
    pub deadlines: Deadlines,
}

impl VmConfig {
    /// Creates a configuration with everything below one directory of the caller, created when it is first needed.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self {
            images: directory.join("images"),
            packages: directory.join("packages"),
            container_images: None,
            root: RootChoice::default(),
            source: Source::default(),
            make: MakePolicy::default(),
            disks: directory.join("disks"),
            acceleration: Acceleration::default(),
            probes: Some(directory.join("probes")),
            memory: ByteSize::from_mebibytes(512),
            processors: 1,
            snapshots: ByteSize::from_mebibytes(4096),
            boots: std::thread::available_parallelism().map_or(1, usize::from),
            driver: Driver::default(),
            qemu: QemuConfig::default(),
            firecracker: FirecrackerConfig::new(directory.join("monitors")),
            deadlines: Deadlines::default(),
        }
    }

    /// Refuses values with which no VM can run.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid("configure", what));
        if self.processors == 0 || self.processors > MAX_PROCESSORS {
            return bad("a VM needs from 1 to 64 processors");
        }
        if self.memory < MIN_MEMORY {
            return bad("a VM needs at least 32 MiB of memory for its guests");
        }
        if self.boots == 0 {
            return bad("the number of VMs that boot at once must be at least 1");
        }
        Ok(())
    }
}

/// Maximum number of processors of a VM.
pub(crate) const MAX_PROCESSORS: u32 = 64;
/// Minimum memory of a VM without a limit.
const MIN_MEMORY: ByteSize = ByteSize::from_mebibytes(32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_vm_config_is_refused() {
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
