//! Node versions with type stripping, for the tests of TypeScript. They come from the usual registry, in the versions
//! of `xtask/nodes`. Each is in a root of its own with the system libraries that it needs, and is reused by later runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::{self, Pinned};

/// The oldest version, a usual one, and the newest.
const NODES: [&str; 3] = ["node-oldest", "node-usual", "node-newest"];
/// Mount points of a sandbox, besides the copied directories.
const DIRECTORIES: [&str; 5] = ["dev", "etc", "proc", "tmp", "workspace"];
/// Programs of a root besides Node. Container engines and results from read-only workspaces need them.
const PROGRAMS: [&str; 2] = ["/bin/sh", "/bin/cat"];

/// Creates the roots below `cache`, unless they exist. Returns their directory, or the reason of a failure.
pub fn install(pins: &Path, cache: &Path) -> Result<PathBuf, String> {
    let pinned = Pinned { pins, files: &["package.json", "package-lock.json"], needs: &["npm", "ldd"], name: "nodes" };
    let directory = pinned.install(cache, |directory| {
        tools::npm(directory, "install the Nodes")?;
        NODES.iter().try_for_each(|name| root(directory, name))
    })?;
    Ok(directory.join("roots"))
}

/// Creates a root file system with only this Node and the programs beside it.
fn root(directory: &Path, name: &str) -> Result<(), String> {
    let root = directory.join("roots").join(name);
    let node = root.join("usr/bin/node");
    let io = |error: std::io::Error| format!("cannot fill {}: {error}", root.display());
    for path in DIRECTORIES.iter().copied().chain(["usr/bin"]) {
        fs::create_dir_all(root.join(path)).map_err(io)?;
    }
    fs::hard_link(directory.join("node_modules").join(name).join("bin/node"), &node).map_err(io)?;
    copy_libraries(&node, &root)?;
    for program in PROGRAMS {
        copy(Path::new(program), &root).map_err(io)?;
        copy_libraries(Path::new(program), &root)?;
    }
    Ok(())
}

fn copy_libraries(program: &Path, root: &Path) -> Result<(), String> {
    let output = Command::new("ldd").arg(program).output().map_err(|error| format!("cannot start ldd: {error}"))?;
    for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
        copy(Path::new(&library), root).map_err(|error| format!("cannot copy {library}: {error}"))?;
    }
    Ok(())
}

/// Copies a file of the system to the same path in a root.
fn copy(file: &Path, root: &Path) -> std::io::Result<()> {
    let to = root.join(file.strip_prefix("/").unwrap_or(file));
    fs::create_dir_all(to.parent().unwrap_or(root))?;
    fs::copy(file, to).map(drop)
}

/// Returns the files in the output of `ldd`.
fn libraries(output: &str) -> Vec<String> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    output.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_parsed_from_ldd_output() {
        let output =
            "\tlinux-vdso.so.1 (0x00007f)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x00007f)\n\t/lib64/ld-linux.so.2 (0x00)\n";
        assert_eq!(libraries(output), ["/lib/x/libm.so.6", "/lib64/ld-linux.so.2"]);
        assert!(libraries("\tnot a dynamic executable\n").is_empty());
    }
}
