//! Calls on descriptors. Calls with a path start at an open directory and never lead above it.

use wasmtime::component::Resource;

use super::bindings::filesystem::types::{
    Advice, DescriptorFlags, DescriptorStat, DescriptorType, ErrorCode, HostDescriptor, MetadataHashValue,
    NewTimestamp, OpenFlags, PathFlags,
};
use super::filesystem::{Answer, described, hash, kind};
use super::resources::{Entries, InputStream, NodeRef, Opened, OutputStream};
use crate::fs::{Kind, LastLink, OpenHow, Stat};
use crate::wasi::{Host, OpenDirectory};

fn last(flags: PathFlags) -> LastLink {
    if flags.contains(PathFlags::SYMLINK_FOLLOW) { LastLink::Follow } else { LastLink::Keep }
}

impl Host {
    fn directory(&self, handle: &Resource<Opened>) -> Answer<OpenDirectory> {
        match self.resource(handle)? {
            Opened::Directory { directory, .. } => Ok(directory.clone()),
            Opened::File { .. } => Err(ErrorCode::NotDirectory.into()),
        }
    }

    /// Returns the directory, or an error if it is read-only.
    fn writable_directory(&self, handle: &Resource<Opened>) -> Answer<OpenDirectory> {
        let directory = self.directory(handle)?;
        if directory.writable { Ok(directory) } else { Err(ErrorCode::ReadOnly.into()) }
    }

    fn stat_below(&self, handle: &Resource<Opened>, flags: PathFlags, path: &str) -> Answer<Stat> {
        let directory = self.directory(handle)?;
        let tree = self.locked_tree();
        Ok(tree.stat(tree.lookup(directory.base(), path, last(flags))?)?)
    }

    fn open(
        &mut self,
        directory: &OpenDirectory,
        path: &str,
        last: LastLink,
        how: OpenHow,
        reads: bool,
    ) -> Answer<Opened> {
        let files = std::sync::Arc::clone(self.files());
        let (ino, kind) = self.change(|tree, now| {
            let ino = tree.open(directory.base(), path, last, how, now)?;
            tree.acquire(ino)?;
            Ok((ino, tree.stat(ino)?.kind))
        })?;
        let node = NodeRef::from_acquired(&files, ino);
        let below = OpenDirectory { ino, preopen: None, name: None, writable: directory.writable };
        Ok(match kind {
            Kind::Directory => Opened::Directory { node, directory: below },
            _ => Opened::File { node, reads, writes: how.writes },
        })
    }
}

fn how(open: OpenFlags, flags: DescriptorFlags) -> Answer<OpenHow> {
    let directory = open.contains(OpenFlags::DIRECTORY);
    if directory && open.intersects(OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE) {
        return Err(ErrorCode::Invalid.into());
    }
    Ok(OpenHow {
        create: open.contains(OpenFlags::CREATE),
        exclusive: open.contains(OpenFlags::EXCLUSIVE),
        truncate: open.contains(OpenFlags::TRUNCATE),
        directory,
        writes: flags.contains(DescriptorFlags::WRITE),
    })
}

impl HostDescriptor for Host {
    fn read_via_stream(&mut self, handle: Resource<Opened>, offset: u64) -> Answer<Resource<InputStream>> {
        self.stream_in(&handle, offset)
    }

    fn write_via_stream(&mut self, handle: Resource<Opened>, offset: u64) -> Answer<Resource<OutputStream>> {
        self.stream_out(&handle, Some(offset))
    }

    fn append_via_stream(&mut self, handle: Resource<Opened>) -> Answer<Resource<OutputStream>> {
        self.stream_out(&handle, None)
    }

    fn advise(&mut self, handle: Resource<Opened>, _offset: u64, _length: u64, advice: Advice) -> Answer {
        self.advised(&handle, advice)
    }

    fn sync_data(&mut self, handle: Resource<Opened>) -> Answer {
        self.resource(&handle)?;
        Ok(())
    }

    fn get_flags(&mut self, handle: Resource<Opened>) -> Answer<DescriptorFlags> {
        self.descriptor_flags(&handle)
    }

    fn get_type(&mut self, handle: Resource<Opened>) -> Answer<DescriptorType> {
        match self.resource(&handle)? {
            Opened::File { .. } => Ok(kind(Kind::File)),
            Opened::Directory { .. } => Ok(kind(Kind::Directory)),
        }
    }

    fn set_size(&mut self, handle: Resource<Opened>, size: u64) -> Answer {
        self.resize(&handle, size)
    }

    fn set_times(&mut self, handle: Resource<Opened>, accessed: NewTimestamp, modified: NewTimestamp) -> Answer {
        self.descriptor_set_times(&handle, accessed, modified)
    }

    fn read(&mut self, handle: Resource<Opened>, length: u64, offset: u64) -> Answer<(Vec<u8>, bool)> {
        self.descriptor_read(&handle, length, offset)
    }

