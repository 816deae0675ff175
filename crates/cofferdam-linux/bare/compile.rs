//! A helper for build scripts: compiles a program without any library, for the target of the build.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Options for every linker. Code and constants share one segment, and no symbol is bound lazily: this needs few
/// mappings.
const LINKED: &[&str] = &["-nostdlib", "-static", "--build-id=none", "--gc-sections", "-znoexecstack", "-znorelro"];

/// Compiles `source` to a program `name` in the build's directory, or ends the build.
pub fn program(source: &str, name: &str) {
    let directory = Path::new(source).parent().map(Path::display);
    println!("cargo::rerun-if-changed={}", directory.map(|path| path.to_string()).unwrap_or_default());
    println!("cargo::rerun-if-changed=../cofferdam-linux/bare");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR")).join(name);
    let target = variable("TARGET");
    let mut failures = Vec::new();
    // The linker of the toolchain supports every target. If a distribution does not ship it, the C compiler links for
    // this host.
    for linker in [rust_lld as fn(&mut Command), c_compiler] {
        match compile(source, name, &target, &out, linker) {
            Ok(()) => return,
            Err(message) => failures.push(message),
        }
    }
    println!("cargo::error=cannot compile {name} for {target}, neither with rust-lld nor with cc");
    println!("cargo::error=add the target (rustup target add {target}), or install rust-lld or a C compiler for it");
    for line in failures.iter().flat_map(|message| message.lines()).take(40) {
        println!("cargo::error={line}");
    }
    exit(1);
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn compile(source: &str, name: &str, target: &str, out: &Path, linker: fn(&mut Command)) -> Result<(), String> {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args([source, "--crate-name", &name.replace('-', "_"), "--crate-type", "bin", "--edition", "2024"]);
    rustc.args(["--target", target, "-o"]).arg(out);
    for option in [
        "panic=abort",
        "opt-level=s",
        "codegen-units=1",
        "relocation-model=static",
        "debuginfo=0",
        "overflow-checks=no",
        "debug-assertions=no",
        "strip=symbols",
        "default-linker-libraries=no",
    ] {
        rustc.args(["-C", option]);
    }
    linker(&mut rustc);
    let output = rustc.output().map_err(|error| format!("{rustc:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn rust_lld(rustc: &mut Command) {
    rustc.args(["-C", "linker-flavor=ld.lld", "-C", "linker=rust-lld", "-C", "link-self-contained=no"]);
    for option in LINKED.iter().chain(&["--no-rosegment"]) {
        rustc.arg(format!("-Clink-arg={option}"));
    }
}

fn c_compiler(rustc: &mut Command) {
    rustc.args(["-C", "linker-flavor=gcc", "-Clink-arg=-nostartfiles"]);
    for option in LINKED {
        let option = if option.starts_with("-no") || *option == "-static" {
            (*option).to_owned()
        } else {
            format!("-Wl,{option}")
        };
        rustc.arg(format!("-Clink-arg={option}"));
    }
}
