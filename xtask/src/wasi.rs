//! Runs the public test suite of WASI, which is not part of this repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::command::step;
use crate::repository::Repository;
use crate::test::build::build_binary;

/// The example that runs the suite.
const PROGRAM: &str = "wasi-testsuite";

/// Runs `cargo xtask wasi-testsuite DIR`.
pub fn run(repository: &Repository, directory: &str, options: &[&str]) -> Result<()> {
    if !Path::new(directory).is_dir() {
        bail!(
            "{directory} is not a directory; create it with `git clone --depth 1 --branch prod/testsuite-base \
             https://github.com/WebAssembly/wasi-testsuite`, which has prebuilt tests"
        );
    }
    let program = build(repository)?;
    let mut suite = Command::new(program);
    suite.arg(directory).args(options);
    if options.contains(&"--json") {
        // Print only JSON to standard output.
        if suite.status()?.success() { Ok(()) } else { bail!("a test failed") }
    } else {
        step("the WASI test-suite", &mut suite)
    }
}

fn build(repository: &Repository) -> Result<PathBuf> {
    let mut cargo = repository.cargo();
    cargo.args(["build", "--quiet", "--package", "cofferdam-wasm", "--example", PROGRAM]);
    build_binary(cargo, PROGRAM)
}
