//! Conversion of the measurements inside a container to a posture. Pure.

use cofferdam_contract::{
    Access, ByteSize, Limits, MountAccess, MountSource, NetworkPolicy, Posture, PostureItem, Protection,
    ProtectionState, Spec, WORKSPACE_PATH, Workspace,
};
use cofferdam_guest::{Evidence, Mount};
use cofferdam_linux::cgroup::socket_share;

use crate::create_request::quota;
use crate::engine::Facts;
use crate::sizes::DirectorySizes;

/// The limits around a sandbox that the engine reports, for a sandbox without control groups inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EngineLimits {
    pub memory: Option<u64>,
    pub tasks: Option<u64>,
    pub cpu_quota: Option<i64>,
    /// The limit of TCP and UDP buffers in bytes, if it was set from outside.
    pub sockets: Option<u64>,
}

/// The input for a posture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured<'a> {
    pub spec: &'a Spec,
    pub facts: &'a Facts,
    pub evidence: &'a Evidence,
    /// The namespaces of this process by name; empty if the engine is on another host.
    pub own_namespaces: &'a [(&'static str, u64)],
    /// The expected user and group of the sandbox.
    pub user: (u32, u32),
    pub engine_limits: EngineLimits,
    /// True if the agent enforces quotas.
    pub quotas: bool,
}

/// Returns the posture of the measurements.
pub(crate) fn posture(measured: &Measured<'_>) -> Posture {
    Posture::new(namespaces(measured).into_iter().chain(isolation(measured)).chain(limits(measured)))
}

fn row(protection: Protection, holds: bool, mechanism: impl Into<String>) -> PostureItem {
    let state = if holds { ProtectionState::Enforced } else { ProtectionState::Absent };
    PostureItem { protection, state, mechanism: mechanism.into(), probed: true, remedy: None }
}

fn with_remedy(mut item: PostureItem, remedy: impl Into<String>) -> PostureItem {
    if matches!(item.state, ProtectionState::Absent | ProtectionState::WeakerThanRequired) {
        item.remedy = Some(remedy.into());
    }
    item
}

fn not_probed(mut item: PostureItem) -> PostureItem {
    item.probed = false;
    item
}

fn not_requested(protection: Protection, mechanism: impl Into<String>) -> PostureItem {
    PostureItem {
        protection,
        state: ProtectionState::NotAsked,
        mechanism: mechanism.into(),
        probed: false,
        remedy: None,
    }
}

impl Measured<'_> {
    /// Returns the release of the sandbox's kernel, if it is not the engine's kernel.
    fn own_kernel(&self) -> Option<&str> {
        let inside = self.evidence.kernel.as_str();
        (!inside.is_empty() && !self.facts.kernel.is_empty() && inside != self.facts.kernel).then_some(inside)
    }
}

/// The names of the namespaces that every sandbox has.
pub(crate) const NAMESPACES: [(&str, Protection); 6] = [
    ("mnt", Protection::MountNamespace),
    ("pid", Protection::PidNamespace),
    ("net", Protection::NetNamespace),
    ("ipc", Protection::IpcNamespace),
    ("uts", Protection::UtsNamespace),
    ("cgroup", Protection::CgroupNamespace),
];

fn namespaces(measured: &Measured<'_>) -> Vec<PostureItem> {
    let kernel = measured.own_kernel();
    let rows = NAMESPACES.into_iter().map(|(name, protection)| {
        let first = protection != Protection::PidNamespace || measured.evidence.pid == 1;
        if let Some(kernel) = kernel {
            return row(protection, first, format!("a kernel of its own (Linux {kernel}), not the host's"));
        }
        if protection == Protection::CgroupNamespace && !measured.facts.has_cgroup_namespaces() {
            return not_requested(
                protection,
                "this engine has no cgroup namespaces; only the sandbox's own control groups are visible, read-only",
            );
        }
        let inside = measured.evidence.namespaces.get(name).copied().unwrap_or(0);
        let host = measured.own_namespaces.iter().find(|(known, _)| *known == name).map(|(_, inode)| *inode);
        let own = inside != 0 && Some(inside) != host && first;
        row(protection, own, format!("own {name} namespace {inside}"))
    });
    rows.chain([user_namespace(measured)]).collect()
}

