//! Requests to Firecracker and its answers, following its published description of version 1.17.
//!
//! Contains only the requests of the driver, and of the answers only what it reads.

use std::path::PathBuf;

use cofferdam_contract::{ByteSize, Error, Result};
use serde::{Deserialize, Serialize};

use super::ids::DriveId;

const MEBIBYTE: u64 = 1 << 20;
/// Firecracker's maximum number of processors of a VM.
const MAX_VCPUS: u32 = 32;
/// Guest CID. Each VM has a vsock of its own, so all have the same; smaller ones are reserved.
const GUEST_CID: u32 = 3;

/// A description of a Firecracker process.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct InstanceInfo {
    /// Name of the VM, as given at the start.
    pub id: String,
    /// State of the VM.
    pub state: InstanceState,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineConfig {
    vcpu_count: u32,
    mem_size_mib: u64,
    smt: bool,
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
        Ok(Self { vcpu_count: vcpus, mem_size_mib: bytes / MEBIBYTE, smt: false })
    }
}

/// The boot files of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootSource {
    /// An uncompressed kernel.
    pub kernel_image_path: PathBuf,
    /// The initial file system.
    pub initrd_path: PathBuf,
    /// The kernel's command line.
    pub boot_args: String,
}

/// A block device backed by a file of the host. It is never the kernel's root device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drive {
    drive_id: DriveId,
    path_on_host: PathBuf,
    is_root_device: bool,
    is_read_only: bool,
    cache_type: CacheType,
    io_engine: IoEngine,
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
        }
    }

    /// Creates a writable device. Written data stays in the host's page cache, also after a flush by the guest.
    pub fn writable(id: DriveId, path: impl Into<PathBuf>) -> Self {
        Self { is_read_only: false, ..Self::read_only(id, path) }
    }

    /// Returns its name.
    pub fn id(&self) -> &DriveId {
        &self.drive_id
    }
}

/// The effect of a guest's flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum CacheType {
    /// None.
    Unsafe,
}

/// The I/O engine of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum IoEngine {
    /// One system call after the other.
    Sync,
}

/// Streams between guest and host, as Unix sockets on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vsock {
    guest_cid: u32,
    uds_path: PathBuf,
}

impl Vsock {
    /// Creates a device with the socket that Firecracker creates.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { guest_cid: GUEST_CID, uds_path: socket.into() }
    }
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
enum SnapshotType {
    /// All of it.
    Full,
}

/// A request to write a paused VM to two files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotCreate {
    snapshot_type: SnapshotType,
    snapshot_path: PathBuf,
    mem_file_path: PathBuf,
}

impl SnapshotCreate {
    /// Writes devices and processors to one file, and the whole memory to the other.
    pub fn new(snapshot: impl Into<PathBuf>, memory: impl Into<PathBuf>) -> Self {
        Self { snapshot_type: SnapshotType::Full, snapshot_path: snapshot.into(), mem_file_path: memory.into() }
    }
}

/// A request to restore a VM from a snapshot, in a Firecracker that has none yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotLoad {
    snapshot_path: PathBuf,
    mem_backend: MemoryBackend,
    resume_vm: bool,
    vsock_override: VsockOverride,
}

impl SnapshotLoad {
    /// Restores from two files, with another path of the vsock's socket. The memory is mapped privately: all VMs that
    /// are restored from it share the file, and none of them writes to it. The VM is paused afterwards.
    pub fn new(snapshot: impl Into<PathBuf>, memory: impl Into<PathBuf>, socket: impl Into<PathBuf>) -> Self {
        Self {
            snapshot_path: snapshot.into(),
            mem_backend: MemoryBackend { backend_type: MemoryBackendType::File, backend_path: memory.into() },
            resume_vm: false,
            vsock_override: VsockOverride { uds_path: socket.into() },
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_have_processors_and_whole_mebibytes() {
        let size = ByteSize::from_mebibytes;
        for (vcpus, memory) in [(0, size(128)), (33, size(128)), (1, size(0)), (1, ByteSize::from_bytes(4096))] {
            assert!(MachineConfig::new(vcpus, memory).is_err(), "{vcpus} {memory}");
        }
        for (vcpus, memory) in [(1, 129), (32, 130)] {
            let expected = MachineConfig { vcpu_count: vcpus, mem_size_mib: memory, smt: false };
            assert_eq!(MachineConfig::new(vcpus, size(memory)).unwrap(), expected);
        }
    }
}
