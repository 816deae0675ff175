//! Independent clients of the Model Context Protocol, for the tests of `cofferdam mcp`. They are installed from the
//! usual registries, in the versions of `xtask/clients`, into a directory that is reused by later runs.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result as Outcome, bail};

use crate::command;
use crate::repository::Repository;
use crate::{dashboard, e2b, nodes, peers};

/// The environment variable through which tests find the clients.
pub const VARIABLE: &str = "COFFERDAM_TEST_MCP_CLIENTS";
/// The files that pin packages of npm and PyPI.
pub const PINS: [&str; 3] = ["package.json", "package-lock.json", "requirements.txt"];
/// The marker file of a complete directory.
const COMPLETE: &str = "complete";

/// Runs `cargo xtask clients`.
pub fn run(repository: &Repository) -> Outcome<()> {
    let cache = repository.root().join("target/cache");
    let xtask = repository.root().join("xtask");
    let made = [
        (VARIABLE, install(&xtask.join("clients"), &cache)),
        (nodes::VARIABLE, nodes::install(&xtask.join("nodes"), &cache)),
        (peers::VARIABLE, peers::install(&xtask.join("peers"), &cache)),
        (dashboard::VARIABLE, dashboard::install(repository, &cache)),
        (e2b::VARIABLE, e2b::install(&xtask.join("e2b"), &cache)),
    ];
    for (variable, made) in made {
        match made {
            Ok(directory) => println!("export {variable}={}", directory.display()),
            Err(why) => bail!("{why}"),
        }
    }
    Ok(())
}

/// Installs the clients below `cache`, unless they exist. Returns their directory. If the installation fails,
/// prints that their tests are skipped.
pub fn prepare(pins: &Path, cache: &Path) -> Option<PathBuf> {
    match install(pins, cache) {
        Ok(directory) => Some(directory),
        Err(why) => {
            println!("SKIP clients of the Model Context Protocol (cofferdam, mcp): {why}");
            None
        }
    }
}

fn install(pins: &Path, cache: &Path) -> Result<PathBuf, String> {
    let pinned = Pinned { pins, files: &PINS, needs: &["npm", "python3"], name: "mcp-clients" };
    pinned.install(cache, |directory| {
        carry_out("install the Python SDK", &mut pip(directory)?)?;
        npm(directory, "install the inspector and the conformance runner")
    })
}

/// A pinned set of packages from registries, installed into a directory that is reused by later runs.
pub struct Pinned<'a> {
    /// The directory of the pin files.
    pub pins: &'a Path,
    /// The pin files. A hash of their contents is part of the directory's name.
    pub files: &'a [&'a str],
    /// The programs that the installation needs.
    pub needs: &'a [&'a str],
    /// The prefix of the directory's name.
    pub name: &'a str,
}

impl Pinned<'_> {
    /// Returns the directory. Calls `fill` first if it is incomplete.
    pub fn install(&self, cache: &Path, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
        let mut hasher = DefaultHasher::new();
        for name in self.files {
            fs::read(self.pins.join(name)).map_err(|error| format!("cannot read {name}: {error}"))?.hash(&mut hasher);
        }
        let directory = cache.join(format!("{}-{:016x}", self.name, hasher.finish()));
        if directory.join(COMPLETE).exists() {
            return Ok(directory);
        }
        if let Some(program) = self.needs.iter().find(|program| !command::exists(program)) {
            return Err(format!("{program} is not installed"));
        }
        // The incomplete directory of a failed run is not reused.
        let _ = fs::remove_dir_all(&directory);
        let io = |error: std::io::Error| format!("cannot fill {}: {error}", directory.display());
        fs::create_dir_all(&directory).map_err(io)?;
        for name in self.files {
            fs::copy(self.pins.join(name), directory.join(name)).map_err(io)?;
        }
        fill(&directory)?;
        fs::write(directory.join(COMPLETE), "").map_err(io)?;
        Ok(directory)
    }
}

/// Creates a Python environment in a directory. Returns the command that installs the packages of `requirements.txt`.
pub fn pip(directory: &Path) -> Result<Command, String> {
    let python = directory.join("python");
    // Every user can run the system's interpreter. Another one in the search path may be in root's home.
    let system = Path::new("/usr/bin/python3");
    let interpreter = if system.exists() { system } else { Path::new("python3") };
    carry_out("create a Python environment", Command::new(interpreter).args(["-m", "venv"]).arg(&python))?;
    let mut pip = Command::new(python.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(directory.join("requirements.txt"));
    Ok(pip)
}

/// Installs the packages of the lock file in a directory.
pub fn npm(directory: &Path, what: &str) -> Result<(), String> {
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(directory);
    carry_out(what, &mut npm)
}

/// Prints what a command does, and runs it.
pub fn carry_out(what: &str, command: &mut Command) -> Result<(), String> {
    command::step(what, command).map_err(|error| format!("cannot {what}: {error}"))
}
