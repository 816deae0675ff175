//! Requests to Firecracker and its answers, following its published description of version 1.17.
//!
//! Contains only what sandboxes use. Properties that version 1.16, the oldest supported one, does not know are omitted.

use std::path::PathBuf;

use cofferdam_contract::{ByteSize, Error, Result};
use serde::{Deserialize, Serialize};

use super::ids::DriveId;

const MEBIBYTE: u64 = 1 << 20;
/// Firecracker's maximum number of processors of a VM.
const MAX_VCPUS: u32 = 32;
/// Lowest guest CID; smaller ones are reserved.
const FIRST_GUEST_CID: u32 = 3;

/// A description of a Firecracker process.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct InstanceInfo {
    /// Name of the program.
    pub app_name: String,
    /// Name of the VM, as given at the start.
    pub id: String,
    /// State of the VM.
    pub state: InstanceState,
    /// Version of the program.
    pub vmm_version: String,
}

/// The state of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum InstanceState {
    /// It was not started or restored yet.
    #[serde(rename = "Not started")]
    NotStarted,
    /// Its processors run.
    Running,
    /// Its processors are stopped.
    Paused,
}

/// The version of a running Firecracker.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FirecrackerVersion {
    /// Such as `1.16.1`.
    pub firecracker_version: String,
}

/// Processors and memory of a VM.
///
/// Simultaneous multithreading is always off inside, so VMs do not share a core's threads by this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineConfig {
    vcpu_count: u32,
    mem_size_mib: u64,
    #[serde(default)]
    smt: bool,
    #[serde(default)]
    track_dirty_pages: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_template: Option<CpuTemplate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    huge_pages: Option<HugePages>,
}

impl MachineConfig {
    /// Creates a configuration with 1 to 32 processors and whole mebibytes of memory.
    pub fn new(vcpus: u32, memory: ByteSize) -> Result<Self> {
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            let message = format!("a VM of Firecracker has 1 to {MAX_VCPUS} processors, not {vcpus}");
            return Err(Error::invalid("create", message));
        }
        let bytes = memory.as_bytes();
        if bytes == 0 || !bytes.is_multiple_of(MEBIBYTE) {
            return Err(Error::invalid("create", format!("a VM's memory must be whole mebibytes, not {memory}")));
        }
        Ok(Self {
            vcpu_count: vcpus,
            mem_size_mib: bytes / MEBIBYTE,
            smt: false,
            track_dirty_pages: false,
            cpu_template: None,
            huge_pages: None,
        })
    }

    /// Tracks written pages, so that snapshots can contain only those.
    #[must_use]
    pub fn tracking_dirty_pages(mut self) -> Self {
        self.track_dirty_pages = true;
        self
    }

    /// Limits the guest's processor features to those of a template.
    #[must_use]
    pub fn with_cpu_template(mut self, template: CpuTemplate) -> Self {
        self.cpu_template = Some(template);
        self
    }

    /// Takes the memory from the host's reserved pages of 2 MiB.
    pub fn with_huge_pages(mut self) -> Result<Self> {
        if !self.mem_size_mib.is_multiple_of(2) {
            let message = format!("memory in huge pages must be a multiple of 2 MiB, not {} MiB", self.mem_size_mib);
            return Err(Error::invalid("create", message));
        }
        self.huge_pages = Some(HugePages::TwoMebibytes);
        Ok(self)
    }

    /// Returns the number of processors.
    pub fn vcpus(&self) -> u32 {
        self.vcpu_count
    }

    /// Returns the memory size.
    pub fn memory(&self) -> ByteSize {
        ByteSize::from_bytes(self.mem_size_mib.saturating_mul(MEBIBYTE))
    }

    /// Returns true if the guest sees threads of one core. Read back from Firecracker; never requested.
    pub fn smt(&self) -> bool {
        self.smt
    }
}

/// A set of processor features, named after the hosts that have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names that Firecracker chose")]
pub enum CpuTemplate {
    C3,
    T2,
    T2S,
    T2CL,
    T2A,
    V1N1,
    None,
}

/// The page size of a VM's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePages {
    /// The host's default pages.
    None,
    /// Pages of 2 MiB from the host's reserve.
    #[serde(rename = "2M")]
    TwoMebibytes,
    /// Default pages, which the host merges into huge ones where it can. Known since version 1.17, and never requested.
    Transparent,
}

/// The boot files of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootSource {
    /// An uncompressed kernel.
    pub kernel_image_path: PathBuf,
    /// The initial file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<PathBuf>,
    /// The kernel's command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_args: Option<String>,
}

