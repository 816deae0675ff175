//! The meaning of a spec for this backend, or its refusal. Creation and the comparison with a prepared sandbox use the
//! same function. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{
    ByteSize, Cpus, DirectoryId, Error, Limits, Mount, MountSource, NetworkPolicy, Result, RootFs, Spec, SpecParts,
    Workspace,
};

use crate::{NAME, network};

/// The settings of a sandbox.
#[derive(Debug)]
pub struct SpecPlan<'a> {
    pub built_in: BuiltIn<'a>,
    pub adjustable: Adjustable,
}

/// Settings that are fixed once a sandbox exists.
#[derive(Debug, PartialEq, Eq)]
pub struct BuiltIn<'a> {
    pub workspace: &'a Workspace,
    pub root: &'a RootFs,
    pub mounts: &'a [Mount],
    pub network: &'a NetworkPolicy,
    directories: &'a BTreeMap<PathBuf, DirectoryId>,
    /// The filter that reports each new process is part of the sandbox or not.
    pub processes: Option<u32>,
    pub cpus: Option<Cpus>,
}

/// Limits that can change while no program runs.
#[derive(Debug)]
pub struct Adjustable {
    pub memory: Option<ByteSize>,
    pub pids: Option<u32>,
    pub disk: Option<ByteSize>,
    pub cpu_time: Option<Duration>,
}

impl<'a> SpecPlan<'a> {
    /// Plans a sandbox. Refuses settings that this backend does not support. Names each field of the spec: a new one
    /// must be decided on here.
    pub fn of(spec: &'a Spec) -> Result<Self> {
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
        // Names for the caller, and permissions that are compared with the posture.
        let (_, _, _) = (tenant, labels, allow_weaker);
        let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = *limits;
        // A timer of the owner.
        let _ = wall_time;
        if *network != NetworkPolicy::None && matches!(root, RootFs::Directory { .. }) {
            return Err(Error::unsupported("create", "a process sandbox with a root of its own has no network")
                .with_remedy("use --net none, or the default root"));
        }
        network::plan(network)?;
        if let Some(disk) = mounts.iter().find(|mount| matches!(mount.source, MountSource::Disk { .. })) {
            crate::mounts::check_disks(disk)?;
        }
        let own = attributes.keys().find(|key| key.split('.').next() == Some(NAME));
        if let Some(key) = own {
            return Err(Error::invalid(
                "create",
                format!("the process backend has no attribute '{}'", key.escape_debug()),
            )
            .with_remedy("remove it: this backend takes no attributes"));
        }
        Ok(Self {
            built_in: BuiltIn { workspace, root, mounts, network, directories, processes, cpus },
            adjustable: Adjustable { memory, pids, disk, cpu_time },
        })
    }

    /// Returns true if a sandbox that was prepared by this plan can be adapted to another one.
    pub fn can_become(&self, requested: &Self, has_groups: bool) -> bool {
        let Adjustable { memory, pids, disk, cpu_time } = &requested.adjustable;
        let prepared = &self.adjustable;
        // An existing limit can be lowered. The maximum file size was set for the template, and cannot be raised.
        let is_disk_compatible = match (prepared.disk, disk) {
            (Some(prepared), Some(requested)) => *requested <= prepared,
            (prepared, requested) => prepared == *requested,
        };
        // A process inherits its limit from the template: it must not take effect before the requested limit.
        let is_cpu_time_compatible = match (prepared.cpu_time, cpu_time) {
            (None, None) => true,
            (None, Some(_)) => has_groups,
            (Some(prepared), Some(requested)) => prepared == *requested || has_groups && prepared > *requested,
            (Some(_), None) => false,
        };
        let are_groups_compatible = has_groups || (*memory == prepared.memory && *pids == prepared.pids);
        matches!(requested.built_in.workspace, Workspace::Private { .. })
            && self.built_in == requested.built_in
            && is_disk_compatible
            && is_cpu_time_compatible
            && are_groups_compatible
    }
}
