//! Path resolution. A path never leads above the directory where it starts, and each symlink is resolved the same way.

use std::collections::VecDeque;
use std::sync::Arc;

use super::tree::{Body, Ino, Kind, Tree};
use super::{FsError, FsResult};

/// The maximum number of symlinks in one path.
const MAX_LINKS: u32 = 40;
const MAX_PATH: usize = 4096;
pub(super) const MAX_NAME: usize = 255;

/// Treatment of a symlink in the last part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

/// The directory where a path starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base<'a> {
    pub(crate) ino: Ino,
    /// Its absolute name, if links may use it: absolute targets that start with it resolve inside, all others fail.
    pub(crate) name: Option<&'a str>,
}

/// The result of path resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolved {
    /// The parent directory and the entry's name, existing or not; `None` if the path is empty or ends with `.` or
    /// `..`.
    pub(super) entry: Option<(Ino, Arc<str>)>,
    /// The existing node.
    pub(super) ino: Option<Ino>,
    /// True if the path ends with a slash.
    pub(super) must_be_directory: bool,
}

impl Resolved {
    /// Returns the entry, for operations that change it.
    pub(super) fn entry(&self) -> FsResult<(Ino, Arc<str>)> {
        self.entry.clone().ok_or(FsError::Invalid)
    }
}

impl Tree {
    pub(super) fn walk(&self, base: Base<'_>, path: &str, last_link: LastLink) -> FsResult<Resolved> {
        check(path)?;
        let must_be_directory = path.ends_with('/');
        let mut pending: VecDeque<Arc<str>> = path.split('/').filter(|part| !part.is_empty()).map(Into::into).collect();
        let mut at = vec![base.ino];
        let mut links = 0;
        let mut entry = None;
        while let Some(part) = pending.pop_front() {
            // The base is never popped.
            let Some(&here) = at.last() else { return Err(FsError::Escape) };
            let directory = self.directory(here)?;
            match &*part {
                "." => entry = None,
                ".." => {
                    at.pop();
                    if at.is_empty() {
                        return Err(FsError::Escape);
                    }
                    entry = None;
                }
                name if name.len() > MAX_NAME => return Err(FsError::NameTooLong),
                name => {
                    let last = pending.is_empty();
                    let Some(found) = directory.entries.get(name).map(|entry| entry.ino) else {
                        if last {
                            return Ok(Resolved { entry: Some((here, part)), ino: None, must_be_directory });
                        }
                        return Err(FsError::NotFound);
                    };
                    let follow = !last || last_link == LastLink::Follow || must_be_directory;
                    match &self.node(found)?.body {
                        Body::Symlink(target) if follow => {
                            links += 1;
                            if links > MAX_LINKS {
                                return Err(FsError::TooManyLinks);
                            }
                            if target.starts_with('/') {
                                at.truncate(1);
                            }
                            for part in relative(base, target)?.split('/').filter(|part| !part.is_empty()).rev() {
                                pending.push_front(part.into());
                            }
                            entry = None;
                        }
                        _ if last => {
                            return Ok(Resolved { entry: Some((here, part)), ino: Some(found), must_be_directory });
                        }
                        _ => {
                            at.push(found);
                            entry = Some((here, part));
                        }
                    }
                }
            }
        }
        let ino = at.last().copied();
        if let Some(ino) = ino {
            self.directory(ino)?;
        }
        Ok(Resolved { entry, ino, must_be_directory })
    }

    /// Resolves a path as [`Self::walk`] does, and fails if nothing exists there.
    pub(super) fn find(&self, base: Base<'_>, path: &str, last_link: LastLink) -> FsResult<Ino> {
        let resolved = self.walk(base, path, last_link)?;
        let ino = resolved.ino.ok_or(FsError::NotFound)?;
        if resolved.must_be_directory && self.node(ino)?.kind() != Kind::Directory {
            return Err(FsError::NotADirectory);
        }
        Ok(ino)
    }
}

fn check(path: &str) -> FsResult<()> {
    if path.is_empty() {
        return Err(FsError::NotFound);
    }
    if path.len() > MAX_PATH {
        return Err(FsError::NameTooLong);
    }
    if path.contains('\0') {
        return Err(FsError::Invalid);
    }
    if path.starts_with('/') {
        return Err(FsError::Escape);
    }
    Ok(())
}

/// Returns a link's target relative to the base, if it is absolute.
fn relative<'t>(base: Base<'_>, target: &'t str) -> FsResult<&'t str> {
    if !target.starts_with('/') {
        return Ok(target);
    }
    let rest = base.name.and_then(|name| target.strip_prefix(name)).ok_or(FsError::Escape)?;
    if rest.is_empty() || rest.starts_with('/') { Ok(rest) } else { Err(FsError::Escape) }
}