    fn write(&mut self, handle: Resource<Opened>, bytes: Vec<u8>, offset: u64) -> Answer<u64> {
        self.descriptor_write(&handle, &bytes, offset)
    }

    fn read_directory(&mut self, handle: Resource<Opened>) -> Answer<Resource<Entries>> {
        self.entries(&handle)
    }

    fn sync(&mut self, handle: Resource<Opened>) -> Answer {
        self.sync_data(handle)
    }

    fn create_directory_at(&mut self, handle: Resource<Opened>, path: String) -> Answer {
        let directory = self.writable_directory(&handle)?;
        self.change(|tree, now| tree.make_directory(directory.base(), &path, now)).map(drop)
    }

    fn stat(&mut self, handle: Resource<Opened>) -> Answer<DescriptorStat> {
        self.descriptor_stat(&handle)
    }

    fn stat_at(&mut self, handle: Resource<Opened>, flags: PathFlags, path: String) -> Answer<DescriptorStat> {
        Ok(described(&self.stat_below(&handle, flags, &path)?))
    }

    fn set_times_at(
        &mut self,
        handle: Resource<Opened>,
        flags: PathFlags,
        path: String,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> Answer {
        let directory = self.writable_directory(&handle)?;
        let set = self.times(accessed, modified)?;
        self.change(|tree, now| {
            let ino = tree.lookup(directory.base(), &path, last(flags))?;
            tree.set_times(ino, set, now)
        })
    }

    fn link_at(
        &mut self,
        old: Resource<Opened>,
        flags: PathFlags,
        old_path: String,
        new: Resource<Opened>,
        new_path: String,
    ) -> Answer {
        // A second name in a writable directory would make a file of a read-only one writable.
        let (old, new) = (self.writable_directory(&old)?, self.writable_directory(&new)?);
        self.change(|tree, now| tree.hard_link((old.base(), &old_path), (new.base(), &new_path), last(flags), now))
    }

    fn open_at(
        &mut self,
        handle: Resource<Opened>,
        path_flags: PathFlags,
        path: String,
        open_flags: OpenFlags,
        flags: DescriptorFlags,
    ) -> Answer<Resource<Opened>> {
        let directory = self.directory(&handle)?;
        let (how, last) = (how(open_flags, flags)?, last(path_flags));
        if !self.has_room() {
            // The interface has no code for too many open files.
            return Err(ErrorCode::InsufficientMemory.into());
        }
        // A call that would create a file may open an existing one.
        let exists = || {
            let tree = self.locked_tree();
            tree.lookup(directory.base(), &path, last).is_ok()
        };
        if !directory.writable && (how.writes || how.truncate || how.create && !exists()) {
            return Err(ErrorCode::ReadOnly.into());
        }
        let opened = self.open(&directory, &path, last, how, flags.contains(DescriptorFlags::READ))?;
        Ok(self.push_opened(opened)?)
    }

    fn readlink_at(&mut self, handle: Resource<Opened>, path: String) -> Answer<String> {
        let directory = self.directory(&handle)?;
        let target = self.locked_tree().read_link(directory.base(), &path)?;
        Ok(target.as_ref().to_owned())
    }

    fn remove_directory_at(&mut self, handle: Resource<Opened>, path: String) -> Answer {
        let directory = self.writable_directory(&handle)?;
        self.change(|tree, now| tree.remove_directory(directory.base(), &path, now))
    }

    fn rename_at(
        &mut self,
        old: Resource<Opened>,
        old_path: String,
        new: Resource<Opened>,
        new_path: String,
    ) -> Answer {
        let (old, new) = (self.writable_directory(&old)?, self.writable_directory(&new)?);
        self.change(|tree, now| tree.rename((old.base(), &old_path), (new.base(), &new_path), now))
    }

    fn symlink_at(&mut self, handle: Resource<Opened>, target: String, path: String) -> Answer {
        let directory = self.writable_directory(&handle)?;
        self.change(|tree, now| tree.make_guest_symlink(directory.base(), &path, &target, now))
    }

    fn unlink_file_at(&mut self, handle: Resource<Opened>, path: String) -> Answer {
        let directory = self.writable_directory(&handle)?;
        self.change(|tree, now| tree.unlink_file(directory.base(), &path, now))
    }

    fn is_same_object(&mut self, one: Resource<Opened>, other: Resource<Opened>) -> wasmtime::Result<bool> {
        Ok(self.resource(&one)?.ino() == self.resource(&other)?.ino())
    }

    fn metadata_hash(&mut self, handle: Resource<Opened>) -> Answer<MetadataHashValue> {
        Ok(hash(self.resource(&handle)?.ino()))
    }

    fn metadata_hash_at(
        &mut self,
        handle: Resource<Opened>,
        flags: PathFlags,
        path: String,
    ) -> Answer<MetadataHashValue> {
        Ok(hash(self.stat_below(&handle, flags, &path)?.ino))
    }

    fn drop(&mut self, handle: Resource<Opened>) -> wasmtime::Result<()> {
        self.close(handle)
    }
}
