//! Open files and directories.

use std::collections::VecDeque;
use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::filesystem::preopens;
use super::bindings::filesystem::types::{
    Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, ErrorCode, Host as Types,
    HostDirectoryEntryStream, MetadataHashValue, NewTimestamp,
};
use super::clocks::{date, nanos};
use super::error::FileFail;
use super::resources::{Entries, InputStream, IoError, NodeRef, Opened, OutputStream};
use super::streams::MAX_TRANSFER;
use crate::fs::{Kind, SetTime, Stat, Tree};
use crate::wasi::Host;

pub(super) type Answer<T = ()> = Result<T, FileFail>;

/// Bytes per write. A write that exceeds a limit loses at most this much of what would fit.
const SLICE: usize = 64 << 10;
/// Directory entries per lookup.
const LISTED: usize = 64;
/// The position in a listing after `.` and `..`, which the interface leaves out.
const AFTER_DOTS: u64 = 2;

/// An open file.
struct OpenFile {
    node: Arc<NodeRef>,
    reads: bool,
    writes: bool,
}

impl Host {
    fn file(&self, handle: &Resource<Opened>) -> Answer<OpenFile> {
        match self.resource(handle)? {
            Opened::File { node, reads, writes } => {
                Ok(OpenFile { node: Arc::clone(node), reads: *reads, writes: *writes })
            }
            Opened::Directory { .. } => Err(ErrorCode::IsDirectory.into()),
        }
    }

    fn readable_file(&self, handle: &Resource<Opened>) -> Answer<Arc<NodeRef>> {
        let file = self.file(handle)?;
        if file.reads { Ok(file.node) } else { Err(ErrorCode::BadDescriptor.into()) }
    }

    fn writable_file(&self, handle: &Resource<Opened>) -> Answer<Arc<NodeRef>> {
        let file = self.file(handle)?;
        if file.writes { Ok(file.node) } else { Err(ErrorCode::BadDescriptor.into()) }
    }

    /// Changes the file system, and records a limit that was reached.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Tree, u64) -> crate::fs::FsResult<T>) -> Answer<T> {
        let now = self.clock().stamp();
        let result = change(&mut self.locked_tree(), now);
        Ok(self.noted(result)?)
    }

    pub(super) fn times(&mut self, accessed: NewTimestamp, modified: NewTimestamp) -> Answer<SetTime> {
        let now = self.clock().stamp();
        let pick = |new| match new {
            NewTimestamp::NoChange => Ok(None),
            NewTimestamp::Now => Ok(Some(now)),
            NewTimestamp::Timestamp(date) => nanos(date).map(Some).ok_or(ErrorCode::Overflow),
        };
        Ok(SetTime { accessed: pick(accessed)?, modified: pick(modified)? })
    }
}

pub(super) fn kind(kind: Kind) -> DescriptorType {
    match kind {
        Kind::File => DescriptorType::RegularFile,
        Kind::Directory => DescriptorType::Directory,
        Kind::Symlink => DescriptorType::SymbolicLink,
    }
}

pub(super) fn described(stat: &Stat) -> DescriptorStat {
    DescriptorStat {
        type_: kind(stat.kind),
        link_count: stat.links,
        size: stat.size,
        data_access_timestamp: Some(date(stat.times.accessed)),
        data_modification_timestamp: Some(date(stat.times.modified)),
        status_change_timestamp: Some(date(stat.times.changed)),
    }
}

/// Returns the hash by which a guest distinguishes nodes: the inode number, which is never reused.
pub(super) fn hash(ino: crate::fs::Ino) -> MetadataHashValue {
    MetadataHashValue { lower: ino.0, upper: 0 }
}

impl Host {
    pub(super) fn descriptor_read(
        &mut self,
        handle: &Resource<Opened>,
        length: u64,
        offset: u64,
    ) -> Answer<(Vec<u8>, bool)> {
        let node = self.readable_file(handle)?;
        let tree = self.locked_tree();
        let left = tree.stat(node.ino)?.size.saturating_sub(offset);
        let size = left.min(length).min(MAX_TRANSFER as u64);
        let mut buffer = vec![0; size as usize];
        let read = tree.read(node.ino, offset, &mut buffer)?;
        drop(tree);
        buffer.truncate(read);
        Ok((buffer, read as u64 == left))
    }

