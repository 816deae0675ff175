//! Independent clients of the Model Context Protocol, for the tests of `cofferdam mcp`: installed from the ordinary
//! registries, in the versions of `xtask/clients`, into a directory that is kept from run to run.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result as Outcome, bail};

use crate::command;
use crate::nodes;
use crate::repository::Repository;

/// Where tests find them.
pub const VARIABLE: &str = "COFFERDAM_TEST_MCP_CLIENTS";
/// What is installed: the official Python SDK; the inspector, the conformance runner, and the Node that they need.
const PINS: [&str; 3] = ["package.json", "package-lock.json", "requirements.txt"];
/// Stands in a directory that is complete.
const COMPLETE: &str = "complete";

/// `cargo xtask clients`.
pub fn run(repository: &Repository) -> Outcome<()> {
    let cache = repository.root().join("target/cache");
    let xtask = repository.root().join("xtask");
    let made = [
        (VARIABLE, install(&xtask.join("clients"), &cache)),
        (nodes::VARIABLE, nodes::install(&xtask.join("nodes"), &cache)),
    ];
    for (variable, made) in made {
        match made {
            Ok(directory) => println!("export {variable}={}", directory.display()),
            Err(why) => bail!("{why}"),
        }
    }
    Ok(())
}

/// Installs the clients below `cache`, if they are not there; gives where. What cannot be had is told, and not tested with.
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
        let python = directory.join("python");
        // The system's can be run by every user; one that is found first may lie in root's home.
        let system = Path::new("/usr/bin/python3");
        let interpreter = if system.exists() { system } else { Path::new("python3") };
        carry_out("make a Python environment", Command::new(interpreter).args(["-m", "venv"]).arg(&python))?;
        let mut pip = Command::new(python.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(directory.join("requirements.txt"));
        carry_out("install the Python SDK", &mut pip)?;
        npm(directory, "install the inspector and the conformance runner")
    })
}

/// What is had from registries in pinned versions, into a directory that is kept from run to run.
pub struct Pinned<'a> {
    /// Where the pins are.
    pub pins: &'a Path,
    /// The files with them: what they say is part of the directory's name.
    pub files: &'a [&'a str],
    /// Programs that are needed.
    pub needs: &'a [&'a str],
    /// How the directory's name begins.
    pub name: &'a str,
}

impl Pinned<'_> {
    /// Gives the directory, after `fill` if it was not complete.
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
            return Err(format!("there is no {program}"));
        }
        // What a broken run left is nothing to go on with.
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

/// Installs what the package's lock in a directory names.
pub fn npm(directory: &Path, what: &str) -> Result<(), String> {
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(directory);
    carry_out(what, &mut npm)
}

fn carry_out(what: &str, command: &mut Command) -> Result<(), String> {
    command::step(what, command).map_err(|error| format!("could not {what}: {error}"))
}
