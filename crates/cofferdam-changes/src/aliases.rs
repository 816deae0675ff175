//! Paths of the workspace that are guarded because of the host's own links and settings.
//!
//! `.git/hooks` may be a link to `scripts/hooks`, or `core.hooksPath` may name that directory. Then a change of
//! `scripts/hooks/pre-commit` is a change of a hook. Links at the top of the workspace and in its directories with a
//! leading dot are followed. Others are not searched for.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::beneath;
use rustix::fs::{FileType, Mode, OFlags};

use crate::change::{Change, Node};
use crate::{guarded, tree};

/// Maximum number of files that are searched for links in one directory.
const MAX_SEARCHED: usize = 10_000;
/// Maximum size of a configuration of git that is read.
const MAX_CONFIG: u64 = 1 << 20;

/// Paths of the workspace to which guarded names lead, and the reasons.
#[derive(Debug, Default)]
pub(crate) struct Aliases(Vec<(PathBuf, &'static str)>);

impl Aliases {
    /// Searches the workspace.
    pub fn find(directory: BorrowedFd<'_>) -> Self {
        let mut found = Self::default();
        found.search(directory, directory, Path::new(""));
        found.hooks(directory);
        found
    }

    /// Returns the reason why a change needs the permission of the caller.
    pub fn reason(&self, change: &Change) -> Option<&'static str> {
        let stays = matches!(change.node, Some(Node::Directory { .. }));
        let concerns = |alias: &Path| change.path.starts_with(alias) || (!stays && alias.starts_with(&change.path));
        self.0.iter().find(|(alias, _)| concerns(alias)).map(|(_, reason)| *reason)
    }

    fn search(&mut self, root: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &Path) {
        for name in tree::names(directory, MAX_SEARCHED).unwrap_or_default() {
            let path = path.join(&name);
            match tree::stat(directory, &name).ok().flatten().map(|stat| tree::kind(&stat)) {
                Some(FileType::Symlink) => self.follow(root, &path),
                Some(FileType::Directory) if path.components().count() == 1 && is_hidden(&path) => {
                    if let Ok(below) = tree::subdirectory(directory, &name) {
                        self.search(root, below.as_fd(), &path);
                    }
                }
                _ => {}
            }
        }
    }

    /// Adds the file to which a link leads that has a guarded name.
    fn follow(&mut self, root: BorrowedFd<'_>, path: &Path) {
        let link = Change::new(path.to_owned(), Some(Node::Symlink { target: "target".into() }), None);
        let Some(reason) = guarded::reason(&link) else { return };
        // No change set reaches what is outside.
        let Ok(target) = beneath::open(root, path, OFlags::PATH, Mode::empty()) else { return };
        if let (Some(root), Some(target)) = (path_of(root), path_of(target.as_fd()))
            && let Ok(alias) = target.strip_prefix(root)
        {
            self.add(alias.to_owned(), reason);
        }
    }

    /// Adds the directory of hooks that the configuration of the repository names.
    fn hooks(&mut self, directory: BorrowedFd<'_>) {
        let spot = tree::locate(directory, Path::new(".git/config")).ok().flatten();
        let opened = spot.and_then(|spot| tree::open_file(spot.parent.as_fd(), &spot.name).ok().flatten());
        let Some((file, _)) = opened else { return };
        for value in hooks_paths(file) {
            let root = path_of(directory).unwrap_or_default();
            let relative = value.strip_prefix(root).unwrap_or(&value);
            let mut alias = PathBuf::new();
            for component in relative.components() {
                match component {
                    Component::Normal(name) => alias.push(name),
                    Component::ParentDir if alias.pop() => {}
                    Component::CurDir => {}
                    // Outside of the workspace.
                    _ => return,
                }
            }
            self.add(alias, guarded::GIT);
        }
    }

    fn add(&mut self, alias: PathBuf, reason: &'static str) {
        if !alias.as_os_str().is_empty() {
            self.0.push((alias, reason));
        }
    }
}

fn is_hidden(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().first() == Some(&b'.')
}

/// Returns the real path of an opened file.
pub(crate) fn path_of(file: BorrowedFd<'_>) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

fn hooks_paths(file: File) -> Vec<PathBuf> {
    let mut bytes = Vec::new();
    // An unreadable configuration is none for git, either.
    let _ = file.take(MAX_CONFIG).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let values = text.lines().filter_map(|line| {
        let line = line.rsplit(']').next().unwrap_or(line);
        let (key, value) = line.split_once('=')?;
        let is_hooks = key.trim().eq_ignore_ascii_case("hookspath");
        is_hooks.then(|| PathBuf::from(value.trim().trim_matches('"')))
    });
    values.collect()
}
