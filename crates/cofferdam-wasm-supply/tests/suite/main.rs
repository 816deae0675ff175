//! What the supply refuses, and one run against the real registries.
#![forbid(unsafe_code)]

mod archives;
mod cache;
mod entry;
mod real;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cofferdam_wasm_supply::{Supply, Tools};
use tempfile::TempDir;

/// A supply whose npm is this shell script, with its cache and how often the script ran.
struct Fake {
    place: TempDir,
    supply: Supply,
}

impl Fake {
    fn npm(script: &str) -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let tool = place.path().join("npm");
        let counter = place.path().join("runs");
        let text = format!("#!/bin/sh\necho run >> {}\n{script}\n", counter.display());
        fs::write(&tool, text).expect("the script");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o700)).expect("its mode");
        let tools = Tools { npm: tool.into(), ..Tools::default() };
        let supply = Supply::with_tools(place.path().join("cache"), tools);
        Self { place, supply }
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.place.path().join("runs")).map_or(0, |text| text.lines().count())
    }

    fn cache(&self) -> std::path::PathBuf {
        self.place.path().join("cache")
    }
}

/// What is in the cache but for lock files.
fn entries(cache: &Path) -> Vec<String> {
    let names = fs::read_dir(cache).expect("the cache").map(|entry| entry.expect("an entry").file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| !name.ends_with(".lock")).collect()
}
