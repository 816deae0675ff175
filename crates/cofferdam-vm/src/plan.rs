//! The translation of a spec into the size of a VM: pure.
//!
//! The disk limit is divided: most of it is the workspace's own disk, the rest are `/tmp` and `/dev/shm`, which are in
//! memory and count as such. The memory limit is a control group's inside the VM; the VM has some more, for its kernel.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{
    ByteSize, Cpus, DirectoryId, Error, ErrorKind, Limits, Mount, NetworkPolicy, Result, RootFs, Spec, SpecParts,
    WORKSPACE_PATH, Workspace,
};
use cofferdam_egress as egress;
use cofferdam_guest::{Settings, network};
use cofferdam_image::boot::{self, CPU_PERIOD, DiskMount, MAX_MOUNTS, Options, Port, Room, Store};
use cofferdam_linux::seccomp;
use serde::{Deserialize, Serialize};

use crate::NAME;
use crate::config::{MAX_PROCESSORS, VmConfig};
use crate::mounts;

/// The agent's port.
pub(crate) const PORT: &str = "dev.cofferdam.agent";
/// User and group of agent and guests: IDs of a kernel that has no others.
pub(crate) const USER: (u32, u32) = (1000, 1000);

const PAGE: u64 = 4096;
const MEBIBYTE: u64 = 1 << 20;
/// Bytes that one block bitmap describes, and bytes of an inode.
const GROUP: u64 = 8 * PAGE * PAGE;
const INODE: u64 = 256;
/// Space for the directories that each sandbox has, including tables of the file system.
const MIN_DISK: ByteSize = ByteSize::from_mebibytes(2);
/// Memory of the agent and a small program.
const MIN_MEMORY: ByteSize = ByteSize::from_mebibytes(8);
/// Memory of the kernel itself, and the fraction that it needs to manage memory.
const KERNEL_MEMORY: u64 = 96 * MEBIBYTE;
const KERNEL_SHARE: u64 = 32;
/// The kernel's smallest quota.
const MIN_QUOTA: u64 = 1000;

/// The sizes of the writable directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shares {
    /// Size of the workspace's own disk; `None` if the workspace is in memory.
    pub disk: Option<u64>,
    /// Size of the workspace; in memory if there is no disk.
    pub workspace: u64,
    pub tmp: u64,
    pub shm: u64,
}

impl Shares {
    /// Divides the limits. With a disk limit, the workspace gets all of it; `/tmp` and `/dev/shm` are in memory, with
    /// limits of their own, and count as memory. Without a disk limit, all three are in memory.
    ///
    /// Directories in memory take at most three quarters of `memory`, which is that of agent and guests, so that a full
    /// directory fails with an error. There is no swap: a directory that took all memory would leave the kernel nothing
    /// to reclaim but the pages of programs. It would read these again and again, without killing a process.
    pub(crate) fn of(disk: Option<ByteSize>, memory: u64) -> Self {
        let pages = memory / PAGE;
        match disk {
            Some(disk) => {
                let all = disk.as_bytes() / PAGE;
                let (tmp, shm) = ((all / 4).min(pages / 2), (all / 16).min(pages / 4));
                let workspace = all * PAGE;
                Self { disk: Some(workspace + tables(workspace)), workspace, tmp: tmp * PAGE, shm: shm * PAGE }
            }
            None => {
                let (workspace, tmp, shm) = (pages * 3 / 8, pages / 4, pages / 8);
                Self { disk: None, workspace: workspace * PAGE, tmp: tmp * PAGE, shm: shm * PAGE }
            }
        }
    }
}

/// Returns the overhead of the workspace's file system on its disk: inode tables, and two bitmaps for each group of
/// blocks. Rounded down, so that no more fits than was requested.
fn tables(bytes: u64) -> u64 {
    let groups = bytes.div_ceil(GROUP);
    (max_files_on_disk(bytes) * INODE + groups * 2 * PAGE) / PAGE * PAGE
}

/// Returns the maximum number of files in memory: each takes some space, however small it is.
pub(crate) fn max_files(bytes: u64) -> u64 {
    (bytes / PAGE).clamp(64, 1 << 20)
}

/// Returns the maximum number of files on a disk, where each takes an inode.
pub(crate) fn max_files_on_disk(bytes: u64) -> u64 {
    (bytes / (4 * PAGE)).clamp(64, 1 << 20)
}

/// The meaning of a spec for this backend. Creation and the comparison with a prepared VM use it alike.
#[derive(Debug)]
pub(crate) struct SpecPlan<'a> {
    built_in: BuiltIn<'a>,
    /// Enforced by the supervisor.
    cpu_time: Option<Duration>,
    /// `None` if the policy allows no network.
    pub network: Option<egress::Plan>,
}

