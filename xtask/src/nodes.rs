//! Nodes that take types away, for the tests of TypeScript: from the ordinary registry, in the versions of `xtask/nodes`, each
//! in a root of its own with the libraries of this system that it needs, kept from run to run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::{self, Pinned};

/// Where tests find the roots.
pub const VARIABLE: &str = "COFFERDAM_TEST_NODES";
/// The oldest, a usual one, the newest.
const NODES: [&str; 3] = ["node-oldest", "node-usual", "node-newest"];
/// What a sandbox mounts over, besides what is copied.
const PLACES: [&str; 5] = ["dev", "etc", "proc", "tmp", "workspace"];
/// What a root has besides Node: container engines and results from read-only workspaces need programs.
const PROGRAMS: [&str; 2] = ["/bin/sh", "/bin/cat"];

/// Makes the roots below `cache`, if they are not there; gives where. What cannot be had is told, and not tested with.
pub fn prepare(pins: &Path, cache: &Path) -> Option<PathBuf> {
    match install(pins, cache) {
        Ok(directory) => Some(directory),
        Err(why) => {
            println!("SKIP Nodes that take types away (cofferdam-code and cofferdam, TypeScript): {why}");
            None
        }
    }
}

/// As [`prepare`], for who says himself why not.
pub fn install(pins: &Path, cache: &Path) -> Result<PathBuf, String> {
    let pinned = Pinned { pins, files: &["package.json", "package-lock.json"], needs: &["npm", "ldd"], name: "nodes" };
    let directory = pinned.install(cache, |directory| {
        clients::npm(directory, "install the Nodes")?;
        NODES.iter().try_for_each(|name| root(directory, name))
    })?;
    Ok(directory.join("roots"))
}

/// A root file system in which nothing is but this Node, and what runs beside it.
fn root(directory: &Path, name: &str) -> Result<(), String> {
    let root = directory.join("roots").join(name);
    let node = root.join("usr/bin/node");
    let io = |error: std::io::Error| format!("cannot fill {}: {error}", root.display());
    for place in PLACES.iter().copied().chain(["usr/bin"]) {
        fs::create_dir_all(root.join(place)).map_err(io)?;
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

/// Copies a file of the system to its own place in a root.
fn copy(file: &Path, root: &Path) -> std::io::Result<()> {
    let to = root.join(file.strip_prefix("/").unwrap_or(file));
    fs::create_dir_all(to.parent().unwrap_or(root))?;
    fs::copy(file, to).map(drop)
}

/// The files that `ldd` names.
fn libraries(told: &str) -> Vec<String> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    told.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let told =
            "\tlinux-vdso.so.1 (0x00007f)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x00007f)\n\t/lib64/ld-linux.so.2 (0x00)\n";
        assert_eq!(libraries(told), ["/lib/x/libm.so.6", "/lib64/ld-linux.so.2"]);
        assert!(libraries("\tnot a dynamic executable\n").is_empty());
    }
}
