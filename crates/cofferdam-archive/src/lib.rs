//! Portable archives of a VM snapshot: memory, devices, disks and documents in one stream, verified before use.
//!
//! ```text
//! Writer: files and documents --zero pages, duplicates and the base left out--> blocks --zstd--> [sealed chunks] --> stream
//! Reader: stream --every length bounded, every hash compared--> empty files of the caller --all verified--> handed over
//! ```
//!
//! Both sides stream. They hold a few blocks and a bounded table in memory, whatever the size of the VM. The content of
//! an archive is not trusted: it has no paths, and its sizes are compared with the data and with the caller's limits.
//! Each page record covers the pages after those of the previous record, so pages cannot overlap or lie out of range.
//! `docs/snapshot-format.md` describes the format byte by byte.
//!
//! The crate knows no VM and no VMM. Documents about processor and VMM are opaque to it. Its API is blocking.
//!
//! # Where to look
//!
//! - Reading and its checks: `reader.rs`. Records of pages: `record.rs`, which is pure.
//! - Writing: `writer.rs`. Deduplication: `dedup.rs`. Encryption: `seal.rs` and `key.rs`.
//! - The caller's limits: `limits.rs`.
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
mod progress;
mod reader;
mod record;
mod seal;
mod sparse;
mod target;
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