/// Settings that are fixed once a VM runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BuiltIn<'a> {
    workspace: &'a Workspace,
    mounts: &'a [Mount],
    /// An image is looked up by its name when the VM is created.
    root: &'a RootFs,
    /// Compared when a directory is opened.
    directories: &'a BTreeMap<PathBuf, DirectoryId>,
    memory: Option<ByteSize>,
    disk: Option<ByteSize>,
    pids: Option<u32>,
    cpus: Option<Cpus>,
    /// The agent listens on its ports, and the gateway serves them by its rules.
    policy: &'a NetworkPolicy,
}

impl<'a> SpecPlan<'a> {
    /// Plans a sandbox, or refuses a spec that this backend cannot satisfy. Destructures the spec: a new field must be
    /// handled here.
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
        // VMs share nothing between tenants; labels belong to the client; the posture is checked against
        // `allow_weaker`.
        let (_, _, _) = (tenant, labels, allow_weaker);
        let policy = network;
        let network = network::plan(policy, NAME)?;
        match root {
            RootFs::Default | RootFs::Directory { .. } | RootFs::Image { .. } => {}
        }
        match workspace {
            Workspace::Private { .. } => {}
            Workspace::CopyOnWrite { .. } => {
                return Err(Error::unsupported("create", "the vm backend has no copy-on-write workspaces")
                    .with_remedy("use a private workspace, or level process"));
            }
            Workspace::HostDir { path, .. } => {
                return Err(Error::unsupported("create", "the vm backend does not mount host directories")
                    .with_context("path", path.display().to_string())
                    .with_remedy("use a private workspace, and copy files in and out"));
            }
        }
        let own = attributes.keys().find(|key| key.split('.').next() == Some(NAME));
        if let Some(key) = own {
            return Err(Error::invalid("create", format!("the vm backend has no attribute '{}'", key.escape_debug()))
                .with_remedy("remove it: this backend takes no attributes"));
        }
        let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = *limits;
        // Enforced by the supervisor, or refused.
        let (_, _) = (wall_time, processes);
        limits.refuse_processes(NAME)?;
        check_sizes(memory, disk)?;
        let built_in = BuiltIn { workspace, mounts, root, directories, memory, disk, pids, cpus, policy };
        Ok(Self { built_in, cpu_time, network })
    }

    /// Returns true if a VM that was prepared by this plan can become a sandbox of another one.
    pub(crate) fn can_become(&self, requested: &Self, counts_cpu: bool) -> bool {
        self.built_in == requested.built_in && (self.cpu_time == requested.cpu_time || counts_cpu)
    }
}

fn check_sizes(memory: Option<ByteSize>, disk: Option<ByteSize>) -> Result<()> {
    let small = |what: String, remedy: &str| Err(Error::invalid("create", what).with_remedy(remedy.to_owned()));
    if memory.is_some_and(|memory| memory < MIN_MEMORY) {
        return small(format!("a VM needs a memory limit of at least {MIN_MEMORY}"), "raise --memory");
    }
    if disk.is_some_and(|disk| disk < MIN_DISK) {
        return small(format!("a VM needs a disk limit of at least {MIN_DISK}"), "raise --disk");
    }
    Ok(())
}

/// The size of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub memory: ByteSize,
    pub processors: u32,
    pub shares: Shares,
    /// Memory limit of agent and guests.
    bound: Option<u64>,
    tasks: Option<u64>,
    quota: Option<u64>,
}

impl Plan {
    /// Plans a VM for a spec, or refuses a spec that this backend cannot satisfy.
    pub(crate) fn of(spec: &Spec, config: &VmConfig) -> Result<Self> {
        let BuiltIn { memory, disk, pids, cpus, .. } = SpecPlan::of(spec)?.built_in;
        let guests = memory.unwrap_or(config.memory).as_bytes();
        let max = u64::MAX / 4;
        if guests > max {
            return Err(Error::invalid("create", "the memory limit is too large").with_remedy("lower --memory"));
        }
        Ok(Self {
            memory: ByteSize::from_bytes((guests + guests / KERNEL_SHARE + KERNEL_MEMORY).next_multiple_of(MEBIBYTE)),
            processors: cpus.map_or(config.processors, processors),
            shares: Shares::of(disk, guests),
            bound: memory.map(|memory| memory.as_bytes()),
            // Includes the agent.
            tasks: pids.map(|pids| u64::from(pids) + 1),
            quota: cpus.map(|cpus| (u64::from(cpus.as_millis()) * CPU_PERIOD / 1000).max(MIN_QUOTA)),
        })
    }

