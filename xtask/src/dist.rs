//! Builds the command line as it is to be installed: optimised as a whole, and where the toolchain can make such programs,
//! without a dynamic C library, which starts faster and runs on any Linux of its architecture.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::repository::Repository;
use crate::test::build::build_binary;

/// The program.
const PROGRAM: &str = "cofferdam";

/// `cargo xtask dist`.
pub fn run(repository: &Repository) -> Result<()> {
    let program = build(repository)?;
    println!("{}", program.display());
    Ok(())
}

/// Builds it, and says where it is.
pub fn build(repository: &Repository) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut cargo = repository.cargo();
    cargo.args(["build", "--quiet", "--profile", "dist", "--package", PROGRAM]);
    if can_build_for(&target) {
        println!("== build the command line for {target}");
        cargo.args(["--target", &target]);
    } else {
        println!(
            "== build the command line for this system; `rustup target add {target}` gives one that starts faster"
        );
    }
    build_binary(cargo, PROGRAM)
}

/// Whether the toolchain has the standard library for it.
fn can_build_for(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    let directory = output.ok().filter(|output| output.status.success());
    let directory = directory.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    directory.is_some_and(|path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()))
}
