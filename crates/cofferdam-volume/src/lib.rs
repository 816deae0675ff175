//! Named volumes: a store of file systems and directories that survive sandboxes.
//!
//! ```text
//! Store::create, Store::import --> volume --Store::open_volume--> OpenVolume --mount--> detached mount
//!                                    |                                |
//!                                    +--Store::export--> tar          +--contents--> disk of a VM, or a directory
//! ```
//!
//! A volume with a size is an ext4 file system in a sparse file, so the kernel of its user enforces the size. A volume
//! without a size is a directory. A volume has one writer or any number of readers.
//!
//! # Hostile file systems
//!
//! A VM gets the file system of a volume as a disk. Its guest may write anything to it, so afterwards the file system
//! is untrusted, and the kernel's ext4 driver is not made for untrusted metadata. The store records that a volume was
//! a disk. Before the host's kernel mounts it the next time, the file system is recreated: a reader in safe Rust
//! copies its files, and everything else of the old one is discarded. The same reader exports volumes, so no export
//! mounts anything. The work of the reader is bounded, see [`Bounds`].
//!
//! A guest of another level gets the mounted file system, and cannot write metadata.
//!
//! # Where to look
//!
//! - The store, its directory and its locks: `store.rs`. The directory of a new volume: `pending.rs`.
//! - Users of a volume: `lock.rs`, `holders.rs`, `open.rs`.
//! - Export: `export.rs`, with the sources `disk.rs` and `directory.rs`. Import: `import.rs`, `unpack.rs`.
//! - The hostile file system as a trusted one: `rebuild.rs`.
//! - Removal of any tree: `remove.rs`.
//! - Volumes as mounts of sandboxes: `sandbox.rs`.
#![forbid(unsafe_code)]

mod bounds;
mod directory;
mod disk;
mod error;
mod export;
mod files;
mod holders;
mod import;
mod lock;
mod name;
mod open;
mod pending;
mod rebuild;
mod record;
mod remove;
#[cfg(feature = "sandbox")]
pub mod sandbox;
mod store;
mod unpack;
mod usage;

pub use bounds::{Bounds, MAX_SIZE, MIN_SIZE};
pub use cofferdam_linux::loop_device::Access;
pub use error::VolumeError;
pub use export::Exported;
pub use holders::Holder;
pub use import::Imported;
pub use name::Name;
pub use open::{Contents, OpenVolume, Request, Through};
pub use store::{Store, Volume};
