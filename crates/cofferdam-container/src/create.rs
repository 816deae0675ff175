//! From a spec to what an engine is asked for: pure. Nothing here can ask for a privilege.

use std::collections::HashMap;
use std::path::{Component, Path};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits,
};
use cofferdam_contract::{
    Access, ByteSize, Cpus, Error, ErrorKind, Limits, NetworkPolicy, Result, RootFs, SandboxId, Spec, SpecParts,
    WORKSPACE_PATH, Workspace,
};

use crate::backend::NAME;
use crate::engine::Facts;
use crate::labels::{self, Owner};

/// Where the agent is inside.
pub(crate) const AGENT_DIRECTORY: &str = "/.cofferdam";
/// The agent's name there.
pub(crate) const AGENT_FILE: &str = "init";
/// What the engine covers: its own list, and what else tells of the host.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/modules",
    "/proc/partitions",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/scsi",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/sys/kernel/random/boot_id",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmstat",
    "/proc/zoneinfo",
    "/sys/firmware",
    "/sys/kernel",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/dmi",
];
const HOST_NAME: &str = "sandbox";
/// How much larger than the disk limit a file may look. Programs that fill a directory meet ENOSPC before this limit.
const FILE_SIZE_SLACK: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Options of a directory that is covered. Without a size a tmpfs would have half of the host's memory.
const COVERED: &str = "ro,noexec,nosuid,nodev,size=4096,mode=0555";
/// Tasks of a runtime with a kernel of its own, besides those of its guests.
const KERNEL_TASKS: i64 = 256;
/// The share of a processor is kept over this time, in microseconds.
pub(crate) const CPU_PERIOD: i64 = 100_000;
/// The kernel's smallest quota in such a time.
const CPU_QUOTA_LEAST: i64 = 1000;
/// Room for what every sandbox has in its directories.
const LEAST_DISK: ByteSize = ByteSize::from_bytes(64 * PAGE);
/// Below it engines refuse, and nothing would start.
const LEAST_MEMORY: ByteSize = ByteSize::from_mebibytes(6);

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageFacts {
    /// `sha256:…`: no name, which could mean something else by now.
    pub id: String,
    /// Directories that the image wants a volume for.
    pub volumes: Vec<String>,
    /// Where the image's programs are, if it says so.
    pub path: Option<String>,
}

/// Everything that a container is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub spec: &'a Spec,
    pub id: &'a SandboxId,
    pub owner: &'a Owner,
    pub facts: &'a Facts,
    pub runtime: Option<&'a str>,
    pub image: &'a ImageFacts,
    pub agent_volume: &'a str,
    /// User and group of everything inside. Never root.
    pub user: (u32, u32),
    /// The directory of the host that the workspace is, looked up.
    pub host_dir: Option<&'a Path>,
}

/// The bytes of each writable directory; `None` where no limit is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Where the workspace is the sandbox's own.
    pub workspace: Option<u64>,
    pub tmp: Option<u64>,
    pub shm: Option<u64>,
}

impl Room {
    /// Gives a private workspace the whole disk limit. `/tmp` and `/dev/shm` have bounds of their own besides, and count as
    /// memory; where the workspace is the host's, the limit is shared out among them.
    pub(crate) fn of(disk: Option<ByteSize>, workspace: &Workspace) -> Self {
        let Some(disk) = disk else { return Self { workspace: None, tmp: None, shm: None } };
        let pages = disk.as_bytes() / PAGE;
        let own = matches!(workspace, Workspace::Private { .. });
        let (tmp, shm) = if own { (pages / 4, pages / 16) } else { (pages - pages / 8, pages / 8) };
        let workspace = if own { pages } else { 0 };
        Self { workspace: Some(workspace * PAGE), tmp: Some(tmp * PAGE), shm: Some(shm * PAGE) }
    }
}

