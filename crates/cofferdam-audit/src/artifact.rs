//! Artifacts: code and results of an execution in one bounded file, with secrets redacted.
//!
//! A file consists of JSON lines. Each has `section`, and one of `text`, `base64` (for bytes that are not UTF-8) and
//! `dropped` (the number of bytes beyond the maximum size).

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FlockOperation, RenameFlags, flock, renameat_with, statat};
use rustix::io::Errno;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::error::failed;
use crate::redact::{RedactionStream, Redactor};
use crate::{Artifact, Digest, ExecutionId, Result, Timestamp, files, names};

/// The suffix of an artifact's name.
pub(crate) const EXTENSION: &str = ".jsonl";
/// The maximum number of bytes of a section in one line.
const CHUNK: usize = 16 * 1024;
/// The minimum age of an unreferenced file, relative to the oldest segment, before it is removed.
const STRAY_AGE: Duration = Duration::from_secs(86_400);

/// An artifact that is being written. If it is dropped before it is finished, it is removed.
pub struct ArtifactWriter {
    directory: Arc<OwnedFd>,
    name: String,
    unfinished: String,
    file: File,
    hasher: Sha256,
    written: u64,
    max_bytes: u64,
    redactor: Redactor,
    redacting: RedactionStream,
    /// The number of redactions before the stream.
    redacted: u64,
    section: String,
    buffered: Vec<u8>,
    dropped: u64,
    truncated: bool,
    synchronise: bool,
    finished: bool,
}

impl ArtifactWriter {
    /// Creates the file. Needs the lock of the log, so that no other writer removes it as a leftover.
    pub(crate) fn create(
        directory: Arc<OwnedFd>,
        id: &ExecutionId,
        max_bytes: u64,
        redactor: &Redactor,
        synchronise: bool,
    ) -> Result<Self> {
        let name = format!("{}{EXTENSION}", id.as_str());
        let unfinished = format!("{name}{}", names::NEW);
        let file = files::create(&*directory, &unfinished)?;
        let writer = Self {
            directory,
            name,
            unfinished,
            file,
            hasher: Sha256::new(),
            written: 0,
            max_bytes,
            redactor: redactor.clone(),
            redacting: redactor.start(),
            redacted: 0,
            section: String::new(),
            buffered: Vec::new(),
            dropped: 0,
            truncated: false,
            synchronise,
            finished: false,
        };
        flock(&writer.file, FlockOperation::NonBlockingLockExclusive).map_err(failed("lock", &writer.unfinished))?;
        Ok(writer)
    }

    /// Begins a section, such as `code` or `stdout`. A secret that spans two sections is not found.
    pub fn section(&mut self, name: &str) -> Result<()> {
        self.end_section()?;
        self.section = crate::Text::<64>::new(name).to_string();
        Ok(())
    }

    /// Adds bytes to the current section. Bytes beyond the maximum size are dropped and counted.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(CHUNK) {
            self.redacting.push(piece, &mut self.buffered);
            self.write_chunks(CHUNK)?;
        }
        Ok(())
    }

    /// Adds a value as JSON. Secrets are first redacted in each of its texts, because JSON would escape an already
    /// escaped secret once more.
    pub fn add_json(&mut self, value: &serde_json::Value) -> Result<()> {
        let (value, count) = self.redactor.redact_json(value);
        self.redacted += count;
        self.add(value.to_string().as_bytes())
    }

    /// Completes the file and gives it its final name. The returned value belongs into the end record of the execution.
    pub fn finish(mut self) -> Result<Artifact> {
        self.end_section()?;
        if self.synchronise {
            self.file.sync_all().map_err(failed("synchronise", &self.name))?;
        }
        let directory = &*self.directory;
        renameat_with(directory, &self.unfinished, directory, &self.name, RenameFlags::NOREPLACE)
            .map_err(failed("rename", &self.name))?;
        self.finished = true;
        if self.synchronise {
            rustix::fs::fsync(directory).map_err(failed("synchronise", names::ARTIFACTS))?;
        }
        Ok(Artifact::Stored {
            file: self.name.clone(),
            sha256: Digest::from_bytes(std::mem::take(&mut self.hasher).finalize().into()),
            bytes: self.written,
            redacted: self.redacted + self.redacting.count(),
            truncated: self.truncated,
        })
    }

    fn end_section(&mut self) -> Result<()> {
        self.redacting.finish(&mut self.buffered);
        self.write_chunks(1)?;
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let line = json!({ "section": self.section, "dropped": dropped });
            self.write_line(&line)?;
        }
        Ok(())
    }

    /// Writes buffered bytes as lines while the buffer is long enough.
    fn write_chunks(&mut self, least: usize) -> Result<()> {
        while self.buffered.len() >= least {
            let chunk: Vec<u8> = self.buffered.drain(..chunk_length(&self.buffered)).collect();
            let line = match std::str::from_utf8(&chunk) {
                Ok(text) => json!({ "section": self.section, "text": text }),
                Err(_) => json!({ "section": self.section, "base64": BASE64_STANDARD.encode(&chunk) }),
            };
            // Bytes after dropped bytes are dropped too. Otherwise they would seem to follow directly.
            let has_room = self.dropped == 0 && self.written + line_length(&line) <= self.max_bytes;
            if has_room {
                self.write_line(&line)?;
            } else {
                self.dropped += chunk.len() as u64;
                self.truncated = true;
            }
        }
        Ok(())
    }

    fn write_line(&mut self, line: &serde_json::Value) -> Result<()> {
        let bytes = format!("{line}\n").into_bytes();
        self.file.write_all(&bytes).map_err(failed("write", &self.name))?;
        self.hasher.update(&bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for ArtifactWriter {
    fn drop(&mut self) {
        if !self.finished {
            let _ = files::remove(&*self.directory, &self.unfinished);
        }
    }
}

fn line_length(line: &serde_json::Value) -> u64 {
    line.to_string().len() as u64 + 1
}

/// Returns the number of bytes for the next line. Avoids splitting a character.
fn chunk_length(buffered: &[u8]) -> usize {
    let max_bytes = buffered.len().min(CHUNK);
    match std::str::from_utf8(&buffered[..max_bytes]) {
        // Only a character at the end is cut.
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => max_bytes,
    }
}

/// Removes unfinished files of writers that were killed.
pub(crate) fn sweep(directory: &OwnedFd) -> Result<()> {
    for name in files::names(directory)?.into_iter().filter(|name| name.ends_with(names::NEW)) {
        let Ok(file) = files::open_own(directory, &name) else { continue };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => files::remove(directory, &name)?,
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(failed("lock", &name)(error)),
        }
    }
    Ok(())
}

/// Removes files that are far older than the oldest segment. Their writer was killed before it wrote the line for them.
pub(crate) fn remove_strays(directory: &OwnedFd, oldest: Timestamp) -> Result<()> {
    let before = i64::try_from(STRAY_AGE.as_micros()).unwrap_or(i64::MAX);
    for name in files::names(directory)?.into_iter().filter(|name| name.ends_with(EXTENSION)) {
        let Ok(stat) = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let modified = stat.st_mtime.saturating_mul(1_000_000);
        if modified < oldest.as_micros().saturating_sub(before) {
            files::remove(directory, &name)?;
        }
    }
    Ok(())
}
