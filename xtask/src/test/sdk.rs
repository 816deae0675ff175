//! The tests of the SDKs for plugins, and the conformance suite on each of them. They do not depend on the user. The
//! languages run at the same time, because their tests mostly wait.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Result, bail};

use super::build::{self, Built};
use super::outcome::{Outcome, Printed};
use super::user::User;
use super::{dist, finish};
use crate::command::{exists, step};
use crate::repository::Repository;

/// The directory of the SDK for Rust, a workspace of its own.
pub const RUST: &str = "sdk/rust-plugin";
/// The target of plugins for the level wasm.
const WASI: &str = "wasm32-wasip1";

/// The sources and the build directory of the SDKs.
struct Sdks<'a> {
    sources: &'a Repository,
    target: PathBuf,
    filter: Option<&'a str>,
}

/// Runs the suites whose name contains `filter`.
pub fn run(sources: &Repository, built: &Built, filter: Option<&str>) -> Result<Outcome> {
    let sdks = Sdks { sources, target: built.target.join("sdk"), filter };
    thread::scope(|scope| {
        let others = [scope.spawn(|| sdks.python()), scope.spawn(|| sdks.node())];
        let mut total = sdks.rust()?;
        for language in others {
            total.add(language.join().unwrap_or_else(|_| bail!("a thread panicked"))?);
        }
        Ok(total)
    })
}

impl Sdks<'_> {
    fn python(&self) -> Result<Outcome> {
        let mut tests = self.command("python3", "sdk/python-plugin");
        tests.args(["-m", "unittest", "discover", "--start-directory", "tests"]);
        let mut outcome = self.suite("sdk python", "python3", tests)?;
        let plugin = ["python3", "../../python-plugin/src/cofferdam_plugin/__init__.py"];
        outcome.add(self.conformance("sdk python conformance", "python", "main:activate", &plugin)?);
        Ok(outcome)
    }

    fn node(&self) -> Result<Outcome> {
        let mut tests = self.command("node", "sdk/node-plugin");
        tests.args(["--test", "--test-reporter=tap"]);
        tests.args(["session", "harness", "package"].map(|name| format!("test/{name}.test.cjs")));
        let mut outcome = self.suite("sdk node", "node", tests)?;
        let plugin = ["node", "../../node-plugin/cofferdam-plugin.cjs"];
        outcome.add(self.conformance("sdk node conformance", "node", "main.cjs:activate", &plugin)?);
        Ok(outcome)
    }

    fn rust(&self) -> Result<Outcome> {
        let mut tests = self.cargo();
        tests.args(["test", "--locked", "--quiet", "--no-fail-fast", "--", "--color", "never"]);
        let mut outcome = self.suite("sdk rust", "cargo", tests)?;
        outcome.add(self.rust_conformance()?);
        outcome.add(self.wasi());
        Ok(outcome)
    }

    fn rust_conformance(&self) -> Result<Outcome> {
        let name = "sdk rust conformance";
        let built = self.example(name, &[]);
        if built.passed == 0 {
            return Ok(built);
        }
        let plugin = self.target.join("debug/examples/conformance");
        self.conformance(name, ".", "main:activate", &[&plugin.to_string_lossy()])
    }

    fn wasi(&self) -> Outcome {
        let name = "sdk rust wasi";
        match dist::can_build_for(WASI) {
            true => self.example(name, &["--target", WASI]),
            false if self.is_wanted(name) => skipped(name, "the toolchain has no wasm32-wasip1"),
            false => Outcome::default(),
        }
    }

    /// Builds the conformance plugin.
    fn example(&self, name: &str, options: &[&str]) -> Outcome {
        if !self.is_wanted(name) {
            return Outcome::default();
        }
        let mut cargo = self.cargo();
        cargo.args(["build", "--locked", "--quiet", "--example", "conformance"]).args(options);
        match step(&format!("{name}: build"), &mut cargo) {
            Ok(()) => Outcome { passed: 1, ..Outcome::default() },
            Err(error) => Outcome { failures: vec![error.to_string()], ..Outcome::default() },
        }
    }

    fn conformance(&self, name: &str, directory: &str, entry: &str, plugin: &[&str]) -> Result<Outcome> {
        let mut suite = self.command("python3", "sdk/conformance");
        suite.args(["conformance.py", "--cwd", directory, "--entry", entry, "--"]).args(plugin);
        self.suite(name, plugin[0], suite)
    }

    /// Runs a suite that needs a program.
    fn suite(&self, name: &str, program: &str, command: Command) -> Result<Outcome> {
        if !self.is_wanted(name) {
            return Ok(Outcome::default());
        }
        for needed in ["python3", program] {
            if !exists(needed) && !Path::new(needed).exists() {
                return Ok(skipped(name, &format!("{needed} is not installed")));
            }
        }
        finish(command, name, &User::current(), Printed::BySeveral)
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.filter.is_none_or(|filter| name.contains(filter))
    }

    fn command(&self, program: &str, directory: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.sources.root().join(directory)).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn cargo(&self) -> Command {
        let mut cargo = build::cargo(self.sources, Some(&self.target));
        cargo.current_dir(self.sources.root().join(RUST));
        cargo
    }
}

fn skipped(name: &str, reason: &str) -> Outcome {
    let skip = format!("SKIP {name}: {reason}");
    println!("   {skip}");
    Outcome { skips: vec![skip], ..Outcome::default() }
}
