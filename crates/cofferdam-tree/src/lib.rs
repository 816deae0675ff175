//! Trees of files as ext4 file systems and as tars, without root and without mounts.
//!
//! The crate decides nothing about the contents of trees. Its callers check paths, and choose sizes.
//!
//! # Where to look
//!
//! - File systems of directories: `ext4.rs`, with `e2fsprogs`; their owners: `inodes.rs`.
//! - Members of a hostile tar, with bounded headers: `members.rs`.
//! - Programs of the host, with bounded time and output: `tool.rs`.
#![forbid(unsafe_code)]

mod error;
pub mod ext4;
mod inodes;
pub mod members;
pub mod tool;

pub use error::TreeError;
