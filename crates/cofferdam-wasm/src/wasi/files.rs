//! Calls on descriptors.

use cofferdam_contract::OutputStream;

use super::abi::{Answer, Errno, UNKNOWN, fdflags, filetype, fstflags, rights};
use super::descriptors::{Descriptor, MAX_DESCRIPTORS, OpenFile};
use super::host::Call;
use crate::fs::{Ino, Kind, SetTime, Stat};
use crate::guest_control::Input;
use cofferdam_wasm_runtimes::REQUEST_DESCRIPTOR;

/// The maximum bytes that one call reads from or writes to a file. Guests must accept short counts.
const MAX_MOVED: u32 = 16 << 20;
/// The maximum bytes that one call writes to a stream.
const MAX_PRINTED: u32 = 1 << 20;
/// Bytes per write to a file. A write that exceeds a limit loses at most this much of what would fit.
const SLICE: usize = 64 << 10;
/// Bytes of a listing in one call.
const MAX_LISTED: u32 = 1 << 20;
const DIRENT: usize = 24;
// A guest cannot open so many descriptors that it gets the one for requests to prepared interpreters.
const _: () = assert!(REQUEST_DESCRIPTOR as usize >= MAX_DESCRIPTORS);
/// The maximum bytes of a reported status.
const MAX_STATUS: u32 = 16;

