//! The checks that a change must pass, the fastest first.

use std::process::Command;

use anyhow::Result;

use crate::command::{exists, step};
use crate::repository::Repository;
use crate::test::build::FULL;
use crate::test::sdk;
use crate::{docs, test, tidy};

/// Runs all checks.
pub fn run(repository: &Repository) -> Result<()> {
    step("fmt", repository.cargo().args(["fmt", "--all", "--check"]))?;
    step("fmt of the Rust SDK", in_sdk(repository).args(["fmt", "--check"]))?;
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
    step(
        "clippy of the Rust SDK",
        in_sdk(repository).args(["clippy", "--locked", "--all-targets", "--quiet", "--", "-D", "warnings"]),
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

/// Returns `cargo` in the workspace of the Rust SDK.
fn in_sdk(repository: &Repository) -> Command {
    let mut cargo = repository.cargo();
    cargo.current_dir(repository.root().join(sdk::RUST)).env("CARGO_TARGET_DIR", repository.root().join("target/sdk"));
    cargo
}
