//! Root file systems and images, built by an ordinary user, for every backend.
//!
//! ```text
//! resolve, Plan: Debian packages --> one tar with a root file system
//! ImageStore:    registries, archives, directories, tars --> layers for overlayfs, in a store
//! Images:        packages, a directory, a tar or a container image --> kernel, initramfs and disk, in a store
//! ```
//!
//! The crate knows no backend, and runs nothing of what it packs. The feature `store` has the store of container images,
//! `disk` adds [`Images`], which VMs boot from, and `debian` packs packages.
//!
//! # Where to look
//!
//! - Debian packages: `debian/mod.rs`, which lists its own files.
//! - The store of container images: `store/mod.rs`, which lists its own files.
//! - Layers and archives of images: `layer/mod.rs`.
//! - Images for VMs: `disk/mod.rs`; their store: `disk/store.rs` and `disk/names.rs`; export and import:
//!   `disk/transfer.rs`. Container images as sources: `disk/oci.rs`. Tars as sources: `disk/root.rs`.
//! - The program that runs in a VM before the agent: `init/main.rs`. A copy's own identity: `init/reseed.rs`. Its boot
//!   options: `init/options.rs`, compiled into both sides.
#![forbid(unsafe_code)]

#[cfg(feature = "disk")]
#[path = "../init/options.rs"]
pub mod boot;
#[cfg(all(test, feature = "disk"))]
mod boot_tests;
#[cfg(feature = "debian")]
pub mod debian;
#[cfg(feature = "disk")]
mod disk;
#[cfg(feature = "store")]
mod layer;
#[cfg(feature = "store")]
pub mod store;

#[cfg(feature = "debian")]
pub use debian::{Cache, DebianError, Package, Plan, Recipe, resolve};
#[cfg(feature = "disk")]
pub use disk::{
    ExportOptions, Exported, IMAGE_DOCUMENT, Image, ImageError, Images, ImportOptions, Imported, Inventory,
    KernelSource, Listed, Progress, RootSource, SNAPSHOT_DOCUMENT, Source, Taken, TreeError, Unnamed, archive_kind,
    ext4, io_kind, io_remedy, is_name, tool,
};
