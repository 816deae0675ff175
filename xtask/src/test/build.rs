//! Builds and finds the test programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::repository::Repository;
use crate::tools::Installed;

/// The feature of the command line with everything in it.
pub const FULL: &str = "cofferdam/full";

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Package and target, such as `cofferdam suite`.
    pub name: String,
    /// The path of the program.
    pub path: PathBuf,
    /// The package's directory, in which tests run.
    pub directory: PathBuf,
}

/// The result of a build.
#[derive(Debug)]
pub struct Built {
    /// The test programs.
    pub programs: Vec<Program>,
    /// Name and path of each binary that tests start.
    pub binaries: Vec<(String, PathBuf)>,
    /// The target directory.
    pub target: PathBuf,
    /// The tools of tests that are installed.
    pub tools: Vec<Installed>,
    /// The directory of the interpreters for WebAssembly, if they are installed.
    pub wasm: Option<PathBuf>,
}

impl Built {
    /// Returns the directory of a tool.
    pub fn tool(&self, variable: &str) -> Option<&Path> {
        self.tools.iter().find(|tool| tool.variable == variable).map(|tool| tool.directory.as_path())
    }

    /// Returns the path of `cofferdam`.
    pub fn program(&self) -> Option<&Path> {
        self.binaries.iter().find(|(name, _)| name == "cofferdam").map(|(_, path)| path.as_path())
    }
}

/// Returns `cargo` in these sources. Its output in a separate target directory is readable by every user.
pub fn cargo(sources: &Repository, target: Option<&Path>) -> Command {
    let cargo = sources.cargo();
    let Some(target) = target else { return cargo };
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 022; exec \"$@\"", "sh"]).arg(cargo.get_program());
    shell.current_dir(sources.root()).env("CARGO_TARGET_DIR", target);
    shell
}

/// Builds all tests of the workspace.
pub fn build(sources: &Repository, target: Option<PathBuf>) -> Result<Built> {
    println!("== build the tests");
    let output = cargo(sources, target.as_deref())
        .args([
            "test",
            "--workspace",
            "--features",
            FULL,
            "--no-run",
            "--quiet",
            "--message-format=json-render-diagnostics",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cannot build the tests");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut programs: Vec<Program> = messages.iter().filter_map(program).collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    let Some(first) = programs.first() else { bail!("cargo built no test program") };
    // .../target/debug/deps/program
    let target = target.or_else(|| first.path.ancestors().nth(3).map(Path::to_owned)).unwrap_or_default();
    Ok(Built {
        binaries: messages.iter().filter_map(binary).collect(),
        programs,
        target,
        tools: Vec::new(),
        wasm: None,
    })
}

fn executable(message: &Value) -> Option<PathBuf> {
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    message["executable"].as_str().map(PathBuf::from)
}

fn program(message: &Value) -> Option<Program> {
    let path = executable(message).filter(|_| message["profile"]["test"] == true)?;
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = directory.file_name()?.to_string_lossy().into_owned();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    Some(Program { name: format!("{package} {kind} {target}"), path, directory })
}

/// Runs a `cargo build` and returns the path of the binary with this name.
pub fn build_binary(mut cargo: Command, name: &str) -> Result<PathBuf> {
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cannot build {name}");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut found = messages.lines().filter_map(|line| binary(&serde_json::from_str(line).ok()?));
    Ok(found.find(|(found, _)| found == name).with_context(|| format!("cargo built no {name}"))?.1)
}

/// Returns name and path of a program or an example, if the message of cargo describes one that is not a test.
pub fn binary(message: &Value) -> Option<(String, PathBuf)> {
    let path = executable(message).filter(|_| message["profile"]["test"] == false)?;
    let target = &message["target"];
    let runs = target["kind"][0] == "bin" || target["kind"][0] == "example";
    runs.then(|| Some((target["name"].as_str()?.to_owned(), path)))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn programs_and_binaries_are_distinguished() {
        let mut message = json!({
            "reason": "compiler-artifact", "executable": "/t/debug/deps/suite-1", "manifest_path": "/r/crates/a/Cargo.toml",
            "profile": { "test": true }, "target": { "name": "suite", "kind": ["test"] },
        });
        let found = program(&message).unwrap();
        assert_eq!((found.name.as_str(), found.directory), ("a test suite", PathBuf::from("/r/crates/a")));
        assert_eq!(binary(&message), None);
        message["profile"]["test"] = json!(false);
        message["target"] = json!({ "name": "a", "kind": ["bin"] });
        assert_eq!((program(&message), binary(&message)), (None, Some(("a".into(), "/t/debug/deps/suite-1".into()))));
        message["executable"] = Value::Null;
        assert_eq!(binary(&message), None);
    }
}
