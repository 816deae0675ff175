//! Machine code that was compiled before.

use std::fs::File;

use wasmtime::{Engine, Module};

/// The module in a file that this program wrote.
///
/// # Errors
///
/// If it was compiled by another version, for other settings or another processor.
pub(crate) fn load(engine: &Engine, file: Verified) -> wasmtime::Result<Module> {
    // SAFETY: whoever made a `Verified` has seen that the file is as the compiler wrote it, and that nobody else can
    // change it.
    unsafe { Module::deserialize_open_file(engine, file.0) }
}

/// A file whose bytes were compared with a hash by this process, in a directory that is its user's alone.
pub(crate) struct Verified(File);

impl Verified {
    /// Only for a file that the cache has just hashed through this very descriptor.
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }
}