impl Call<'_> {
    pub(super) fn fd_advise(&mut self, fd: u32, _offset: u64, _length: u64, advice: u32) -> Answer {
        self.host.descriptors.file(fd)?;
        if advice > 5 { Err(Errno::Inval.into()) } else { Ok(()) }
    }

    pub(super) fn fd_allocate(&mut self, fd: u32, _offset: u64, _length: u64) -> Answer {
        self.host.descriptors.file(fd)?;
        Err(Errno::Notsup.into())
    }

    pub(super) fn fd_close(&mut self, fd: u32) -> Answer {
        let closed = self.host.descriptors.remove(fd)?;
        self.release(&closed);
        Ok(())
    }

    pub(super) fn release(&mut self, descriptor: &Descriptor) {
        match descriptor {
            Descriptor::Input => self.host.control.stop_reading(),
            other => {
                if let Some(ino) = other.ino() {
                    self.host.tree().release(ino);
                }
            }
        }
    }

    pub(super) fn fd_datasync(&mut self, fd: u32) -> Answer {
        self.fd_sync(fd)
    }

    pub(super) fn fd_sync(&mut self, fd: u32) -> Answer {
        match self.host.descriptors.get(fd)? {
            Descriptor::File(_) | Descriptor::Directory(_) => Ok(()),
            _ => Err(Errno::Inval.into()),
        }
    }

    pub(super) fn fd_fdstat_get(&mut self, fd: u32, result: u32) -> Answer {
        let (kind, flags, base, inheriting) = match self.host.descriptors.get(fd)? {
            Descriptor::Input => (UNKNOWN, 0, rights::FD_READ | STREAM, 0),
            Descriptor::Output | Descriptor::Errors => (UNKNOWN, fdflags::APPEND, rights::FD_WRITE | STREAM, 0),
            Descriptor::File(file) => {
                let mut base = rights::FILE;
                if !file.reads {
                    base &= !rights::FD_READ;
                }
                if !file.writes {
                    base &= !(rights::FD_WRITE | rights::FD_ALLOCATE | rights::FD_FILESTAT_SET_SIZE);
                }
                (filetype(Kind::File), file.flags, base, 0)
            }
            Descriptor::Directory(_) => {
                (filetype(Kind::Directory), 0, rights::DIRECTORY, rights::DIRECTORY | rights::FILE)
            }
        };
        let mut bytes = [0; 24];
        bytes[0] = kind;
        bytes[2..4].copy_from_slice(&(flags as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&base.to_le_bytes());
        bytes[16..24].copy_from_slice(&inheriting.to_le_bytes());
        Ok(self.memory.put(result, &bytes)?)
    }

    pub(super) fn fd_fdstat_set_flags(&mut self, fd: u32, flags: u32) -> Answer {
        if flags & !fdflags::ALL != 0 {
            return Err(Errno::Inval.into());
        }
        self.host.descriptors.file_mut(fd)?.flags = flags;
        Ok(())
    }

    /// Rights can only be dropped. Dropping them has no effect here, since the permissions of a descriptor are fixed
    /// when it is opened.
    pub(super) fn fd_fdstat_set_rights(&mut self, fd: u32, _base: u64, _inheriting: u64) -> Answer {
        self.host.descriptors.get(fd)?;
        Err(Errno::Notsup.into())
    }

    pub(super) fn fd_filestat_get(&mut self, fd: u32, result: u32) -> Answer {
        let ino = self.host.descriptors.get(fd)?.ino();
        let bytes = match ino {
            Some(ino) => {
                let stat = self.host.tree().stat(ino)?;
                filestat(&stat)
            }
            None => [0; 64],
        };
        Ok(self.memory.put(result, &bytes)?)
    }

    pub(super) fn fd_filestat_set_size(&mut self, fd: u32, size: u64) -> Answer {
        let file = self.host.descriptors.file(fd)?;
        if !file.writes {
            return Err(Errno::Inval.into());
        }
        let (ino, now) = (file.ino, self.host.clock.stamp());
        Ok(self.host.tree().set_length(ino, size, now)?)
    }

    pub(super) fn fd_filestat_set_times(&mut self, fd: u32, accessed: u64, modified: u64, flags: u32) -> Answer {
        let now = self.host.clock.stamp();
        let set = times(accessed, modified, flags, now)?;
        let (ino, writable) = match self.host.descriptors.get(fd)? {
            Descriptor::File(file) => (file.ino, file.writes),
            Descriptor::Directory(directory) => (directory.ino, directory.writable),
            _ => return Err(Errno::Badf.into()),
        };
        if !writable {
            return Err(Errno::Perm.into());
        }
        Ok(self.host.tree().set_times(ino, set, now)?)
    }

    pub(super) fn fd_prestat_get(&mut self, fd: u32, result: u32) -> Answer {
        let name = self.host.descriptors.directory(fd).ok().and_then(|directory| directory.preopen.as_ref());
        let length = name.ok_or(Errno::Badf)?.len() as u32;
        self.memory.put_u32(result, 0)?;
        Ok(self.memory.put_u32(result.checked_add(4).ok_or(Errno::Fault)?, length)?)
    }

    pub(super) fn fd_prestat_dir_name(&mut self, fd: u32, buffer: u32, length: u32) -> Answer {
        let name = self.host.descriptors.directory(fd).ok().and_then(|directory| directory.preopen.as_ref());
        let name = name.ok_or(Errno::Badf)?;
        if (length as usize) < name.len() {
            return Err(Errno::Nametoolong.into());
        }
        Ok(self.memory.put(buffer, name.as_bytes())?)
    }

    pub(super) fn fd_read(&mut self, fd: u32, buffers: u32, count: u32, result: u32) -> Answer {
        let buffers = self.memory.buffers(buffers, count, MAX_MOVED)?;
        if fd == REQUEST_DESCRIPTOR {
            let read = self.read_request(&buffers)?;
            return Ok(self.memory.put_u32(result, read)?);
        }
        let read = match self.host.descriptors.get(fd)? {
            Descriptor::Input => self.read_input(&buffers)?,
            Descriptor::File(file) => {
                let file = file.clone();
                let read = self.read_file(&file, &buffers, file.position)?;
                self.host.descriptors.file_mut(fd)?.position = file.position.saturating_add(read.into());
                read
            }
            Descriptor::Directory(_) => return Err(Errno::Isdir.into()),
            Descriptor::Output | Descriptor::Errors => return Err(Errno::Badf.into()),
        };
        Ok(self.memory.put_u32(result, read)?)
    }

    fn read_request(&mut self, buffers: &[(u32, u32)]) -> Answer<u32> {
        let mut request = self.host.request.take().ok_or(Errno::Badf)?;
        let mut total = 0;
        for (at, length) in buffers {
            let taken = request.split_to(request.len().min(*length as usize));
            self.memory.slice_mut(*at, *length)?[..taken.len()].copy_from_slice(&taken);
            total += taken.len() as u32;
        }
        self.host.request = Some(request);
        Ok(total)
    }

    /// Reads the reported status, a code in decimal digits.
    fn take_status(&mut self, buffers: &[(u32, u32)]) -> Answer<u32> {
        self.host.request.as_ref().ok_or(Errno::Badf)?;
        let mut text = Vec::new();
        for (at, length) in buffers {
            text.extend_from_slice(self.memory.slice(*at, *length)?);
        }
        let status = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        self.host.status = Some(status.ok_or(Errno::Inval)?);
        Ok(text.len() as u32)
    }

    pub(super) fn fd_pread(&mut self, fd: u32, buffers: u32, count: u32, offset: u64, result: u32) -> Answer {
        let buffers = self.memory.buffers(buffers, count, MAX_MOVED)?;
        let file = self.host.descriptors.file(fd)?.clone();
        let read = self.read_file(&file, &buffers, offset)?;
        Ok(self.memory.put_u32(result, read)?)
    }

    fn read_file(&mut self, file: &OpenFile, buffers: &[(u32, u32)], mut offset: u64) -> Answer<u32> {
        if !file.reads {
            return Err(Errno::Badf.into());
        }
        let tree = self.host.tree();
        let mut total = 0;
        for (at, length) in buffers {
            // At most `MAX_MOVED`, the limit of all buffers together.
            let read = tree.read(file.ino, offset, self.memory.slice_mut(*at, *length)?)? as u32;
            total += read;
            offset = offset.saturating_add(read.into());
            if read < *length {
                break;
            }
        }
        Ok(total)
    }

    /// Waits for the first bytes, then reads what is available.
    fn read_input(&mut self, buffers: &[(u32, u32)]) -> Answer<u32> {
        let mut total = 0;
        for (at, length) in buffers {
            let target = self.memory.slice_mut(*at, *length)?;
            let read = match &mut self.host.input {
                Input::Given(bytes) => {
                    let taken = bytes.split_to(bytes.len().min(target.len()));
                    target[..taken.len()].copy_from_slice(&taken);
                    taken.len()
                }
                Input::Streamed => loop {
                    match self.host.control.read(target) {
                        Some(read) => break read,
                        None if total > 0 => break 0,
                        None => self.host.wait(None, true)?,
                    }
                },
            };
            total += read as u32;
            if read < target.len() {
                break;
            }
        }
        Ok(total)
    }

    pub(super) fn fd_write(&mut self, fd: u32, buffers: u32, count: u32, result: u32) -> Answer {
        if fd == REQUEST_DESCRIPTOR {
            let buffers = self.memory.buffers(buffers, count, MAX_STATUS)?;
            let written = self.take_status(&buffers)?;
            return Ok(self.memory.put_u32(result, written)?);
        }
        let stream = match self.host.descriptors.get(fd)? {
            Descriptor::Output => Some(OutputStream::Stdout),
            Descriptor::Errors => Some(OutputStream::Stderr),
            Descriptor::File(_) => None,
            Descriptor::Directory(_) => return Err(Errno::Isdir.into()),
            Descriptor::Input => return Err(Errno::Badf.into()),
        };
        let max = if stream.is_some() { MAX_PRINTED } else { MAX_MOVED };
        let buffers = self.memory.buffers(buffers, count, max)?;
        let written = match stream {
            Some(stream) => {
                for (at, length) in &buffers {
                    self.host.output.write(stream, self.memory.slice(*at, *length)?);
                }
                buffers.iter().map(|(_, length)| length).sum()
            }
            None => {
                let file = self.host.descriptors.file(fd)?.clone();
                let offset = match file.flags & fdflags::APPEND {
                    0 => file.position,
                    _ => self.host.tree().stat(file.ino)?.size,
                };
                let written = self.write_file(&file, &buffers, offset)?;
                self.host.descriptors.file_mut(fd)?.position = offset.saturating_add(written.into());
                written
            }
        };
        Ok(self.memory.put_u32(result, written)?)
    }

    pub(super) fn fd_pwrite(&mut self, fd: u32, buffers: u32, count: u32, offset: u64, result: u32) -> Answer {
        let buffers = self.memory.buffers(buffers, count, MAX_MOVED)?;
        let file = self.host.descriptors.file(fd)?.clone();
        let written = self.write_file(&file, &buffers, offset)?;
        Ok(self.memory.put_u32(result, written)?)
    }

    /// Writes as many bytes as the limits allow, and fails if none can be written.
    fn write_file(&mut self, file: &OpenFile, buffers: &[(u32, u32)], mut offset: u64) -> Answer<u32> {
        if !file.writes {
            return Err(Errno::Badf.into());
        }
        let now = self.host.clock.stamp();
        let mut total = 0;
        for (at, length) in buffers {
            for slice in self.memory.slice(*at, *length)?.chunks(SLICE) {
                let result = self.host.tree().write(file.ino, offset, slice, now);
                match self.host.note(result) {
                    Ok(()) => {}
                    Err(_) if total > 0 => return Ok(total),
                    Err(error) => return Err(error.into()),
                }
                total += slice.len() as u32;
                offset = offset.saturating_add(slice.len() as u64);
            }
        }
        Ok(total)
    }

    pub(super) fn fd_readdir(&mut self, fd: u32, buffer: u32, length: u32, cookie: u64, result: u32) -> Answer {
        let ino = self.host.descriptors.directory(fd)?.ino;
        let length = length.min(MAX_LISTED);
        self.memory.slice(buffer, length)?;
        let max_entries = length as usize / DIRENT + 1;
        let entries = self.host.tree().list_from(ino, cookie, max_entries)?;
        let mut bytes = Vec::new();
        for entry in entries {
            let mut head = [0; DIRENT];
            head[..8].copy_from_slice(&entry.next.to_le_bytes());
            head[8..16].copy_from_slice(&entry.ino.0.to_le_bytes());
            head[16..20].copy_from_slice(&(entry.name.len() as u32).to_le_bytes());
            head[20] = filetype(entry.kind);
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(entry.name.as_bytes());
            if bytes.len() >= length as usize {
                break;
            }
        }
        // A full buffer means that there are more entries. The last entry may be truncated.
        bytes.truncate(length as usize);
        self.memory.put(buffer, &bytes)?;
        Ok(self.memory.put_u32(result, bytes.len() as u32)?)
    }

    pub(super) fn fd_renumber(&mut self, from: u32, to: u32) -> Answer {
        if let Some(replaced) = self.host.descriptors.renumber(from, to)? {
            self.release(&replaced);
        }
        Ok(())
    }

    pub(super) fn fd_seek(&mut self, fd: u32, offset: u64, whence: u32, result: u32) -> Answer {
        let offset = offset.cast_signed();
        let file = match self.host.descriptors.get(fd)? {
            Descriptor::Directory(_) => return Err(Errno::Badf.into()),
            _ => self.host.descriptors.file(fd)?,
        };
        let from = match whence {
            0 => 0,
            1 => file.position,
            2 => self.host.tree().stat(file.ino)?.size,
            _ => return Err(Errno::Inval.into()),
        };
        let position = from.checked_add_signed(offset).filter(|to| i64::try_from(*to).is_ok()).ok_or(Errno::Inval)?;
        self.host.descriptors.file_mut(fd)?.position = position;
        Ok(self.memory.put_u64(result, position)?)
    }

    pub(super) fn fd_tell(&mut self, fd: u32, result: u32) -> Answer {
        let position = match self.host.descriptors.get(fd)? {
            Descriptor::Directory(_) => return Err(Errno::Badf.into()),
            _ => self.host.descriptors.file(fd)?.position,
        };
        Ok(self.memory.put_u64(result, position)?)
    }
}

