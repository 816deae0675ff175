//! Recipes of root file systems.

use super::error::{DebianError, Result};

/// The packages to install. Dependencies are included, recommendations are not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipe {
    /// Required packages, as `NAME` or `NAME=VERSION`.
    pub packages: Vec<String>,
    /// Packages that are left out, with a note, if the archive does not have them.
    pub optional: Vec<String>,
    /// Debian's name of the architecture, for example `arm64`. Defaults to the host's.
    pub architecture: Option<String>,
}

/// The packages that every program may rely on: a shell, the usual tools, C.UTF-8, `setsid`, terminal descriptions.
const FOUNDATION: &[&str] = &["base-files", "coreutils", "dash", "libc-bin", "libc6", "util-linux"];
const TOOLS: &[&str] =
    &["bash", "diffutils", "findutils", "grep", "gzip", "mawk", "ncurses-base", "python3", "sed", "tar"];

impl Recipe {
    /// Creates a recipe of these packages and nothing else, for the host's architecture.
    pub fn new<I: Into<String>>(packages: impl IntoIterator<Item = I>) -> Self {
        Self { packages: packages.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Returns a recipe with a shell, the usual tools, Python, and Node if the archive has it.
    pub fn base() -> Self {
        let mut recipe = Self::new(FOUNDATION.iter().chain(TOOLS).copied());
        recipe.optional = vec!["nodejs".to_owned()];
        recipe
    }

    /// Returns the minimum for the conformance suite and most tests: a shell, coreutils, `setsid`, Python without most
    /// of its library.
    pub fn tiny() -> Self {
        Self::new(FOUNDATION.iter().copied().chain(["python3-minimal"]))
    }

    /// Refuses invalid names, so that none is taken for an option or a request to remove a package.
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
