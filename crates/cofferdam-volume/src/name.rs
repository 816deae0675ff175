//! Names of volumes.

use std::fmt;
use std::str::FromStr;

use crate::error::VolumeError;

const MAX: usize = 64;

/// The name of a volume: letters, digits, `.`, `_` and `-`, at most 64, beginning with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if text.len() <= MAX && begins && text.chars().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(MAX).collect();
        Err(VolumeError::InvalidName { name: shown.escape_debug().to_string() })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "0", "cache-1.2_x", &"n".repeat(64)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".tmp-x", "-a", "_a", "a/b", "a b", "a\n", "é", "a:ro", &"n".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }
}
