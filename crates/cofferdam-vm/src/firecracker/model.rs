//! What is said to Firecracker and what it answers, by its published description of version 1.17.
//!
//! Only what sandboxes use. Properties that version 1.16, the oldest that is accepted, does not know are left out.

use std::path::PathBuf;

use cofferdam_contract::{ByteSize, Error, Result};
use serde::{Deserialize, Serialize};

use super::ids::DriveId;

const MEBIBYTE: u64 = 1 << 20;
/// Processors that Firecracker gives to one machine at most.
const MAX_VCPUS: u32 = 32;
/// Addresses of a vsock below this one have a meaning of their own.
const FIRST_GUEST_CID: u32 = 3;

/// What a Firecracker process says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct InstanceInfo {
    /// Name of the program.
    pub app_name: String,
    /// Name of the machine, as given at the start.
    pub id: String,
    /// What the machine does.
    pub state: InstanceState,
    /// Version of the program.
    pub vmm_version: String,
}

/// What a machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum InstanceState {
    /// It was not started or restored yet.
    #[serde(rename = "Not started")]
    NotStarted,
    /// Its processors run.
    Running,
    /// Its processors stand still.
    Paused,
}

/// The version of a running Firecracker.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FirecrackerVersion {
    /// Such as `1.16.1`.
    pub firecracker_version: String,
}

/// Processors and memory of a machine.
///
/// Two machines never share a core's threads by this: simultaneous multithreading is always off inside.
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
    /// A machine with 1 to 32 processors and whole mebibytes of memory.
    pub fn new(vcpus: u32, memory: ByteSize) -> Result<Self> {
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            let message = format!("a machine under Firecracker has 1 to {MAX_VCPUS} processors, not {vcpus}");
            return Err(Error::invalid("create", message));
        }
        let bytes = memory.as_bytes();
        if bytes == 0 || !bytes.is_multiple_of(MEBIBYTE) {
            return Err(Error::invalid("create", format!("a machine's memory is whole mebibytes, not {memory}")));
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

    /// Has written pages counted, so that snapshots can hold only those.
    #[must_use]
    pub fn tracking_dirty_pages(mut self) -> Self {
        self.track_dirty_pages = true;
        self
    }

    /// Shows the guest the processor features of a template.
    #[must_use]
    pub fn with_cpu_template(mut self, template: CpuTemplate) -> Self {
        self.cpu_template = Some(template);
        self
    }

    /// Takes the memory from pages of 2 MiB that the host keeps for this.
    pub fn with_huge_pages(mut self) -> Result<Self> {
        if !self.mem_size_mib.is_multiple_of(2) {
            let message = format!("memory in huge pages is a multiple of 2 MiB, not {} MiB", self.mem_size_mib);
            return Err(Error::invalid("create", message));
        }
        self.huge_pages = Some(HugePages::TwoMebibytes);
        Ok(self)
    }

    /// Processors.
    pub fn vcpus(&self) -> u32 {
        self.vcpu_count
    }

    /// Memory, as far as a number of bytes can say it.
    pub fn memory(&self) -> ByteSize {
        ByteSize::from_bytes(self.mem_size_mib.saturating_mul(MEBIBYTE))
    }

    /// Whether threads of one core are shown inside. Read back from Firecracker; never asked for.
    pub fn smt(&self) -> bool {
        self.smt
    }
}

/// A set of processor features, named after the machines that have them.
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

/// The pages that a machine's memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePages {
    /// The host's usual ones.
    None,
    /// Those of 2 MiB from the host's reserve.
    #[serde(rename = "2M")]
    TwoMebibytes,
    /// The usual ones, joined by the host where it can. Known from version 1.17 on, and never asked for.
    Transparent,
}

/// What a machine starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootSource {
    /// An uncompressed kernel.
    pub kernel_image_path: PathBuf,
    /// The first file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<PathBuf>,
    /// The kernel's command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_args: Option<String>,
}

/// A block device over a file of the host's.
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
    /// A device that cannot be written to.
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

    /// A device that can be written to. With a `Writeback` cache, what the guest flushes is on the host's disk.
    pub fn writable(id: DriveId, path: impl Into<PathBuf>, cache: CacheType) -> Self {
        Self { is_read_only: false, cache_type: cache, ..Self::read_only(id, path) }
    }

    /// Makes it the device that the kernel takes its root from.
    #[must_use]
    pub fn as_root(mut self) -> Self {
        self.is_root_device = true;
        self
    }

    /// Bounds its traffic.
    #[must_use]
    pub fn with_rate_limiter(mut self, limiter: RateLimiter) -> Self {
        self.rate_limiter = Some(limiter);
        self
    }

    /// Its name.
    pub fn id(&self) -> &DriveId {
        &self.drive_id
    }
}

/// What a guest's flush does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CacheType {
    /// Nothing.
    Unsafe,
    /// It waits until the host's disk has the data.
    Writeback,
}

/// How the file is read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum IoEngine {
    /// One call after the other.
    Sync,
    /// By io_uring.
    Async,
}

