//! Refusals of the installation, and one run against the real registries.
#![forbid(unsafe_code)]

mod archives;
mod cache;
mod entry;
mod real;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cofferdam_wasm_runtimes::{Runtimes, Tools};
use tempfile::TempDir;

/// Runtimes whose npm is a shell script, with its cache and a count of the script's runs.
struct Fake {
    directory: TempDir,
    runtimes: Runtimes,
}

impl Fake {
    fn npm(script: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let tool = directory.path().join("npm");
        let counter = directory.path().join("runs");
        let text = format!("#!/bin/sh\necho run >> {}\n{script}\n", counter.display());
        fs::write(&tool, text).expect("the script");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o700)).expect("its mode");
        let tools = Tools { npm: tool.into(), ..Tools::default() };
        let runtimes = Runtimes::with_tools(directory.path().join("cache"), tools);
        Self { directory, runtimes }
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.directory.path().join("runs")).map_or(0, |text| text.lines().count())
    }

    fn cache(&self) -> std::path::PathBuf {
        self.directory.path().join("cache")
    }
}

/// Returns the names in the cache, except lock files.
fn entries(cache: &Path) -> Vec<String> {
    let names = fs::read_dir(cache).expect("the cache").map(|entry| entry.expect("an entry").file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| !name.ends_with(".lock")).collect()
}
