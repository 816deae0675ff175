//! Conversion of measurements to a posture: pure, row by row.

use std::path::PathBuf;

use cofferdam_contract::{
    Access, ByteSize, Limits, MountSource, NetworkPolicy, Posture, PostureItem, Protection, ProtectionState, RootFs,
    Spec, Workspace,
};
use cofferdam_linux::cgroup::{Stats, socket_share};
use cofferdam_linux::probe::TRIED_CALLS;

use crate::protocol::{Evidence, HostFacts, NAMESPACES, Probes, address_space};

/// Limits that were read back from the sandbox's control group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupBounds {
    /// The name of the version.
    pub version: &'static str,
    /// The memory limit in bytes.
    pub memory: Option<u64>,
    /// The limit on TCP and UDP buffers in bytes, if the kernel counts them separately.
    pub sockets: Option<u64>,
    /// The limit on tasks.
    pub tasks: Option<u64>,
    /// The share of processors in thousandths of one.
    pub cpu_millis: Option<u64>,
}

impl GroupBounds {
    /// Reads back those limits that `limits` contains. `early` are those that the launcher read: the group of a short
    /// command can be gone now.
    pub fn read(stats: &Stats, early: [Option<u64>; 3], version: &'static str, limits: &Limits) -> Self {
        let [memory, tasks, cpu_millis] = early;
        Self {
            version,
            memory: limits.memory.and_then(|_| stats.memory_bound().or(memory)),
            sockets: limits.memory.and_then(|_| stats.sockets_bound()),
            tasks: limits.pids.and_then(|_| stats.tasks_bound().or(tasks)),
            cpu_millis: limits.cpus.and_then(|_| stats.cpu_millis().or(cpu_millis)),
        }
    }
}

/// The inputs of a posture.
#[derive(Debug)]
pub struct Measured<'a> {
    pub spec: &'a Spec,
    pub facts: &'a HostFacts,
    pub evidence: &'a Evidence,
    /// The probe results of this sandbox, or of an earlier one of the same launcher and kind.
    pub probes: &'a Probes,
    pub group: Option<&'a GroupBounds>,
}

/// The maximum of paths that are named in one row.
const MAX_NAMED: usize = 16;

