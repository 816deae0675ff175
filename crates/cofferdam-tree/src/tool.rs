//! Host tools, run to completion, with a limit on time and on the retained output.

use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cofferdam_linux::child::{self, Start};
pub use cofferdam_util::text::excerpt;

use super::error::{Result, TreeError, io};

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_OUTPUT: u64 = 64 << 10;

/// The result of a tool.
#[derive(Debug)]
pub struct Finished {
    tool: &'static str,
    status: ExitStatus,
    /// Its output, both streams.
    pub output: String,
}

impl Finished {
    /// Refuses a tool that did not succeed.
    ///
    /// # Errors
    ///
    /// [`TreeError::ToolFailed`] with its output.
    pub fn ok(self) -> Result<()> {
        let Self { tool, status, output } = self;
        if status.success() { Ok(()) } else { Err(TreeError::ToolFailed { tool, status: status.to_string(), output }) }
    }
}

/// Runs a tool, and kills it after the time limit.
///
/// # Errors
///
/// [`TreeError::MissingTool`], [`TreeError::ToolFailed`] after the time limit, and those of the operating system.
pub fn finish(command: Command, tool: &'static str, timeout: Duration) -> Result<Finished> {
    finish_with(command, tool, timeout, Vec::new())
}

/// Runs a tool that keeps some descriptors under their numbers.
pub fn finish_with(
    mut command: Command,
    tool: &'static str,
    timeout: Duration,
    keep: Vec<OwnedFd>,
) -> Result<Finished> {
    let mut output = tempfile::tempfile().map_err(io("create a temporary file in", std::env::temp_dir()))?;
    let copy = || output.try_clone().map_err(io("copy a descriptor for", tool));
    command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    let mut child = child::start(command, Start { keep, ..Start::default() }).map_err(|error| match error.kind() {
        ErrorKind::NotFound => TreeError::MissingTool { tool },
        _ => io("start", tool)(error),
    })?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(io("wait for", tool))? {
            Some(status) => break status,
            None if begun.elapsed() < timeout => std::thread::sleep(POLL_INTERVAL),
            None => {
                // It may have ended by now; then both calls fail, without harm.
                let _ = child.kill();
                let _ = child.wait();
                return Err(TreeError::ToolFailed {
                    tool,
                    status: format!("still running after {timeout:?}"),
                    output: String::new(),
                });
            }
        }
    };
    let mut bytes = Vec::new();
    // The exit status counts; the output is only for messages.
    let _ = output.seek(SeekFrom::Start(0)).and_then(|_| (&output).take(MAX_OUTPUT).read_to_end(&mut bytes));
    Ok(Finished { tool, status, output: String::from_utf8_lossy(&bytes).into_owned() })
}
