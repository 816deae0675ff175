//! Small root file systems from Debian packages, made by an ordinary user.
//!
//! ```text
//! resolve:    recipe --apt-get update, install --print-uris--> Plan: versions, sizes, hashes, content key
//! write_tar:  Plan --cache, else apt-get --download-only--> packages, hashed --dpkg-deb --fsys-tarfile--> one tar
//! ```
//!
//! apt works in private directories with the host's sources and keyrings, so its signature checks hold, and neither the
//! host's apt nor its dpkg notices. Packages are merged while they are read: nothing is unpacked on the host, nothing is
//! mounted, and no maintainer script is run. What programs need of those scripts is made here: `/bin/sh`, `awk`, `which`,
//! users, the bundle of certificates. What is not made: byte code of Python (a program compiles what it imports), the
//! linker's cache (the libraries are where it looks anyway), databases of `update-alternatives`, `/etc/profile`.
//! Documentation and translations are left out, licences are kept. Bits that raise rights are stripped.
//!
//! The same plan gives the same bytes. What a package must not hold is refused with the package's name: paths that climb
//! out, links to outside, devices, files that another package has.
//!
//! This crate knows neither backends nor engines, and starts nothing of what it packs.
#![forbid(unsafe_code)]

mod apt;
mod cache;
mod control;
mod digest;
mod error;
mod finish;
mod host;
mod merge;
mod path;
mod plan;
mod progress;
mod reader;
mod recipe;
mod run;
mod skeleton;
mod tree;
mod uris;

pub use cache::Cache;
pub use error::{DebianError, Result};
pub use plan::{Package, Plan, resolve};
pub use progress::Progress;
pub use recipe::Recipe;