/// Returns the posture of the measurements.
pub fn posture(measured: &Measured<'_>) -> Posture {
    let rows = namespaces(measured).into_iter().chain(isolation(measured)).chain(limits(measured));
    Posture::new(rows)
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

fn not_requested(protection: Protection, mechanism: &str) -> PostureItem {
    PostureItem {
        protection,
        state: ProtectionState::NotAsked,
        mechanism: mechanism.to_owned(),
        probed: false,
        remedy: None,
    }
}

fn namespaces(measured: &Measured<'_>) -> Vec<PostureItem> {
    let kinds = [
        Protection::UserNamespace,
        Protection::MountNamespace,
        Protection::PidNamespace,
        Protection::NetNamespace,
        Protection::IpcNamespace,
        Protection::UtsNamespace,
        Protection::CgroupNamespace,
    ];
    let pairs = measured.probes.namespaces.into_iter().zip(measured.facts.namespaces);
    kinds
        .into_iter()
        .zip(NAMESPACES)
        .zip(pairs)
        .map(|((protection, name), (inside, host))| {
            let own = inside != 0 && inside != host;
            let own = own && (protection != Protection::PidNamespace || measured.evidence.pid == 1);
            row(protection, own, format!("own {name} namespace, not the host's {host}"))
        })
        .collect()
}

/// Describes the paths of the host that are visible besides the system's own directories.
fn describe_host_paths(shown: &[PathBuf], hidden: &[PathBuf]) -> String {
    let list = |paths: &[PathBuf]| {
        let names = paths.iter().take(MAX_NAMED).map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        match paths.len().saturating_sub(MAX_NAMED) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    };
    let seen = match shown {
        [] => "no host directory visible".to_owned(),
        shown => format!("visible host directories besides the system's, read-only: {}", list(shown)),
    };
    match hidden {
        [] => seen,
        hidden => format!(
            "{seen}; interpreter not visible, because the sandbox has its own directory there or it cannot be \
             entered: {}",
            list(hidden)
        ),
    }
}

/// Describes what a sandbox does not keep of the files of an image.
fn describe_image(measured: &Measured<'_>) -> String {
    let owner = if measured.facts.privileged { "user 65534" } else { "the sandbox's user" };
    match measured.spec.root() {
        RootFs::Image { .. } => {
            format!("; all files of the image belong to {owner}, without their own owners, set-id bits and devices")
        }
        RootFs::Default | RootFs::Directory { .. } => String::new(),
    }
}

fn describe_mounts(measured: &Measured<'_>) -> String {
    match (measured.evidence.mounts, measured.spec.mounts().len()) {
        (0, 0) => String::new(),
        (held, requested) => {
            format!("; {held} of {requested} mounts have the requested files, access and size, nosuid, nodev")
        }
    }
}

fn isolation(measured: &Measured<'_>) -> Vec<PostureItem> {
    let evidence = measured.evidence;
    let read_only = measured.spec.workspace().access() == Access::ReadOnly;
    let visible = &measured.probes.paths_visible;
    let root = row(
        Protection::RootFilesystem,
        measured.probes.root_read_only && visible.is_empty(),
        if visible.is_empty() {
            let (shown, hidden) = (&measured.facts.shown, &measured.facts.hidden);
            format!(
                "read-only tmpfs root; writes to /, /usr and /etc refused; {}{}",
                describe_host_paths(shown, hidden),
                describe_image(measured)
            )
        } else {
            format!("visible inside: {}", visible.join(", "))
        },
    );
    let is_layered = matches!(measured.spec.workspace(), Workspace::CopyOnWrite { .. });
    let workspace = match (measured.spec.workspace(), read_only) {
        (Workspace::Private { .. }, false) => "private tmpfs, read-write",
        (Workspace::Private { .. }, true) => "private tmpfs, mounted read-only",
        (Workspace::HostDir { .. }, false) => "host directory, read-write, nosuid, nodev",
        (Workspace::HostDir { .. }, true) => "host directory, mounted read-only",
        (Workspace::CopyOnWrite { .. }, _) => {
            "host directory, read-only below a layer of the sandbox's own (overlayfs)"
        }
    };
    let let_through = &measured.probes.calls_let_through;
    let seccomp = row(
        Protection::Seccomp,
        evidence.seccomp && let_through.is_empty(),
        if let_through.is_empty() {
            format!("allowlist filter; {TRIED_CALLS} forbidden calls tried, all refused")
        } else {
            format!("forbidden calls let through: {}", let_through.join(", "))
        },
    );
    let abi = measured.facts.landlock_abi;
    let scopes = if abi >= 6 { "with scopes for abstract sockets and signals" } else { "without scopes" };
    let landlock = row(
        Protection::Landlock,
        measured.probes.landlock_denies,
        match (abi, measured.probes.landlock_denies) {
            (0, _) => "the kernel has no Landlock, or it is switched off".to_owned(),
            (_, true) => format!("ABI {abi}, {scopes}; refused a file that only it forbids"),
            (_, false) => format!("ABI {abi}, but a file that it forbids could be read"),
        },
    );
    let sets = evidence.capabilities;
    let capabilities = row(
        Protection::Capabilities,
        sets == [0; 3] && measured.probes.bounding == 0,
        format!(
            "effective {:x}, permitted {:x}, inheritable {:x}, bounding {:x}",
            sets[0], sets[1], sets[2], measured.probes.bounding
        ),
    );
    let user = row(
        Protection::User,
        evidence.ids.0 != 0 && !(measured.facts.privileged && evidence.outside_uid == 0),
        format!("uid {} gid {} inside, mapped to {} outside", evidence.ids.0, evidence.ids.1, outside(measured)),
    );
    let (network, others) = (measured.spec.network(), measured.probes.interfaces);
    let gateway = match network {
        NetworkPolicy::None => String::new(),
        NetworkPolicy::Learn { .. } => "; its only way out is a gateway that learns a policy".to_owned(),
        policy => format!("; its only way out is a gateway that allows {} hosts of the policy", policy.hosts().len()),
    };
    let network = row(
        Protection::Network,
        others == 0,
        format!("own network namespace with loopback only ({others} other interfaces){gateway}"),
    );
    vec![
        root,
        row(
            Protection::Workspace,
            evidence.workspace_read_only == read_only
                && evidence.workspace_layered == is_layered
                && evidence.mounts == measured.spec.mounts().len(),
            format!("{workspace}{}", describe_mounts(measured)),
        ),
        seccomp,
        with_remedy(landlock, "boot a kernel of 5.13 or newer with `landlock` in its lsm= list"),
        capabilities,
        row(Protection::NoNewPrivileges, evidence.no_new_privileges, "no_new_privs is set"),
        user,
        network,
    ]
}

fn outside(measured: &Measured<'_>) -> String {
    if measured.facts.privileged {
        format!("uid {}", evidence_uid(measured))
    } else {
        "the caller's own uid".to_owned()
    }
}

fn evidence_uid(measured: &Measured<'_>) -> u32 {
    measured.evidence.outside_uid
}

fn limits(measured: &Measured<'_>) -> Vec<PostureItem> {
    let limits = measured.spec.limits();
    vec![
        memory(measured, limits),
        cpu_time(measured, limits),
        cpus(measured, limits),
        processes(measured, limits),
        disk(measured, limits),
        PostureItem {
            protection: Protection::WallTime,
            state: ProtectionState::Enforced,
            mechanism: format!(
                "timer of the supervisor, {} s, then SIGKILL to the tree",
                limits.wall_time.as_secs_f64()
            ),
            probed: false,
            remedy: None,
        },
    ]
}

/// Compares a limit with the requested one. The kernel rounds down to whole pages.
fn close_to(value: Option<u64>, requested: u64) -> bool {
    value.is_some_and(|value| value <= requested && requested - value < 65_536)
}

fn group_remedy(measured: &Measured<'_>) -> String {
    format!("{} ({})", delegation_remedy(measured.facts.privileged), measured.facts.cgroup_reason)
}

/// Returns the remedy for absent control groups.
pub(crate) fn delegation_remedy(is_root: bool) -> String {
    let (otherwise, user) = if is_root { ("", "") } else { ("run as root, or ", " --user") };
    format!("{otherwise}with delegated control groups: `systemd-run{user} --scope -p Delegate=yes cofferdam …`")
}

fn memory(measured: &Measured<'_>, limits: &Limits) -> PostureItem {
    let Some(requested) = limits.memory else { return not_requested(Protection::Memory, "no limit asked for") };
    let bytes = requested.as_bytes();
    if let Some(group) = measured.group {
        let holds = close_to(group.memory, bytes) && measured.evidence.members > 0;
        let swap =
            if measured.facts.cgroup_counts.0 { "swap counted" } else { "swap not counted by this kernel, nor used" };
        let mechanism = format!("{} memory limit {} bytes, {swap}", group.version, group.memory.unwrap_or(0));
        return with_sockets(row(Protection::Memory, holds, mechanism), measured, group, bytes);
    }
    // Without Landlock, a guest can use memory behind /dev/zero that no process shows.
    let shown = measured.probes.landlock_denies;
    let [data, .., space] = measured.evidence.process_limits;
    let holds = data <= bytes && space <= address_space(bytes) && measured.evidence.watching;
    let mut item = row(
        Protection::Memory,
        holds,
        format!(
            "RLIMIT_DATA {bytes} bytes a process, RLIMIT_AS {space} bytes a process, so that its page tables are no \
             larger than the limit, and a watch that sums all processes every 25 ms and kills (page tables; 72 KiB for \
             each descriptor beyond 8 of a process; 320 KiB for each socket beyond 16, also those that wait to be \
             accepted); memory files, System V objects, memory behind /dev/zero and pages passed to pipes refused"
        ),
    );
    if holds && !shown {
        item.state = ProtectionState::WeakerThanRequired;
        item.mechanism.push_str("; without Landlock, memory behind /dev/zero is not refused");
    }
    with_remedy(item, group_remedy(measured))
}

/// Adds the limit on TCP and UDP buffers, which version 1 counts separately, and only if they have their own limit.
fn with_sockets(mut item: PostureItem, measured: &Measured<'_>, group: &GroupBounds, bytes: u64) -> PostureItem {
    if measured.facts.cgroup_version != 1 {
        return item;
    }
    match group.sockets.filter(|sockets| *sockets <= socket_share(bytes)) {
        Some(sockets) => item.mechanism.push_str(&format!("; TCP and UDP buffers {sockets} bytes besides")),
        None if item.state == ProtectionState::Enforced => {
            item.state = ProtectionState::WeakerThanRequired;
            item.mechanism.push_str("; TCP and UDP buffers are not bounded by this kernel");
            item.remedy = Some("use control groups v2".to_owned());
        }
        None => {}
    }
    item
}

fn cpu_time(measured: &Measured<'_>, limits: &Limits) -> PostureItem {
    let Some(requested) = limits.cpu_time else { return not_requested(Protection::CpuTime, "no limit asked for") };
    let seconds = requested.as_secs_f64();
    if let Some(group) = measured.group.filter(|_| measured.facts.cgroup_counts.1) {
        let version = group.version;
        return row(
            Protection::CpuTime,
            measured.evidence.members > 0,
            format!("{version} counts CPU time, the supervisor kills at {seconds} s; RLIMIT_CPU a process"),
        );
    }
    let per_process = measured.evidence.process_limits[2] <= requested.as_secs() + 2;
    let item = row(
        Protection::CpuTime,
        per_process && measured.evidence.watching,
        format!(
            "RLIMIT_CPU a process, and a watch that sums all processes every 25 ms and kills at {seconds} s; a span in which \
             processes come or go counts as fully used"
        ),
    );
    with_remedy(item, group_remedy(measured))
}

fn cpus(measured: &Measured<'_>, limits: &Limits) -> PostureItem {
    let Some(requested) = limits.cpus else { return not_requested(Protection::Cpus, "no limit asked for") };
    let millis = u64::from(requested.as_millis());
    if let Some(group) = measured.group.filter(|_| measured.facts.cgroup_cpu) {
        let holds = group.cpu_millis.is_some_and(|value| value <= millis.max(10));
        return row(Protection::Cpus, holds, format!("{} CPU quota of {requested} processors", group.version));
    }
    let processors = u64::from(measured.evidence.processors);
    let holds = processors * 1000 <= millis && measured.group.is_none();
    let mut item =
        row(Protection::Cpus, holds, format!("bound to {processors} processors, which the sandbox cannot change"));
    if !holds {
        item.mechanism = format!("no control group bounds the share of {requested} processors");
    }
    with_remedy(item, format!("ask for a whole number of processors, or {}", group_remedy(measured)))
}

fn processes(measured: &Measured<'_>, limits: &Limits) -> PostureItem {
    let mut item = tasks(measured, limits);
    if let Some(processes) = limits.processes {
        let counted = format!("at most {processes} processes, which the init counts before each that a guest makes");
        if item.state == ProtectionState::NotAsked {
            return row(Protection::Processes, true, counted);
        }
        item.mechanism = format!("{}; {counted}", item.mechanism);
    }
    item
}

fn tasks(measured: &Measured<'_>, limits: &Limits) -> PostureItem {
    let Some(requested) = limits.pids.map(u64::from) else {
        return not_requested(Protection::Processes, "no limit asked for");
    };
    if let Some(group) = measured.group {
        let holds = group.tasks.is_some_and(|tasks| tasks <= requested + 1) && measured.evidence.members > 0;
        return row(
            Protection::Processes,
            holds,
            format!("{} pids.max {} (the init is one of them)", group.version, group.tasks.unwrap_or(0)),
        );
    }
    let holds = measured.evidence.process_limits[1] <= requested + 1;
    let item = row(
        Protection::Processes,
        holds,
        format!(
            "RLIMIT_NPROC {} in a user namespace of its own (the init is one of them)",
            measured.evidence.process_limits[1]
        ),
    );
    with_remedy(item, group_remedy(measured))
}

fn disk(measured: &Measured<'_>, limits: &Limits) -> PostureItem {
    let Some(requested) = limits.disk else { return not_requested(Protection::Disk, "no limit asked for") };
    let bytes = requested.as_bytes();
    let evidence = measured.evidence;
    let sized =
        evidence.disk_bytes > 0 && evidence.disk_bytes <= bytes.next_multiple_of(4096) && evidence.disk_files > 0;
    let tmpfs = format!(
        "one tmpfs of {} with at most {} files",
        ByteSize::from_bytes(evidence.disk_bytes),
        evidence.disk_files
    );
    let stored = match limits.memory {
        Some(memory) => format!("kept in memory, besides the {memory} of the memory limit"),
        None => "kept in memory".to_owned(),
    };
    let mounted = mounted_memory(measured);
    let stored = format!("{stored}{mounted}");
    let unlimited = measured.spec.mounts().iter().filter(|mount| mount.source.is_unlimited()).count();
    match measured.spec.workspace() {
        Workspace::HostDir { access: Access::ReadWrite, .. } => PostureItem {
            protection: Protection::Disk,
            state: ProtectionState::WeakerThanRequired,
            mechanism: format!(
                "a host directory cannot be sized: there each file is limited to {requested} (RLIMIT_FSIZE), their sum is not; \
                 /tmp and /dev/shm are {tmpfs}"
            ),
            probed: true,
            remedy: Some(
                "for a writable host directory use --disk none, or use a private workspace, or DIR:ro".to_owned(),
            ),
        },
        _ if unlimited > 0 => PostureItem {
            protection: Protection::Disk,
            state: ProtectionState::WeakerThanRequired,
            mechanism: format!(
                "writable mounts of the host ({unlimited}) cannot be sized: there each file is limited to {requested} \
                 (RLIMIT_FSIZE), their sum is not; /tmp and /dev/shm are {tmpfs}"
            ),
            probed: true,
            remedy: Some(
                "for writable mounts of the host use --disk none, or mount them as :ro or :cow, or use a volume"
                    .to_owned(),
            ),
        },
        Workspace::HostDir { .. } => row(Protection::Disk, sized, format!("/tmp and /dev/shm: {tmpfs}{mounted}")),
        Workspace::CopyOnWrite { .. } => {
            row(Protection::Disk, sized, format!("changes of /workspace, /tmp, /dev/shm and /code: {tmpfs}; {stored}"))
        }
        Workspace::Private { .. } => {
            row(Protection::Disk, sized, format!("/workspace, /tmp, /dev/shm and /code: {tmpfs}; {stored}"))
        }
    }
}

/// Describes the memory of mounts.
fn mounted_memory(measured: &Measured<'_>) -> String {
    let sizes = measured.spec.mounts().iter().map(|mount| match mount.source {
        MountSource::Tmpfs { size } => size.as_bytes(),
        MountSource::HostPath { .. } | MountSource::Disk { .. } => 0,
    });
    match sizes.fold(0_u64, u64::saturating_add) {
        0 => String::new(),
        sum => {
            let counted = if measured.group.is_some() { "within" } else { "besides" };
            format!("; mounts in memory of {} in total, {counted} the memory limit", ByteSize::from_bytes(sum))
        }
    }
}

#[cfg(test)]
mod tests;
