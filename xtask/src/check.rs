//! The checks that a change must pass, the fastest first.

use anyhow::Result;

use crate::command::{exists, step};
use crate::repository::Repository;
use crate::test::build::FULL;
use crate::{docs, test, tidy};

/// Runs all checks.
pub fn run(repository: &Repository) -> Result<()> {
    step("fmt", repository.cargo().args(["fmt", "--all", "--check"]))?;
    step(
        "clippy",
        repository.cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            FULL,
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]),
    )?;
    tidy::run(repository)?;
    docs::run(repository)?;
    test::run(repository, None)?;
    step(
        "doc",
        repository
            .cargo()
            .args(["doc", "--workspace", "--features", FULL, "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    if exists("cargo-deny") {
        step("deny", repository.cargo().args(["deny", "--workspace", "check"]))
    } else {
        println!("SKIP deny: cargo-deny is not installed (`cargo install cargo-deny` does that)");
        Ok(())
    }
}
