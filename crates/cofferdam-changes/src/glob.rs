//! Patterns of paths.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Patterns of paths relative to the workspace.
///
/// `?` is any byte, `*` any bytes of one component, `**` any components, and `\` takes the meaning from the next byte.
/// A pattern without a slash matches a name at any depth. What matches a directory matches everything below it.
#[derive(Debug, Clone, Default)]
pub struct Globs {
    patterns: Vec<Vec<Vec<u8>>>,
}

impl Globs {
    /// Creates patterns.
    #[must_use]
    pub fn new<T: AsRef<[u8]>>(patterns: impl IntoIterator<Item = T>) -> Self {
        Self { patterns: patterns.into_iter().map(|pattern| components(pattern.as_ref())).collect() }
    }

    /// Creates patterns that match one path each, and nothing below it. Their bytes have no special meaning.
    #[cfg(feature = "sandbox")]
    pub(crate) fn exact<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let escaped = |name: &[u8]| name.iter().flat_map(|byte| [b'\\', *byte]).collect();
        let components = |path: &Path| path.iter().map(|name| escaped(name.as_bytes())).collect();
        Self { patterns: paths.into_iter().map(components).collect() }
    }

    /// Returns true if there is no pattern.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns true if a pattern matches the path or a directory above it.
    #[must_use]
    pub fn matches(&self, path: &Path) -> bool {
        let parts: Vec<&[u8]> = path.iter().map(OsStrExt::as_bytes).collect();
        self.patterns
            .iter()
            .any(|pattern| matches(pattern, &parts, |part| part == b"**", |one, other| wild(one, other)))
    }
}

fn components(pattern: &[u8]) -> Vec<Vec<u8>> {
    let anchored = pattern.strip_suffix(b"/").unwrap_or(pattern).contains(&b'/');
    let parts = pattern.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let parts = parts.map(<[u8]>::to_vec);
    // Everything below a match.
    let first = (!anchored).then(|| b"**".to_vec());
    first.into_iter().chain(parts).chain([b"**".to_vec()]).collect()
}

fn wild(pattern: &[u8], name: &[u8]) -> bool {
    let mut tokens = Vec::new();
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        tokens.push(match byte {
            b'*' => Token::Many,
            b'?' => Token::One,
            b'\\' => Token::Byte(bytes.next().unwrap_or(b'\\')),
            _ => Token::Byte(byte),
        });
    }
    let one = |token: &Token, byte: &u8| matches!(token, Token::One) || *token == Token::Byte(*byte);
    matches(&tokens, name, |token| *token == Token::Many, one)
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    One,
    Many,
}

/// Matches a sequence with a pattern. An element for which `is_many` is true stands for any elements. Needs at most the
/// product of both lengths in steps, since only the last such element has to be tried again.
fn matches<P, T>(pattern: &[P], items: &[T], is_many: impl Fn(&P) -> bool, one: impl Fn(&P, &T) -> bool) -> bool {
    let (mut at, mut item) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while item < items.len() || at < pattern.len() {
        match pattern.get(at) {
            Some(many) if is_many(many) => {
                retry = Some((at, item));
                at += 1;
                continue;
            }
            Some(single) if items.get(item).is_some_and(|found| one(single, found)) => {
                (at, item) = (at + 1, item + 1);
                continue;
            }
            _ => {}
        }
        match retry {
            Some((many, from)) if from < items.len() => {
                (at, item) = (many + 1, from + 1);
                retry = Some((many, from + 1));
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths_and_everything_below() {
        for (pattern, path, matched) in [
            ("src", "src", true),
            ("src", "src/a/b", true),
            ("src", "x/src/a", true),
            ("src", "srcs", false),
            ("src/", "x/src/a", true),
            ("./src/a", "src/a", true),
            ("x/src", "x/src/a", true),
            ("/src", "x/src", false),
            ("*.rs", "a/b.rs", true),
            ("*.rs", "a/b.rst", false),
            ("a/*.rs", "a/b/c.rs", false),
            ("a/**/c.rs", "a/c.rs", true),
            ("a/**/c.rs", "a/x/y/c.rs", true),
            ("a/**/c.rs", "b/x/y/c.rs", false),
            ("?", "é", false),
            ("??", "é", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("**", "anything/at/all", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
        ] {
            assert_eq!(Globs::new([pattern]).matches(Path::new(path)), matched, "{pattern} {path}");
        }
        assert!(!Globs::default().matches(Path::new("a")));
        #[cfg(feature = "sandbox")]
        for (path, matched) in [("a/*", true), ("a", false), ("a/b", false), ("a/*/c", false), ("x/a/*", false)] {
            assert_eq!(Globs::exact([Path::new("a/*")]).matches(Path::new(path)), matched, "{path}");
        }
    }

    #[test]
    fn hostile_names_take_no_exponential_time() {
        let pattern = "*a".repeat(100) + "b";
        assert!(!Globs::new([pattern]).matches(Path::new(&"a".repeat(250))));
    }
}
