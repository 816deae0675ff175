//! Links the unwinder statically where the compiler brings one. The shared library would be found, mapped and
//! relocated at each start of the command line, and its constructor asks the processor what it is: together a tenth
//! of what a short command takes.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let features = variable("CARGO_CFG_TARGET_FEATURE");
    let is_gnu = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    // Another machine's library is not where this machine's compiler says.
    let is_native = variable("TARGET") == variable("HOST");
    if is_gnu
        && is_native
        && !features.split(',').any(|feature| feature == "crt-static")
        && let Some(library) = unwinder()
    {
        println!("cargo::rustc-link-arg-bins=-Wl,--whole-archive,{},--no-whole-archive", library.display());
    }
}

/// Where the static unwinder lies.
fn unwinder() -> Option<PathBuf> {
    let output = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A compiler that has none answers with the bare name.
    (path.is_absolute() && Path::new(&path).is_file()).then_some(path)
}
