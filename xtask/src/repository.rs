//! The checked-out sources and their files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Directories that never contain sources, for checkouts without git.
const NOT_SOURCES: &[&str] = &[".git", "target", "bench-results"];

/// A directory with the workspace's sources.
#[derive(Debug, Clone)]
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// Returns the repository from which this program was built.
    pub fn this() -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { root: own.parent().unwrap_or(own).to_owned() }
    }

    /// Returns another copy of the repository.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns the root directory of the workspace.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns every source file, relative to the root: files that git tracks or would track, without deleted ones.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = match self.git_files() {
            Some(files) => files,
            None => self.walk()?,
        };
        files.retain(|file| self.root.join(file).symlink_metadata().is_ok_and(|meta| !meta.is_dir()));
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// Returns `None` without git, outside a checkout, or if git refuses to read another user's.
    fn git_files(&self) -> Option<Vec<PathBuf>> {
        if !self.root.join(".git").exists() {
            return None;
        }
        let output = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
            .current_dir(&self.root)
            .stderr(Stdio::null())
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Some(names.map(|name| PathBuf::from(OsStr::from_bytes(name))).collect())
    }

    fn walk(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut waiting = vec![PathBuf::new()];
        while let Some(directory) = waiting.pop() {
            for entry in self.root.join(&directory).read_dir()? {
                let entry = entry?;
                let path = directory.join(entry.file_name());
                if NOT_SOURCES.iter().any(|name| path == Path::new(name)) {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    waiting.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        Ok(files)
    }

    /// Reads a source file.
    pub fn read(&self, file: impl AsRef<Path>) -> Result<String> {
        let path = self.root.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Returns a `cargo` command in the root.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root);
        cargo
    }

    /// Returns the workspace's own packages, as `cargo metadata` describes them.
    pub fn packages(&self) -> Result<Vec<Value>> {
        let output = self
            .cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start cargo")?;
        ensure!(output.status.success(), "cargo metadata failed");
        let mut metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
        match metadata["packages"].take() {
            Value::Array(packages) => Ok(packages),
            _ => anyhow::bail!("cargo metadata lists no packages"),
        }
    }
}
