//! The package tools of the registries. They run with the caller's environment, since it configures mirrors and
//! proxies. Fetched content is trusted only by its hash.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_linux::programs;

use crate::error::{Result, RuntimesError, io};

/// The time limit of one program.
const TOOL_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The commands of the programs. The default finds them by `PATH`.
#[derive(Debug, Clone)]
pub struct Tools {
    /// Fetches Python's module.
    pub npm: OsString,
    /// The Python whose pip fetches the compiler for JavaScript's module.
    pub python: OsString,
    /// Fetches the sources of JavaScript's module.
    pub cargo: OsString,
}

impl Default for Tools {
    fn default() -> Self {
        Self { npm: "npm".into(), python: "python3".into(), cargo: "cargo".into() }
    }
}

/// A program, with its task and remedy for error messages.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) remedy: &'static str,
}

impl Tool {
    /// Returns a command for the tool. `program` is its name or path.
    pub(crate) fn command(&self, program: &OsStr) -> Result<Command> {
        programs::command(program).map_err(|distrust| match distrust.is_missing() {
            true => RuntimesError::MissingTool { tool: self.name, what: self.what, remedy: self.remedy },
            false => RuntimesError::UntrustedTool { tool: self.name, distrust },
        })
    }
}

/// Runs the program until it exits. Its output goes into a file in `scratch`, and an error shows the end of it.
pub(crate) fn run(tool: &Tool, command: &mut Command, scratch: &Path) -> Result<()> {
    let path = scratch.join("output");
    let output = File::create(&path).map_err(io("create", &path))?;
    let copy = output.try_clone().map_err(io("open", &path))?;
    let started = command.stdin(Stdio::null()).stdout(output).stderr(copy).spawn();
    let mut child = started.map_err(|error| match error.kind() {
        ErrorKind::NotFound => RuntimesError::MissingTool { tool: tool.name, what: tool.what, remedy: tool.remedy },
        _ => RuntimesError::Io { operation: "start", path: command.get_program().into(), source: error },
    })?;
    let deadline = Instant::now() + TOOL_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(io("wait for", command.get_program()))? {
            break status;
        }
        if Instant::now() > deadline {
            // The program may have exited just now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(RuntimesError::TooSlow { tool: tool.name, what: tool.what, limit: TOOL_TIMEOUT });
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if status.success() {
        return Ok(());
    }
    Err(RuntimesError::ToolFailed {
        tool: tool.name,
        what: tool.what,
        status: status.to_string(),
        output: end_of(&path),
    })
}

fn end_of(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return "no output".to_owned();
    }
    // Keeps the error on one line.
    lines[lines.len().saturating_sub(12)..].join(" / ")
}
