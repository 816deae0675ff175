//! Small root file systems from Debian packages, created by an ordinary user.
//!
//! ```text
//! resolve:    recipe --apt-get update, install --print-uris--> Plan: versions, sizes, hashes, content key
//! write_tar:  Plan --cache, else apt-get --download-only--> packages, hashed --dpkg-deb --fsys-tarfile--> one tar
//! ```
//!
//! apt works in private directories with the host's sources and keyrings, so its signature checks apply, and the
//! host's apt and dpkg stay unchanged. Packages are merged while they are read. Nothing is unpacked on the host,
//! nothing is mounted, and no maintainer script runs. The module creates what programs need of those scripts:
//! `/bin/sh`, `awk`, `which`, users, the bundle of certificates. It does not create Python byte code (programs
//! compile what they import), the linker's cache (the libraries are in its default directories), databases of
//! `update-alternatives` and `/etc/profile`. Documentation and translations are left out, licences are kept. Set-id
//! bits are removed.
//!
//! The same plan gives the same bytes. Errors name the package that contains something forbidden: paths that leave
//! the root, links to outside, devices, files of another package.
//!
//! - What is accepted from a package: `path.rs`, `tree.rs` and `reader.rs`.
//! - Replacements of maintainer scripts: `skeleton.rs` and `finish.rs`.
//! - apt: `apt.rs`, `plan.rs` and `cache.rs`.

mod apt;
mod cache;
mod control;
mod error;
mod finish;
mod host;
mod merge;
mod package;
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
pub use package::Package;
pub use plan::{Plan, resolve};
pub use progress::Progress;
pub use recipe::Recipe;
