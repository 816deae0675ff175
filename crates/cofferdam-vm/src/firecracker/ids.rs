//! Validated names that become part of a path or of a command line.

use std::fmt;

use cofferdam_contract::{Error, Result};
use serde::Serialize;

/// Maximum length of a name.
const MAX_LENGTH: usize = 64;

/// The name of a drive: 1 to 64 ASCII letters, digits and underscores.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct DriveId(String);

impl DriveId {
    /// Validates a name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        checked(name.into(), "_", "a drive's name is 1 to 64 ASCII letters, digits and underscores").map(Self)
    }
}

impl fmt::Display for DriveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a VM: 1 to 64 ASCII letters, digits and hyphens, no hyphen first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct InstanceId(String);

impl InstanceId {
    /// Validates a name.
    pub(super) fn new(name: impl Into<String>) -> Result<Self> {
        checked(name.into(), "-", "a VM's name is 1 to 64 ASCII letters, digits and hyphens, with no hyphen first")
            .map(Self)
    }

    /// Returns the name.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

fn checked(name: String, further: &str, rule: &'static str) -> Result<String> {
    let right = |c: char| c.is_ascii_alphanumeric() || further.contains(c);
    if (1..=MAX_LENGTH).contains(&name.len()) && name.chars().all(right) && !name.starts_with('-') {
        Ok(name)
    } else {
        Err(Error::invalid("create", rule).with_context("name", name.escape_debug().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_a_path_or_command_line() {
        let long = "a".repeat(65);
        for bad in ["", ".", "..", "a/b", "a b", "a?b", "a%2fb", "ä", "a\n", &long] {
            assert!(DriveId::new(bad).is_err(), "{bad:?}");
            assert!(InstanceId::new(bad).is_err(), "{bad:?}");
        }
        assert!(DriveId::new("a-b").is_err());
        assert!(InstanceId::new("a_b").is_err());
        assert!(InstanceId::new("--version").is_err());
        assert_eq!(DriveId::new("root_1").unwrap().to_string(), "root_1");
        assert_eq!(InstanceId::new("vm-1").unwrap().as_str(), "vm-1");
    }
}
