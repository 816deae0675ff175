//! Builds and starts the benchmarks.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::command::step;
use crate::dist;
use crate::packages;
use crate::repository::Repository;
use crate::test::build::binary;

/// The program with all benchmarks.
const PROGRAM: &str = "cofferdam-bench";

/// `cargo xtask bench NAME`.
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
    step("measure", measure.args(options))
}

/// Builds the benchmark and the command line that it measures; they end up side by side.
fn build(repository: &Repository) -> Result<PathBuf> {
    println!("== build the benchmark");
    let output = repository
        .cargo()
        .args(["build", "--quiet", "--release", "--package", "cofferdam", "--package", PROGRAM])
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the benchmark does not build");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let found = messages.lines().filter_map(|line| binary(&serde_json::from_str(line).ok()?)).collect::<Vec<_>>();
    let program = found.into_iter().find(|(name, _)| name == PROGRAM).context("cargo built no benchmark")?;
    Ok(program.1)
}
