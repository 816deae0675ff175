//! Packages of plugins: signed archives, and the store of installed plugins.
//!
//! ```text
//! directory --Tree--> index, files --SigningKey--> .cplugin --Package--> verified --Store--> installed
//!
//! .cplugin = zstd(tar): index.json, signature.json, files/PATH in the order of the index
//! digest   = SHA-256 of index.json, which has the SHA-256 of each file and the text of the manifest
//! ```
//!
//! The index decides everything. A reader compares each member of the archive with the header that the index demands,
//! so no other header is ever interpreted. Packages do not say whether a plugin is harmless, only what it may do.

mod archive;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod grants;
mod index;
mod key;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod unpack;

pub use archive::Package;
pub use error::{PackageError, Verdict};
pub use grants::{Grant, added, grants, limits, strategy};
pub use index::{Contents, Entry, Index};
pub use key::{PublicKey, SigningKey};
pub use store::{Installed, KeyChange, Record, Review, Store, find, installed};
pub use tree::Tree;

/// The version of the format.
pub const PACKAGE_FORMAT: u32 = 1;
/// The extension of packages.
pub const EXTENSION: &str = "cplugin";
/// The maximum size of all files of a package together.
pub const MAX_SIZE: u64 = 256 << 20;
/// The maximum number of files, directories and links of a package.
pub const MAX_FILES: usize = 20_000;
/// The names of a manifest in its directory. The first that exists applies.
pub const MANIFEST_NAMES: [&str; 2] = ["plugin.toml", "plugin.json"];