/// A block device backed by a file of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drive {
    drive_id: DriveId,
    path_on_host: PathBuf,
    is_root_device: bool,
    is_read_only: bool,
    cache_type: CacheType,
    io_engine: IoEngine,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limiter: Option<RateLimiter>,
}

impl Drive {
    /// Creates a read-only device.
    pub fn read_only(id: DriveId, path: impl Into<PathBuf>) -> Self {
        Self {
            drive_id: id,
            path_on_host: path.into(),
            is_root_device: false,
            is_read_only: true,
            cache_type: CacheType::Unsafe,
            io_engine: IoEngine::Sync,
            rate_limiter: None,
        }
    }

    /// Creates a writable device. With a `Writeback` cache, the guest's flush reaches the host's disk.
    pub fn writable(id: DriveId, path: impl Into<PathBuf>, cache: CacheType) -> Self {
        Self { is_read_only: false, cache_type: cache, ..Self::read_only(id, path) }
    }

    /// Makes it the kernel's root device.
    #[must_use]
    pub fn as_root(mut self) -> Self {
        self.is_root_device = true;
        self
    }

    /// Limits its traffic.
    #[must_use]
    pub fn with_rate_limiter(mut self, limiter: RateLimiter) -> Self {
        self.rate_limiter = Some(limiter);
        self
    }

    /// Returns its name.
    pub fn id(&self) -> &DriveId {
        &self.drive_id
    }
}

/// The effect of a guest's flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CacheType {
    /// None.
    Unsafe,
    /// Waits until the data is on the host's disk.
    Writeback,
}

/// The I/O engine of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum IoEngine {
    /// One system call after the other.
    Sync,
    /// io_uring.
    Async,
}

/// Traffic limits of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RateLimiter {
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// Operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

/// A token bucket that is refilled within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokenBucket {
    /// Capacity.
    pub size: u64,
    /// Milliseconds to refill an empty bucket.
    pub refill_time: u64,
    /// Additional tokens at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_time_burst: Option<u64>,
}

/// Streams between guest and host, as Unix sockets on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vsock {
    guest_cid: u32,
    uds_path: PathBuf,
}

impl Vsock {
    /// Creates a device with the guest's address, at least 3, and the socket that Firecracker creates.
    pub fn new(guest_cid: u32, socket: impl Into<PathBuf>) -> Result<Self> {
        if guest_cid < FIRST_GUEST_CID {
            let message = format!("a guest's vsock address must be at least {FIRST_GUEST_CID}, not {guest_cid}");
            return Err(Error::invalid("create", message));
        }
        Ok(Self { guest_cid, uds_path: socket.into() })
    }
}

/// A balloon device, with which the host reclaims memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Balloon {
    /// Mebibytes that the host reclaims.
    pub amount_mib: u64,
    /// True if the guest may deflate the balloon before it kills a process for lack of memory.
    pub deflate_on_oom: bool,
    /// Seconds between two reports of the guest's memory; 0 for none.
    pub stats_polling_interval_s: u32,
}

/// A new size of the balloon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BalloonUpdate {
    /// Mebibytes that the host reclaims.
    pub amount_mib: u64,
}

/// A new interval between two reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BalloonStatsUpdate {
    /// Seconds.
    pub stats_polling_interval_s: u32,
}

/// A report of the guest's memory. All but the first four numbers come from the guest, and are untrusted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BalloonStats {
    /// Pages that the host reclaims.
    pub target_pages: u64,
    /// Pages that the balloon holds.
    pub actual_pages: u64,
    /// `target_pages` in mebibytes.
    pub target_mib: u64,
    /// `actual_pages` in mebibytes.
    pub actual_mib: u64,
    /// Unused bytes.
    pub free_memory: Option<u64>,
    /// Bytes in total.
    pub total_memory: Option<u64>,
    /// Bytes that are available without swapping.
    pub available_memory: Option<u64>,
    /// Bytes of cached files.
    pub disk_caches: Option<u64>,
    /// Page faults that needed the disk.
    pub major_faults: Option<u64>,
    /// Processes that were killed for lack of memory.
    pub oom_kill: Option<u64>,
}

/// The configuration of Firecracker's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Logger {
    /// A file or pipe that exists.
    pub log_path: PathBuf,
    /// The log level.
    pub level: LogLevel,
    /// True if each line contains its level.
    pub show_level: bool,
    /// True if each line contains its origin in the program.
    pub show_log_origin: bool,
}

