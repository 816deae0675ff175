//! Tools of the host, run to their end, with a bound on time and on what is kept of their words.

use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cofferdam_linux::child::{self, Start};

use crate::error::{Result, VmError, io};

const LOOK: Duration = Duration::from_millis(5);
const MAX_WORDS: u64 = 64 << 10;

/// How a tool ended.
#[derive(Debug)]
pub(crate) struct Finished {
    tool: &'static str,
    status: ExitStatus,
    /// What it printed, both streams.
    pub said: String,
}

impl Finished {
    /// An error, if it did not end well.
    pub(crate) fn ok(self) -> Result<()> {
        let Self { tool, status, said } = self;
        if status.success() { Ok(()) } else { Err(VmError::ToolFailed { tool, status: status.to_string(), said }) }
    }
}

/// Runs a tool; one that takes longer is killed.
pub(crate) fn finish(command: Command, tool: &'static str, limit: Duration) -> Result<Finished> {
    finish_with(command, tool, limit, Vec::new())
}

/// The same for a tool that keeps some descriptors under their numbers.
pub(crate) fn finish_with(
    mut command: Command,
    tool: &'static str,
    limit: Duration,
    keep: Vec<OwnedFd>,
) -> Result<Finished> {
    let mut words = tempfile::tempfile().map_err(io("make a temporary file in", std::env::temp_dir()))?;
    let copy = || words.try_clone().map_err(io("copy a descriptor for", tool));
    command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    let mut child = child::start(command, Start { keep, ..Start::default() }).map_err(|error| match error.kind() {
        ErrorKind::NotFound => VmError::MissingTool { tool },
        _ => io("start", tool)(error),
    })?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(io("wait for", tool))? {
            Some(status) => break status,
            None if begun.elapsed() < limit => std::thread::sleep(LOOK),
            None => {
                // It may have ended by now; then both fail and that is well.
                let _ = child.kill();
                let _ = child.wait();
                return Err(VmError::ToolFailed {
                    tool,
                    status: format!("no end within {limit:?}"),
                    said: String::new(),
                });
            }
        }
    };
    let mut said = Vec::new();
    // Its end is what counts; these are only words.
    let _ = words.seek(SeekFrom::Start(0)).and_then(|_| (&words).take(MAX_WORDS).read_to_end(&mut said));
    Ok(Finished { tool, status, said: String::from_utf8_lossy(&said).into_owned() })
}