fn user_namespace(measured: &Measured<'_>) -> PostureItem {
    let name = Protection::UserNamespace;
    if let Some(kernel) = measured.own_kernel() {
        return row(name, true, format!("ids inside exist only in a kernel of its own (Linux {kernel})"));
    }
    match measured.evidence.uid_map.as_slice() {
        [] => row(name, false, "the user mapping could not be read"),
        map if map.iter().all(|[inside, outside, _]| inside == outside) => {
            let (uid, _) = measured.user;
            not_requested(
                name,
                format!("the engine does not remap users: user {uid} inside is user {uid} of the host, and not root"),
            )
        }
        map => {
            let parts: Vec<String> = map
                .iter()
                .map(|[inside, outside, count]| format!("{count} ids from {inside} are {outside} outside"))
                .collect();
            row(name, true, format!("own user namespace: {}", parts.join(", ")))
        }
    }
}

fn isolation(measured: &Measured<'_>) -> Vec<PostureItem> {
    let evidence = measured.evidence;
    let mut sets = evidence.capabilities.map(|set| set.unwrap_or(u64::MAX));
    // Without a report of the kernel, ambient capabilities are a subset of the permitted and inheritable ones.
    sets[4] = evidence.capabilities[4].unwrap_or(sets[1] & sets[2]);
    let capabilities = row(
        Protection::Capabilities,
        sets == [0; 5],
        format!(
            "effective {:x}, permitted {:x}, inheritable {:x}, bounding {:x}, ambient {:x}",
            sets[0], sets[1], sets[2], sets[3], sets[4]
        ),
    );
    let interfaces = evidence.interfaces.as_ref();
    let policy = match measured.spec.network() {
        NetworkPolicy::None => String::new(),
        policy => {
            let hosts = policy.hosts().len();
            format!(
                "; its only way out is a gateway that allows {hosts} hosts of the policy, reached through the agent"
            )
        }
    };
    let network = row(
        Protection::Network,
        interfaces.is_some_and(Vec::is_empty),
        match interfaces {
            Some(names) if names.is_empty() => format!("loopback only{policy}"),
            Some(names) => format!("interfaces: {}", names.join(", ")),
            None => "the interfaces could not be read".to_owned(),
        },
    );
    vec![
        root_filesystem(measured),
        workspace(measured),
        seccomp(measured),
        landlock(measured),
        capabilities,
        row(Protection::NoNewPrivileges, evidence.no_new_privileges, "no_new_privs is set"),
        user(measured),
        network,
    ]
}

fn root_filesystem(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let read_only = evidence.mount_of("/").is_some_and(|mount| mount.read_only);
    let worked = evidence.writes.iter().filter(|trial| trial.worked).map(|trial| trial.path.as_str());
    // Podman leaves this directory writable for all users. The agent's trial is not subject to the Landlock rules, but
    // guests are.
    let written: Vec<&str> =
        worked.filter(|path| !(evidence.landlock && path.starts_with("/sys/fs/cgroup/"))).collect();
    let shown: Vec<&str> =
        evidence.masked.iter().filter(|trial| trial.worked).map(|trial| trial.path.as_str()).collect();
    let sockets: Vec<&str> = evidence.sockets.iter().map(String::as_str).collect();
    // A kernel of its own does not show information about the host.
    let shown = if measured.own_kernel().is_some() { Vec::new() } else { shown };
    let breaches: Vec<String> = [("writable", &written), ("not masked", &shown), ("sockets of the host", &sockets)]
        .into_iter()
        .filter(|(_, found)| !found.is_empty())
        .map(|(what, found)| format!("{what}: {}", found.join(", ")))
        .collect();
    let holds = read_only && breaches.is_empty() && !evidence.writes.is_empty();
    let mechanism = match (holds, breaches.is_empty()) {
        (true, _) => "the image, read-only; writes refused; the host's parts of /proc and /sys masked".to_owned(),
        (false, false) => breaches.join("; "),
        (false, true) => "the root is not mounted read-only".to_owned(),
    };
    row(Protection::RootFilesystem, holds, mechanism)
}

