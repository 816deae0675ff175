//! The directory for data of the user.

use std::ffi::OsString;
use std::path::PathBuf;

use cofferdam::{Error, ErrorKind, Result};

/// Returns the directory for data: `$XDG_DATA_HOME/cofferdam`, for root else `/var/lib/cofferdam`, for other users else
/// `~/.local/share/cofferdam`.
pub fn directory() -> Result<PathBuf> {
    locate(|name| std::env::var_os(name), rustix::process::geteuid().is_root()).ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "find the plugins", "this user has no directory for data")
            .with_remedy("set HOME or XDG_DATA_HOME")
    })
}

fn locate(variable: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME").or_else(|| match is_root {
        true => Some("/var/lib".into()),
        false => absolute("HOME").map(|home| home.join(".local/share")),
    });
    base.map(|base| base.join("cofferdam"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_in_the_directory_of_the_user() {
        let found = |data: &str, home: &str, is_root| {
            let variable = |name: &str| Some(if name == "HOME" { home } else { data }.into());
            locate(variable, is_root).map(|path| path.display().to_string())
        };
        assert_eq!(found("/data", "/home/a", false).as_deref(), Some("/data/cofferdam"));
        assert_eq!(found("/data", "/root", true).as_deref(), Some("/data/cofferdam"));
        assert_eq!(found("", "/home/a", false).as_deref(), Some("/home/a/.local/share/cofferdam"));
        assert_eq!(found("relative", "/root", true).as_deref(), Some("/var/lib/cofferdam"));
        assert_eq!(found("", "", false), None);
    }
}
