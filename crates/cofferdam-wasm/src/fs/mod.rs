//! The files of one sandbox, in memory. Nothing here names, opens or changes a file of the host.
//!
//! ```text
//! /            what the host sees of it; guests get no descriptor of it
//! |-- workspace
//! `-- tmp
//! ```
//!
//! Nodes stand in one table and name each other by number, so that no operation recurses, however deep a guest builds.
//! Every byte a guest can make the host keep is charged before it is kept: contents, names, links and the nodes
//! themselves.

mod contents;
mod file_api;
mod frozen;
mod operations;
mod tree;
mod walk;

#[cfg(test)]
mod model_tests;

pub(crate) use contents::Contents;
pub(crate) use frozen::{FrozenTree, Renumbered};
pub(crate) use operations::{Listing, OpenHow, SetTime, Stat};
pub(crate) use tree::{Ino, Kind, MAX_NODES, ROOT, Tree};
pub(crate) use walk::{Base, LastLink};

/// Why an operation on the files failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("not a directory")]
    NotADirectory,
    #[error("is a directory")]
    IsADirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("exists already")]
    Exists,
    #[error("the path leads outside the directory it starts from")]
    Escape,
    #[error("too many symbolic links")]
    TooManyLinks,
    #[error("a name is at most 255 bytes, a path at most 4096")]
    NameTooLong,
    #[error("no space left: the disk limit is reached")]
    Full,
    #[error("no memory left: files count towards the memory limit")]
    NoMemory,
    #[error("too many files in one sandbox")]
    TooManyFiles,
    #[error("the file would be too large")]
    TooLarge,
    #[error("the path cannot be used for this")]
    Invalid,
    #[error("not permitted")]
    NotPermitted,
}

pub(crate) type FsResult<T> = Result<T, FsError>;
