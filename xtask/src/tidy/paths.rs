//! A rule against opening by path what a caller named. A guest may own a directory above it and replace its content
//! with links. So crates open such files through `cofferdam_linux::named`, and read them through
//! `cofferdam_linux::walk`. Modules that open other files by path are listed with the reason. The rule checks lines,
//! and knows the usual calls only.

use std::path::Path;

use super::Source;

/// Modules, directories of modules and crates that open by path only what no guest can exchange, and the reason.
const EXEMPT: &[(&str, &str)] = &[
    ("cofferdam-audit/src/writer", "files below the log's opened directory"),
    ("cofferdam-bench", "no sandbox of a user"),
    ("cofferdam-conformance", "no sandbox of a user"),
    ("cofferdam-fuzz", "no sandbox of a user"),
    ("cofferdam-linux", "the wrappers themselves, and control groups"),
    ("cofferdam-container/src/disks.rs", "a directory that only root can enter, which is checked"),
    ("cofferdam-resident/src/socket_directory.rs", "the user's runtime directory, whose owner and mode are checked"),
    ("cofferdam-egress/src/upstream.rs", "the host's file of names"),
    ("cofferdam-image/src/debian", "the private package cache, and files of apt"),
    ("cofferdam-image/src/layer/tree.rs", "a scratch directory of a private image store"),
    ("cofferdam-image/src/store", "the private image store"),
    ("cofferdam-image/src/disk/names.rs", "the private image store"),
    ("cofferdam-image/src/disk/store.rs", "the private image store"),
    ("cofferdam-image/src/disk/transfer.rs", "the private image store"),
    ("cofferdam-plugin/src/host/files.rs", "compares the private state directory with an allowlist"),
    ("cofferdam-plugin/src/host/load.rs", "the host's private state directory"),
    ("cofferdam-plugin/src/host/local.rs", "a plugin in development mode, without isolation"),
    ("cofferdam-plugin/src/host/watch.rs", "modification times of a plugin in development mode"),
    ("cofferdam-plugin/src/package/store.rs", "the private store of plugins"),
    ("cofferdam-plugin/src/package/unpack.rs", "a new directory of the private store of plugins"),
    ("cofferdam-plugin/src/services", "the host's private state directory, whose owner and mode are checked"),
    ("cofferdam-process/src/launcher/certificates.rs", "fixed names in the sandbox's root"),
    ("cofferdam-process/src/error.rs", "settings of the kernel"),
    ("cofferdam-process/src/interpreters.rs", "interpreters in the owner's PATH"),
    ("cofferdam-process/src/launcher/evidence.rs", "measures a sandbox from inside"),
    ("cofferdam-process/src/launcher/mounts.rs", "names in the sandbox's root, whose links are not followed"),
    ("cofferdam-process/src/launcher/namespace_pool.rs", "fixed names in the sandbox's root"),
    ("cofferdam-server/src/client", "the operator's file of authorities"),
    ("cofferdam-server/src/listen", "the operator's certificate, and the private directory of the socket"),
    (
        "cofferdam-server/src/snapshots",
        "files with names of the server in a directory whose owner and mode are checked",
    ),
    ("cofferdam-server/src/store", "the directory of the database, whose owner and mode are checked"),
    ("cofferdam-server/src/volumes.rs", "the server's directory of volumes, whose owner and mode are checked"),
    ("cofferdam-vm/src/archive.rs", "the private image store"),
    ("cofferdam-vm/src/create.rs", "the private image store"),
    ("cofferdam-vm/src/firecracker", "the VMM's program, image and own directory"),
    ("cofferdam-vm/src/kvm", "records below the private image store"),
    ("cofferdam-vm/src/qemu", "the VMM's program and image"),
    ("cofferdam-vm/src/rules.rs", "the VMM's program and libraries"),
    ("cofferdam-vm/src/users.rs", "/dev/kvm"),
    ("cofferdam-wasm/src/languages.rs", "the private cache, whose hashes are compared"),
    ("cofferdam-wasm-runtimes", "the private cache"),
    ("cofferdam-volume/src/disk.rs", "paths of a file system that the crate reads itself"),
    ("cofferdam/src/program.rs", "the file of this program, whose metadata is read"),
    ("cofferdam/src/commands/plugins/host.rs", "the log in the private state directory"),
    ("cofferdam/src/commands/plugins/logs.rs", "the log in the private state directory"),
    ("cofferdam/src/commands/repl.rs", "the user's history"),
    ("cofferdam/src/out_file.rs", "the directory of an output file, opened once"),
    ("cofferdam/src/registry/vms/archives.rs", "an archive or key, opened once"),
];
/// Starts of names that belong to the kernel, in any module.
const KERNEL: &[&str] = &["\"/proc\"", "\"/proc/", "\"/dev/null\""];
/// Calls that open or inspect a file by its path and follow links.
const BY_PATH: &[&str] = &[
    "read_dir(",
    "File::open(",
    "canonicalize(",
    "fs::metadata(",
    "fs::read(",
    "fs::read_to_string(",
    "rustix::fs::open(",
    "rustix::fs::stat(",
    "OpenOptions::new(",
];
/// Paths that no caller named: a module, a part of the line, and the reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("template/image_root.rs", "open(\".\"", "the working directory of the launcher"),
    ("launcher/template.rs", "read_dir(&directory)", "a directory of /etc"),
    ("launcher/template.rs", "rustix::fs::open(path, flags", "a file of /etc, whose links are not followed"),
    ("registry/image_store.rs", "tar.path()", "a temporary file of this process"),
    ("container/src/labels.rs", "fs::read_to_string(\"/", "a file of the system"),
    ("image/src/disk/mod.rs", "File::open(&path)", "a scratch file of the private image store"),
    ("image/src/disk/root.rs", "into", "the scratch directory of the private image store"),
    ("image/src/disk/root.rs", "top.join(above)", "the scratch directory of the private image store"),
    ("plugin/src/package/key.rs", "create_new(true)", "a new file of a key"),
    ("plugin/src/scaffold.rs", "create_new(true)", "a new file of a plugin"),
    ("cofferdam/src/plan/own.rs", "server.canonicalize()", "the directory of the private socket, to be compared"),
    ("cofferdam/src/plan/own.rs", "named.canonicalize()", "a directory of Cofferdam's own, to be compared"),
    ("cofferdam/src/plan/own.rs", "readlink(part", "links on the way to a directory of Cofferdam's own"),
    ("cofferdam/src/plan/own.rs", "Path::canonicalize", "the directories of those links, to be compared"),
    ("cofferdam/src/plan/own.rs", "rustix::fs::stat(path)", "the ancestors of a resolved path, to be compared"),
    ("cofferdam/src/plan.rs", "canonicalize()", "a program's file, compared with what is then opened"),
    ("cofferdam/src/plan.rs", ".open(canonical)", "a program's file, compared with what was found before"),
];