fn workspace(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let mount = evidence.mount_of(WORKSPACE_PATH).filter(|mount| mount.path == WORKSPACE_PATH);
    let read_only = mount.is_some_and(|mount| mount.read_only);
    let refused = evidence.workspace_writable == Some(false);
    if refused && !read_only && measured.spec.workspace().access() == Access::ReadWrite {
        return with_remedy(
            row(
                Protection::Workspace,
                false,
                "guests cannot write to it, although the spec asks for a writable workspace",
            ),
            "use another OCI runtime (--backend docker:NAME), or check the owner of the directory",
        );
    }
    let (holds, mechanism) = match measured.spec.workspace() {
        Workspace::CopyOnWrite { .. } => (
            mount.is_some_and(|mount| mount.kind == "overlay" && !mount.read_only),
            "host directory below a private layer (overlayfs), never written",
        ),
        Workspace::HostDir { access: Access::ReadOnly, .. } => (read_only, "host directory, mounted read-only"),
        Workspace::HostDir { access: Access::ReadWrite, .. } => {
            (mount.is_some() && !read_only, "host directory, read-write, without mounts below")
        }
        Workspace::Private { access: Access::ReadWrite } => {
            (mount.is_some() && !read_only, "private tmpfs, read-write")
        }
        Workspace::Private { access: Access::ReadOnly } => (
            mount.is_some() && evidence.workspace_writable == Some(false),
            "private tmpfs, read-only for guests by Landlock, filled by the file API",
        ),
    };
    let (held, requested) = (held_mounts(measured), measured.spec.mounts().len());
    let others = if requested == 0 {
        String::new()
    } else {
        format!("; {held} of {requested} mounts have the requested access")
    };
    let item = row(Protection::Workspace, holds && held == requested, format!("{mechanism}{others}"));
    with_remedy(
        item,
        "a private read-only workspace needs Landlock: use another runtime or kernel, or mount a host directory read-only",
    )
}

/// Returns the number of mounts that are there with the requested access.
fn held_mounts(measured: &Measured<'_>) -> usize {
    let holds = |mount: &&cofferdam_contract::Mount| {
        let path = mount.target.as_str();
        let found = measured.evidence.mount_of(path).filter(|found| found.path == path);
        found.is_some_and(|found| found.read_only == mount.source.is_read_only())
    };
    measured.spec.mounts().iter().filter(holds).count()
}

fn seccomp(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let through: Vec<&str> =
        evidence.calls.iter().filter(|call| call.was_let_through()).map(|call| call.name).collect();
    let holds = evidence.seccomp_filtered && through.is_empty() && !evidence.calls.is_empty();
    let mechanism = match (through.is_empty(), evidence.seccomp_filters) {
        (false, _) => format!("forbidden calls let through: {}", through.join(", ")),
        (true, Some(count)) if count > 1 => {
            format!(
                "our allowlist filter on top of the engine's; {} forbidden calls tried, all refused",
                evidence.calls.len()
            )
        }
        (true, _) => format!("our allowlist filter; {} forbidden calls tried, all refused", evidence.calls.len()),
    };
    row(Protection::Seccomp, holds, mechanism)
}

fn landlock(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let abi = evidence.landlock_abi;
    if let (0, Some(kernel)) = (abi, measured.own_kernel()) {
        return not_requested(Protection::Landlock, format!("the sandbox's own kernel (Linux {kernel}) has none"));
    }
    let mechanism = match (abi, evidence.landlock) {
        (0, _) => "the kernel has no Landlock, or it is disabled".to_owned(),
        (_, true) => format!("ABI {abi}, on top of the mounts; refused what no rule allows"),
        (_, false) => format!("ABI {abi}, but an access without a rule succeeded"),
    };
    let item = row(Protection::Landlock, evidence.landlock, mechanism);
    with_remedy(item, "boot a kernel of 5.13 or newer with `landlock` in its lsm= list")
}

