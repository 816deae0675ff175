//! Builds and starts the benchmarks.

use anyhow::Result;

use crate::command::step;
use crate::packages;
use crate::repository::Repository;

/// `cargo xtask bench spawn`.
pub fn spawn(repository: &Repository, options: &[&str]) -> Result<()> {
    packages::ensure(packages::FOR_BENCHMARKS);
    let release = ["--quiet", "--release", "--package", "cofferdam-bench"];
    step("build the benchmark", repository.cargo().arg("build").args(release))?;
    let out = repository.root().join("bench-results");
    step("measure", repository.cargo().arg("run").args(release).arg("--").arg("--out").arg(out).args(options))
}
