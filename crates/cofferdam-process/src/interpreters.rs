//! A search for Python and Node outside `/usr`, so that sandboxes see exactly their prefixes.
//!
//! Nothing is executed: paths, links, pyenv's version file and venv's `pyvenv.cfg` are read. Only those parts of an
//! interpreter's prefix are visible that an interpreter has, because a prefix such as `~/.local`, or a project with a
//! virtual environment at its top, contains many other files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Paths that sandboxes see besides the system's own directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Prefixes to mount read-only at the same path.
    pub prefixes: BTreeSet<PathBuf>,
    /// Directories that precede others in the PATH inside.
    pub path: Vec<PathBuf>,
}

/// Directories that every sandbox has of its own. Contents of the host's directories at these paths are not visible.
const COVERED: [&str; 7] = ["/code", "/dev", "/proc", "/run", "/sys", "/tmp", "/workspace"];
/// Those of them below which parts of an interpreter's prefix are mounted nevertheless.
const OPEN: [&str; 2] = ["/run", "/tmp"];
/// Parts of every prefix. Other parts that an interpreter may have, such as `share`, often belong to other programs.
const PARTS: [&str; 4] = ["bin", "include", "lib64", "pyvenv.cfg"];
/// Prefixes of the names of interpreter files in `lib`.
const LIBRARIES: [&str; 4] = ["python3", "pypy3", "libpython", "node_modules"];
/// Parts of a prefix that conda created, which contains only an environment.
const CONDA_PARTS: [&str; 2] = ["lib", "ssl"];
/// The maximum of parts of one prefix.
const MAX_PARTS: usize = 64;

/// Returns true if a sandbox has its own directory in place of a host path.
pub fn is_covered(path: &Path) -> bool {
    COVERED.iter().any(|own| path.starts_with(own))
}

impl Found {
    /// Removes and returns prefixes that are not visible inside. Programs then find the system's interpreters, or none.
    pub fn take_hidden(&mut self) -> Vec<PathBuf> {
        let is_hidden = |path: &PathBuf| is_covered(path) && !OPEN.iter().any(|open| path.starts_with(open));
        let hidden = self.prefixes.iter().filter(|prefix| is_hidden(prefix)).cloned().collect();
        self.prefixes.retain(|prefix| !is_hidden(prefix));
        self.path.retain(|directory| !is_hidden(directory));
        hidden
    }

    /// Returns the files and directories to mount.
    pub fn parts(&self) -> Vec<PathBuf> {
        self.prefixes.iter().flat_map(|prefix| parts(prefix)).collect()
    }
}

/// Returns those parts of a prefix that an interpreter needs. A link counts only if it stays in the prefix.
fn parts(prefix: &Path) -> Vec<PathBuf> {
    let mut parts: Vec<PathBuf> = PARTS.iter().map(|name| prefix.join(name)).collect();
    if prefix.join("conda-meta").is_dir() {
        parts.extend(CONDA_PARTS.iter().map(|name| prefix.join(name)));
    } else if prefix.join("lib").symlink_metadata().is_ok_and(|lib| lib.is_dir()) {
        let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut libraries: Vec<PathBuf> = entries
            .filter(|path| {
                let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                LIBRARIES.iter().any(|known| name.starts_with(known))
            })
            .collect();
        libraries.sort();
        parts.extend(libraries);
    }
    parts.retain(|part| part.canonicalize().is_ok_and(|real| real.starts_with(prefix) && real != prefix));
    parts.truncate(MAX_PARTS);
    parts
}

/// Finds the interpreters that a search of `path` finds first.
pub fn find(path: &str, home: Option<&Path>) -> Found {
    let mut found = Found::default();
    for name in ["python3", "node"] {
        let Some(program) = look_up(path, name) else { continue };
        if in_system(&program) && program.canonicalize().is_ok_and(|real| in_system(&real)) {
            continue;
        }
        add(&mut found, &program, home);
    }
    found
}

fn look_up(path: &str, name: &str) -> Option<PathBuf> {
    let directories = path.split(':').map(Path::new).filter(|directory| directory.is_absolute());
    directories.filter_map(|directory| resolve_shim(&directory.join(name))).next()
}

/// Resolves a pyenv script to its interpreter, which pyenv's version file names.
fn resolve_shim(program: &Path) -> Option<PathBuf> {
    let directory = program.parent()?;
    if !program.is_file() {
        return None;
    }
    let root = directory.parent()?;
    if directory.file_name()? != "shims" || !root.join("versions").is_dir() {
        return Some(program.to_owned());
    }
    let chosen = std::fs::read_to_string(root.join("version")).ok()?;
    let name = program.file_name()?;
    chosen
        .split_whitespace()
        .filter(|version| !version.contains('/') && *version != "..")
        .map(|version| root.join("versions").join(version).join("bin").join(name))
        .find(|candidate| candidate.is_file())
}

fn in_system(path: &Path) -> bool {
    ["/usr", "/bin", "/sbin", "/lib", "/nix/store", "/gnu/store"].iter().any(|prefix| path.starts_with(prefix))
}

