//! Checks that only root and the effective user can change a file: the file itself, and every directory and link on its
//! path.
//!
//! The path is resolved component by component from `/`, each opened below the previous one, so that the checked file
//! is the used one. Contents, access control lists and mount options are not checked.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open as open_at_cwd, openat, readlinkat};
use rustix::io::Errno;

use crate::beneath::reopen;

/// The maximum of links that are followed on one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The maximum of components of one path, including those of its links.
const MAX_COMPONENTS: usize = 1024;
const PROC_MAGIC: rustix::fs::FsWord = 0x9fa0;

/// The permission of other users to read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// Others may read it.
    Public,
    /// Neither the group nor others may read it.
    Secret,
}

/// The reason why a file is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// Others can change or read it, or a part of its path.
    #[error("'{}' {reason}", path.display())]
    Unsafe {
        /// The file, directory or link.
        path: PathBuf,
        /// Its owner or mode, and the reason why that is not enough.
        reason: String,
        /// The command that corrects it.
        remedy: String,
    },
    /// It cannot be opened.
    #[error("cannot open '{}': {source}", path.display())]
    Io {
        /// The path as it was given.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl Distrust {
    /// Returns a command or an advice that corrects it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Unsafe { remedy, .. } => remedy.clone(),
            Self::Io { .. } => "name a file that exists and that this user can read".to_owned(),
        }
    }

    /// Returns true if the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Opens a trusted file for reading. Links are followed. A directory is refused.
pub fn open(path: &Path, secrecy: Secrecy) -> Result<File, Distrust> {
    let handle = check(path, secrecy)?;
    let failed = |errno: Errno| Distrust::Io { path: path.to_owned(), source: errno.into() };
    if kind(&fstat(&handle).map_err(failed)?) == FileType::Directory {
        return Err(failed(Errno::ISDIR));
    }
    let file = reopen(&handle, OFlags::RDONLY).map_err(|source| Distrust::Io { path: path.to_owned(), source })?;
    // Reads of a pipe from a shell must block. A plain file is not affected.
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(failed)?;
    Ok(file.into())
}

/// Checks a file of any kind. Returns a descriptor of the checked path.
pub fn check(path: &Path, secrecy: Secrecy) -> Result<OwnedFd, Distrust> {
    let whole = std::path::absolute(path).map_err(|source| Distrust::Io { path: path.to_owned(), source })?;
    let mut walk = Walk::new(&whole)?;
    walk.run().map_err(|errno| Distrust::Io { path: path.to_owned(), source: errno.into() })?;
    walk.finish(secrecy)
}

struct Walk {
    /// The open parent directories, with their names.
    above: Vec<(OwnedFd, OsString)>,
    /// The components that are still to be resolved.
    ahead: VecDeque<OsString>,
    links: usize,
    steps: usize,
    /// The effective user, root, and the owner of `/`, which controls everything below it.
    owners: [u32; 3],
    /// The first reason that was found. The resolution continues, because a missing file is reported as missing.
    distrust: Option<Distrust>,
    /// The end of the path, unless it is a directory.
    found: Option<OwnedFd>,
}

impl Walk {
    fn new(path: &Path) -> Result<Self, Distrust> {
        let failed = |errno: Errno| Distrust::Io { path: path.to_owned(), source: errno.into() };
        let root = open_at_cwd("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(failed)?;
        let owner = fstat(&root).map_err(failed)?.st_uid;
        Ok(Self {
            above: vec![(root, OsString::new())],
            ahead: components(path),
            links: 0,
            steps: 0,
            owners: [rustix::process::geteuid().as_raw(), 0, owner],
            distrust: None,
            found: None,
        })
    }

    fn run(&mut self) -> Result<(), Errno> {
        self.directory()?;
        while let Some(name) = self.ahead.pop_front() {
            self.steps += 1;
            if self.steps > MAX_COMPONENTS {
                return Err(Errno::NAMETOOLONG);
            }
            if name == ".." {
                if self.above.len() > 1 {
                    self.above.pop();
                }
                continue;
            }
            self.step(name)?;
        }
        Ok(())
    }

    fn step(&mut self, name: OsString) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = self.above.last().ok_or(Errno::NOENT)?.0.as_fd();
        let entry = openat(parent, name.as_os_str(), flags, Mode::empty())?;
        let stat = fstat(&entry)?;
        let above = fstat(parent)?;
        let path = self.path().join(&name);
        match kind(&stat) {
            FileType::Symlink => {
                // In a directory that others can write to, a link is as trusted as its owner.
                if above.st_mode & 0o022 != 0 {
                    self.owner(&stat, &path);
                }
                self.follow(&name, &entry)
            }
            FileType::Directory => {
                self.above.push((entry, name));
                self.directory()
            }
            _ if !self.ahead.is_empty() => Err(Errno::NOTDIR),
            _ => {
                self.above.push((entry.try_clone().map_err(|_| Errno::MFILE)?, name));
                self.found = Some(entry);
                Ok(())
            }
        }
    }