/// Refuses what this backend does not have. Takes the spec apart by hand: a new field must be decided on here.
pub(crate) fn check(spec: &Spec) -> Result<()> {
    spec.validate()?;
    let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // Written on the container, or held against the posture.
    let (_, _, _, _) = (workspace, tenant, labels, allow_weaker);
    // Compared where the directory is opened.
    let _ = directories;
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = limits;
    // Each can be had, or else the posture says that it is not.
    let (_, _, _, _, _) = (cpu_time, wall_time, pids, processes, cpus);
    match network {
        NetworkPolicy::None => {}
        _ => {
            let what = "the docker backend offers no network but a sandbox's own loopback";
            return Err(Error::unsupported("create", what).with_remedy("use --net none"));
        }
    }
    match root {
        // Which images may be used is the policy's to say.
        RootFs::Default | RootFs::Image { .. } => {}
        RootFs::Directory { path } => {
            return Err(Error::unsupported("create", "the docker backend takes its root file system from an image")
                .with_context("path", path.display().to_string())
                .with_remedy("make an image of it: `cofferdam image import DIR NAME`, and name that with --image"));
        }
    }
    if memory.is_some_and(|memory| memory < LEAST_MEMORY) {
        return Err(Error::invalid(
            "create",
            format!("container engines need a memory limit of at least {LEAST_MEMORY}"),
        )
        .with_remedy("raise --memory, or use the process backend"));
    }
    if disk.is_some_and(|disk| disk < LEAST_DISK) {
        return Err(Error::invalid("create", format!("a container needs a disk limit of at least {LEAST_DISK}"))
            .with_remedy("raise --disk, or use the process backend"));
    }
    let own = attributes.keys().find(|key| key.split('.').next() == Some(NAME));
    if let Some(key) = own {
        return Err(Error::invalid("create", format!("the docker backend has no attribute '{}'", key.escape_debug()))
            .with_remedy("remove it: this backend takes no attributes"));
    }
    Ok(())
}

/// What the engine is asked for.
pub(crate) fn body(plan: &Plan<'_>) -> Result<ContainerCreateBody> {
    let (uid, gid) = plan.user;
    if uid == 0 || gid == 0 {
        return Err(Error::new(ErrorKind::Internal, "create", "a sandbox is never made for root"));
    }
    let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        plan.spec.parts();
    // Looked at by `check`, resolved to an image's id, or held against the posture.
    let (_, _, _, _) = (root, network, allow_weaker, attributes);
    let _ = directories;
    Ok(ContainerCreateBody {
        hostname: Some(HOST_NAME.to_owned()),
        user: Some(format!("{uid}:{gid}")),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // When the attached connection ends, so does the agent's input, and with it the agent.
        stdin_once: Some(true),
        tty: Some(false),
        entrypoint: Some(vec![format!("{AGENT_DIRECTORY}/{AGENT_FILE}")]),
        cmd: Some(Vec::new()),
        working_dir: Some("/".to_owned()),
        // An image's own would be run by the engine, next to the agent.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        image: Some(plan.image.id.clone()),
        labels: Some(labels::of(plan.id, tenant, plan.owner, labels)),
        host_config: Some(host_config(plan, workspace, limits)?),
        ..ContainerCreateBody::default()
    })
}

fn host_config(plan: &Plan<'_>, workspace: &Workspace, limits: &Limits) -> Result<HostConfig> {
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = limits;
    // Kept by the supervisor and the agent, or refused.
    let (_, _, _) = (cpu_time, wall_time, processes);
    let room = Room::of(*disk, workspace);
    let memory = memory.map(|memory| i64::try_from(memory.as_bytes()).unwrap_or(i64::MAX));
    Ok(HostConfig {
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        readonly_rootfs: Some(true),
        masked_paths: Some(MASKED.iter().map(|path| (*path).to_owned()).collect()),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: plan.facts.has_cgroup_namespaces().then_some(HostConfigCgroupnsModeEnum::PRIVATE),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        auto_remove: Some(true),
        init: Some(false),
        memory,
        memory_swap: memory,
        // The agent is one of them.
        pids_limit: pids.map(|pids| tasks(pids, plan)),
        cpu_period: cpus.map(|_| CPU_PERIOD),
        cpu_quota: cpus.map(quota),
        ulimits: Some(ulimits(plan.facts, limits)),
        sysctls: (!has_own_kernel(plan)).then(|| network_settings(plan.facts)),
        tmpfs: Some(tmpfs(plan, workspace, room)?),
        mounts: Some(mounts(plan, workspace)),
        runtime: plan.runtime.map(str::to_owned),
        ..HostConfig::default()
    })
}

/// The limit on tasks: the agent is one of them, and where a kernel of its own runs in the container, that has some, too.
fn tasks(pids: u32, plan: &Plan<'_>) -> i64 {
    i64::from(pids) + if has_own_kernel(plan) { KERNEL_TASKS } else { 1 }
}

fn has_own_kernel(plan: &Plan<'_>) -> bool {
    plan.facts.has_own_kernel(plan.runtime)
}

