//! Programs of the host: started with the caller's environment, since that may name a proxy, and watched.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use cofferdam_linux::programs;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{DebianError, Result, io};

/// How long a program may wait for the network without a byte.
const STALL: Duration = Duration::from_secs(180);
/// How often a program is looked at.
const GLANCE: Duration = Duration::from_millis(50);
/// The most that is kept of what a program prints.
const MAX_OUTPUT: u64 = 16 << 20;

/// What ends a program with its starter. The shell is told by the kernel that its parent ended, and kills all in its process
/// group. The program itself could not be: apt changes its user for a while, and the kernel forgets it then. The first word is the
/// parent's number, which may have ended before anybody was asked to tell; the others are the program.
const TIED: &str = "trap 'kill -KILL 0' TERM; test \"$PPID\" = \"$0\" || exit 1; exec 3<&0; \"$@\" <&3 3<&- & wait $!";

/// What a program left.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A child that does not outlive this value, nor does its process group, if it has one of its own.
pub(crate) struct Running {
    pub(crate) child: Child,
    reach: Reach,
}

/// What belongs to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Itself,
    Group,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its number is nobody else's before it was waited for.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if self.reach == Reach::Group
            && let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // All of it may be ending just now.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // It has ended in most cases; then both fail and that is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that is killed with all that it started when this process ends, however it ends. The kernel ties that to the thread
/// that starts it, which [`finish_tied`] keeps until the program has ended.
fn tied(tool: &'static str) -> Result<Command> {
    // Started by the shell, which finds it in the same directories.
    command(tool)?;
    let mut command = command("setpriv")?;
    command.args(["--pdeathsig", "TERM", "sh", "-c", TIED, &std::process::id().to_string(), tool]).process_group(0);
    Ok(command)
}

/// Returns a command for a program of the host.
pub(crate) fn command(tool: &'static str) -> Result<Command> {
    programs::command(tool).map_err(|distrust| match distrust.is_missing() {
        true => DebianError::MissingTool { tool },
        false => DebianError::UntrustedTool { tool, distrust },
    })
}

/// A file without a name, for what a program prints.
pub(crate) fn nameless() -> Result<File> {
    tempfile::tempfile().map_err(io("make a temporary file in", std::env::temp_dir()))
}

/// What was written into such a file, cut at a bound.
pub(crate) fn printed(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // An error of the program is what is told; this is only its text.
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(MAX_OUTPUT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn start(command: &mut Command, tool: &'static str) -> Result<Running> {
    start_with(command, tool, Reach::Itself)
}

fn start_with(command: &mut Command, tool: &'static str, reach: Reach) -> Result<Running> {
    command.spawn().map(|child| Running { child, reach }).map_err(|error| match error.kind() {
        // What ties a program to this process is one of its own.
        ErrorKind::NotFound if command.get_program() == "setpriv" => DebianError::MissingTool { tool: "setpriv" },
        ErrorKind::NotFound => DebianError::MissingTool { tool },
        _ => DebianError::Io { operation: "start", path: tool.into(), source: error },
    })
}

/// Runs to the end what takes a moment.
pub(crate) fn finish(command: &mut Command, tool: &'static str) -> Result<Finished> {
    watch(command, tool, Reach::Itself, || 0)
}

/// Runs to the end what may take long, tied to this process; `prepare` gives it its arguments. `glance` is called again and again and
/// returns a number that changes as long as the program gets on; one that does not for too long is stopped.
pub(crate) fn finish_tied(
    tool: &'static str,
    prepare: impl FnOnce(&mut Command),
    glance: impl FnMut() -> u64,
) -> Result<Finished> {
    let mut command = tied(tool)?;
    prepare(&mut command);
    watch(&mut command, tool, Reach::Group, glance)
}

fn watch(command: &mut Command, tool: &'static str, reach: Reach, mut glance: impl FnMut() -> u64) -> Result<Finished> {
    let (mut stdout, mut stderr) = (nameless()?, nameless()?);
    let copy = |file: &File| file.try_clone().map_err(io("copy a descriptor for", tool));
    command.stdout(copy(&stdout)?).stderr(copy(&stderr)?);
    let mut running = start_with(command, tool, reach)?;
    let mut last = (glance(), Instant::now());
    let status = loop {
        if let Some(status) = running.child.try_wait().map_err(io("wait for", tool))? {
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
