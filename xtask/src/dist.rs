//! Builds the command line as it is to be installed: optimised as a whole, and where the toolchain can make such programs,
//! without a dynamic C library, which starts faster and runs on any Linux of its architecture.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

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
    cargo.args(["build", "--quiet", "--profile", "dist", "--package", PROGRAM, "--features", "full"]);
    if can_build_for(&target) {
        println!("== build the command line for {target}");
        cargo.args(["--target", &target]);
    } else {
        println!(
            "== build the command line for this system; `rustup target add {target}` gives one that starts faster"
        );
    }
    as_installed(&build_binary(cargo, PROGRAM)?)
}

/// A copy, as an installation makes one. Linkers write here and there, and the kernel then keeps the file in small pieces:
/// a program starts up to a third slower from those, until the file is read from the disk again.
fn as_installed(program: &Path) -> Result<PathBuf> {
    let directory = program.with_file_name("installed");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let (copy, new) = (directory.join(PROGRAM), directory.join("new"));
    // One that runs cannot be written over.
    std::fs::copy(program, &new).with_context(|| format!("cannot copy to {}", new.display()))?;
    std::fs::rename(&new, &copy).with_context(|| format!("cannot rename to {}", copy.display()))?;
    Ok(copy)
}

/// Whether the toolchain has the standard library for it.
fn can_build_for(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    let directory = output.ok().filter(|output| output.status.success());
    let directory = directory.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    directory.is_some_and(|path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()))
}
