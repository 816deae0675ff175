//! Portable archives of a frozen machine: memory, devices, disks and what describes them, in one stream that is verified as
//! a whole before anything of it may be used.
//!
//! ```text
//! Writer: files and documents --zero pages, duplicates and the base left out--> blocks --zstd--> [sealed chunks] --> stream
//! Reader: stream --every length bounded, every hash compared--> empty files of the caller --all verified--> handed over
//! ```
//!
//! Both sides stream: neither ever holds more than a few blocks and a bounded table in memory, whatever the size of the
//! machine. Nothing in an archive is believed: it contains no paths, its sizes are held against what comes and against the
//! caller's limits, and pages can only follow each other, so that none can lie outside or over another. The format is
//! described byte by byte in `docs/snapshot-format.md`.
//!
//! This crate knows no machine and no monitor: what the parts mean, whether a processor or a monitor fits, is said by
//! documents that it carries and does not read. It blocks; whoever has a runtime calls it from a thread of its own.
#![forbid(unsafe_code)]

mod base;
mod block;
mod body;
mod dedup;
mod digest;
mod error;
#[cfg(feature = "forge")]
pub mod forge;
mod head;
mod key;
mod limits;
mod pages;
mod part;
mod place;
mod progress;
mod reader;
mod record;
mod seal;
mod sparse;
mod writer;

pub use base::Base;
pub use digest::Digest;
pub use error::{ArchiveError, Result};
pub use head::{MAX_PARTS, VERSION};
pub use key::Key;
pub use limits::Limits;
pub use part::{Kind, MAX_JSON, MAX_PAGED, MAX_STATE, Name, Part};
pub use progress::Progress;
pub use reader::{Document, ReadOptions, Reader, Restored, Summary, Verified, inspect};
pub use record::PAGE;
pub use writer::{WriteOptions, Writer, Written};
