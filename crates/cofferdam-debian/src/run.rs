//! Programs of the host: started with the caller's environment, since that may name a proxy, and watched.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::error::{DebianError, Result, io};

/// How long a program may wait for the network without a byte.
const STALL: Duration = Duration::from_secs(180);
/// How often a program is looked at.
const GLANCE: Duration = Duration::from_millis(50);
/// The most that is kept of what a program prints.
const MOST_OUTPUT: u64 = 16 << 20;

/// What a program left.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A child that does not outlive this value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended in most cases; then both fail and that is well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file without a name, for what a program prints.
pub(crate) fn nameless() -> Result<File> {
    tempfile::tempfile().map_err(io("make a temporary file in", std::env::temp_dir()))
}

/// What was written into such a file, cut at a bound.
pub(crate) fn printed(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // An error of the program is what is told; this is only its text.
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(MOST_OUTPUT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn start(command: &mut Command, tool: &'static str) -> Result<Running> {
    command.spawn().map(Running).map_err(|error| match error.kind() {
        ErrorKind::NotFound => DebianError::MissingTool { tool },
        _ => DebianError::Io { operation: "start", path: tool.into(), source: error },
    })
}

/// Runs to the end. `glance` is called again and again and returns a number that changes as long as the program gets on;
/// one that does not for too long is stopped.
pub(crate) fn finish(
    mut command: Command,
    tool: &'static str,
    stdin: Stdio,
    mut glance: impl FnMut() -> u64,
) -> Result<Finished> {
    let (mut stdout, mut stderr) = (nameless()?, nameless()?);
    let copy = |file: &File| file.try_clone().map_err(io("copy a descriptor for", tool));
    command.stdin(stdin).stdout(copy(&stdout)?).stderr(copy(&stderr)?);
    let mut child = start(&mut command, tool)?;
    let mut last = (glance(), Instant::now());
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(io("wait for", tool))? {
            break status;
        }
        std::thread::sleep(GLANCE);
        let now = glance();
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > STALL {
            return Err(DebianError::Stalled { what: tool, limit: STALL });
        }
    };
    glance();
    Ok(Finished { status, stdout: printed(&mut stdout), stderr: printed(&mut stderr) })
}