/// Bounds of a device's traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RateLimiter {
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// Operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

/// So many tokens, filled up again within so many milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokenBucket {
    /// Tokens that it holds.
    pub size: u64,
    /// Milliseconds until an empty one is full.
    pub refill_time: u64,
    /// Tokens at the very beginning, besides.
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
    /// The guest's address, at least 3, and the socket that Firecracker makes.
    pub fn new(guest_cid: u32, socket: impl Into<PathBuf>) -> Result<Self> {
        if guest_cid < FIRST_GUEST_CID {
            let message = format!("a guest's vsock address is at least {FIRST_GUEST_CID}, not {guest_cid}");
            return Err(Error::invalid("create", message));
        }
        Ok(Self { guest_cid, uds_path: socket.into() })
    }
}

/// A device by which the host asks for memory back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Balloon {
    /// Mebibytes that the host asks for.
    pub amount_mib: u64,
    /// Whether the guest may take them back before it kills a process for want of memory.
    pub deflate_on_oom: bool,
    /// Seconds between two reports of the guest's memory; 0 for none.
    pub stats_polling_interval_s: u32,
}

/// Another size of the balloon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BalloonUpdate {
    /// Mebibytes that the host asks for.
    pub amount_mib: u64,
}

/// Another time between two reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BalloonStatsUpdate {
    /// Seconds.
    pub stats_polling_interval_s: u32,
}

/// A report of the guest's memory. All but the first four numbers are the guest's own words, and so may be anything.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BalloonStats {
    /// Pages that the host asks for.
    pub target_pages: u64,
    /// Pages that the balloon holds.
    pub actual_pages: u64,
    /// The same in mebibytes.
    pub target_mib: u64,
    /// The same in mebibytes.
    pub actual_mib: u64,
    /// Bytes that nothing uses.
    pub free_memory: Option<u64>,
    /// Bytes in all.
    pub total_memory: Option<u64>,
    /// Bytes that could be had without swapping.
    pub available_memory: Option<u64>,
    /// Bytes of cached files.
    pub disk_caches: Option<u64>,
    /// Page faults that needed the disk.
    pub major_faults: Option<u64>,
    /// Processes that were killed for want of memory.
    pub oom_kill: Option<u64>,
}

/// Where Firecracker writes its log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Logger {
    /// A file or pipe that exists.
    pub log_path: PathBuf,
    /// How much is written.
    pub level: LogLevel,
    /// Whether each line says its level.
    pub show_level: bool,
    /// Whether each line says where in the program it comes from.
    pub show_log_origin: bool,
}

/// How much is written to a log.
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

/// Where Firecracker writes its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// A file or pipe that exists.
    pub metrics_path: PathBuf,
}

/// Where the guest's console goes. What comes is without end if the guest wants: name a pipe, and read it with a bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Serial {
    /// A file or pipe that exists.
    pub serial_out_path: PathBuf,
}

/// A device with random numbers of the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Entropy {
    /// Bounds what is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// Something to do at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Action {
    /// The machine starts.
    InstanceStart,
    /// The figures are written now.
    FlushMetrics,
}

/// What a machine is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum VmState {
    /// Stand still.
    Paused,
    /// Go on.
    Resumed,
}

/// What a snapshot holds of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SnapshotType {
    /// All of it.
    Full,
    /// What was written since the last one.
    Diff,
}

/// Writes a paused machine to two files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotCreate {
    /// How much of the memory.
    pub snapshot_type: SnapshotType,
    /// The file for devices and processors.
    pub snapshot_path: PathBuf,
    /// The file for the memory.
    pub mem_file_path: PathBuf,
}

/// Makes the machine of a snapshot in a Firecracker that has none yet.
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
    /// From two files. The memory is mapped privately: the file is shared by all machines made from it, and none of them
    /// writes to it. The machine stands still afterwards.
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

    /// Lets it go on at once.
    #[must_use]
    pub fn resumed(mut self) -> Self {
        self.resume_vm = true;
        self
    }

    /// Has written pages counted, for snapshots of type `Diff`.
    #[must_use]
    pub fn tracking_dirty_pages(mut self) -> Self {
        self.track_dirty_pages = true;
        self
    }

    /// Gives the vsock another socket than it had.
    #[must_use]
    pub fn with_vsock(mut self, socket: impl Into<PathBuf>) -> Self {
        self.vsock_override = Some(VsockOverride { uds_path: socket.into() });
        self
    }

    /// Gives a network device of the machine another one of the host's.
    #[must_use]
    pub fn with_network(mut self, interface: impl Into<String>, host_device: impl Into<String>) -> Self {
        self.network_overrides.push(NetworkOverride { iface_id: interface.into(), host_dev_name: host_device.into() });
        self
    }

    /// Sets the guest's clock forward by the time since the snapshot. On x86_64, with kvm-clock inside.
    #[must_use]
    pub fn with_clock_of_now(mut self) -> Self {
        self.clock_realtime = true;
        self
    }
}

/// Where the memory of a snapshot comes from.
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
