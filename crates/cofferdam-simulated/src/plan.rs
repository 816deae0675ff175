//! The meaning of a spec for this backend, or its refusal. Creation and the comparison with a prepared sandbox use the
//! same function. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{
    Access, ByteSize, Cpus, DirectoryId, Error, Limits, NetworkPolicy, Protection, Result, RootFs, Spec, SpecParts,
    Workspace, unsupported_mount,
};

use crate::NAME;

/// The settings of a sandbox.
#[derive(Debug)]
pub(crate) struct SpecPlan<'a> {
    access: Access,
    directories: &'a BTreeMap<PathBuf, DirectoryId>,
    cpu_time: Option<Duration>,
    memory: Option<ByteSize>,
    disk: Option<ByteSize>,
    wall_time: Duration,
    pids: Option<u32>,
    processes: Option<u32>,
    cpus: Option<Cpus>,
}

impl<'a> SpecPlan<'a> {
    /// Plans a sandbox. Refuses a spec that is malformed or not supported by the simulation. Destructures the spec: a
    /// new field must be handled here.
    pub(crate) fn of(spec: &'a Spec) -> Result<Self> {
        spec.validate()?;
        let SpecParts {
            workspace,
            root,
            mounts,
            limits,
            network,
            tenant,
            labels,
            allow_weaker,
            attributes,
            directories,
        } = spec.parts();
        if let Some(mount) = mounts.first() {
            return Err(unsupported_mount(mount, "a simulated sandbox has no mounts"));
        }
        // Names, and permissions that are compared with the posture.
        let (_, _, _) = (tenant, labels, allow_weaker);
        let access = match workspace {
            Workspace::Private { access } => *access,
            Workspace::HostDir { .. } | Workspace::CopyOnWrite { .. } => {
                return Err(Error::unsupported("create", "a simulated sandbox cannot mount a host directory"));
            }
        };
        if *root != RootFs::Default {
            return Err(Error::unsupported("create", "a simulated sandbox has no root file system"));
        }
        if *network != NetworkPolicy::None {
            return Err(Error::unsupported("create", "a simulated sandbox has no network"));
        }
        if let Some(key) = attributes.keys().find(|key| key.split('.').next() == Some(NAME)) {
            return Err(Error::invalid("create", "the simulated backend has no options")
                .with_context("attribute", key.escape_debug().to_string()));
        }
        let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = *limits;
        Ok(Self { access, directories, cpu_time, memory, disk, wall_time, pids, processes, cpus })
    }

    /// Returns the maximum size of the workspace in bytes.
    pub(crate) fn disk_limit(&self) -> Option<u64> {
        self.disk.map(ByteSize::as_bytes)
    }

    /// Returns true if a sandbox that was prepared by this plan can be changed to match another one.
    pub(crate) fn can_become(&self, requested: &Self, fixed: impl Fn(Protection) -> bool) -> bool {
        let Self { access, directories, cpu_time, memory, disk, wall_time, pids, processes, cpus } = requested;
        let limits = [
            (Protection::Workspace, *access == self.access),
            (Protection::CpuTime, *cpu_time == self.cpu_time),
            (Protection::Memory, *memory == self.memory),
            (Protection::Disk, *disk == self.disk),
            (Protection::WallTime, *wall_time == self.wall_time),
            (Protection::Processes, *pids == self.pids && *processes == self.processes),
            (Protection::Cpus, *cpus == self.cpus),
        ];
        *directories == self.directories && limits.into_iter().all(|(protection, same)| same || !fixed(protection))
    }
}