/// The rights of a stream. They lack seek and tell: C libraries treat a descriptor of unknown type without them as a
/// pipe.
const STREAM: u64 = rights::FD_FDSTAT_SET_FLAGS | rights::FD_FILESTAT_GET | rights::POLL_FD_READWRITE;
const _: () = assert!(STREAM & (rights::FD_SEEK | rights::FD_TELL) == 0);

pub(super) fn filestat(stat: &Stat) -> [u8; 64] {
    let Ino(ino) = stat.ino;
    let mut bytes = [0; 64];
    bytes[0..8].copy_from_slice(&1u64.to_le_bytes());
    bytes[8..16].copy_from_slice(&ino.to_le_bytes());
    bytes[16] = filetype(stat.kind);
    bytes[24..32].copy_from_slice(&stat.links.to_le_bytes());
    bytes[32..40].copy_from_slice(&stat.size.to_le_bytes());
    bytes[40..48].copy_from_slice(&stat.times.accessed.to_le_bytes());
    bytes[48..56].copy_from_slice(&stat.times.modified.to_le_bytes());
    bytes[56..64].copy_from_slice(&stat.times.changed.to_le_bytes());
    bytes
}

/// Returns the times that a call sets.
pub(super) fn times(accessed: u64, modified: u64, flags: u32, now: u64) -> Result<SetTime, Errno> {
    use fstflags::{ATIM, ATIM_NOW, MTIM, MTIM_NOW};
    let pick = |explicit: u32, current: u32, value: u64| match (flags & explicit != 0, flags & current != 0) {
        (true, true) => Err(Errno::Inval),
        (true, false) => Ok(Some(value)),
        (false, true) => Ok(Some(now)),
        (false, false) => Ok(None),
    };
    if flags & !(ATIM | ATIM_NOW | MTIM | MTIM_NOW) != 0 {
        return Err(Errno::Inval);
    }
    Ok(SetTime { accessed: pick(ATIM, ATIM_NOW, accessed)?, modified: pick(MTIM, MTIM_NOW, modified)? })
}
