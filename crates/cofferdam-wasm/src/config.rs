//! Configuration of the WebAssembly backend, independent of any spec.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::ByteSize;

/// Limits of a backend. The limits of a sandbox are in its spec.
#[derive(Debug, Clone)]
pub struct WasmConfig {
    /// The maximum number of guests that run at once, over all sandboxes. Each has a thread. Default 64.
    pub guests: usize,
    /// The time that a start waits for a free guest slot before it fails. Default 10 s.
    pub timeout: Duration,
    /// The maximum number of modules that compile at once. A compilation that timed out continues outside of this
    /// limit; beyond four such it counts until its compiler stops. Default 2.
    pub compilers: usize,
    /// The wall time limit of one compilation. Default 30 s.
    pub compile_time: Duration,
    /// The maximum module size. Default 16 MiB.
    pub module_size: ByteSize,
    /// The number of compiled modules that are cached for later runs of the same tenant. Default 32.
    pub cached_modules: usize,
    /// The stack size of a guest. Default 2 MiB, which the interpreters need.
    pub stack: ByteSize,
    /// The cache directory of interpreters. It belongs to this user alone and is created when it is needed. Without
    /// one, which is the default, only modules run, and no scripts.
    pub cache: Option<PathBuf>,
}

impl Default for WasmConfig {
    fn default() -> Self {
        Self {
            guests: 64,
            timeout: Duration::from_secs(10),
            compilers: 2,
            compile_time: Duration::from_secs(30),
            module_size: ByteSize::from_mebibytes(16),
            cached_modules: 32,
            stack: ByteSize::from_mebibytes(2),
            cache: None,
        }
    }
}