fn user(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let (uid, gid) = measured.user;
    let only = |found: &[u32], requested: u32| !found.is_empty() && found.iter().all(|id| *id == requested && *id != 0);
    let groups = evidence.groups.as_ref().is_some_and(|groups| groups.iter().all(|group| *group == gid));
    let holds = only(&evidence.uids, uid) && only(&evidence.gids, gid) && groups;
    let further = evidence.groups.as_ref().map_or("unknown".to_owned(), |groups| format!("{groups:?}"));
    row(
        Protection::User,
        holds,
        format!(
            "users {:?}, groups {:?}, supplementary groups {further}; expected {uid}:{gid}",
            evidence.uids, evidence.gids
        ),
    )
}

fn limits(measured: &Measured<'_>) -> Vec<PostureItem> {
    let limits = measured.spec.limits();
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = limits;
    let unlimited = |protection| not_requested(protection, "no limit asked for");
    let timer = format!("timer of the supervisor, {} s, then SIGKILL to the tree", wall_time.as_secs_f64());
    vec![
        memory.map_or_else(|| unlimited(Protection::Memory), |requested| self::memory(measured, requested)),
        cpu_time.map_or_else(
            || unlimited(Protection::CpuTime),
            |requested| cpu_time_row(measured, requested.as_secs_f64()),
        ),
        cpus.map_or_else(
            || unlimited(Protection::Cpus),
            |requested| {
                let millis = u64::from(requested.as_millis());
                let bounds = &measured.evidence.bounds;
                if bounds.version > 0 {
                    let found = bounds.cpu_millis;
                    let shown = found.map_or("none".to_owned(), |found| format!("{found} thousandths"));
                    let holds = found.is_some_and(|found| found <= millis.max(10));
                    return row(Protection::Cpus, holds, format!("cgroup v{} CPU quota of {shown}", bounds.version));
                }
                let holds =
                    measured.engine_limits.cpu_quota.is_some_and(|found| found > 0 && found <= quota(requested));
                not_probed(row(
                    Protection::Cpus,
                    holds,
                    format!("the engine's CPU quota of {requested} processors around the sandbox"),
                ))
            },
        ),
        with_processes(
            pids.map_or_else(
                || unlimited(Protection::Processes),
                |requested| self::processes(measured, u64::from(requested)),
            ),
            *processes,
            measured.quotas,
        ),
        disk.map_or_else(|| unlimited(Protection::Disk), |requested| self::disk(measured, requested)),
        not_probed(row(Protection::WallTime, true, timer)),
    ]
}

/// Returns true if a limit is at most the requested one, and close to it. The kernel rounds down to whole pages.
fn close_to(value: Option<u64>, requested: u64) -> bool {
    value.is_some_and(|value| value <= requested && requested - value < 65_536)
}

fn memory(measured: &Measured<'_>, requested: ByteSize) -> PostureItem {
    let (bytes, bounds) = (requested.as_bytes(), &measured.evidence.bounds);
    if bounds.version > 0 {
        let swap = match bounds.swap {
            Some(0) => "no swap".to_owned(),
            Some(bytes) => format!("and {bytes} bytes of swap"),
            None => "swap not counted by this kernel".to_owned(),
        };
        let holds = close_to(bounds.memory, bytes) && bounds.swap.is_none_or(|swap| swap == 0);
        let found = bounds.memory.unwrap_or(0);
        let mechanism = format!(
            "cgroup v{} memory limit {found} bytes, {swap}; the agent enforces quotas of file locks, netlink and \
             listening sockets",
            bounds.version
        );
        let item = row(Protection::Memory, holds && measured.quotas, mechanism);
        return if bounds.version == 1 { with_sockets(item, measured.engine_limits.sockets, bytes) } else { item };
    }
    let holds = close_to(measured.engine_limits.memory, bytes);
    let around = "the engine's limit around the sandbox, and the agent sums up all processes and kills";
    let item = not_probed(row(Protection::Memory, holds, format!("{bytes} bytes: {around}")));
    with_remedy(item, "the engine does not enforce this limit: give it control groups that it can use")
}