    /// Writes as many bytes as the limits allow, and fails if none can be written.
    pub(super) fn descriptor_write(&mut self, handle: &Resource<Opened>, bytes: &[u8], offset: u64) -> Answer<u64> {
        let node = self.writable_file(handle)?;
        let mut written = 0u64;
        for slice in bytes.chunks(SLICE) {
            let at = offset.saturating_add(written);
            match self.change(|tree, now| tree.write(node.ino, at, slice, now)) {
                Ok(()) => written += slice.len() as u64,
                Err(_) if written > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    pub(super) fn descriptor_flags(&self, handle: &Resource<Opened>) -> Answer<DescriptorFlags> {
        let flag_if = |flag, has| if has { flag } else { DescriptorFlags::empty() };
        Ok(match self.resource(handle)? {
            Opened::File { reads, writes, .. } => {
                flag_if(DescriptorFlags::READ, *reads) | flag_if(DescriptorFlags::WRITE, *writes)
            }
            Opened::Directory { directory, .. } => {
                DescriptorFlags::READ | flag_if(DescriptorFlags::MUTATE_DIRECTORY, directory.writable)
            }
        })
    }

    pub(super) fn descriptor_set_times(
        &mut self,
        handle: &Resource<Opened>,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> Answer {
        let set = self.times(accessed, modified)?;
        let (ino, writable) = match self.resource(handle)? {
            Opened::File { node, writes, .. } => (node.ino, *writes),
            Opened::Directory { node, directory } => (node.ino, directory.writable),
        };
        if !writable {
            return Err(ErrorCode::NotPermitted.into());
        }
        self.change(|tree, now| tree.set_times(ino, set, now))
    }

    pub(super) fn descriptor_stat(&self, handle: &Resource<Opened>) -> Answer<DescriptorStat> {
        let ino = self.resource(handle)?.ino();
        Ok(described(&self.locked_tree().stat(ino)?))
    }

    pub(super) fn stream_in(&mut self, handle: &Resource<Opened>, offset: u64) -> Answer<Resource<InputStream>> {
        let node = self.readable_file(handle)?;
        Ok(self.push_resource(InputStream::File { node, position: offset })?)
    }

    pub(super) fn stream_out(
        &mut self,
        handle: &Resource<Opened>,
        position: Option<u64>,
    ) -> Answer<Resource<OutputStream>> {
        let node = self.writable_file(handle)?;
        Ok(self.push_resource(OutputStream::File { node, position })?)
    }

    pub(super) fn advised(&self, handle: &Resource<Opened>, _advice: Advice) -> Answer {
        self.file(handle).map(drop)
    }

    pub(super) fn resize(&mut self, handle: &Resource<Opened>, size: u64) -> Answer {
        let node = self.writable_file(handle)?;
        self.change(|tree, now| tree.set_length(node.ino, size, now))
    }

    pub(super) fn entries(&mut self, handle: &Resource<Opened>) -> Answer<Resource<Entries>> {
        let node = match self.resource(handle)? {
            Opened::Directory { node, .. } => Arc::clone(node),
            Opened::File { .. } => return Err(ErrorCode::NotDirectory.into()),
        };
        Ok(self.push_resource(Entries { node, next: AFTER_DOTS, ready: VecDeque::new() })?)
    }
}

impl HostDirectoryEntryStream for Host {
    fn read_directory_entry(&mut self, handle: Resource<Entries>) -> Answer<Option<DirectoryEntry>> {
        let entries = self.resource(&handle)?;
        if entries.ready.is_empty() {
            let (ino, next) = (entries.node.ino, entries.next);
            let listed = self.locked_tree().list_from(ino, next, LISTED)?;
            let entries = self.resource_mut(&handle)?;
            entries.next = listed.last().map_or(entries.next, |last| last.next);
            entries.ready = listed.into();
        }
        let entry = self.resource_mut(&handle)?.ready.pop_front();
        Ok(entry.map(|entry| DirectoryEntry { type_: kind(entry.kind), name: entry.name.as_ref().to_owned() }))
    }

    fn drop(&mut self, handle: Resource<Entries>) -> wasmtime::Result<()> {
        self.delete_resource(handle).map(drop)
    }
}

impl Types for Host {
    fn filesystem_error_code(&mut self, error: Resource<IoError>) -> wasmtime::Result<Option<ErrorCode>> {
        Ok(self.resource(&error)?.code)
    }

    fn convert_error_code(&mut self, error: FileFail) -> wasmtime::Result<ErrorCode> {
        error.into_code()
    }
}

impl preopens::Host for Host {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Opened>, String)>> {
        let mut directories = Vec::new();
        for directory in self.preopens() {
            let name = directory.preopen.clone().unwrap_or_default();
            // Preview 1's descriptor table holds the directory during the whole exec.
            let node = NodeRef::new(self.files(), directory.ino).map_err(wasmtime::Error::new)?;
            directories.push((self.push_opened(Opened::Directory { node, directory })?, name));
        }
        Ok(directories)
    }
}