    /// Returns the first property that differs between two plans, with both values as text.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let parts = |plan: &Self| {
            let Self { memory, processors, shares, bound, tasks, quota } = *plan;
            let number = |value: Option<u64>| value.map_or("none".to_owned(), |value| value.to_string());
            [
                ("a memory limit of", number(bound)),
                ("memory of", memory.to_string()),
                ("processors:", processors.to_string()),
                ("a processor quota of", number(quota)),
                ("a process limit of", number(tasks)),
                ("a workspace of", format!("{} bytes", shares.workspace)),
                ("directories of", format!("{shares:?}")),
            ]
        };
        let both = parts(self).into_iter().zip(parts(other));
        both.into_iter().find_map(|((what, ours), (_, theirs))| (ours != theirs).then_some((what, ours, theirs)))
    }

    /// Returns the boot options for the VM's init, with the VMM's names for disks and port. `mounts` are mounts with
    /// the names of their disks.
    pub(crate) fn options(
        &self,
        port: &str,
        root: &str,
        workspace: Option<&str>,
        mounts: &[(&Mount, &str)],
    ) -> Result<String> {
        let shares = &self.shares;
        let room = |bytes| Room { bytes, files: max_files(bytes) };
        let in_memory = Store::Memory(room(shares.workspace));
        let mut disks = [None; MAX_MOUNTS];
        for (slot, (mount, name)) in disks.iter_mut().zip(mounts) {
            let (target, read_only) = (mount.target.as_str().as_bytes(), mount.source.is_read_only());
            *slot = Some(DiskMount { target, read_only, disk: disk(name)? });
        }
        let options = Options {
            root: disk(root)?,
            workspace: workspace.map(disk).transpose()?.map_or(in_memory, Store::Disk),
            mounts: disks,
            tmp: room(shares.tmp),
            shm: room(shares.shm),
            user: USER,
            port: Port::parse(port.as_bytes())
                .ok_or_else(|| invalid_option("a port has no valid name for the init"))?,
            memory: self.bound,
            tasks: self.tasks,
            cpu: self.quota,
        };
        let text = options.to_string();
        // The init parses it with the same code: options that it would refuse are not sent.
        match Options::parse(text.as_bytes()) {
            Ok(parsed) if parsed == options => Ok(text),
            _ => Err(invalid_option("cannot encode the boot options for the VM's init")),
        }
    }

    /// Returns the settings of the connection to the guest.
    pub(crate) fn settings(spec: &Spec, config: &VmConfig) -> Settings {
        Settings {
            stores: [WORKSPACE_PATH, "/tmp", "/dev/shm"].map(str::to_owned).into(),
            rules: mounts::rules(spec),
            limits: spec.limits().clone(),
            // No host process uses the files of this kernel.
            filter: Some(seccomp::Options { watch_reads: true, ..seccomp::Options::default() }),
            answer_timeout: config.deadlines.answer.max(config.deadlines.boot),
            ..Settings::default()
        }
    }
}

fn disk(word: &str) -> Result<boot::Disk<'_>> {
    boot::Disk::parse(word.as_bytes()).ok_or_else(|| invalid_option("a disk has no valid name for the kernel"))
}

fn invalid_option(what: &str) -> Error {
    Error::new(ErrorKind::Internal, "create", what)
}

