//! The engine's request for a container: the conversion of a [`Plan`] to a [`ContainerCreateBody`]. It is pure, and
//! cannot request a privilege.

use std::collections::HashMap;
use std::path::{Component, Path};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use cofferdam_contract::{
    Access, ByteSize, Cpus, Error, ErrorKind, Result, SandboxId, Spec, WORKSPACE_PATH, Workspace,
};
use cofferdam_guest::network;

use crate::engine::Facts;
use crate::labels::{self, Owner};
use crate::mounts::{PlannedMount, PlannedSource};
use crate::plan::{Adjustable, BuiltIn, Plan};
use crate::sizes::{DirectorySizes, max_files};
use crate::volume::{AGENT_DIRECTORY, AGENT_FILE, agent_mount};

/// The paths that the engine masks: its own list, and further files with information about the host.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/irq",
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
    "/proc/sys/fs/dentry-state",
    "/proc/sys/fs/file-nr",
    "/proc/sys/fs/inode-nr",
    "/proc/sys/fs/inode-state",
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
/// The bytes by which a file's length may exceed the disk limit. Programs that fill a directory get ENOSPC before this
/// limit.
const FILE_SIZE_SLACK: u64 = 1 << 20;
/// Options of a tmpfs that hides a directory. Without a size a tmpfs could use half of the host's memory.
const COVERED: &str = "ro,noexec,nosuid,nodev,size=4096,mode=0555";
/// Tasks of a runtime with its own kernel, in addition to those of its guests.
const KERNEL_TASKS: i64 = 256;
/// The period of the CPU quota in microseconds.
pub(crate) const CPU_PERIOD: i64 = 100_000;
/// The kernel's minimum quota in a period.
const MIN_CPU_QUOTA: i64 = 1000;

/// The properties of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageFacts {
    /// The id, `sha256:…`, since a name can change its meaning.
    pub id: String,
    /// The directories for which the image declares a volume.
    pub volumes: Vec<String>,
    /// The PATH of the image, if it has one.
    pub path: Option<String>,
}

/// The input for the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CreateRequest<'a> {
    pub spec: &'a Spec,
    pub id: &'a SandboxId,
    pub owner: &'a Owner,
    pub facts: &'a Facts,
    pub runtime: Option<&'a str>,
    pub image: &'a ImageFacts,
    pub agent_volume: &'a str,
    /// User and group of all processes inside. Never root.
    pub user: (u32, u32),
    /// The path on the host of the workspace, unless it is private.
    pub host_dir: Option<&'a Path>,
    /// Mounts besides the workspace.
    pub mounts: &'a [PlannedMount],
}

/// Returns the request to the engine.
pub(crate) fn body(request: &CreateRequest<'_>) -> Result<ContainerCreateBody> {
    let (uid, gid) = request.user;
    if uid == 0 || gid == 0 {
        return Err(Error::new(ErrorKind::Internal, "create", "a sandbox must not run as root"));
    }
    let plan = Plan::of(request.spec)?;
    let BuiltIn { tenant, labels, .. } = plan.built_in;
    Ok(ContainerCreateBody {
        hostname: Some(HOST_NAME.to_owned()),
        user: Some(format!("{uid}:{gid}")),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // The end of the attached connection ends the agent's input, and with it the agent.
        stdin_once: Some(true),
        tty: Some(false),
        entrypoint: Some(vec![format!("{AGENT_DIRECTORY}/{AGENT_FILE}")]),
        cmd: Some(Vec::new()),
        working_dir: Some("/".to_owned()),
        // The engine would run an image's own health check next to the agent.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        image: Some(request.image.id.clone()),
        labels: Some(labels::of(request.id, tenant, request.owner, labels)),
        host_config: Some(host_config(request, &plan)?),
        ..ContainerCreateBody::default()
    })
}

