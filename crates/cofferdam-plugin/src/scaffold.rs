//! Scaffolds of new plugins: a manifest, one method, a test, a README.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::package::PackageError;
use crate::{Format, check};

/// The kind of a new plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Template {
    /// A plugin with the SDK for Python.
    Python,
    /// A plugin with the SDK for Node.js.
    Node,
    /// A program that speaks the protocol without an SDK.
    Command,
}

/// A file of a template. The name of the plugin is in place of `{{name}}`.
type TemplateFile = (&'static str, &'static str);

/// Returns a file of a template with its name in the new directory.
macro_rules! file {
    ($directory:literal, $name:literal) => {
        ($name, include_str!(concat!("scaffold/", $directory, "/", $name)))
    };
}

const PYTHON: [TemplateFile; 5] = [
    file!("python", "plugin.toml"),
    file!("python", "main.py"),
    file!("python", "test_main.py"),
    file!("python", "README.md"),
    (".gitignore", include_str!("scaffold/python/gitignore")),
];
const NODE: [TemplateFile; 6] = [
    file!("node", "plugin.toml"),
    file!("node", "main.js"),
    file!("node", "main.test.js"),
    file!("node", "package.json"),
    file!("node", "README.md"),
    (".gitignore", include_str!("scaffold/node/gitignore")),
];
const COMMAND: [TemplateFile; 5] = [
    file!("command", "plugin.toml"),
    file!("command", "main.py"),
    file!("command", "test_main.py"),
    file!("command", "README.md"),
    (".gitignore", include_str!("scaffold/command/gitignore")),
];

impl Template {
    /// Returns the files of a plugin with this name.
    fn files(self, name: &str) -> Vec<(&'static str, String)> {
        let files: &[TemplateFile] = match self {
            Self::Python => &PYTHON,
            Self::Node => &NODE,
            Self::Command => &COMMAND,
        };
        files.iter().map(|(path, text)| (*path, text.replace("{{name}}", name))).collect()
    }
}

/// Creates a plugin in a directory, which is created if it is missing. Returns its files.
///
/// # Errors
/// [`PackageError::Manifest`] for a name that no plugin can have, and [`PackageError::Exists`] if a file of the plugin
/// exists: nothing is written then.
pub fn create(directory: &Path, name: &str, template: Template) -> Result<Vec<PathBuf>, PackageError> {
    let files = template.files(name);
    check(&files[0].1, Format::Toml).map_err(|problems| PackageError::Manifest {
        reason: problems.first().map_or_else(String::new, |problem| format!("{}; {}", problem.message, problem.remedy)),
    })?;
    let paths: Vec<PathBuf> = files.iter().map(|(path, _)| directory.join(path)).collect();
    if let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(PackageError::Exists { path: path.clone() });
    }
    let failed = |path: &Path, source| PackageError::Io { operation: "create", path: path.to_owned(), source };
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    for (path, (_, text)) in paths.iter().zip(&files) {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => PackageError::Exists { path: path.clone() },
            _ => failed(path, error),
        })?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const ALL: [Template; 3] = [Template::Python, Template::Node, Template::Command];

    #[test]
    fn a_new_plugin_has_a_valid_manifest_without_warnings_and_can_be_packed() {
        for template in ALL {
            let temp = tempfile::tempdir().unwrap();
            let directory = temp.path().canonicalize().unwrap().join("deep/new");
            let paths = create(&directory, "my-plugin.x", template).unwrap();
            let text = fs::read_to_string(&paths[0]).unwrap();
            let (manifest, warnings) = check(&text, Format::Toml).unwrap();
            assert_eq!((manifest.name.as_str(), warnings), ("my-plugin.x", vec![]));
            for path in &paths {
                assert!(!fs::read_to_string(path).unwrap().contains("{{"), "{}", path.display());
            }
            let tree = crate::package::Tree::read(&directory).unwrap();
            assert_eq!(tree.index().entries.len(), paths.len());
        }
    }

    /// Promise (Plugins): `plugins new` overwrites no file.
    #[test]
    fn no_file_is_overwritten_and_bad_names_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("README.md"), "mine").unwrap();
        for template in ALL {
            assert!(matches!(create(temp.path(), "new", template), Err(PackageError::Exists { .. })));
            for name in ["", "New", "a/b", "../x", "a\"", "a b", &"a".repeat(65)] {
                assert!(matches!(create(temp.path(), name, template), Err(PackageError::Manifest { .. })), "{name}");
            }
        }
        assert_eq!(fs::read_to_string(temp.path().join("README.md")).unwrap(), "mine");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    /// The tests of the other templates need the SDKs.
    #[test]
    fn the_test_of_a_new_command_passes() {
        let temp = tempfile::tempdir().unwrap();
        create(temp.path(), "new", Template::Command).unwrap();
        let mut python = Command::new("python3");
        python.args(["-B", "-m", "unittest"]).current_dir(temp.path());
        let output = python.output().expect("python3 runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