/// A log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the usual names")]
pub enum LogLevel {
    Off,
    Error,
    Warning,
    Info,
    Debug,
    Trace,
}

/// The destination of Firecracker's metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// A file or pipe that exists.
    pub metrics_path: PathBuf,
}

/// The destination of the guest's console. The output is unbounded: use a pipe, and read it with a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Serial {
    /// A file or pipe that exists.
    pub serial_out_path: PathBuf,
}

/// A device with random numbers of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Entropy {
    /// Limit of its traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// An action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Action {
    /// Start the VM.
    InstanceStart,
    /// Write the metrics now.
    FlushMetrics,
}

/// A requested state of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum VmState {
    /// Stop the processors.
    Paused,
    /// Continue the processors.
    Resumed,
}

/// The memory that a snapshot contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SnapshotType {
    /// All of it.
    Full,
    /// The pages that were written since the last one.
    Diff,
}

/// A request to write a paused VM to two files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotCreate {
    /// The memory that it contains.
    pub snapshot_type: SnapshotType,
    /// The file for devices and processors.
    pub snapshot_path: PathBuf,
    /// The file for the memory.
    pub mem_file_path: PathBuf,
}

/// A request to restore a VM from a snapshot, in a Firecracker that has none yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotLoad {
    snapshot_path: PathBuf,
    mem_backend: MemoryBackend,
    resume_vm: bool,
    track_dirty_pages: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    vsock_override: Option<VsockOverride>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    network_overrides: Vec<NetworkOverride>,
    #[serde(skip_serializing_if = "is_off")]
    clock_realtime: bool,
}

impl SnapshotLoad {
    /// Restores from two files. The memory is mapped privately: all VMs that are restored from it share the file, and
    /// none of them writes to it. The VM is paused afterwards.
    pub fn new(snapshot: impl Into<PathBuf>, memory: impl Into<PathBuf>) -> Self {
        Self {
            snapshot_path: snapshot.into(),
            mem_backend: MemoryBackend { backend_type: MemoryBackendType::File, backend_path: memory.into() },
            resume_vm: false,
            track_dirty_pages: false,
            vsock_override: None,
            network_overrides: Vec::new(),
            clock_realtime: false,
        }
    }

    /// Resumes the VM at once.
    #[must_use]
    pub fn resumed(mut self) -> Self {
        self.resume_vm = true;
        self
    }

    /// Tracks written pages, for snapshots of type `Diff`.
    #[must_use]
    pub fn tracking_dirty_pages(mut self) -> Self {
        self.track_dirty_pages = true;
        self
    }

    /// Replaces the path of the vsock's socket.
    #[must_use]
    pub fn with_vsock(mut self, socket: impl Into<PathBuf>) -> Self {
        self.vsock_override = Some(VsockOverride { uds_path: socket.into() });
        self
    }

    /// Replaces the host device of one of the VM's network devices.
    #[must_use]
    pub fn with_network(mut self, interface: impl Into<String>, host_device: impl Into<String>) -> Self {
        self.network_overrides.push(NetworkOverride { iface_id: interface.into(), host_dev_name: host_device.into() });
        self
    }

    /// Advances the guest's clock by the time since the snapshot. On x86_64, with kvm-clock inside.
    #[must_use]
    pub fn with_clock_of_now(mut self) -> Self {
        self.clock_realtime = true;
        self
    }
}

/// The source of a snapshot's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct MemoryBackend {
    backend_type: MemoryBackendType,
    backend_path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum MemoryBackendType {
    File,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct VsockOverride {
    uds_path: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct NetworkOverride {
    iface_id: String,
    host_dev_name: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_off(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_processors_and_whole_mebibytes() {
        let size = ByteSize::from_mebibytes;
        for (vcpus, memory) in [(0, size(128)), (33, size(128)), (1, size(0)), (1, ByteSize::from_bytes(4096))] {
            assert!(MachineConfig::new(vcpus, memory).is_err(), "{vcpus} {memory}");
        }
        assert!(MachineConfig::new(1, size(129)).unwrap().with_huge_pages().is_err());
        let machine = MachineConfig::new(32, size(130)).unwrap().with_huge_pages().unwrap();
        assert_eq!((machine.vcpus(), machine.memory(), machine.smt()), (32, size(130), false));
    }

    #[test]
    fn addresses_with_a_meaning_are_no_guests() {
        assert!((0..3).all(|cid| Vsock::new(cid, "v.sock").is_err()));
        assert!(Vsock::new(3, "v.sock").is_ok());
    }
}
