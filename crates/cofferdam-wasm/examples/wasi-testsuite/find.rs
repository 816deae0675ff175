//! The tests of a checkout.

use std::io;
use std::path::{Path, PathBuf};

/// One test.
pub struct Test {
    /// Its path relative to the searched directory, without the extension.
    pub name: String,
    /// The module.
    pub module: PathBuf,
}

impl Test {
    /// Returns the base of the directories in its specification.
    pub fn directory(&self) -> &Path {
        self.module.parent().unwrap_or(Path::new("."))
    }
}

/// Returns every module below a directory, sorted.
pub fn find(top: &Path) -> io::Result<Vec<Test>> {
    let (mut tests, mut pending) = (Vec::new(), vec![top.to_owned()]);
    while let Some(directory) = pending.pop() {
        for entry in directory.read_dir()? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() && entry.file_name() != ".git" {
                pending.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "wasm") {
                let relative = path.strip_prefix(top).unwrap_or(&path).with_extension("");
                tests.push(Test { name: relative.display().to_string(), module: path });
            }
        }
    }
    tests.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(tests)
}
