//! What a root file system is made of.

use crate::error::{DebianError, Result};

/// Packages to ask for. What they depend on comes with them, what they only recommend does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipe {
    /// Packages that must be there, as `NAME` or `NAME=VERSION`.
    pub packages: Vec<String>,
    /// Packages that are left out, with a note, where the archive does not have them.
    pub optional: Vec<String>,
    /// Debian's name of an architecture, for example `arm64`. None is the host's.
    pub architecture: Option<String>,
}

/// What every program may count on: a shell, the usual tools, C.UTF-8, `setsid`, descriptions of terminals.
const FOUNDATION: &[&str] = &["base-files", "coreutils", "dash", "libc-bin", "libc6", "util-linux"];
const TOOLS: &[&str] =
    &["bash", "diffutils", "findutils", "grep", "gzip", "mawk", "ncurses-base", "python3", "sed", "tar"];

impl Recipe {
    /// These packages and nothing else; the architecture is the host's.
    pub fn new<I: Into<String>>(packages: impl IntoIterator<Item = I>) -> Self {
        Self { packages: packages.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// A shell, the usual tools, Python, and Node where the archive has it.
    pub fn base() -> Self {
        let mut recipe = Self::new(FOUNDATION.iter().chain(TOOLS).copied());
        recipe.optional = vec!["nodejs".to_owned()];
        recipe
    }

    /// The least that conformance and most tests need: a shell, coreutils, `setsid`, Python without most of its library.
    pub fn tiny() -> Self {
        Self::new(FOUNDATION.iter().copied().chain(["python3-minimal"]))
    }

    /// Refuses what is no name, so that none is taken for an option or an order to remove something.
    pub(crate) fn check(&self) -> Result<()> {
        let names = self.packages.iter().chain(&self.optional).chain(&self.architecture);
        for name in names {
            if !is_valid(name) {
                return Err(DebianError::InvalidName { name: name.clone() });
            }
        }
        if self.packages.is_empty() {
            return Err(DebianError::InvalidName { name: String::new() });
        }
        Ok(())
    }
}

fn is_valid(name: &str) -> bool {
    let (name, version) = name.split_once('=').unwrap_or((name, "0"));
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let of_version = |c: char| c.is_ascii_alphanumeric() || "+-.:~".contains(c);
    starts
        && !name.ends_with('-')
        && name.chars().all(of_name)
        && !version.is_empty()
        && version.chars().all(of_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_apt_would_take_for_something_else_are_refused() {
        for good in ["dash", "g++", "libstdc++6", "python3.11", "dash=0.5.12-2", "tar=1:1.34~x+b1"] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "-y", "--force", "dash-", "dash=", "^task", "a b", "Dash", "dash/stable", "./x.deb", "a*"] {
            assert!(!is_valid(bad), "{bad}");
            assert!(Recipe::new([bad]).check().is_err(), "{bad}");
        }
        assert!(Recipe::default().check().is_err());
        assert!(Recipe::base().check().is_ok() && Recipe::tiny().check().is_ok());
    }
}