/// Returns the number of whole processors for a share.
fn processors(cpus: Cpus) -> u32 {
    cpus.as_millis().div_ceil(1000).clamp(1, MAX_PROCESSORS)
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::Access;
    use proptest::prelude::*;

    use super::*;

    fn config() -> VmConfig {
        VmConfig::new("/x")
    }

    fn with(change: impl FnOnce(&mut Limits)) -> Result<Plan> {
        let mut limits = Limits::default();
        change(&mut limits);
        Plan::of(&Spec::builder().limits(limits).build()?, &config())
    }

    #[test]
    fn vm_has_more_memory_than_its_guests() {
        let plan = with(|limits| limits.memory = Some(ByteSize::from_mebibytes(64))).unwrap();
        assert_eq!((plan.bound, plan.memory), (Some(64 * MEBIBYTE), ByteSize::from_mebibytes(162)));
        let plan = with(|limits| limits.memory = None).unwrap();
        assert_eq!((plan.bound, plan.memory), (None, ByteSize::from_mebibytes(624)));
    }

    #[test]
    fn boot_options_match_the_spec() {
        let plan = with(|limits| {
            limits.cpus = Some("1.5".parse().unwrap());
            limits.pids = Some(9);
            limits.memory = Some(ByteSize::from_mebibytes(100));
            limits.disk = Some(ByteSize::from_mebibytes(16));
        });
        let plan = plan.unwrap();
        assert_eq!(plan.processors, 2);
        let text = plan.options(PORT, "serial:root", Some("serial:work"), &[]).unwrap();
        let options = Options::parse(text.as_bytes()).expect("valid options");
        assert_eq!((options.tasks, options.cpu, options.memory), (Some(10), Some(150_000), Some(100 * MEBIBYTE)));
        assert!(matches!(options.workspace, Store::Disk(_)) && options.user == USER);
        assert_eq!(plan.shares.workspace, 16 * MEBIBYTE);
        assert_eq!(plan.shares.disk.unwrap(), 16 * MEBIBYTE + 1024 * 256 + 2 * 4096);
        let unlimited = with(|limits| limits.disk = None).unwrap();
        assert!(unlimited.shares.disk.is_none());
        assert!(
            plan.options(PORT, "serial:Root", None, &[]).is_err() && plan.options("vsock:0", "vda", None, &[]).is_err()
        );
        assert!(plan.options("vsock:1024", "vda", Some("vdb"), &[]).unwrap().contains("cofferdam.port=vsock:1024"));
    }

    #[test]
    fn features_that_vms_lack_are_refused() {
        let spec = |change: fn(cofferdam_contract::SpecBuilder) -> cofferdam_contract::SpecBuilder| {
            change(Spec::builder()).build().unwrap()
        };
        let mounted = || Workspace::HostDir { path: "/x".into(), access: Access::ReadOnly };
        for (spec, kind) in [
            (spec(|spec| spec.network(NetworkPolicy::Allow { hosts: vec!["a".to_owned()] })), ErrorKind::Unsupported),
            (Spec::builder().workspace(mounted()).build().unwrap(), ErrorKind::Unsupported),
            (spec(|spec| spec.attribute("vm.x", true)), ErrorKind::InvalidInput),
        ] {
            let error = Plan::of(&spec, &config()).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.remedy().is_some(), "{error}");
        }
        assert!(with(|limits| limits.memory = Some(ByteSize::from_mebibytes(1))).is_err());
        assert!(with(|limits| limits.disk = Some(ByteSize::from_bytes(4096))).is_err());
        assert!(with(|limits| limits.memory = Some(ByteSize::from_bytes(u64::MAX))).is_err());
    }

    /// Promise (Network): A warm VM is compatible with its own network policy only.
    #[cfg(feature = "net")]
    #[test]
    fn a_policy_is_fixed_and_names_hosts_with_ports() {
        let of = |host: &str| {
            Spec::builder().network(NetworkPolicy::Allow { hosts: vec![host.to_owned()] }).build().unwrap()
        };
        let (spec, same, other, none) =
            (of("a.example:443"), of("a.example:443"), of("b.example:443"), Spec::default());
        let plan = |spec| SpecPlan::of(spec).unwrap();
        assert_eq!(plan(&spec).network.unwrap().ports, [443]);
        assert!(plan(&spec).can_become(&plan(&same), true) && plan(&none).network.is_none());
        assert!(!plan(&spec).can_become(&plan(&other), true) && !plan(&spec).can_become(&plan(&none), true));
        for host in ["localhost:80", "10.0.0.7:5432", "a.example"] {
            assert_eq!(SpecPlan::of(&of(host)).unwrap_err().kind(), ErrorKind::Unsupported, "{host}");
        }
    }

    proptest! {
        #[test]
        fn tmpfs_shares_leave_some_memory(memory in MIN_MEMORY.as_bytes()..1 << 40, disk in 1_u64 << 21..1 << 42) {
            let shares = Shares::of(Some(ByteSize::from_bytes(disk)), memory);
            prop_assert!(shares.tmp + shares.shm <= memory / 4 * 3);
            prop_assert!(shares.tmp >= PAGE && shares.shm >= PAGE);
            let shares = Shares::of(None, memory);
            prop_assert!(shares.workspace + shares.tmp + shares.shm <= memory / 4 * 3);
        }

        #[test]
        fn the_workspace_holds_the_limit_and_the_rest_is_bounded(bytes in MIN_DISK.as_bytes()..1 << 42) {
            let shares = Shares::of(Some(ByteSize::from_bytes(bytes)), 1 << 42);
            prop_assert_eq!(shares.workspace, bytes / PAGE * PAGE);
            prop_assert!(shares.tmp + shares.shm <= bytes / 2 && shares.tmp + shares.shm <= (1 << 42) / 4 * 3);
        }
    }
}
