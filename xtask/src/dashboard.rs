//! The dashboard of `cofferdam serve`: its bundle from `crates/cofferdam-server/dashboard`, which is checked in so that a
//! build needs no npm, and the browser driver of its tests. The packages come from the usual registry, in the versions
//! of the lock file there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result as Outcome;

use crate::repository::Repository;
use crate::test;
use crate::tools::{self, Pinned};

/// The environment variable through which tests find the packages.
pub const VARIABLE: &str = "COFFERDAM_TEST_DASHBOARD";
/// The sources, which contain the pin files.
const SOURCES: &str = "crates/cofferdam-server/dashboard";
/// The bundle that the program contains.
const ASSETS: &str = "crates/cofferdam-server/src/dashboard/assets";
/// The files of the sources that the build reads besides `src`.
const BUILD: [&str; 2] = ["build.mjs", "tsconfig.json"];

/// Runs `cargo xtask dashboard`: builds the bundle, or compares it with the checked-in one.
pub fn run(repository: &Repository, check: bool) -> Outcome<()> {
    let cache = repository.root().join("target/cache");
    let packages = install(repository, &cache).map_err(anyhow::Error::msg)?;
    let result = match check {
        true => compare(repository, &packages),
        false => build(repository, &packages, &repository.root().join(ASSETS)),
    };
    result.map_err(anyhow::Error::msg)
}

/// Installs the packages below `cache`, unless they exist. Returns their directory, or the reason of a failure.
pub fn install(repository: &Repository, cache: &Path) -> Result<PathBuf, String> {
    let pins = &repository.root().join(SOURCES);
    let files = &["package.json", "package-lock.json"];
    let pinned = Pinned { pins, files, needs: &["npm", "node"], name: "dashboard" };
    pinned.install(cache, |directory| tools::npm(directory, "install the packages of the dashboard"))
}

/// Builds the bundle and compares it with the checked-in one.
fn compare(repository: &Repository, packages: &Path) -> Result<(), String> {
    let built = packages.join("built");
    build(repository, packages, &built)?;
    let names = |directory: &Path| {
        let entries =
            fs::read_dir(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
        let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.sort();
        Ok::<_, String>(names)
    };
    let assets = repository.root().join(ASSETS);
    let (fresh, known) = (names(&built)?, names(&assets)?);
    let differs = |name| fs::read(built.join(name)).ok() != fs::read(assets.join(name)).ok();
    if fresh != known || fresh.iter().any(differs) {
        return Err(format!("{ASSETS} is not what {SOURCES} builds; run cargo xtask dashboard"));
    }
    Ok(())
}

/// Checks the types and builds the bundle. The sources are copied beside the packages.
fn build(repository: &Repository, packages: &Path, out: &Path) -> Result<(), String> {
    let (sources, copy) = (repository.root().join(SOURCES), packages.join("sources"));
    let io = |error: std::io::Error| format!("cannot copy the dashboard: {error}");
    for old in [copy.as_path(), out] {
        // They may not exist yet.
        let _ = fs::remove_dir_all(old);
        fs::create_dir_all(old).map_err(io)?;
    }
    fs::create_dir_all(copy.join("src")).map_err(io)?;
    for name in BUILD {
        fs::copy(sources.join(name), copy.join(name)).map_err(io)?;
    }
    for entry in fs::read_dir(sources.join("src")).map_err(io)? {
        let entry = entry.map_err(io)?;
        fs::copy(entry.path(), copy.join("src").join(entry.file_name())).map_err(io)?;
    }
    let node = |program: &str| {
        let mut node = Command::new("node");
        node.arg(program).current_dir(&copy);
        node
    };
    tools::carry_out("check the types of the dashboard", node("../node_modules/typescript/bin/tsc").args(["-p", "."]))?;
    tools::carry_out("build the dashboard", node("build.mjs").arg(out))
}

/// Compares the bundle as a test, if the packages are installed.
pub fn test(repository: &Repository, packages: Option<&Path>, filter: Option<&str>) -> test::Outcome {
    let name = "dashboard build";
    let (Some(packages), true) = (packages, filter.is_none_or(|filter| name.contains(filter))) else {
        return test::Outcome::default();
    };
    match compare(repository, packages) {
        Ok(()) => test::Outcome { passed: 1, ..test::Outcome::default() },
        Err(why) => test::Outcome { failures: vec![format!("{name}: {why}")], ..test::Outcome::default() },
    }
}
