//! Resolution of a path to a directory and a name. It never opens anything outside the root.
//!
//! Each step opens one name in an open directory, and never through a link. The target of a link replaces it in the
//! path, and the walk restarts. `..` removes the name before it, which was found to be a directory and not a link. A
//! guest that changes the tree meanwhile can make the walk end elsewhere, but not outside. It needs only `openat` of
//! the kernel, so that it works the same everywhere, including kernels that are not Linux and a filter that forbids
//! `openat2`.

use super::sys::{self, Fd, Res};
use super::wire::MAX_PATH;

/// The maximum length of a path with the targets of links.
const MAX_TEXT: usize = 2 * MAX_PATH;
/// The highest number of links followed for one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The highest number of restarts of a walk.
const MAX_WALKS: usize = 4096;
/// The maximum length of a name, with its NUL.
const NAME: usize = 256;

const ENOENT: i32 = 2;
pub const EXDEV: i32 = 18;
pub const ELOOP: i32 = 40;
const ENAMETOOLONG: i32 = 36;
const EEXIST: i32 = 17;

/// The treatment of links.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow all links.
    Follow,
    /// Follow all links except one at the end of the path.
    KeepLast,
    /// Refuse links, except one at the end of the path.
    Refuse,
}

/// The treatment of missing directories.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    Make,
    Expect,
}

/// A name with a terminating NUL.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; NAME],
    length: usize,
}

impl Name {
    /// Copies a name without NUL.
    pub fn new(name: &[u8]) -> Res<Self> {
        let mut created = Self { bytes: [0; NAME], length: name.len() };
        if name.contains(&0) {
            return Err(sys::EINVAL);
        }
        let space = created.bytes.get_mut(..NAME - 1).and_then(|all| all.get_mut(..name.len()));
        space.ok_or(ENAMETOOLONG)?.copy_from_slice(name);
        Ok(created)
    }

    /// Returns the name with its NUL.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..=self.length).unwrap_or(b"\0")
    }
}

struct Text {
    bytes: [u8; MAX_TEXT],
    length: usize,
}

impl Text {
    fn get(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Replaces `from..to` by `middle`.
    fn replace(&mut self, from: usize, to: usize, middle: &[u8]) -> Res<()> {
        let length = self.length - (to - from) + middle.len();
        if length > MAX_TEXT {
            return Err(ENAMETOOLONG);
        }
        self.bytes.copy_within(to..self.length, from + middle.len());
        self.bytes.get_mut(from..from + middle.len()).ok_or(ENAMETOOLONG)?.copy_from_slice(middle);
        self.length = length;
        Ok(())
    }
}

/// Returns the begin and end of the next name from `at` on.
fn next_name(text: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = text.get(at..)?;
    let begin = at + rest.iter().position(|&byte| byte != b'/')?;
    let length = text.get(begin..)?.iter().position(|&byte| byte == b'/');
    Some((begin, length.map_or(text.len(), |length| begin + length)))
}

/// Opens the parent directory of `path`. Returns it and the name in it, or `.` for the root itself.
pub fn walk(root: &Fd, path: &[u8], links: Links, parents: Parents) -> Res<(Fd, Name)> {
    if path.len() > MAX_PATH || path.contains(&0) {
        return Err(sys::EINVAL);
    }
    let mut text = Text { bytes: [0; MAX_TEXT], length: 0 };
    text.replace(0, 0, path)?;
    let mut followed = 0;
    for _ in 0..MAX_WALKS {
        match attempt(root, &text, links, parents)? {
            Step::There(dir, name) => return Ok((dir, name)),
            Step::Back(from, to) => text.replace(from, to, b"")?,
            Step::Link(from, to, dir, name) => {
                followed += 1;
                if followed > MAX_LINKS {
                    return Err(ELOOP);
                }
                let mut target = [0; MAX_PATH];
                let target = sys::read_link(dir.number(), name.bytes(), &mut target)?;
                if target.first() == Some(&b'/') {
                    return Err(EXDEV);
                }
                text.replace(from, to, target)?;
            }
        }
    }
    Err(ELOOP)
}

enum Step {
    There(Fd, Name),
    /// A name and the `..` that removes it, as a range of the text.
    Back(usize, usize),
    /// A link, as a range of the text.
    Link(usize, usize, Fd, Name),
}

const STEP: usize = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;

fn attempt(root: &Fd, text: &Text, links: Links, parents: Parents) -> Res<Step> {
    let text = text.get();
    let mut dir = sys::open_at(root.number(), b".\0", STEP, 0)?;
    let mut before = None;
    let mut at = 0;
    while let Some((from, to)) = next_name(text, at) {
        at = to;
        let name = text.get(from..to).unwrap_or_default();
        match name {
            b"." => continue,
            b".." => return before.map(|before| Step::Back(before, to)).ok_or(EXDEV),
            _ => {}
        }
        let name = Name::new(name)?;
        let last = only_dots(text.get(to..).unwrap_or_default());
        let is_link = |dir: &Fd| {
            sys::stat_at(dir.number(), name.bytes()).map(|stat| stat.mode & sys::S_IFMT == sys::S_IFLNK)
        };
        if last {
            return match is_link(&dir) {
                Ok(true) if links == Links::Follow => Ok(Step::Link(from, to, dir, name)),
                Ok(_) | Err(ENOENT) => Ok(Step::There(dir, name)),
                Err(errno) => Err(errno),
            };
        }
        let mut next = sys::open_at(dir.number(), name.bytes(), STEP, 0);
        if next.as_ref().err() == Some(&ENOENT) && parents == Parents::Make {
            match sys::make_directory(dir.number(), name.bytes(), 0o755) {
                Ok(()) | Err(EEXIST) => next = sys::open_at(dir.number(), name.bytes(), STEP, 0),
                Err(errno) => return Err(errno),
            }
        }
        match next {
            Ok(next) => dir = next,
            Err(sys::ENOTDIR | ELOOP) if is_link(&dir)? => {
                if links == Links::Refuse {
                    return Err(ELOOP);
                }
                return Ok(Step::Link(from, to, dir, name));
            }
            Err(errno) => return Err(errno),
        }
        before = Some(from);
    }
    Ok(Step::There(dir, Name::new(b".")?))
}

/// Returns true if the rest of a path has only `.` and slashes.
fn only_dots(mut text: &[u8]) -> bool {
    while let Some((from, to)) = next_name(text, 0) {
        if text.get(from..to) != Some(b".") {
            return false;
        }
        text = text.get(to..).unwrap_or_default();
    }
    true
}
