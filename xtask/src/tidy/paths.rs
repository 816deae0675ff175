//! A rule for modules that read directories and files named by a caller. A guest may own a directory above them and
//! replace its content with links. So these modules open files through `cofferdam_linux::named` and read them through
//! `cofferdam_linux::walk`, and never by path. The rule checks lines, and knows the usual calls only.

use std::path::Path;

use super::Source;

/// The modules, and directories of modules.
const MODULES: &[&str] = &[
    "crates/cofferdam-process/src/backend.rs",
    "crates/cofferdam-process/src/pending.rs",
    "crates/cofferdam-process/src/launcher/create.rs",
    "crates/cofferdam-process/src/launcher/template.rs",
    "crates/cofferdam-container/src",
    "crates/cofferdam-image/src/disk/mod.rs",
    "crates/cofferdam-image/src/disk/root.rs",
    "crates/cofferdam-image/src/disk/oci.rs",
    "crates/cofferdam-image/src/disk/kernel.rs",
    "crates/cofferdam-wasm/src/import.rs",
    "crates/cofferdam-wasm/src/state.rs",
    "crates/cofferdam/src/plan.rs",
    "crates/cofferdam/src/registry/machines/made.rs",
];
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
    ("launcher/template.rs", "read_dir(&directory)", "a directory of /etc"),
    ("launcher/template.rs", "rustix::fs::open(path, flags", "a file of /etc, whose links are not followed"),
    ("launcher/create.rs", "/proc/sys/fs/inotify/", "the kernel's own name"),
    ("container/src/labels.rs", "fs::read_to_string(\"/", "a file of the system"),
    ("container/src/pending.rs", "/proc/self/ns/", "the kernel's own name"),
    ("image/src/disk/mod.rs", "File::open(&path)", "a scratch file of the private image store"),
    ("image/src/disk/root.rs", "into", "the scratch directory of the private image store"),
    ("image/src/disk/root.rs", "top.join(above)", "the scratch directory of the private image store"),
    ("cofferdam/src/plan.rs", "canonicalize()", "a program's file, compared with what is then opened"),
    ("cofferdam/src/plan.rs", ".open(canonical)", "a program's file, compared with what was found before"),
];

/// Returns lines that open by path a file that a caller may have named.
pub fn check(sources: &[Source]) -> Vec<String> {
    sources.iter().filter(|source| source.is("rs") && is_covered(&source.path)).flat_map(breaches).collect()
}

fn is_covered(path: &Path) -> bool {
    let is_test = path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("tests"));
    !is_test && MODULES.iter().any(|module| path.starts_with(module))
}

fn breaches(source: &Source) -> Vec<String> {
    // Tests come last in a file.
    let code = source.text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    let wrong = code.enumerate().filter(|(_, line)| {
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
    ALLOWED.iter().any(|(module, part, _)| name.ends_with(module) && line.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_names_is_not_opened_by_path() {
        let count = |path: &str, text: &str| check(&[Source { path: path.into(), text: text.into() }]).len();
        let pending = "crates/cofferdam-process/src/pending.rs";
        for line in ["File::open(path)", "path.canonicalize()?", "std::fs::read_dir(&root)", "fs::metadata(path)"] {
            assert_eq!(count(pending, line), 1, "{line}");
            assert_eq!(count("crates/cofferdam-process/src/doctor.rs", line), 0, "{line}");
            assert_eq!(count(pending, &format!("// {line}")), 0, "{line}");
            assert_eq!(count(pending, &format!("#[cfg(test)]\nmod tests {{\n{line}\n}}")), 0, "{line}");
        }
        assert_eq!(count(pending, "Directory::open(path)"), 0);
        assert_eq!(count("crates/cofferdam-container/src/any.rs", "File::open(path)"), 1);
        assert_eq!(count("crates/cofferdam-container/src/posture_tests.rs", "File::open(path)"), 0);
    }
}
