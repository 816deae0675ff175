//! The path of this program, to start it again. The path may lead to another version by then.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The end of the name of an executed file that was removed or replaced, as the kernel reports it.
const DELETED: &[u8] = b" (deleted)";

/// Returns the absolute path by which this program was started. Symbolic links are kept, so that the path leads to the
/// version that a package manager installs later. If that path is not this program's, such as after `fexecve`, the path of
/// the executed file is returned.
///
/// # Errors
/// Those of `/proc/self/exe`.
pub fn path() -> io::Result<PathBuf> {
    let own = std::fs::metadata("/proc/self/exe")?;
    let is_own =
        |path: &Path| std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()));
    let started_by = Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    Ok(choose(std::path::absolute(started_by).ok(), std::env::current_exe()?, is_own))
}

/// Returns the path that leads to this program, or the path at which its removed file was.
fn choose(started_by: Option<PathBuf>, executed: PathBuf, is_own: impl Fn(&Path) -> bool) -> PathBuf {
    match started_by.filter(|path| is_own(path)) {
        Some(path) => path,
        // A file may have such a name itself.
        None if is_own(&executed) => executed,
        None => match executed.as_os_str().as_bytes().strip_suffix(DELETED) {
            Some(path) => PathBuf::from(OsStr::from_bytes(path)),
            None => executed,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_leads_to_the_installed_program() {
        let link = "/usr/bin/cofferdam";
        for (started_by, executed, own, expected) in [
            (Some(link), "/opt/1/cofferdam", &[link, "/opt/1/cofferdam"][..], link),
            (Some("/dev/fd/3"), "/opt/1/cofferdam", &["/opt/1/cofferdam"], "/opt/1/cofferdam"),
            (None, "/opt/1/cofferdam (deleted)", &[], "/opt/1/cofferdam"),
            (None, "/opt/a (deleted)", &["/opt/a (deleted)"], "/opt/a (deleted)"),
            (None, "/opt/a (deleted) (deleted)", &[], "/opt/a (deleted)"),
            (Some(link), "/opt/1/cofferdam", &[], "/opt/1/cofferdam"),
        ] {
            let is_own = |path: &Path| own.iter().any(|own| Path::new(own) == path);
            let chosen = choose(started_by.map(PathBuf::from), executed.into(), is_own);
            assert_eq!(chosen, Path::new(expected), "{started_by:?} {executed}");
        }
        assert!(path().unwrap().is_absolute());
    }
}
