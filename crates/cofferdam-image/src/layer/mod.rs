//! Layers of container images, and the files that contain them. Everything in them is untrusted.
//!
//! - Unpacking of layers to a directory: `tree.rs` and `remove.rs`. Counts of what is not kept: `dropped.rs`.
//! - Directories as tars: `pack.rs`.
//! - OCI image layouts and the output of `docker save`: `layout.rs`.
//! - Digests, hashing readers and decompression: `stream.rs`.

mod dropped;
mod error;
pub(crate) mod layout;
pub(crate) mod pack;
pub(crate) mod remove;
pub(crate) mod stream;
pub(crate) mod tree;

pub use dropped::Dropped;
pub use error::LayerError;
pub(crate) use error::{Result, bad, io};
