//! Finding Python and Node where they lie outside `/usr`, so that sandboxes can be shown exactly their prefixes.
//!
//! Nothing is executed: paths, links, pyenv's version file and venv's `pyvenv.cfg` are read. Nothing but an
//! interpreter's own prefix is ever shown: not a home directory, not a directory above one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What sandboxes are to see besides the system's own directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Prefixes to show read-only at the same path.
    pub prefixes: BTreeSet<PathBuf>,
    /// Directories to put in front of the PATH inside.
    pub path: Vec<PathBuf>,
}

/// Directories that every sandbox has of its own: what the host has below them cannot be seen there.
const COVERED: [&str; 7] = ["/code", "/dev", "/proc", "/run", "/sys", "/tmp", "/workspace"];

/// Whether something of a sandbox's own is in the way of a host path.
pub fn is_covered(path: &Path) -> bool {
    COVERED.iter().any(|own| path.starts_with(own))
}

impl Found {
    /// Without what could not be seen inside. Programs then find the system's interpreters, or none.
    pub fn visible(mut self) -> Self {
        self.prefixes.retain(|prefix| !is_covered(prefix));
        self.path.retain(|directory| !is_covered(directory));
        self
    }
}

/// Looks for the interpreters that a search of `path` would find first.
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

/// pyenv puts a script in front of each interpreter; the interpreter itself is named by its version file.
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
        // A virtual environment leans on the interpreter that it was made from.
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
    // Often they are one and the same.
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

/// Whether a directory is an interpreter's own and nothing more.
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
    fn what_a_sandbox_covers_is_not_shown() {
        let both = |own: &str| [PathBuf::from(own), PathBuf::from("/opt/python")];
        let found = Found { prefixes: both("/tmp/venv").into(), path: both("/run/x/bin").to_vec() }.visible();
        assert_eq!(found.prefixes.into_iter().collect::<Vec<_>>(), [Path::new("/opt/python")]);
        assert_eq!(found.path, [Path::new("/opt/python")]);
        assert!(!is_covered(Path::new("/tmpfs")));
    }

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

    #[test]
    fn a_home_directory_is_never_a_prefix() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap().join("home/user");
        touch(&home.join("bin/python3"));
        touch(&home.join("lib/python3.11/os.py"));
        let found = find(&home.join("bin").display().to_string(), Some(&home));
        assert_eq!(found, Found::default());
    }

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
