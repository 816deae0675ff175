//! The posture of a VM, derived from measurements inside it: pure, one row at a time.

use cofferdam_contract::{
    Access, ByteSize, Limits, NetworkPolicy, Posture, PostureItem, Protection, ProtectionState, Spec, WORKSPACE_PATH,
    Workspace,
};
use cofferdam_guest::{Evidence, Mount};

use crate::plan::Shares;

/// The input of a posture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured<'a> {
    pub spec: &'a Spec,
    pub evidence: &'a Evidence,
    /// User and group that the sandbox is to run as.
    pub user: (u32, u32),
    pub shares: Shares,
    /// Boot ID of this host's kernel; empty if it could not be read.
    pub host_boot: &'a str,
    /// The accelerator, and the reason for it. It affects the speed, not the isolation.
    pub runs: &'a str,
    /// The host resource limits of the VMM.
    pub vmm_limits: &'a str,
}

/// Returns the posture that the measurements prove.
pub(crate) fn posture(measured: &Measured<'_>) -> Posture {
    Posture::new(kernel(measured).into_iter().chain(boundaries(measured)).chain(limits(measured)))
}

fn row(protection: Protection, holds: bool, mechanism: impl Into<String>) -> PostureItem {
    let state = if holds { ProtectionState::Enforced } else { ProtectionState::Absent };
    PostureItem { protection, state, mechanism: mechanism.into(), probed: true, remedy: None }
}

fn with_remedy(mut item: PostureItem, remedy: &str) -> PostureItem {
    if matches!(item.state, ProtectionState::Absent | ProtectionState::WeakerThanRequired) {
        item.remedy = Some(remedy.to_owned());
    }
    item
}

fn not_requested(protection: Protection) -> PostureItem {
    PostureItem {
        protection,
        state: ProtectionState::NotAsked,
        mechanism: "no limit asked for".to_owned(),
        probed: false,
        remedy: None,
    }
}

/// Returns the rows of the namespaces: a kernel of its own replaces them, if it is not the host's.
fn kernel(measured: &Measured<'_>) -> Vec<PostureItem> {
    let evidence = measured.evidence;
    let own = !evidence.boot.is_empty() && !measured.host_boot.is_empty() && evidence.boot != measured.host_boot;
    let mechanism = match own {
        true => {
            format!("a kernel of its own (Linux {}, boot ID {}); {}", evidence.kernel, evidence.boot, measured.runs)
        }
        false => "the kernel could not be distinguished from the host's".to_owned(),
    };
    [
        Protection::UserNamespace,
        Protection::MountNamespace,
        Protection::PidNamespace,
        Protection::NetNamespace,
        Protection::IpcNamespace,
        Protection::UtsNamespace,
        Protection::CgroupNamespace,
    ]
    .into_iter()
    .map(|protection| {
        // The agent is process 1 of the processes that its guests see.
        let first = protection != Protection::PidNamespace || evidence.pid == 1;
        with_remedy(
            row(protection, own && first, mechanism.clone()),
            "make /proc/sys/kernel/random/boot_id readable on this host",
        )
    })
    .collect()
}

