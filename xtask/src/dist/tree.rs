//! Directories that become packages, and the tools that pack them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command;

/// The packaging tools, and the Debian packages that contain them.
const TOOLS: &[(&str, &str)] =
    &[("tar", "tar"), ("gzip", "gzip"), ("dpkg-deb", "dpkg"), ("python3", "python3"), ("sha256sum", "coreutils")];
const PROGRAM_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Returns instructions to install the first missing tool, if one is missing.
pub fn missing_tool() -> Option<String> {
    let missing = TOOLS.iter().find(|(tool, _)| !command::exists(tool));
    missing.map(|(tool, package)| {
        format!("{tool} is not installed; on Debian and Ubuntu: sudo apt-get install -y {package}")
    })
}

/// Runs a tool and returns its output. Prints nothing unless it fails.
pub fn run_tool(name: &str, tool: &mut Command) -> Result<String> {
    let output = tool.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A directory whose files have the modes of a package, regardless of the umask.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Creates the directory. It must not exist.
    pub fn create(root: PathBuf) -> Result<Self> {
        fs::create_dir(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let tree = Self { root };
        tree.set_mode(&tree.root, PROGRAM_MODE)?;
        Ok(tree)
    }

    /// Returns the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Copies a program to this name.
    pub fn program(&self, name: &str, from: &Path) -> Result<()> {
        let path = self.parent_of(name)?;
        fs::copy(from, &path).with_context(|| format!("cannot copy {} to {}", from.display(), path.display()))?;
        self.set_mode(&path, PROGRAM_MODE)
    }

    /// Writes a file of this name.
    pub fn file(&self, name: &str, contents: &str) -> Result<()> {
        let path = self.parent_of(name)?;
        fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))?;
        self.set_mode(&path, FILE_MODE)
    }

    /// Returns the size of all files in KiB, each rounded up.
    pub fn kibibytes(&self) -> Result<u64> {
        let mut waiting = vec![self.root.clone()];
        let mut sum = 0;
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let meta = entry.metadata()?;
                if meta.is_dir() {
                    waiting.push(entry.path());
                } else {
                    sum += meta.len().div_ceil(1024);
                }
            }
        }
        Ok(sum)
    }

    fn parent_of(&self, name: &str) -> Result<PathBuf> {
        let name = Path::new(name);
        ensure!(name.is_relative(), "{} is not a name within a package", name.display());
        let above: Vec<&Path> = name.ancestors().skip(1).filter(|parent| *parent != Path::new("")).collect();
        above.iter().rev().try_for_each(|parent| self.directory(parent))?;
        Ok(self.root.join(name))
    }

    fn directory(&self, name: &Path) -> Result<()> {
        let path = self.root.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.with_context(|| format!("cannot create {}", path.display()))?,
        }
        self.set_mode(&path, PROGRAM_MODE)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        fs::set_permissions(path, Permissions::from_mode(mode))
            .with_context(|| format!("cannot set the mode of {}", path.display()))
    }
}