/// Adds the limit of TCP and UDP buffers to the row of memory. Cgroup v1 counts them separately, and only with their
/// own limit.
fn with_sockets(mut item: PostureItem, sockets: Option<u64>, bytes: u64) -> PostureItem {
    match sockets.filter(|sockets| *sockets <= socket_share(bytes)) {
        Some(sockets) => item.mechanism.push_str(&format!("; TCP and UDP buffers {sockets} bytes besides")),
        None if item.state == ProtectionState::Enforced => {
            item.state = ProtectionState::WeakerThanRequired;
            item.mechanism
                .push_str("; TCP and UDP buffers are not limited: only root can write to the engine's control groups");
            item.remedy = Some("run as root on the engine's machine, or use control groups v2".to_owned());
        }
        None => {}
    }
    item
}

fn cpu_time_row(measured: &Measured<'_>, seconds: f64) -> PostureItem {
    let evidence = measured.evidence;
    let mechanism = if evidence.counts_cpu {
        format!("cgroup v{} counts CPU time, the supervisor kills at {seconds} s", evidence.bounds.version)
    } else {
        format!("the agent sums up all processes and kills at {seconds} s")
    };
    row(Protection::CpuTime, true, mechanism)
}

/// Adds the limit on processes, which the agent enforces, to the row of the limit on tasks.
fn with_processes(mut item: PostureItem, requested: Option<u32>, quotas: bool) -> PostureItem {
    let Some(requested) = requested else { return item };
    if !quotas {
        item.state = ProtectionState::WeakerThanRequired;
        item.mechanism.push_str("; processes are not counted separately from threads");
        item.remedy =
            Some("use a runtime that shares the engine's kernel, such as runc, or ask for --pids alone".to_owned());
        return item;
    }
    let counted = format!("at most {requested} processes, which the agent counts before a guest creates another one");
    if item.state == ProtectionState::NotAsked {
        return row(Protection::Processes, true, counted);
    }
    item.mechanism = format!("{}; {counted}", item.mechanism);
    item
}

fn processes(measured: &Measured<'_>, requested: u64) -> PostureItem {
    let bounds = &measured.evidence.bounds;
    if bounds.version > 0 {
        let holds = bounds.tasks.is_some_and(|tasks| tasks <= requested + 1);
        let found = bounds.tasks.map_or("none".to_owned(), |tasks| tasks.to_string());
        let item = row(
            Protection::Processes,
            holds,
            format!("cgroup v{} pids.max {found} (the agent is one of them)", bounds.version),
        );
        return with_remedy(item, "the engine does not enforce this limit: enable the pids controller");
    }
    let found = measured.engine_limits.tasks.map_or("none".to_owned(), |tasks| tasks.to_string());
    PostureItem {
        protection: Protection::Processes,
        state: ProtectionState::WeakerThanRequired,
        mechanism: format!(
            "the engine limits the threads around the sandbox's kernel ({found}), not the processes inside"
        ),
        probed: false,
        remedy: Some(
            "use no limit (--pids none), or a runtime whose control groups are visible inside, such as runc".to_owned(),
        ),
    }
}

