//! Packages from the usual registries that tests use: independent clients and libraries, browsers' drivers, checkers. Their
//! versions are pinned in this repository, and later runs reuse them.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::repository::Repository;
use crate::{command, dashboard, nodes};

/// The files that pin packages of npm and PyPI.
const BOTH: [&str; 3] = ["package.json", "package-lock.json", "requirements.txt"];
/// The marker file of a complete directory.
const COMPLETE: &str = "complete";

/// A tool of tests.
struct Tool {
    /// The environment variable through which tests find its directory.
    variable: &'static str,
    /// The tests that are skipped without it.
    tests: &'static str,
    /// True if a run as another user finds it, too.
    is_shared: bool,
    install: fn(&Repository, &Path) -> Result<PathBuf, String>,
}

const TOOLS: [Tool; 6] = [
    Tool {
        variable: "COFFERDAM_TEST_MCP_CLIENTS",
        tests: "clients of the Model Context Protocol (cofferdam, mcp)",
        is_shared: true,
        install: mcp_clients,
    },
    Tool {
        variable: "COFFERDAM_TEST_NODES",
        tests: "Nodes with type stripping (cofferdam-code and cofferdam, TypeScript)",
        is_shared: true,
        install: |repository, cache| nodes::install(&repository.root().join("xtask/nodes"), cache),
    },
    Tool {
        variable: "COFFERDAM_TEST_PEERS",
        tests: "plugins without an SDK (cofferdam, suite plugins::interop)",
        is_shared: true,
        install: peers,
    },
    Tool {
        variable: dashboard::VARIABLE,
        tests: "the dashboard in a browser (cofferdam-server, suite dashboard::), and its build",
        is_shared: true,
        install: dashboard::install,
    },
    Tool {
        variable: "COFFERDAM_TEST_E2B_SDK",
        tests: "E2B's SDKs (cofferdam-e2b, suite sdk)",
        is_shared: true,
        install: e2b,
    },
    Tool {
        variable: "COFFERDAM_TEST_SCHEMATHESIS",
        tests: "schemathesis (cofferdam-server, suite openapi::)",
        is_shared: false,
        install: schemathesis,
    },
];

/// An installed tool.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The environment variable through which tests find its directory.
    pub variable: &'static str,
    /// The directory.
    pub directory: PathBuf,
    /// True if a run as another user finds it, too.
    pub is_shared: bool,
}

/// Runs `cargo xtask tools`: installs all, and prints their variables.
pub fn run(repository: &Repository) -> anyhow::Result<()> {
    let cache = repository.root().join("target/cache");
    for Tool { variable, install, .. } in TOOLS {
        match install(repository, &cache) {
            Ok(directory) => println!("export {variable}={}", directory.display()),
            Err(why) => bail!("{why}"),
        }
    }
    Ok(())
}

/// Installs all tools below `cache`, unless they exist. Prints which tests are skipped without those that fail.
pub fn prepare(repository: &Repository, cache: &Path) -> Vec<Installed> {
    let installed = |tool: Tool| match (tool.install)(repository, cache) {
        Ok(directory) => Some(Installed { variable: tool.variable, directory, is_shared: tool.is_shared }),
        Err(why) => {
            println!("SKIP {}: {why}", tool.tests);
            None
        }
    };
    TOOLS.into_iter().filter_map(installed).collect()
}

/// Installs independent clients of the Model Context Protocol.
fn mcp_clients(repository: &Repository, cache: &Path) -> Result<PathBuf, String> {
    let pins = &repository.root().join("xtask/clients");
    let pinned = Pinned { pins, files: &BOTH, needs: &["npm", "python3"], name: "mcp-clients" };
    pinned.install(cache, |directory| {
        carry_out("install the Python SDK", &mut pip(directory)?)?;
        npm(directory, "install the inspector and the conformance runner")
    })
}

/// Installs independent libraries for JSON-RPC: `node_modules` for Node.js, and `lib` for Python.
fn peers(repository: &Repository, cache: &Path) -> Result<PathBuf, String> {
    let pins = &repository.root().join("xtask/peers");
    let pinned = Pinned { pins, files: &BOTH, needs: &["npm", "python3"], name: "peers" };
    pinned.install(cache, |directory| {
        let mut pip = pip(directory)?;
        carry_out("install a JSON-RPC library for Python", pip.arg("--target").arg(directory.join("lib")))?;
        npm(directory, "install a JSON-RPC library for Node.js")
    })
}

/// Installs E2B's own SDKs, which judge the local server of the tests of `cofferdam-e2b`.
fn e2b(repository: &Repository, cache: &Path) -> Result<PathBuf, String> {
    let pins = &repository.root().join("xtask/e2b");
    let pinned = Pinned { pins, files: &BOTH, needs: &["npm", "python3"], name: "e2b-sdk" };
    pinned.install(cache, |directory| {
        carry_out("install E2B's SDK for Python", &mut pip(directory)?)?;
        npm(directory, "install E2B's SDK for Node.js")
    })
}

/// Installs schemathesis, which compares a server with its OpenAPI document.
fn schemathesis(repository: &Repository, cache: &Path) -> Result<PathBuf, String> {
    let pins = &repository.root().join("xtask/schemathesis");
    let pinned = Pinned { pins, files: &["requirements.txt"], needs: &["python3"], name: "schemathesis" };
    pinned.install(cache, |directory| carry_out("install schemathesis", &mut pip(directory)?))
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
