//! The files of a volume without a size.

use std::os::fd::BorrowedFd;
use std::path::Path;

use cofferdam_linux::walk;
use rustix::fs::Stat;

use crate::error::{Result, VolumeError, io};
use crate::export::{Entry, Properties, Visit};

/// Visits all files of a directory, which nothing follows out of it.
pub(crate) fn read(tree: BorrowedFd<'_>, shown: &Path, visit: &mut Visit<'_>) -> Result<()> {
    let mut failure: Option<VolumeError> = None;
    let walked = walk::walk(tree, &mut |path, stat, entry| {
        let visited = match entry {
            walk::Entry::Directory => visit(path, properties(stat), Entry::Directory),
            walk::Entry::File(mut file, size) => {
                let identity = (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
                visit(path, properties(stat), Entry::File { size, content: &mut file, identity })
            }
            walk::Entry::Link(target) => visit(path, properties(stat), Entry::Link(target)),
            walk::Entry::Other => visit(path, properties(stat), Entry::Other),
            walk::Entry::Unreadable(error) => Err(io("read", path)(error)),
        };
        visited.map_err(|error| {
            failure = Some(error);
            std::io::Error::other("stopped")
        })
    });
    match (failure, walked) {
        (Some(failure), _) => Err(failure),
        (None, walked) => walked.map_err(io("read a file of", shown)),
    }
}

fn properties(stat: &Stat) -> Properties {
    Properties { mode: stat.st_mode & 0o7777, modified: u64::try_from(stat.st_mtime).unwrap_or(0) }
}
