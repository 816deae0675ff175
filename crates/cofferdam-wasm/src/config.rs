//! What a backend of WebAssembly takes upon itself, whatever a spec asks for.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::ByteSize;

/// Bounds of a backend. Those of a sandbox are in its spec.
#[derive(Debug, Clone)]
pub struct WasmConfig {
    /// Guests running at once, of all sandboxes; each has a thread. Default 64.
    pub guests: usize,
    /// How long a start waits for a place among them before it is refused. Default 10 s.
    pub patience: Duration,
    /// Modules compiled at once. One whose time ran out runs on beside them; beyond four such
    /// it counts until its compiler stops. Default 2.
    pub compilers: usize,
    /// Real time that one module may take to compile. Default 30 s.
    pub compile_time: Duration,
    /// The largest module. Default 16 MiB.
    pub module_size: ByteSize,
    /// Compiled modules kept for later runs of the same tenant. Default 32.
    pub kept_modules: usize,
    /// Stack of a guest. Default 2 MiB, which is what the interpreters need.
    pub stack: ByteSize,
    /// Where interpreters are kept: a directory of this user alone, which is made when it is needed. Default none: then
    /// no script runs, only modules.
    pub cache: Option<PathBuf>,
}

impl Default for WasmConfig {
    fn default() -> Self {
        Self {
            guests: 64,
            patience: Duration::from_secs(10),
            compilers: 2,
            compile_time: Duration::from_secs(30),
            module_size: ByteSize::from_mebibytes(16),
            kept_modules: 32,
            stack: ByteSize::from_mebibytes(2),
            cache: None,
        }
    }
}
