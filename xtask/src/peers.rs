//! Independent libraries for JSON-RPC, for tests of plugins without an SDK. They come from the usual registries, in the
//! versions of `xtask/peers`, and are reused by later runs.

use std::path::{Path, PathBuf};

use crate::clients::{self, Pinned};

/// The environment variable through which tests find the libraries: `node_modules` for Node.js, and `lib` for Python.
pub const VARIABLE: &str = "COFFERDAM_TEST_PEERS";

/// Installs the libraries below `cache`, unless they exist. Returns their directory. If that fails, prints that their
/// tests are skipped.
pub fn prepare(pins: &Path, cache: &Path) -> Option<PathBuf> {
    match install(pins, cache) {
        Ok(directory) => Some(directory),
        Err(why) => {
            println!("SKIP plugins without an SDK (cofferdam, suite plugins::interop): {why}");
            None
        }
    }
}

/// Does the same as [`prepare`], but returns the reason of a failure.
pub fn install(pins: &Path, cache: &Path) -> Result<PathBuf, String> {
    let pinned = Pinned { pins, files: &clients::PINS, needs: &["npm", "python3"], name: "peers" };
    pinned.install(cache, |directory| {
        let mut pip = clients::pip(directory)?;
        clients::carry_out("install a JSON-RPC library for Python", pip.arg("--target").arg(directory.join("lib")))?;
        clients::npm(directory, "install a JSON-RPC library for Node.js")
    })
}
