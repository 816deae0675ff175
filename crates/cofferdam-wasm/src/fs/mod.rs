//! The in-memory file system of one sandbox. It never names, opens or changes a file of the host.
//!
//! ```text
//! /            visible to the host only; guests get no descriptor of it
//! |-- workspace
//! `-- tmp
//! ```
//!
//! Nodes are in one table and refer to each other by number, so that no operation recurses, however deep the
//! directories are. Every byte that a guest can store is charged before it is stored: contents, names, links and the
//! nodes themselves.

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

/// An error of a file system operation.
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
    #[error("already exists")]
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
    #[error("invalid path for this operation")]
    Invalid,
    #[error("not permitted")]
    NotPermitted,
}

pub(crate) type FsResult<T> = Result<T, FsError>;