/// Bounds on what connections of the container's loopback hold in the kernel, as the process backend has them.
fn network_settings(facts: &Facts) -> HashMap<String, String> {
    let mut settings = vec![
        ("net.ipv4.tcp_rmem", "4096 65536 131072"),
        ("net.ipv4.tcp_wmem", "4096 16384 131072"),
        ("net.ipv4.tcp_max_tw_buckets", "1024"),
    ];
    // Older kernels hide it from an engine without root; the agent then refuses what needs a longer queue.
    if !(facts.rootless || facts.remapped) || facts.kernel_is_at_least(6, 6) {
        settings.push(("net.core.somaxconn", "16"));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Limits of each process.
fn ulimits(facts: &Facts, limits: &Limits) -> Vec<ResourcesUlimits> {
    let limit =
        |name: &str, soft, hard| ResourcesUlimits { name: Some(name.to_owned()), soft: Some(soft), hard: Some(hard) };
    // The agent waits for as many descriptors at once as it may have execs, and more.
    let mut all = vec![limit("core", 0, 0), limit("nice", 0, 0), limit("nofile", 4096, 4096), limit("rtprio", 0, 0)];
    if let Some(disk) = limits.disk {
        // With its holes; what is stored, the sizes of the directories bound. Memory files are files, too.
        let most = disk.max(limits.memory.unwrap_or(disk)).as_bytes().saturating_add(FILE_SIZE_SLACK);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        all.push(limit("fsize", most, most));
    }
    // Left alone, Podman asks for more than an engine without that right may give.
    if facts.podman && !facts.rootless {
        all.push(limit("nproc", 16_384, 16_384));
    }
    all
}

pub(crate) fn quota(cpus: Cpus) -> i64 {
    (i64::from(cpus.as_millis()) * CPU_PERIOD / 1000).max(CPU_QUOTA_LEAST)
}

fn tmpfs(plan: &Plan<'_>, workspace: &Workspace, room: Room) -> Result<HashMap<String, String>> {
    let mut all = HashMap::from([
        ("/tmp".to_owned(), directory(plan, room.tmp, "exec,nosuid,nodev", "1777")),
        ("/dev/shm".to_owned(), directory(plan, room.shm, "noexec,nosuid,nodev", "1777")),
    ]);
    if matches!(workspace, Workspace::Private { .. }) {
        all.insert(WORKSPACE_PATH.to_owned(), directory(plan, room.workspace, "exec,nosuid,nodev", "0700"));
    }
    if plan.facts.podman {
        // Podman has places of its own that are writable without a limit.
        let covered = ["/run", "/var/tmp"].map(|path| (path.to_owned(), COVERED.to_owned()));
        all.extend(covered);
    }
    for path in &plan.image.volumes {
        if all.contains_key(path) || path == WORKSPACE_PATH {
            continue;
        }
        if !is_coverable(path) {
            return Err(Error::invalid("create", "the image wants a volume in a place that is a sandbox's own")
                .with_context("path", path.escape_debug().to_string())
                .with_remedy("use an image without that VOLUME"));
        }
        // Else it would have a volume there: writable, without a limit, on the engine's disk.
        all.insert(path.clone(), COVERED.to_owned());
    }
    Ok(all)
}

/// The options of one writable directory.
fn directory(plan: &Plan<'_>, room: Option<u64>, flags: &str, mode: &str) -> String {
    let (uid, gid) = plan.user;
    // Podman knows no owner of a tmpfs; there is one user inside.
    let (owner, mode) =
        if plan.facts.podman { (String::new(), "1777") } else { (format!(",uid={uid},gid={gid}"), mode) };
    match room {
        None => format!("rw,{flags},mode={mode}{owner}"),
        Some(bytes) => {
            let files = if plan.facts.podman { String::new() } else { format!(",nr_inodes={}", most_files(bytes)) };
            format!("rw,{flags},size={bytes},mode={mode}{owner}{files}")
        }
    }
}

/// Each file takes memory, too, however small it is.
pub(crate) fn most_files(bytes: u64) -> u64 {
    (bytes / PAGE).clamp(64, 1 << 20)
}

/// A plain path to a directory that is no place of ours or the kernel's.
fn is_coverable(path: &str) -> bool {
    let ours = [WORKSPACE_PATH, AGENT_DIRECTORY, "/tmp", "/proc", "/sys", "/dev", "/etc"];
    let plain = path.starts_with('/')
        && path.len() > 1
        && path.len() <= 4096
        && !path.contains(|c: char| c.is_control() || c == ':' || c == ',')
        && Path::new(path).components().skip(1).all(|part| matches!(part, Component::Normal(_)))
        && Path::new(path).components().collect::<std::path::PathBuf>().as_os_str() == path;
    plain && ours.iter().all(|ours| !Path::new(path).starts_with(ours))
}

fn mounts(plan: &Plan<'_>, workspace: &Workspace) -> Vec<Mount> {
    let agent = Mount {
        target: Some(AGENT_DIRECTORY.to_owned()),
        source: Some(plan.agent_volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(true),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    };
    let lent = plan.host_dir.map(|path| Mount {
        target: Some(WORKSPACE_PATH.to_owned()),
        source: Some(path.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(workspace.access() == Access::ReadOnly),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            // What is mounted below is not lent; and would stay writable where the directory is read-only.
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    });
    [agent].into_iter().chain(lent).collect()
}

#[cfg(test)]
mod tests;