/// Returns lines that open by path a file that a caller may have named.
pub fn check(sources: &[Source]) -> Vec<String> {
    sources.iter().filter(|source| source.is("rs") && is_covered(&source.path)).flat_map(breaches).collect()
}

/// Returns true for sources of a crate that are neither tests nor exempt.
fn is_covered(path: &Path) -> bool {
    let Ok(path) = path.strip_prefix("crates") else { return false };
    let mut below = path.iter().skip(1);
    let is_source = below.next().is_some_and(|directory| directory == "src");
    let is_test = below.any(|name| name == "tests" || name.to_string_lossy().ends_with("tests.rs"));
    is_source && !is_test && !EXEMPT.iter().any(|(module, _)| path.starts_with(module))
}

fn breaches(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    // A module of tests comes last in a file. A file of tests may be declared anywhere.
    let is_test = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].ends_with('{');
    let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
    let wrong = lines[..end].iter().enumerate().filter(|(_, line)| {
        let code = line.split("//").next().unwrap_or_default();
        BY_PATH.iter().any(|call| code.contains(call)) && !is_allowed(&source.path, code)
    });
    let name = source.path.display();
    let breach = |(index, _)| {
        let number: usize = index + 1;
        format!(
            "{name}:{number}: opens by path a file that a caller may have named; use cofferdam_linux::named or ::walk"
        )
    };
    wrong.map(breach).collect()
}

fn is_allowed(path: &Path, line: &str) -> bool {
    let name = path.to_string_lossy();
    KERNEL.iter().any(|start| line.contains(start))
        || ALLOWED.iter().any(|(module, part, _)| name.ends_with(module) && line.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_caller_are_not_opened_by_path() {
        let count = |path: &str, text: &str| check(&[Source { path: path.into(), text: text.into() }]).len();
        let pending = "crates/cofferdam-process/src/pending.rs";
        for line in ["File::open(path)", "path.canonicalize()?", "std::fs::read_dir(&root)", "fs::metadata(path)"] {
            assert_eq!(count(pending, line), 1, "{line}");
            assert_eq!(count("crates/cofferdam-new/src/any/module.rs", line), 1, "{line}");
            assert_eq!(count("crates/cofferdam-process/src/interpreters.rs", line), 0, "{line}");
            assert_eq!(count("crates/cofferdam-process/tests/suite/any.rs", line), 0, "{line}");
            assert_eq!(count("xtask/src/any.rs", line), 0, "{line}");
            assert_eq!(count(pending, &format!("// {line}")), 0, "{line}");
            assert_eq!(count(pending, &format!("#[cfg(test)]\nmod tests {{\n{line}\n}}")), 0, "{line}");
        }
        assert_eq!(count(pending, "#[cfg(test)]\nmod tests;\nFile::open(path)"), 1);
        assert_eq!(count(pending, "Directory::open(path)"), 0);
        assert_eq!(count(pending, "fs::read(\"/proc/self/uid_map\")"), 0);
        assert_eq!(count("crates/cofferdam-container/src/any.rs", "File::open(path)"), 1);
        assert_eq!(count("crates/cofferdam-container/src/posture_tests.rs", "File::open(path)"), 0);
    }
}
