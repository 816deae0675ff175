//! Root file systems and images, built by an ordinary user, for every backend.
//!
//! ```text
//! resolve, Plan: Debian packages --> one tar with a root file system
//! Images:        packages, a directory, a tar or a container image --> kernel, initramfs and disk, in a store
//! ```
//!
//! The crate knows no backend, and runs nothing of what it packs. The feature `disk` adds [`Images`], which VMs boot
//! from.
//!
//! # Where to look
//!
//! - Debian packages: `debian/mod.rs`, which lists its own files.
//! - Images for VMs: `disk/mod.rs`; their store: `disk/store.rs` and `disk/names.rs`; export and import:
//!   `disk/transfer.rs`.
//! - Container images as sources: `disk/oci.rs` and `disk/layers.rs`. Tars as sources: `disk/root.rs`.
//! - The program that runs in a VM before the agent: `init/main.rs`. A copy's own identity: `init/reseed.rs`. Its boot
//!   options: `init/options.rs`, compiled into both sides.
#![forbid(unsafe_code)]

#[cfg(feature = "disk")]
#[path = "../init/options.rs"]
pub mod boot;
#[cfg(all(test, feature = "disk"))]
mod boot_tests;
pub mod debian;
#[cfg(feature = "disk")]
mod disk;

pub use debian::{Cache, DebianError, Package, Plan, Recipe, resolve};
#[cfg(feature = "disk")]
pub use disk::{
    ExportOptions, Exported, IMAGE_DOCUMENT, Image, ImageError, Images, ImportOptions, Imported, Inventory,
    KernelSource, Listed, Progress, RootSource, SNAPSHOT_DOCUMENT, Source, Taken, Unnamed, archive_kind, ext4, io_kind,
    io_remedy, is_name, tool,
};