    fn follow(&mut self, name: &OsStr, link: &OwnedFd) -> Result<(), Errno> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let parent = self.above.last().ok_or(Errno::NOENT)?.0.as_fd();
        let target = readlinkat(parent, name, Vec::new())?.into_bytes();
        let target = PathBuf::from(OsString::from_vec(target));
        let is_proc = rustix::fs::fstatfs(link)?.f_type == PROC_MAGIC;
        if is_proc && (target.is_absolute() || target.as_os_str().as_bytes().contains(&b':')) {
            // This is an inherited descriptor, such as a shell's `<(…)`. It can only be the end of the path.
            if !self.ahead.is_empty() {
                return Err(Errno::LOOP);
            }
            let entry = openat(parent, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            self.above.push((entry.try_clone().map_err(|_| Errno::MFILE)?, name.to_owned()));
            self.found = Some(entry);
            return Ok(());
        }
        if target.is_absolute() {
            self.above.truncate(1);
        }
        for part in components(&target).into_iter().rev() {
            self.ahead.push_front(part);
        }
        Ok(())
    }

    /// Checks the directory that was entered last.
    fn directory(&mut self) -> Result<(), Errno> {
        let Some((directory, _)) = self.above.last() else { return Err(Errno::NOENT) };
        let stat = fstat(directory)?;
        let path = self.path();
        self.owner(&stat, &path);
        let sticky = stat.st_mode & 0o1000 != 0;
        // The end of the path is checked as a file. In a sticky directory, others may still add files.
        if !sticky && !self.ahead.is_empty() {
            self.mode(&stat, 0o022, &path);
        }
        Ok(())
    }

    fn owner(&mut self, stat: &Stat, path: &Path) {
        if !self.owners.contains(&stat.st_uid) {
            let [user, ..] = self.owners;
            let reason = format!("belongs to user {}, who could change it; only root and user {user} may", stat.st_uid);
            let remedy = format!("chown {user} {}, or use a file of your own", quoted(path));
            self.doubt(path, reason, remedy);
        }
    }

    fn mode(&mut self, stat: &Stat, forbidden: u32, path: &Path) {
        let mode = stat.st_mode & 0o7777;
        if mode & forbidden == 0 {
            return;
        }
        let (what, change) = if mode & forbidden & 0o022 == 0 {
            ("can be read by its group or others", "go-rwx")
        } else if forbidden == 0o077 {
            ("can be read or changed by its group or others", "go-rwx")
        } else {
            ("can be changed by its group or others", "go-w")
        };
        let reason = format!("has mode {mode:04o}: it {what}");
        self.doubt(path, reason, format!("chmod {change} {}", quoted(path)));
    }

    fn doubt(&mut self, path: &Path, reason: String, remedy: String) {
        if self.distrust.is_none() {
            self.distrust = Some(Distrust::Unsafe { path: path.to_owned(), reason, remedy });
        }
    }

    fn path(&self) -> PathBuf {
        let mut path = PathBuf::from("/");
        path.extend(self.above.iter().map(|(_, name)| name).filter(|name| !name.is_empty()));
        path
    }