fn host_config(request: &CreateRequest<'_>, plan: &Plan<'_>) -> Result<HostConfig> {
    let BuiltIn { workspace, disk, .. } = plan.built_in;
    let Adjustable { memory: max_memory, pids, cpus, .. } = plan.adjustable;
    let sizes = DirectorySizes::of(disk, workspace);
    let memory = max_memory.map(|memory| i64::try_from(memory.as_bytes()).unwrap_or(i64::MAX));
    Ok(HostConfig {
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        readonly_rootfs: Some(true),
        masked_paths: Some(MASKED.iter().map(|path| (*path).to_owned()).collect()),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: request.facts.has_cgroup_namespaces().then_some(HostConfigCgroupnsModeEnum::PRIVATE),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        auto_remove: Some(true),
        init: Some(false),
        memory,
        memory_swap: memory,
        // Where the kernel does not count swap, the container uses none.
        memory_swappiness: request.facts.has_uncounted_swap().then_some(0),
        // Includes the agent.
        pids_limit: pids.map(|pids| tasks(pids, request)),
        cpu_period: cpus.map(|_| CPU_PERIOD),
        cpu_quota: cpus.map(quota),
        ulimits: Some(ulimits(request, disk, max_memory)),
        sysctls: (!has_own_kernel(request)).then(|| network_settings(request.facts, plan.network.is_some())),
        dns: plan.network.is_some().then(|| vec![network::RESOLVER.to_string()]),
        tmpfs: Some(tmpfs(request, workspace, sizes)?),
        mounts: Some(mounts(request, workspace)),
        runtime: request.runtime.map(str::to_owned),
        ..HostConfig::default()
    })
}

/// Returns the limit on tasks. It includes the agent, or the tasks of a kernel that runs in the container.
fn tasks(pids: u32, request: &CreateRequest<'_>) -> i64 {
    i64::from(pids) + if has_own_kernel(request) { KERNEL_TASKS } else { 1 }
}

fn has_own_kernel(request: &CreateRequest<'_>) -> bool {
    request.facts.has_own_kernel(request.runtime)
}