fn disk(measured: &Measured<'_>, requested: ByteSize) -> PostureItem {
    let workspace = measured.spec.workspace();
    let sizes = DirectorySizes::of(Some(requested), workspace);
    let writable = [(WORKSPACE_PATH, sizes.workspace), ("/tmp", sizes.tmp), ("/dev/shm", sizes.shm)];
    let mounted = matches!(workspace, Workspace::HostDir { .. });
    let is_layered = matches!(workspace, Workspace::CopyOnWrite { .. });
    let kind = |path: &str| if is_layered && path == WORKSPACE_PATH { "overlay" } else { "tmpfs" };
    let mut sized = Vec::new();
    let mut wrong = Vec::new();
    let is_covered = |path: &str| {
        mounted && path == WORKSPACE_PATH || measured.spec.mounts().iter().any(|mount| mount.target.as_str() == path)
    };
    for (path, size) in writable.into_iter().filter(|(path, _)| !is_covered(path)) {
        let max = size.unwrap_or(0);
        match measured.evidence.mount_of(path).filter(|mount| mount.path == path) {
            Some(mount) if mount.read_only => {}
            Some(mount) if mount.kind == kind(path) && is_sized(mount, max) => {
                sized.push(format!("{path} {}", ByteSize::from_bytes(max)));
            }
            _ => wrong.push(path),
        }
    }
    let mounts = measured.spec.mounts();
    for mount in mounts {
        let path = mount.target.as_str();
        let found = measured.evidence.mount_of(path).filter(|found| found.path == path);
        match (&mount.source, found) {
            (MountSource::Tmpfs { size }, Some(found)) if found.kind == "tmpfs" && is_sized(found, size.as_bytes()) => {
                sized.push(format!("{path} {size}"));
            }
            (MountSource::HostPath { access: MountAccess::CopyOnWrite, .. }, Some(found)) => {
                let max = sizes.layers.unwrap_or(0);
                match found.kind == "overlay" && is_sized(found, max) {
                    true => sized.push(format!("{path}, a layer, {}", ByteSize::from_bytes(max))),
                    false => wrong.push(path),
                }
            }
            (MountSource::HostPath { .. }, Some(_)) => {}
            (MountSource::Disk { .. }, Some(_)) => sized.push(format!("{path}, a disk")),
            _ => wrong.push(path),
        }
    }
    let others = writable_elsewhere(measured);
    wrong.extend(others.iter().map(String::as_str));
    let fork = if is_layered { "; the layer that a fork begins with counts as memory of the supervisor" } else { "" };
    let sized = sized.join(", ");
    let tmpfs = format!("tmpfs with a size: {sized}; the engine's memory limit follows the stored bytes{fork}");
    if !wrong.is_empty() || measured.evidence.mounts.is_none() {
        return row(Protection::Disk, false, format!("writable without a limit: {}", wrong.join(", ")));
    }
    match workspace {
        Workspace::HostDir { access: Access::ReadWrite, .. } => PostureItem {
            protection: Protection::Disk,
            state: ProtectionState::WeakerThanRequired,
            mechanism: format!("the size of a host directory is not limited; {tmpfs}"),
            probed: true,
            remedy: Some(
                "use --disk none (no limit) for a writable host directory, a private workspace, or DIR:ro".to_owned(),
            ),
        },
        _ if mounts.iter().any(|mount| mount.source.is_unlimited()) => PostureItem {
            protection: Protection::Disk,
            state: ProtectionState::WeakerThanRequired,
            mechanism: format!("the size of writable mounts of the host is not limited; {tmpfs}"),
            probed: true,
            remedy: Some("use --disk none (no limit) for writable mounts of the host, or mount them as :ro".to_owned()),
        },
        _ => row(Protection::Disk, true, tmpfs),
    }
}

/// Returns true if a mount has at most this size. A kernel may round up to whole pages.
fn is_sized(mount: &Mount, max: u64) -> bool {
    mount.space.is_some_and(|space| space.bytes > 0 && space.bytes <= max.next_multiple_of(4096))
}

/// Returns the writable mounts, except ours and kernel file systems that only root or the kernel can write.
fn writable_elsewhere(measured: &Measured<'_>) -> Vec<String> {
    let own = [WORKSPACE_PATH, "/tmp", "/dev/shm"];
    let kernels = ["proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs"];
    let roots = ["/dev", "/proc", "/sys"];
    let is_kernels = |mount: &Mount| {
        let below =
            |root: &str| mount.path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        kernels.contains(&mount.kind.as_str()) || (mount.kind == "tmpfs" && roots.iter().any(|root| below(root)))
    };
    let mounts = measured.evidence.mounts.iter().flatten();
    let is_asked =
        |path: &str| own.contains(&path) || measured.spec.mounts().iter().any(|mount| mount.target.as_str() == path);
    let found = mounts.filter(|mount| !mount.read_only && !is_asked(&mount.path) && !is_kernels(mount));
    found.map(|mount| mount.path.clone()).collect()
}
