//! Builds and starts the fuzz drivers.

use std::process::Command;

use anyhow::Result;

use crate::command::step;
use crate::repository::Repository;
use crate::test::build::build_binary;

/// The package of all drivers.
const PROGRAM: &str = "cofferdam-fuzz";

/// Runs `cargo xtask fuzz TARGET`.
pub fn run(repository: &Repository, target: &str, options: &[&str]) -> Result<()> {
    let mut cargo = repository.cargo();
    // Without optimisation, so that overflow checks and assertions are active.
    cargo.args(["build", "--quiet", "--package", PROGRAM]);
    let program = build_binary(cargo, PROGRAM)?;
    step("fuzz", Command::new(program).arg(target).args(options))
}
