//! Static linking of the unwinder, if the compiler provides a static one. The shared library would be searched, mapped
//! and relocated at each start of the command line, and its constructor queries the CPU: together a tenth of the time
//! of a short command.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let features = variable("CARGO_CFG_TARGET_FEATURE");
    let is_gnu = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    // The compiler of this host does not know the path of another target's library.
    let is_native = variable("TARGET") == variable("HOST");
    if is_gnu
        && is_native
        && !features.split(',').any(|feature| feature == "crt-static")
        && let Some(library) = unwinder()
    {
        println!("cargo::rustc-link-arg-bins=-Wl,--whole-archive,{},--no-whole-archive", library.display());
    }
}

/// Returns the path of the static unwinder.
fn unwinder() -> Option<PathBuf> {
    let output = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A compiler without one prints the bare name.
    (path.is_absolute() && Path::new(&path).is_file()).then_some(path)
}
