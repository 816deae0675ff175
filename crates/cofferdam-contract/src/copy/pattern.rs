//! Patterns of paths, matched name by name, so that a walk enters no directory that cannot contain a match.

use std::fmt;

use fast_glob::glob_match;

use crate::{Error, Result, SandboxPath};

/// The maximum number of components of a pattern.
const MAX_PARTS: usize = 63;
/// Any number of directories.
const ANY_DEPTH: &str = "**";

/// A path with wildcards: `*`, `?` (one byte), `[a-z]` and `{one,two}` within a component, `**` for any directories. `\` takes the
/// meaning from the next character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPattern {
    text: String,
    parts: Vec<String>,
}

/// The positions in a pattern that a path has reached: one bit for each component, and one for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Positions(u64);

impl CopyPattern {
    /// Parses a pattern relative to a directory.
    ///
    /// # Errors
    /// - Those of [`SandboxPath::new`], such as `PathEscape` for `..`.
    /// - `InvalidInput` for an unbalanced bracket or brace, and for too many components.
    pub fn new(text: &str) -> Result<Self> {
        let path = SandboxPath::new(text)?;
        let parts: Vec<String> = path.as_str().split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let wrong = |what: &str| {
            Err(Error::invalid("copy_out", format!("the pattern is invalid: {what}"))
                .with_context("pattern", text.escape_debug().to_string()))
        };
        if parts.is_empty() || parts.len() > MAX_PARTS {
            return wrong("it has no component, or more than 63");
        }
        if !parts.iter().all(|part| is_balanced(part)) {
            return wrong("a bracket or brace is not closed within its component; write \\[ or \\{ for the character");
        }
        Ok(Self { text: path.as_str().to_owned(), parts })
    }

    /// Splits a path into the directory above its first wildcard, or above its last component, and the rest. Returns no
    /// pattern for the workspace itself.
    ///
    /// # Errors
    /// - Those of [`Self::new`].
    pub fn below_parent(path: &str) -> Result<(SandboxPath, Option<Self>)> {
        let whole = SandboxPath::new(path)?;
        let parts: Vec<&str> = whole.as_str().split('/').filter(|part| !part.is_empty()).collect();
        let Some(last) = parts.len().checked_sub(1) else { return Ok((whole, None)) };
        let first = parts.iter().position(|part| is_wild(part)).unwrap_or(last);
        Ok((SandboxPath::new(parts[..first].join("/"))?, Some(Self::new(&parts[first..].join("/"))?)))
    }

    /// Returns the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if the pattern has a wildcard.
    pub fn is_wild(&self) -> bool {
        self.parts.iter().any(|part| is_wild(part))
    }

    /// Returns true if the pattern matches a path or a directory above it.
    pub fn covers(&self, path: &str) -> bool {
        let mut at = self.start();
        path.split('/').any(|name| {
            at = self.step(at, name);
            self.is_match(at)
        })
    }

    pub(crate) fn start(&self) -> Positions {
        self.closed(1)
    }

    /// Advances by one name. No position is left if nothing below can match.
    pub(crate) fn step(&self, at: Positions, name: &str) -> Positions {
        let mut next = 0;
        for (index, part) in self.parts.iter().enumerate().filter(|(index, _)| at.0 & 1 << index != 0) {
            if part == ANY_DEPTH {
                next |= 1 << index;
            } else if glob_match(part, name) {
                next |= 1 << (index + 1);
            }
        }
        self.closed(next)
    }

    pub(crate) fn is_match(&self, at: Positions) -> bool {
        at.0 & 1 << self.parts.len() != 0
    }

    /// Adds the positions behind `**`, which matches no directory as well.
    fn closed(&self, mut at: u64) -> Positions {
        for (index, part) in self.parts.iter().enumerate() {
            if at & 1 << index != 0 && part == ANY_DEPTH {
                at |= 1 << (index + 1);
            }
        }
        Positions(at)
    }
}

impl Positions {
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for CopyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text.escape_debug())
    }
}

fn is_wild(part: &str) -> bool {
    part.contains(['*', '?', '[', '{', '\\'])
}

fn is_balanced(part: &str) -> bool {
    let (mut escaped, mut bracket, mut braces) = (false, false, 0usize);
    for letter in part.chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => bracket = false,
            _ if bracket => {}
            '[' => bracket = true,
            '{' => braces += 1,
            '}' if braces == 0 => return false,
            '}' => braces -= 1,
            _ => {}
        }
    }
    !escaped && !bracket && braces == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths_and_everything_below() {
        for (pattern, path, matched) in [
            ("src", "src", true),
            ("src", "src/a/b", true),
            ("src", "x/src", false),
            ("./src/", "src", true),
            ("/workspace/src", "src", true),
            ("*.rs", "a.rs", true),
            ("*.rs", "a/b.rs", false),
            ("*", ".hidden", true),
            ("**/*.rs", "b.rs", true),
            ("**/*.rs", "a/x/b.rs", true),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/x/y/c/d", true),
            ("a/**/c", "b/c", false),
            ("a/**", "a/x", true),
            ("??", "\u{e9}", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("{one,two}.txt", "two.txt", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
        ] {
            assert_eq!(CopyPattern::new(pattern).unwrap().covers(path), matched, "{pattern} {path}");
        }
        for pattern in ["..", "/etc", "", "a[", "{a", "a\\", "}", &"a/".repeat(64)] {
            assert!(CopyPattern::new(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn paths_are_split_above_the_first_wildcard() {
        for (path, from, pattern) in [
            ("out/report.txt", "out", "report.txt"),
            ("/workspace/a/b/*.png", "a/b", "*.png"),
            ("a/*/c/d", "a", "*/c/d"),
            ("x", "", "x"),
        ] {
            let (above, found) = CopyPattern::below_parent(path).unwrap();
            assert_eq!((above.as_str(), found.unwrap().as_str()), (from, pattern), "{path}");
        }
        assert!(CopyPattern::below_parent("/workspace").unwrap().1.is_none());
    }

    #[test]
    fn hostile_names_take_no_exponential_time() {
        let pattern = CopyPattern::new(&("*a".repeat(60) + "b")).unwrap();
        assert!(!pattern.covers(&"a".repeat(250)));
    }
}
