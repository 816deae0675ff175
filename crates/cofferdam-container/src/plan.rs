//! The plan of a container: the meaning of a spec for this backend, or its refusal. Creation and the comparison with a
//! prepared container use the same function. Pure. `create_request.rs` converts a plan to the request to the engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{
    ByteSize, Cpus, DirectoryId, Error, Limits, Mount, NetworkPolicy, Result, RootFs, Spec, SpecParts, TenantId,
    Workspace,
};
use cofferdam_egress::Plan as NetworkPlan;
use cofferdam_guest::network;

use crate::sizes::PAGE;
use crate::{NAME, mounts, overlay};

/// The minimum disk limit: space for the entries that every sandbox has in its directories.
const MIN_DISK: ByteSize = ByteSize::from_bytes(64 * PAGE);
/// The minimum memory limit. Engines refuse less, and no program could start.
const MIN_MEMORY: ByteSize = ByteSize::from_mebibytes(6);

/// The settings of a sandbox.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub built_in: BuiltIn<'a>,
    pub adjustable: Adjustable,
    /// `None` if the policy allows no network.
    pub network: Option<NetworkPlan>,
}

/// Settings that are fixed once a container exists.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BuiltIn<'a> {
    pub workspace: &'a Workspace,
    pub mounts: &'a [Mount],
    /// The policy decides which images are allowed.
    root: &'a RootFs,
    directories: &'a BTreeMap<PathBuf, DirectoryId>,
    pub tenant: &'a TenantId,
    pub labels: &'a BTreeMap<String, String>,
    pub disk: Option<ByteSize>,
    /// Enforced by the agent, or reported as missing by the posture.
    processes: Option<u32>,
    /// The agent listens on its ports, and the gateway serves them by its rules.
    policy: &'a NetworkPolicy,
}

/// Limits that the engine or the supervisor can change.
#[derive(Debug)]
pub(crate) struct Adjustable {
    pub memory: Option<ByteSize>,
    pub pids: Option<u32>,
    pub cpus: Option<Cpus>,
    /// Enforced by the supervisor or the agent.
    cpu_time: Option<Duration>,
}

/// The properties of a created container that can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changeable {
    /// True for limits that the engine enforces by control groups that are visible inside.
    pub bounds: bool,
    /// True if a control group counts CPU time, instead of the agent.
    pub cpu_time: bool,
}

impl<'a> Plan<'a> {
    /// Plans a container. Fails if this backend does not support a field of the spec. Destructures the spec, so that a
    /// new field causes a compile error here.
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
        mounts::check(mounts)?;
        // Permissions only: compared with the posture.
        let _ = allow_weaker;
        let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = *limits;
        // A timer of the supervisor.
        let _ = wall_time;
        check_root(root)?;
        if matches!(workspace, Workspace::CopyOnWrite { .. }) && !overlay::is_permitted() {
            return Err(overlay::refused("only root can mount it for a container"));
        }
        let policy = network;
        let network = network::plan(policy, NAME)?;
        check_sizes(memory, disk)?;
        let own = attributes.keys().find(|key| key.split('.').next() == Some(NAME));
        if let Some(key) = own {
            return Err(Error::invalid(
                "create",
                format!("the docker backend has no attribute '{}'", key.escape_debug()),
            )
            .with_remedy("remove it: this backend takes no attributes"));
        }
        Ok(Self {
            built_in: BuiltIn { workspace, mounts, root, directories, tenant, labels, disk, processes, policy },
            adjustable: Adjustable { memory, pids, cpus, cpu_time },
            network,
        })
    }

    /// Returns true if a container that was created by this plan can be changed to match another one.
    pub(crate) fn can_become(&self, requested: &Self, changeable: Changeable) -> bool {
        let Adjustable { memory, pids, cpus, cpu_time } = &requested.adjustable;
        let prepared = &self.adjustable;
        // An existing limit can be changed, but none can be added or removed.
        let bound = |same: bool, both: bool| same || (changeable.bounds && both);
        matches!(requested.built_in.workspace, Workspace::Private { .. })
            && self.built_in == requested.built_in
            && (cpu_time == &prepared.cpu_time || changeable.cpu_time)
            && bound(memory == &prepared.memory, memory.is_some() && prepared.memory.is_some())
            && bound(pids == &prepared.pids, pids.is_some() && prepared.pids.is_some())
            && bound(cpus == &prepared.cpus, cpus.is_some() && prepared.cpus.is_some())
    }
}

fn check_root(root: &RootFs) -> Result<()> {
    match root {
        RootFs::Default | RootFs::Image { .. } => Ok(()),
        RootFs::Directory { path } => {
            Err(Error::unsupported("create", "the docker backend cannot use a directory as root file system")
                .with_context("path", path.display().to_string())
                .with_remedy("import it with `cofferdam image import DIR NAME`, and use the image with --image"))
        }
    }
}

fn check_sizes(memory: Option<ByteSize>, disk: Option<ByteSize>) -> Result<()> {
    if memory.is_some_and(|memory| memory < MIN_MEMORY) {
        return Err(Error::invalid(
            "create",
            format!("the memory limit is below {MIN_MEMORY}, the minimum of container engines"),
        )
        .with_remedy("raise --memory, or use the process backend"));
    }
    if disk.is_some_and(|disk| disk < MIN_DISK) {
        return Err(Error::invalid(
            "create",
            format!("the disk limit is below {MIN_DISK}, the minimum of a container"),
        )
        .with_remedy("raise --disk, or use the process backend"));
    }
    Ok(())
}