fn boundaries(measured: &Measured<'_>) -> Vec<PostureItem> {
    let evidence = measured.evidence;
    let sets = evidence.capabilities.map(|set| set.unwrap_or(u64::MAX));
    let [effective, permitted, inheritable, bounding, ambient] = sets;
    let capabilities = format!(
        "effective {effective:x}, permitted {permitted:x}, inheritable {inheritable:x}, bounding {bounding:x}, \
         ambient {ambient:x}"
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
    let network = match interfaces {
        Some(names) if names.is_empty() => format!("the VM has no network device{policy}"),
        Some(names) => format!("interfaces: {}", names.join(", ")),
        None => "the interfaces could not be read".to_owned(),
    };
    vec![
        root_filesystem(measured),
        workspace(measured),
        seccomp(evidence),
        landlock(evidence),
        row(Protection::Capabilities, sets == [0; 5], capabilities),
        row(Protection::NoNewPrivileges, evidence.no_new_privileges, "no_new_privs is set"),
        user(measured),
        row(Protection::Network, interfaces.is_some_and(Vec::is_empty), network),
    ]
}

fn root_filesystem(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let differs = |mount: &&cofferdam_contract::Mount| {
        let (target, read_only) = (mount.target.as_str(), mount.source.is_read_only());
        !evidence.mount_of(target).is_some_and(|found| found.path == target && found.read_only == read_only)
    };
    if let Some(mount) = measured.spec.mounts().iter().find(differs) {
        return row(Protection::RootFilesystem, false, format!("{} is not mounted as requested", mount.target));
    }
    let read_only = evidence.mount_of("/").is_some_and(|mount| mount.read_only);
    let written: Vec<&str> =
        evidence.writes.iter().filter(|trial| trial.worked).map(|trial| trial.path.as_str()).collect();
    let holds = read_only && written.is_empty() && !evidence.writes.is_empty();
    let mechanism = match (holds, written.is_empty()) {
        (true, _) => "a read-only disk; writes refused".to_owned(),
        (false, false) => format!("writable: {}", written.join(", ")),
        (false, true) => "the root is not mounted read-only".to_owned(),
    };
    row(Protection::RootFilesystem, holds, mechanism)
}

fn workspace(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let mount = evidence.mount_of(WORKSPACE_PATH).filter(|mount| mount.path == WORKSPACE_PATH);
    let writable = mount.is_some_and(|mount| !mount.read_only);
    let store = if measured.shares.disk.is_some() { "a disk of its own" } else { "the VM's memory" };
    let (holds, mechanism) = match measured.spec.workspace() {
        Workspace::Private { access: Access::ReadWrite } => (writable, format!("private, on {store}, read-write")),
        Workspace::Private { access: Access::ReadOnly } => (
            writable && evidence.workspace_writable == Some(false),
            format!("private, on {store}, read-only for guests by Landlock, filled by the file API"),
        ),
        Workspace::HostDir { .. } | Workspace::CopyOnWrite { .. } => {
            (false, "a host directory cannot be mounted in a VM".to_owned())
        }
    };
    let item = row(Protection::Workspace, holds, mechanism);
    with_remedy(item, "a private workspace that is read-only needs a kernel with Landlock in the image")
}

fn seccomp(evidence: &Evidence) -> PostureItem {
    let through: Vec<&str> =
        evidence.calls.iter().filter(|call| call.was_let_through()).map(|call| call.name).collect();
    let holds = evidence.seccomp_filtered && through.is_empty() && !evidence.calls.is_empty();
    let mechanism = match through.is_empty() {
        false => format!("forbidden calls let through: {}", through.join(", ")),
        true => format!("our allowlist filter; {} forbidden calls tried, all refused", evidence.calls.len()),
    };
    row(Protection::Seccomp, holds, mechanism)
}

fn landlock(evidence: &Evidence) -> PostureItem {
    let abi = evidence.landlock_abi;
    let mechanism = match (abi, evidence.landlock) {
        (0, _) => "the VM's kernel has no Landlock, or it is disabled".to_owned(),
        (_, true) => format!("ABI {abi}, on top of the mounts; refused what no rule allows"),
        (_, false) => format!("ABI {abi}, but an access without a rule succeeded"),
    };
    with_remedy(
        row(Protection::Landlock, evidence.landlock, mechanism),
        "build the image with a kernel that has Landlock",
    )
}

fn user(measured: &Measured<'_>) -> PostureItem {
    let evidence = measured.evidence;
    let (uid, gid) = measured.user;
    let only = |found: &[u32], requested: u32| !found.is_empty() && found.iter().all(|id| *id == requested && *id != 0);
    let groups = evidence.groups.as_ref().is_some_and(Vec::is_empty);
    let holds = only(&evidence.uids, uid) && only(&evidence.gids, gid) && groups;
    let further = evidence.groups.as_ref().map_or("unknown".to_owned(), |groups| format!("{groups:?}"));
    let (uids, gids) = (&evidence.uids, &evidence.gids);
    row(
        Protection::User,
        holds,
        format!("users {uids:?}, groups {gids:?}, supplementary groups {further}; expected {uid}:{gid}"),
    )
}

fn limits(measured: &Measured<'_>) -> Vec<PostureItem> {
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = measured.spec.limits();
    // Refused when the VM is planned.
    let _ = processes;
    let bounds = &measured.evidence.bounds;
    let group = bounds.version > 0;
    let timer = format!("timer of the supervisor, {} s, then SIGKILL to the tree", wall_time.as_secs_f64());
    let timer = PostureItem { probed: false, ..row(Protection::WallTime, true, timer) };
    vec![
        memory.map_or_else(|| not_requested(Protection::Memory), |requested| self::memory(measured, requested)),
        cpu_time.map_or_else(
            || not_requested(Protection::CpuTime),
            |requested| {
                let seconds = requested.as_secs_f64();
                let counted = measured.evidence.counts_cpu;
                let counter = if counted { "a control group inside counts" } else { "the agent sums up" };
                row(Protection::CpuTime, true, format!("{counter} CPU time, killed at {seconds} s"))
            },
        ),
        cpus.map_or_else(
            || not_requested(Protection::Cpus),
            |requested| {
                let found = bounds.cpu_millis;
                let holds = group && found.is_some_and(|found| found <= u64::from(requested.as_millis()).max(10));
                let shown = found.map_or("none".to_owned(), |found| format!("{found} thousandths"));
                row(Protection::Cpus, holds, format!("control group inside, CPU quota of {shown}"))
            },
        ),
        pids.map_or_else(
            || not_requested(Protection::Processes),
            |requested| {
                let holds = group && bounds.tasks.is_some_and(|tasks| tasks <= u64::from(requested) + 1);
                let shown = bounds.tasks.map_or("none".to_owned(), |tasks| tasks.to_string());
                let mechanism = format!("control group inside, pids.max {shown} (the agent is one of them)");
                row(Protection::Processes, holds, mechanism)
            },
        ),
        disk.map_or_else(|| not_requested(Protection::Disk), |_| self::disk(measured)),
        timer,
    ]
    .into_iter()
    .map(|item| with_remedy(item, "build the image with a kernel that has control groups"))
    .collect()
}

fn memory(measured: &Measured<'_>, requested: ByteSize) -> PostureItem {
    let (bytes, bounds) = (requested.as_bytes(), &measured.evidence.bounds);
    // The kernel rounds down to whole pages.
    let close = bounds.memory.is_some_and(|found| found <= bytes && bytes - found < 65_536);
    let holds = bounds.version > 0 && close && bounds.swap.is_none_or(|swap| swap == 0);
    let found = bounds.memory.map_or("none".to_owned(), |found| format!("{found} bytes"));
    row(
        Protection::Memory,
        holds,
        format!("control group inside, memory limit {found}, no swap; and the VM's memory; {}", measured.vmm_limits),
    )
}

fn disk(measured: &Measured<'_>) -> PostureItem {
    let shares = &measured.shares;
    let mut wrong = Vec::new();
    for (path, max) in [(WORKSPACE_PATH, shares.workspace), ("/tmp", shares.tmp), ("/dev/shm", shares.shm)] {
        let mount = measured.evidence.mount_of(path).filter(|mount| mount.path == path);
        if !mount.is_some_and(|mount| is_sized(mount, max)) {
            wrong.push(path.to_owned());
        }
    }
    wrong.extend(writable_elsewhere(measured));
    if !wrong.is_empty() || measured.evidence.mounts.is_none() {
        return row(Protection::Disk, false, format!("writable without a limit: {}", wrong.join(", ")));
    }
    let [workspace, tmp, shm] = [shares.workspace, shares.tmp, shares.shm].map(ByteSize::from_bytes);
    let mounted: String = measured
        .spec
        .mounts()
        .iter()
        .map(|mount| {
            let access = if mount.source.is_read_only() { "read-only" } else { "limited by its file system" };
            format!("; {} a disk of its own, {access}", mount.target)
        })
        .collect();
    let sizes = format!("{WORKSPACE_PATH} {workspace} on a disk; in memory /tmp {tmp}, /dev/shm {shm}{mounted}");
    row(Protection::Disk, true, sizes)
}

/// Returns true if a mount has the size. The kernel may round up to whole pages.
fn is_sized(mount: &Mount, max: u64) -> bool {
    mount.space.is_some_and(|space| space.bytes > 0 && space.bytes <= max.next_multiple_of(4096))
}

/// Returns the writable mounts, except the sandbox's own, disks at paths of their own, and those that the kernel
/// restricts to root and itself.
fn writable_elsewhere(measured: &Measured<'_>) -> Vec<String> {
    let own = [WORKSPACE_PATH, "/tmp", "/dev/shm"];
    let kernels = ["proc", "sysfs", "devpts", "cgroup2"];
    let is_disk = |mount: &Mount| {
        let mut disks = measured.spec.mounts().iter().filter(|disk| !disk.source.is_read_only());
        mount.kind == "ext4" && disks.any(|disk| disk.target.as_str() == mount.path)
    };
    let mounts = measured.evidence.mounts.iter().flatten();
    let found = mounts.filter(|mount| {
        let is_known = own.contains(&mount.path.as_str()) || kernels.contains(&mount.kind.as_str());
        !mount.read_only && !is_known && !is_disk(mount)
    });
    found.map(|mount| mount.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use cofferdam_guest::{Bounds, ForbiddenCall, Space, Trial};

    use super::*;

    const SHARES: Shares = Shares { disk: Some(64 << 20), workspace: 64 << 20, tmp: 16 << 20, shm: 4 << 20 };

    fn mount(path: &str, kind: &str, read_only: bool, bytes: u64) -> Mount {
        let space = Some(Space { bytes, ..Space::default() }).filter(|_| !read_only);
        let (path, kind) = (path.to_owned(), kind.to_owned());
        Mount { path, kind, root: "/".to_owned(), source: String::new(), read_only, options: Vec::new(), space }
    }

    fn good() -> Evidence {
        let limits = Limits::default();
        Evidence {
            pid: 1,
            kernel: "6.1".to_owned(),
            boot: "inside".to_owned(),
            uids: vec![7; 4],
            gids: vec![8; 4],
            groups: Some(Vec::new()),
            capabilities: [Some(0); 5],
            no_new_privileges: true,
            seccomp_filtered: true,
            calls: vec![ForbiddenCall { name: "bpf", errno: 1 }],
            mounts: Some(vec![
                mount("/", "ext4", true, 0),
                mount("/proc", "proc", false, 0),
                mount("/workspace", "ext4", false, 60 << 20),
                mount("/tmp", "tmpfs", false, 16 << 20),
                mount("/dev/shm", "tmpfs", false, 4 << 20),
            ]),
            writes: vec![Trial { path: "/etc/x".to_owned(), worked: false, errno: 30 }],
            interfaces: Some(Vec::new()),
            bounds: Bounds {
                version: 2,
                memory: limits.memory.map(|memory| memory.as_bytes()),
                swap: Some(0),
                tasks: limits.pids.map(|processes| u64::from(processes) + 1),
                cpu_millis: None,
            },
            counts_cpu: true,
            counts_memory: true,
            landlock_abi: 2,
            landlock: true,
            ..Evidence::default()
        }
    }

    fn of(evidence: &Evidence) -> Posture {
        let spec = Spec::default();
        posture(&Measured {
            spec: &spec,
            evidence,
            user: (7, 8),
            shares: SHARES,
            host_boot: "outside",
            runs: "tcg",
            vmm_limits: "bounded",
        })
    }

    /// Promise (Virtual machines): The posture of a VM has a row for every protection.
    #[test]
    fn expected_evidence_gives_every_row_without_shortfall() {
        let posture = of(&good());
        for protection in Protection::ALL {
            assert!(posture.get(*protection).is_some(), "{protection}");
        }
        posture.require(&Default::default()).unwrap();
        let mechanism_of = |protection| posture.get(protection).unwrap().mechanism.clone();
        assert!(
            mechanism_of(Protection::PidNamespace).ends_with("; tcg"),
            "{}",
            mechanism_of(Protection::PidNamespace)
        );
        assert!(mechanism_of(Protection::Memory).ends_with("; bounded"), "{}", mechanism_of(Protection::Memory));
    }

    /// Promise (Virtual machines): A missing protection of a VM shows in its row of the posture.
    #[test]
    fn missing_protection_shows_in_its_posture_row() {
        use Protection as P;
        type Change = fn(&mut Evidence);
        let changes: [(Protection, Change); 18] = [
            (P::NetNamespace, |it| it.boot = "outside".to_owned()),
            (P::UserNamespace, |it| it.boot.clear()),
            (P::PidNamespace, |it| it.pid = 2),
            (P::Capabilities, |it| it.capabilities[3] = Some(1)),
            (P::Capabilities, |it| it.capabilities[4] = None),
            (P::NoNewPrivileges, |it| it.no_new_privileges = false),
            (P::User, |it| it.uids[1] = 0),
            (P::User, |it| it.groups = Some(vec![8])),
            (P::Network, |it| it.interfaces = Some(vec!["eth0".to_owned()])),
            (P::Network, |it| it.interfaces = None),
            (P::Seccomp, |it| it.calls[0].errno = 0),
            (P::Landlock, |it| it.landlock = false),
            (P::RootFilesystem, |it| it.writes[0].worked = true),
            (P::Memory, |it| it.bounds.memory = None),
            (P::Memory, |it| it.bounds.swap = Some(1)),
            (P::Processes, |it| it.bounds.tasks = Some(1000)),
            (P::Disk, |it| it.mounts.as_mut().unwrap()[2].space.as_mut().unwrap().bytes = 65 << 20),
            (P::Disk, |it| it.mounts.as_mut().unwrap().push(mount("/run", "tmpfs", false, 1))),
        ];
        for (at, (protection, change)) in changes.into_iter().enumerate() {
            let mut evidence = good();
            change(&mut evidence);
            let posture = of(&evidence);
            let row = posture.get(protection).unwrap();
            assert_eq!(row.state, ProtectionState::Absent, "change {at}: {row:?}");
        }
    }
}
