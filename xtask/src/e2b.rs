//! E2B's own SDKs for Python and JavaScript, which judge the local server of the tests of `cofferdam-e2b`. They come from
//! the usual registries, in the versions of `xtask/e2b`, and are reused by later runs.

use std::path::{Path, PathBuf};

use crate::clients::{self, Pinned};

/// The environment variable through which tests find the SDKs: `python` is an environment of Python, and `node_modules`
/// is for Node.js.
pub const VARIABLE: &str = "COFFERDAM_TEST_E2B_SDK";

/// Installs the SDKs below `cache`, unless they exist. Returns their directory. If that fails, prints that their tests
/// are skipped.
pub fn prepare(pins: &Path, cache: &Path) -> Option<PathBuf> {
    match install(pins, cache) {
        Ok(directory) => Some(directory),
        Err(why) => {
            println!("SKIP E2B's SDKs (cofferdam-e2b, suite sdk): {why}");
            None
        }
    }
}

/// Does the same as [`prepare`], but returns the reason of a failure.
pub fn install(pins: &Path, cache: &Path) -> Result<PathBuf, String> {
    let pinned = Pinned { pins, files: &clients::PINS, needs: &["npm", "python3"], name: "e2b-sdk" };
    pinned.install(cache, |directory| {
        clients::carry_out("install E2B's SDK for Python", &mut clients::pip(directory)?)?;
        clients::npm(directory, "install E2B's SDK for Node.js")
    })
}