fn add(found: &mut Found, program: &Path, home: Option<&Path>) {
    let Some(directory) = program.parent() else { return };
    let mut prefixes = Vec::new();
    if let Some(prefix) = directory.parent() {
        // A virtual environment needs its base interpreter.
        if let Ok(settings) = std::fs::read_to_string(prefix.join("pyvenv.cfg")) {
            let base = settings.lines().find_map(|line| line.split_once('=').filter(|(key, _)| key.trim() == "home"));
            if let Some((_, base)) = base
                && let Some(base) = Path::new(base.trim()).parent()
            {
                prefixes.push(base.to_owned());
            }
        }
        prefixes.push(prefix.to_owned());
    }
    if let Ok(real) = program.canonicalize()
        && let Some(prefix) = real.parent().and_then(Path::parent)
    {
        prefixes.push(prefix.to_owned());
    }
    let mut usable = false;
    // They are often the same.
    let prefixes: BTreeSet<PathBuf> = prefixes.iter().filter_map(|prefix| prefix.canonicalize().ok()).collect();
    for prefix in prefixes {
        if in_system(&prefix) {
            usable = true;
        } else if is_prefix(&prefix, home) {
            found.prefixes.insert(prefix);
            usable = true;
        }
    }
    if let (true, Ok(directory)) = (usable, directory.canonicalize())
        && !found.path.contains(&directory)
    {
        found.path.push(directory);
    }
}

/// Returns true if a directory contains only an interpreter.
fn is_prefix(prefix: &Path, home: Option<&Path>) -> bool {
    let has = |below: &str| prefix.join(below).is_dir();
    let python = std::fs::read_dir(prefix.join("lib")).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("python3")))
    });
    let looks_right = python || has("include/node") || has("lib/node_modules");
    let too_wide = prefix.components().count() < 3
        || home.and_then(|home| home.canonicalize().ok()).is_some_and(|home| home.starts_with(prefix))
        || ["/home", "/root", "/var", "/etc", "/opt", "/srv"].iter().any(|dir| Path::new(dir) == prefix)
        || has(".ssh")
        || prefix.join(".bash_history").exists();
    looks_right && !too_wide
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn interpreter_paths_hidden_by_mounts_are_listed() {
        let both = |own: &str| [PathBuf::from(own), PathBuf::from("/opt/python")];
        let mut found = Found { prefixes: both("/workspace/venv").into(), path: both("/code/x/bin").to_vec() };
        assert_eq!(found.take_hidden(), [Path::new("/workspace/venv")]);
        assert_eq!(found.prefixes.into_iter().collect::<Vec<_>>(), [Path::new("/opt/python")]);
        assert_eq!(found.path, [Path::new("/opt/python")]);
        let mut temporary = Found { prefixes: both("/tmp/venv").into(), path: both("/tmp/venv/bin").to_vec() };
        assert!(temporary.take_hidden().is_empty() && temporary.path.len() == 2);
        assert!(!is_covered(Path::new("/tmpfs")));
    }

    #[test]
    fn of_a_prefix_only_the_parts_of_an_interpreter_are_shown() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        let project = top.join("project");
        for name in [
            "bin/python3",
            "include/python3.11/x.h",
            "lib/python3.11/os.py",
            "lib/libpython3.11.so",
            "lib/secrets/key",
            "lib/node_modules/npm/x",
            "pyvenv.cfg",
            ".env",
            ".git/config",
            "share/keyrings/login.keyring",
            "src/main.py",
        ] {
            touch(&project.join(name));
        }
        touch(&top.join("home/secret"));
        symlink("lib", project.join("lib64")).unwrap();
        symlink(top.join("home"), project.join("lib/python3.12")).unwrap();
        let shown: Vec<_> =
            parts(&project).iter().map(|part| part.strip_prefix(&project).unwrap().display().to_string()).collect();
        let expected =
            ["bin", "include", "lib64", "pyvenv.cfg", "lib/libpython3.11.so", "lib/node_modules", "lib/python3.11"];
        assert_eq!(shown, expected);
        // A link to another directory is not mounted.
        std::fs::remove_dir_all(project.join("include")).unwrap();
        symlink(&project, project.join("include")).unwrap();
        assert!(!parts(&project).contains(&project.join("include")));
    }

    /// Promise (Process isolation): A pyenv version is found behind its shim, and nothing else of it is mounted.
    #[test]
    fn a_pyenv_version_is_found_behind_its_shim_and_nothing_more() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap().join("home/user");
        let root = home.join(".pyenv");
        touch(&root.join("shims/python3"));
        touch(&root.join("versions/3.11.7/bin/python3"));
        touch(&root.join("versions/3.11.7/lib/python3.11/os.py"));
        std::fs::write(root.join("version"), "3.11.7\n").unwrap();
        let path = format!("{}:/usr/bin", root.join("shims").display());
        let found = find(&path, Some(&home));
        let prefix = root.join("versions/3.11.7");
        assert!(found.prefixes.contains(&prefix), "{found:?}");
        assert!(found.path.contains(&prefix.join("bin")), "{found:?}");
        assert!(found.prefixes.iter().all(|shown| shown == &prefix || !shown.starts_with(&home)), "{found:?}");
    }

    /// Promise (Process isolation): A home directory is never mounted as the prefix of an interpreter.
    #[test]
    fn a_home_directory_is_never_a_prefix() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap().join("home/user");
        touch(&home.join("bin/python3"));
        touch(&home.join("lib/python3.11/os.py"));
        let found = find(&home.join("bin").display().to_string(), Some(&home));
        assert_eq!(found, Found::default());
    }

    /// Promise (Process isolation): The base interpreter of a virtual environment is mounted with it.
    #[test]
    fn a_virtual_environment_brings_its_base() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        touch(&top.join("base/bin/python3"));
        touch(&top.join("base/lib/python3.11/os.py"));
        std::fs::create_dir_all(top.join("venv/bin")).unwrap();
        std::fs::create_dir_all(top.join("venv/lib/python3.11")).unwrap();
        symlink(top.join("base/bin/python3"), top.join("venv/bin/python3")).unwrap();
        std::fs::write(top.join("venv/pyvenv.cfg"), format!("home = {}\n", top.join("base/bin").display())).unwrap();
        let found = find(&top.join("venv/bin").display().to_string(), None);
        assert_eq!(found.prefixes, BTreeSet::from([top.join("base"), top.join("venv")]));
    }
}
