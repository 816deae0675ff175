//! Programs of the host that are found by `PATH`.
//!
//! `PATH` is the choice of the user who set it. Root's may contain directories of other users, for example if `sudo`
//! keeps the caller's: programs there would run as root. So programs that root starts must satisfy [`trust`] like any
//! other file, and they find their own helpers only in directories that satisfy it. For other users nothing is checked.
//! The module starts nothing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::trust::{self, Distrust, Secrecy};

/// The search path if `PATH` is not set, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Returns a command for a program that is named by its path or found by `PATH`.
///
/// # Errors
///
/// As root: the program does not exist, or another user can change it or a directory that leads to it.
pub fn command(name: impl AsRef<OsStr>) -> Result<Command, Distrust> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Command::new(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut command = Command::new(trusted(name.as_ref(), &path)?);
    command.env("PATH", safe(&path));
    Ok(command)
}

/// Returns the path of a program: as root, the first of that name in `PATH`. A path, or a name that is not found, is
/// returned unchanged.
pub fn locate(name: &Path) -> PathBuf {
    let is_path = name.as_os_str().as_bytes().contains(&b'/');
    if is_path || !rustix::process::geteuid().is_root() {
        return name.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    first(name.as_os_str(), &path).unwrap_or_else(|| name.to_owned())
}

/// Returns the path of the program that would be started, if only root can change it.
fn trusted(name: &OsStr, path: &OsStr) -> Result<PathBuf, Distrust> {
    let missing = || Distrust::Io { path: name.into(), source: io::ErrorKind::NotFound.into() };
    let found = match name.as_bytes().contains(&b'/') {
        true => PathBuf::from(name),
        false => first(name, path).ok_or_else(missing)?,
    };
    trust::check(&found, Secrecy::Public)?;
    Ok(found)
}

/// Returns the program that `PATH` leads to.
fn first(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    // An empty part is the current directory.
    let parts = std::env::split_paths(path).map(|part| if part.as_os_str().is_empty() { ".".into() } else { part });
    parts.map(|part: PathBuf| part.join(name)).find(is_program)
}

/// Returns the directories of `PATH` that only root can change.
fn safe(path: &OsStr) -> OsString {
    let is_safe = |part: &PathBuf| part.is_absolute() && trust::check(part, Secrecy::Public).is_ok();
    // None of them contains the separator, because all come from such a list.
    std::env::join_paths(std::env::split_paths(path).filter(is_safe)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::chown;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_program_that_another_user_can_change_is_refused_wherever_path_finds_it() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let (first_part, second) = (base.join("first"), base.join("second"));
        for directory in [&first_part, &second] {
            fs::create_dir(directory).unwrap();
            set(directory, 0o755);
        }
        let path = std::env::join_paths([&first_part, &second]).unwrap();
        let (tool, other) = (second.join("tool"), first_part.join("tool"));
        let find = || trusted(OsStr::new("tool"), &path);
        assert!(find().unwrap_err().is_missing());
        fs::write(&tool, "#!/bin/sh\n").unwrap();
        set(&tool, 0o644);
        assert!(find().unwrap_err().is_missing(), "it is not a program");
        set(&tool, 0o755);
        assert_eq!(find().unwrap(), tool);
        for (changed, mode, original) in [(&tool, 0o777, 0o755), (&second, 0o777, 0o755)] {
            set(changed, mode);
            for name in [OsStr::new("tool"), tool.as_os_str()] {
                let remedy = trusted(name, &path).unwrap_err().remedy();
                assert_eq!(remedy, format!("chmod go-w {}", changed.display()), "{name:?}");
            }
            set(changed, original);
        }
        // The first one is the one that would be started.
        fs::write(&other, "#!/bin/sh\n").unwrap();
        set(&other, 0o755);
        set(&first_part, 0o777);
        assert!(find().unwrap_err().to_string().contains("has mode 0777"));
        assert_eq!(safe(&path), second.as_os_str());
        set(&first_part, 0o755);
        assert_eq!((find().unwrap(), safe(&path)), (other.clone(), path.clone()));
        if rustix::process::geteuid().is_root() {
            chown(&other, Some(1234), Some(1234)).unwrap();
            assert!(find().unwrap_err().to_string().contains("belongs to user 1234"));
        }
    }

    #[test]
    fn parts_that_are_no_path_from_the_root_are_not_handed_on() {
        assert_eq!(safe(OsStr::new(":bin:/usr/bin:.")), OsStr::new("/usr/bin"));
        assert!(trusted(OsStr::new("no-such-program"), OsStr::new("/usr/bin")).unwrap_err().is_missing());
    }

    #[test]
    fn a_command_runs() {
        assert!(command("true").unwrap().status().unwrap().success());
        assert_eq!(locate(Path::new("/a/b")), Path::new("/a/b"));
        assert_eq!(locate(Path::new("no-such-program")), Path::new("no-such-program"));
    }
}