    fn finish(mut self, secrecy: Secrecy) -> Result<OwnedFd, Distrust> {
        let path = self.path();
        let end = match self.found.take().or_else(|| self.above.pop().map(|(directory, _)| directory)) {
            Some(end) => end,
            None => return Err(Distrust::Io { path, source: Errno::NOENT.into() }),
        };
        let stat = fstat(&end).map_err(|errno| Distrust::Io { path: path.clone(), source: errno.into() })?;
        self.owner(&stat, &path);
        let forbidden = match secrecy {
            Secrecy::Public => 0o022,
            Secrecy::Secret => 0o077,
        };
        // A device such as /dev/null contains no data of others, and a socket is as safe as its directory.
        if !matches!(kind(&stat), FileType::CharacterDevice | FileType::Socket) {
            self.mode(&stat, forbidden, &path);
        }
        self.distrust.map_or(Ok(end), Err)
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_that_others_can_change_or_read_are_refused_with_the_command_that_mends_it() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let file = base.join("below/file");
        fs::create_dir(base.join("below")).unwrap();
        fs::write(&file, "x").unwrap();
        let rows = [
            (0o755, 0o644, Secrecy::Public, None),
            (0o755, 0o600, Secrecy::Secret, None),
            (0o755, 0o664, Secrecy::Public, Some("chmod go-w")),
            (0o755, 0o646, Secrecy::Public, Some("chmod go-w")),
            (0o755, 0o644, Secrecy::Secret, Some("chmod go-rwx")),
            (0o755, 0o640, Secrecy::Secret, Some("chmod go-rwx")),
            (0o755, 0o620, Secrecy::Secret, Some("chmod go-rwx")),
            (0o775, 0o644, Secrecy::Public, Some("chmod go-w")),
            (0o757, 0o600, Secrecy::Secret, Some("chmod go-w")),
            (0o1777, 0o600, Secrecy::Secret, None),
        ];
        for (directory, mode, secrecy, refused) in rows {
            set(&base.join("below"), directory);
            set(&file, mode);
            let found = open(&file, secrecy).err().map(|error| error.remedy());
            let named = if directory == 0o755 { file.clone() } else { base.join("below") };
            let expected = refused.map(|command| format!("{command} {}", named.display()));
            assert_eq!(found, expected, "{directory:o} {mode:o} {secrecy:?}");
        }
    }

    #[test]
    fn links_are_followed_and_every_directory_on_their_way_is_checked() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("open/inner")).unwrap();
        fs::write(base.join("open/inner/file"), "x").unwrap();
        symlink("open/inner/../inner/file", base.join("relative")).unwrap();
        symlink(base.join("relative"), base.join("absolute")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        for name in ["relative", "absolute"] {
            set(&base.join("open"), 0o755);
            open(&base.join(name), Secrecy::Public).unwrap();
            set(&base.join("open"), 0o777);
            let error = open(&base.join(name), Secrecy::Public).unwrap_err();
            assert!(error.to_string().contains("open' has mode 0777"), "{error}");
        }
        assert!(open(&base.join("loop"), Secrecy::Public).is_err());
        assert!(open(&base, Secrecy::Public).is_err(), "a directory");
        check(&base, Secrecy::Public).unwrap();
        // A missing file is reported as missing, even if its path is not trusted.
        assert!(open(&base.join("open/none"), Secrecy::Public).unwrap_err().is_missing());
        assert!(!open(&base.join("open/inner/file"), Secrecy::Public).unwrap_err().is_missing());
    }

    #[test]
    fn descriptors_of_the_caller_and_devices_can_be_read() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"token").unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let mut text = String::new();
        open(Path::new(&path), Secrecy::Secret).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "token");
        open(Path::new("/dev/null"), Secrecy::Public).unwrap();
    }

    #[test]
    fn files_of_other_users_are_refused_and_those_of_root_are_not() {
        open(Path::new("/etc/passwd"), Secrecy::Public).unwrap();
        if !rustix::process::geteuid().is_root() {
            println!("SKIP files_of_other_users_are_refused_and_those_of_root_are_not: only root can give files away");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().join("home");
        fs::create_dir(&home).unwrap();
        fs::write(home.join("file"), "x").unwrap();
        fs::write(temp.path().join("theirs"), "x").unwrap();
        chown(temp.path().join("theirs"), Some(1234), Some(1234)).unwrap();
        symlink(home.join("file"), temp.path().join("link")).unwrap();
        std::os::unix::fs::lchown(temp.path().join("link"), Some(1234), Some(1234)).unwrap();
        assert!(open(&temp.path().join("theirs"), Secrecy::Public).is_err());
        open(&temp.path().join("link"), Secrecy::Public).unwrap();
        set(temp.path(), 0o1777);
        let error = open(&temp.path().join("link"), Secrecy::Public).unwrap_err();
        assert!(error.to_string().contains("belongs to user 1234"), "{error}");
        set(temp.path(), 0o700);
        chown(&home, Some(1234), Some(1234)).unwrap();
        assert!(open(&home.join("file"), Secrecy::Public).is_err());
        assert!(open(&home.join("none"), Secrecy::Public).unwrap_err().is_missing());
    }
}
