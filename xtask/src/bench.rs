//! Builds and starts the benchmarks.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command::step;
use crate::dist;
use crate::engines::Engines;
use crate::packages;
use crate::repository::Repository;
use crate::test::build::build_binary;

/// The package of all benchmarks.
const PROGRAM: &str = "cofferdam-bench";

/// Runs `cargo xtask bench NAME`.
pub fn run(repository: &Repository, name: &str, options: &[&str]) -> Result<()> {
    packages::ensure(packages::FOR_BENCHMARKS);
    let program = build(repository)?;
    let out = repository.root().join("bench-results");
    let mut measure = Command::new(program);
    measure.arg("--out").arg(out).arg(name);
    let needs_none = |option: &str| ["--help", "-h", "--command-line"].contains(&option);
    if name == "spawn" && !options.iter().any(|option| needs_none(option)) {
        measure.arg("--command-line").arg(dist::build(repository)?);
    }
    let wants_engine =
        name == "container" || ["vm", "code", "workspace"].contains(&name) && options.contains(&"--docker");
    if name == "vm" || name == "code" && options.contains(&"--vm") {
        packages::ensure(packages::FOR_VMS);
    }
    let engines = if wants_engine && !options.iter().any(|option| needs_none(option) || *option == "--host") {
        packages::ensure(packages::FOR_TESTS);
        Some(Engines::start(0)?)
    } else {
        None
    };
    measure.envs(engines.as_ref().map(Engines::variables).into_iter().flatten());
    step("measure", measure.args(options))
}

/// Builds the benchmark, and the command line into the same directory.
fn build(repository: &Repository) -> Result<PathBuf> {
    println!("== build the benchmark");
    let mut cargo = repository.cargo();
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "cofferdam",
        "--features",
        "cofferdam/full",
        "--package",
        PROGRAM,
    ]);
    build_binary(cargo, PROGRAM)
}
