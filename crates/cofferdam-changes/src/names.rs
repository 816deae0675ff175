//! Rules for paths in change sets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::bounds::{MAX_DEPTH, MAX_NAME, MAX_PATH};
use crate::error::{Result, malformed};

/// Beginning of the names of whiteouts.
pub(crate) const WHITEOUT: &[u8] = b".wh.";
/// Name of the whiteout of everything in a directory.
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";

/// Checks a path without whiteouts: relative, normalised and within all limits.
pub(crate) fn check(path: &Path) -> Result<()> {
    parse(path.as_os_str().as_bytes()).map(|_| ())
}

/// Checks the bytes of a path and returns the path.
pub(crate) fn parse(bytes: &[u8]) -> Result<PathBuf> {
    let wrong = |reason: &str| Err(malformed(bytes, reason));
    if bytes.is_empty() {
        return wrong("the path is empty");
    }
    if bytes.len() - prefix(last(bytes)) > MAX_PATH {
        return wrong("the path is too long");
    }
    if bytes.contains(&0) {
        return wrong("the path has a NUL");
    }
    if bytes[0] == b'/' {
        return wrong("the path is absolute");
    }
    let mut depth = 0;
    for part in bytes.split(|byte| *byte == b'/') {
        depth += 1;
        match part {
            b".." => return wrong("the path has '..'"),
            b"" | b"." => return wrong("the path has an empty component or '.'"),
            _ if part.len() - prefix(part) > MAX_NAME => return wrong("a component of the path is too long"),
            _ if depth > MAX_DEPTH => return wrong("the path is too deep"),
            _ => {}
        }
    }
    Ok(PathBuf::from(OsString::from_vec(bytes.to_vec())))
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns the length of what a whiteout adds to the longest name.
fn prefix(name: &[u8]) -> usize {
    if name.starts_with(WHITEOUT) { WHITEOUT.len() } else { 0 }
}

/// Checks the target of a symbolic link.
pub(crate) fn check_target(path: &Path, target: &OsStr) -> Result<()> {
    let valid = !target.is_empty() && target.len() <= MAX_PATH && !target.as_bytes().contains(&0);
    if valid { Ok(()) } else { Err(malformed(path.as_os_str().as_bytes(), "the target of the link is invalid")) }
}

/// Returns true if a component of a path has the form of a whiteout.
pub(crate) fn is_reserved(path: &Path) -> bool {
    path.iter().any(|name| name.as_bytes().starts_with(WHITEOUT))
}

/// Returns the path of the whiteout of a file.
pub(crate) fn whiteout(path: &Path) -> PathBuf {
    let mut name = OsStr::from_bytes(WHITEOUT).to_owned();
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_normalised_relative_paths_are_accepted() {
        for good in ["a", "a/b", "..a", "a.", "-", " ", "\u{1b}", "a\nb", "é"] {
            assert_eq!(parse(good.as_bytes()).unwrap(), Path::new(good));
        }
        let (long, deep, wide) = ("a".repeat(256), "a/".repeat(128) + "a", "aa/".repeat(1400));
        for bad in ["", "/", "/a", "a/", "a//b", ".", "./a", "a/.", "..", "a/../b", "a\0", &long, &deep, &wide] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn whiteouts_are_beside_their_files() {
        assert_eq!(whiteout(Path::new("a/b")), Path::new("a/.wh.b"));
        assert_eq!(whiteout(Path::new("b")), Path::new(".wh.b"));
        assert!(is_reserved(Path::new("a/.wh.b/c")) && !is_reserved(Path::new("a/.whb")));
    }
}