/// Returns limits of the kernel memory of connections in the container, as in the process backend. With a network
/// policy, the agent can listen on every port.
fn network_settings(facts: &Facts, policy: bool) -> HashMap<String, String> {
    let mut settings = vec![
        ("net.ipv4.tcp_rmem", "4096 65536 65536"),
        ("net.ipv4.tcp_wmem", "4096 16384 131072"),
        ("net.ipv4.tcp_max_tw_buckets", "1024"),
    ];
    // Older kernels hide it from an engine without root. The agent then refuses longer queues.
    if !(facts.rootless || facts.remapped) || facts.kernel_is_at_least(6, 6) {
        settings.push(("net.core.somaxconn", "16"));
    }
    if policy {
        settings.push(("net.ipv4.ip_unprivileged_port_start", "0"));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the limits of each process.
fn ulimits(request: &CreateRequest<'_>, disk: Option<ByteSize>, memory: Option<ByteSize>) -> Vec<ResourcesUlimits> {
    let limit =
        |name: &str, soft, hard| ResourcesUlimits { name: Some(name.to_owned()), soft: Some(soft), hard: Some(hard) };
    // The agent polls several descriptors for each exec.
    let mut all = vec![limit("core", 0, 0), limit("nice", 0, 0), limit("nofile", 4096, 4096), limit("rtprio", 0, 0)];
    if let Some(disk) = disk {
        // Includes holes, since the sizes of the directories bound the stored bytes. Memory files count as files.
        let mounts = request.mounts.iter().map(|mount| match mount.source {
            PlannedSource::Tmpfs(size) | PlannedSource::Disk { size, .. } => size,
            PlannedSource::Host { .. } | PlannedSource::Layered(_) => 0,
        });
        let max =
            disk.max(memory.unwrap_or(disk)).as_bytes().max(mounts.max().unwrap_or(0)).saturating_add(FILE_SIZE_SLACK);
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        all.push(limit("fsize", max, max));
    }
    // By default, Podman requests more than an engine without the privilege may set.
    if request.facts.podman && !request.facts.rootless {
        all.push(limit("nproc", 16_384, 16_384));
    }
    all
}

pub(crate) fn quota(cpus: Cpus) -> i64 {
    (i64::from(cpus.as_millis()) * CPU_PERIOD / 1000).max(MIN_CPU_QUOTA)
}

fn tmpfs(request: &CreateRequest<'_>, workspace: &Workspace, sizes: DirectorySizes) -> Result<HashMap<String, String>> {
    let mut all = HashMap::from([
        ("/tmp".to_owned(), directory(request, sizes.tmp, "exec,nosuid,nodev", "1777")),
        ("/dev/shm".to_owned(), directory(request, sizes.shm, "noexec,nosuid,nodev", "1777")),
    ]);
    if matches!(workspace, Workspace::Private { .. }) {
        all.insert(WORKSPACE_PATH.to_owned(), directory(request, sizes.workspace, "exec,nosuid,nodev", "0700"));
    }
    if request.facts.podman {
        // Hides Podman's own writable directories, which have no limit.
        let covered = ["/run", "/var/tmp"].map(|path| (path.to_owned(), COVERED.to_owned()));
        all.extend(covered);
    }
    for mount in request.mounts {
        all.remove(&mount.target);
        if let PlannedSource::Tmpfs(size) = mount.source {
            all.insert(mount.target.clone(), directory(request, Some(size), "exec,nosuid,nodev", "0755"));
        }
    }
    for path in &request.image.volumes {
        let is_mounted = request.mounts.iter().any(|mount| mount.target == *path);
        if all.contains_key(path) || path == WORKSPACE_PATH || is_mounted {
            continue;
        }
        if !is_coverable(path) {
            return Err(Error::invalid("create", "the image declares a volume at a path that the sandbox uses")
                .with_context("path", path.escape_debug().to_string())
                .with_remedy("use an image without that VOLUME"));
        }
        // Otherwise the engine would create a volume: writable, without a limit, on its disk.
        all.insert(path.clone(), COVERED.to_owned());
    }
    Ok(all)
}

/// Returns the options of a writable directory.
fn directory(request: &CreateRequest<'_>, size: Option<u64>, flags: &str, mode: &str) -> String {
    let (uid, gid) = request.user;
    // Podman cannot set the owner of a tmpfs. There is only one user inside.
    let (owner, mode) =
        if request.facts.podman { (String::new(), "1777") } else { (format!(",uid={uid},gid={gid}"), mode) };
    match size {
        None => format!("rw,{flags},mode={mode}{owner}"),
        Some(bytes) => {
            let files = if request.facts.podman { String::new() } else { format!(",nr_inodes={}", max_files(bytes)) };
            format!("rw,{flags},size={bytes},mode={mode}{owner}{files}")
        }
    }
}

/// Returns true if a path is a plain absolute path outside the directories of Cofferdam and the kernel.
fn is_coverable(path: &str) -> bool {
    let reserved = [WORKSPACE_PATH, AGENT_DIRECTORY, "/tmp", "/proc", "/sys", "/dev", "/etc"];
    let plain = path.starts_with('/')
        && path.len() > 1
        && path.len() <= 4096
        && !path.contains(|c: char| c.is_control() || c == ':' || c == ',')
        && Path::new(path).components().skip(1).all(|part| matches!(part, Component::Normal(_)))
        && Path::new(path).components().collect::<std::path::PathBuf>().as_os_str() == path;
    plain && reserved.iter().all(|reserved| !Path::new(path).starts_with(reserved))
}

fn mounts(request: &CreateRequest<'_>, workspace: &Workspace) -> Vec<Mount> {
    let agent = agent_mount(request.agent_volume, Access::ReadOnly);
    let workspace = request.host_dir.map(|path| bind(WORKSPACE_PATH, path, workspace.access() == Access::ReadOnly));
    let others = request.mounts.iter().filter_map(|mount| {
        let bound = mount.bound()?;
        Some(bind(&mount.target, bound.path, bound.read_only))
    });
    [agent].into_iter().chain(workspace).chain(others).collect()
}

/// Returns the mount of a host path.
fn bind(target: &str, path: &Path, read_only: bool) -> Mount {
    Mount {
        target: Some(target.to_owned()),
        source: Some(path.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            // Excludes mounts below. They would stay writable even in a read-only directory.
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests;
