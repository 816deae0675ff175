//! JavaScript's module: QuickJS-NG, built from its C sources, with a `main` of this crate.

use std::env::consts;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive;
use crate::digest;
use crate::error::{Result, RuntimesError, io};
use crate::recipe::javascript::{
    COMPILER_VERSION, COMPILERS, CRATE, CRATE_VERSION, Compiler, FLAGS, MAIN, MODULE_SHA256, PATCH, PRELUDE, REGEXP,
    REQUESTS, SOURCES,
};
use crate::step::Step;
use crate::tools::{self, Tool, Tools};

pub(crate) const FILES: [&str; 1] = ["javascript.wasm"];

const CARGO: Tool = Tool {
    name: "cargo",
    what: "fetch the sources of QuickJS-NG",
    remedy: "install Rust's toolchain, from your distribution or by rustup",
};
const PIP: Tool = Tool {
    name: "python3 with pip",
    what: "fetch the compiler for JavaScript's module",
    remedy: "install Python 3 with pip, from your distribution",
};
const COMPILE: Tool =
    Tool { name: "the compiler", what: "compile QuickJS-NG", remedy: "remove the cache directory and try again" };

/// Builds [`FILES`] into the directory `staged`, using `scratch`.
pub(crate) fn make(tools: &Tools, scratch: &Path, staged: &Path, progress: &mut dyn FnMut(Step)) -> Result<()> {
    let compiler = compiler_for(consts::ARCH, consts::OS)?;
    let sources = sources(tools, scratch, progress)?;
    let zig = unpack_compiler(tools, compiler, scratch, progress)?;
    progress(Step::Build);
    let mut command = Command::new(zig);
    // The build does not depend on the caller's environment.
    command.env_clear().env("ZIG_GLOBAL_CACHE_DIR", scratch.join("cache"));
    command.env("ZIG_LOCAL_CACHE_DIR", scratch.join("cache")).env("HOME", scratch).env("TMPDIR", scratch);
    tools::run(&COMPILE, command.args(FLAGS).current_dir(&sources), scratch)?;
    progress(Step::Verify);
    let built = sources.join(FILES[0]);
    if let Some(pinned) = pinned_module() {
        digest::expect(&built, pinned)?;
    }
    let target = staged.join(FILES[0]);
    fs::copy(&built, &target).map_err(io("write", target))?;
    Ok(())
}

/// Returns the hash of the module if builds on this architecture are reproducible. On others the manifest in the cache
/// holds the hash of the build.
pub(crate) fn pinned_module() -> Option<&'static str> {
    (consts::ARCH == "x86_64").then_some(MODULE_SHA256)
}

fn compiler_for(arch: &str, os: &str) -> Result<&'static Compiler> {
    let found = COMPILERS.iter().find(|compiler| compiler.host == (arch, os));
    found.ok_or_else(|| RuntimesError::UnsupportedHost { host: format!("{arch} {os}") })
}

/// Creates a directory with the engine's files, each verified by its pinned hash, and the files of this crate.
fn sources(tools: &Tools, scratch: &Path, progress: &mut dyn FnMut(Step)) -> Result<PathBuf> {
    progress(Step::Fetch { what: "the sources of QuickJS-NG", megabytes: 3 });
    let fetch = scratch.join("fetch");
    let manifest = fetch.join("Cargo.toml");
    fs::create_dir_all(fetch.join("src")).map_err(io("create", &fetch))?;
    let text = format!(
        "[package]\nname = \"fetch\"\nedition = \"2021\"\n[workspace]\n\
         [dependencies]\n{CRATE} = {{ version = \"={CRATE_VERSION}\", default-features = false }}\n"
    );
    fs::write(&manifest, text).map_err(io("write", &manifest))?;
    fs::write(fetch.join("src/lib.rs"), "").map_err(io("write", &fetch))?;
    let mut cargo = CARGO.command(&tools.cargo)?;
    cargo.args(["vendor", "--quiet", "--manifest-path"]).arg(&manifest).arg(fetch.join("vendor"));
    tools::run(&CARGO, cargo.current_dir(&fetch), scratch)?;
    progress(Step::Verify);
    let from = fetch.join("vendor").join(CRATE).join("quickjs");
    let to = scratch.join("sources");
    fs::create_dir(&to).map_err(io("create", &to))?;
    for (name, sha256) in SOURCES {
        digest::expect(&from.join(name), sha256)?;
        fs::copy(from.join(name), to.join(name)).map_err(io("copy", from.join(name)))?;
    }
    let engine = to.join("quickjs.c");
    let text = fs::read_to_string(&engine).map_err(io("read", &engine))?;
    fs::write(&engine, text.replacen(PATCH.0, PATCH.1, 1)).map_err(io("write", &engine))?;
    for (name, text) in [("main.c", MAIN), ("requests.h", REQUESTS), ("regexp.c", REGEXP), ("prelude.js", PRELUDE)] {
        fs::write(to.join(name), text).map_err(io("write", to.join(name)))?;
    }
    Ok(to)
}

/// Unpacks the compiler, with the part of its library that this build needs.
fn unpack_compiler(
    tools: &Tools,
    compiler: &Compiler,
    scratch: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<PathBuf> {
    progress(Step::Fetch { what: "a compiler for this build", megabytes: 101 });
    let list = scratch.join("requirements.txt");
    let line = format!("ziglang=={COMPILER_VERSION} --hash=sha256:{}\n", compiler.sha256);
    fs::write(&list, line).map_err(io("write", &list))?;
    let mut pip = PIP.command(&tools.python)?;
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--require-hashes", "--platform", compiler.platform, "-r"]).arg(&list);
    tools::run(&PIP, pip.arg("-d").arg(scratch).current_dir(scratch), scratch)?;
    progress(Step::Verify);
    let wheel = scratch.join(compiler.file);
    digest::expect(&wheel, compiler.sha256)?;
    let directory = scratch.join("compiler");
    archive::unpack_zip_under(&wheel, &directory, "ziglang/zig", is_needed)?;
    fs::remove_file(&wheel).map_err(io("remove", wheel))?;
    Ok(directory.join("ziglang/zig"))
}

fn is_needed(name: &str) -> bool {
    const LIBC: &str = "ziglang/lib/libc/";
    const HEADERS: &str = "ziglang/lib/libc/include/";
    let Some(header) = name.strip_prefix(HEADERS) else {
        let of_other_systems = ["glibc/", "freebsd/", "netbsd/", "openbsd/", "mingw/", "darwin/"];
        return !name
            .strip_prefix(LIBC)
            .is_some_and(|rest| of_other_systems.iter().any(|system| rest.starts_with(system)))
            && name.starts_with("ziglang/");
    };
    header.starts_with("wasm-wasi-musl/") || header.starts_with("generic-musl/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_a_pinned_compiler_is_refused() {
        assert!(matches!(compiler_for("riscv64", "linux"), Err(RuntimesError::UnsupportedHost { .. })));
    }

    #[test]
    fn only_files_that_the_build_needs_are_unpacked() {
        for (name, needed) in [
            ("ziglang/zig", true),
            ("ziglang/lib/libc/wasi/libc-bottom-half/cloudlibc/LICENSE", true),
            ("ziglang/lib/libc/include/wasm-wasi-musl/stdio.h", true),
            ("ziglang/lib/libc/include/any-windows-any/windows.h", false),
            ("ziglang/lib/libc/glibc/abilists", false),
            ("elsewhere/zig", false),
        ] {
            assert_eq!(is_needed(name), needed, "{name}");
        }
    }
}
