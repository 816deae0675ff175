//! Directories in which Cofferdam keeps the state of this user.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::process::Uid;

/// Returns the directory of a kind of state, such as `changes`: `$XDG_STATE_HOME/cofferdam/KIND`, for root else
/// `/var/lib/cofferdam/KIND`, for other users else `~/.local/state/cofferdam/KIND`, or a directory below that for
/// temporary files for a user without a home.
pub fn directory(kind: &str) -> PathBuf {
    directory_of(kind, |name| std::env::var_os(name), rustix::process::geteuid())
}

fn directory_of(kind: &str, variable: impl Fn(&str) -> Option<OsString>, user: Uid) -> PathBuf {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| match user.is_root() {
        true => Some("/var/lib".into()),
        false => absolute("HOME").map(|home| home.join(".local/state")),
    });
    match base {
        Some(base) => base.join("cofferdam").join(kind),
        None => std::env::temp_dir().join(format!("cofferdam-{kind}-{}", user.as_raw())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_kept_in_a_directory_of_the_user() {
        let found = |state: &str, home: &str, user: u32| {
            let variable = |name: &str| Some(if name == "HOME" { home } else { state }.into());
            directory_of("changes", variable, Uid::from_raw(user)).display().to_string()
        };
        assert_eq!(found("/state", "/home/a", 5), "/state/cofferdam/changes");
        assert_eq!(found("", "/home/a", 5), "/home/a/.local/state/cofferdam/changes");
        assert_eq!(found("", "/root", 0), "/var/lib/cofferdam/changes");
        assert!(found("", "", 5).ends_with("/cofferdam-changes-5"));
    }
}
