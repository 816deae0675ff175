//! Programs of the host. They run with the caller's environment, which may name a proxy, and under supervision.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use cofferdam_linux::programs;
use rustix::process::{Pid, Signal, kill_process_group};

use super::error::{DebianError, Result, io};

/// Maximum time without progress, such as received data.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Interval at which a program is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum output of a program that is kept, in bytes.
const MAX_OUTPUT: u64 = 16 << 20;

/// A script that ends a program with its parent. The kernel signals the shell when its parent ends, and the shell kills
/// its process group. The program itself cannot be signalled so: apt changes its user for a while, which clears the
/// setting. The first argument is the parent's id, because the parent may have ended before the setting took effect.
/// The others are the program.
const TIED: &str = "trap 'kill -KILL 0' TERM; test \"$PPID\" = \"$0\" || exit 1; exec 3<&0; \"$@\" <&3 3<&- & wait $!";

/// The result of a program that has ended.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A child that is killed on drop, with its process group if it has one of its own.
pub(crate) struct Running {
    pub(crate) child: Child,
    reach: Reach,
}

/// The processes that are killed with a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Itself,
    Group,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its id is not reused before it was waited for.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if self.reach == Reach::Group
            && let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // Fails if the group is just ending.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // Usually it has ended. Then both fail, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that is killed, with all its descendants, when this process ends in any way. The kernel ties that
/// to the thread that starts the command, so [`finish_tied`] keeps the thread until the program has ended.
fn tied(tool: &'static str) -> Result<Command> {
    // The shell starts the program and finds it in the same directories.
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

/// Creates an unnamed file for a program's output.
pub(crate) fn nameless() -> Result<File> {
    tempfile::tempfile().map_err(io("create a temporary file in", std::env::temp_dir()))
}

/// Reads the output from such a file, up to the limit.
pub(crate) fn printed(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // The program's own error is reported. This is only its text.
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(MAX_OUTPUT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn start(command: &mut Command, tool: &'static str) -> Result<Running> {
    start_with(command, tool, Reach::Itself)
}

fn start_with(command: &mut Command, tool: &'static str, reach: Reach) -> Result<Running> {
    command.spawn().map(|child| Running { child, reach }).map_err(|error| match error.kind() {
        // The missing program may be `setpriv`, which ties the program to this process.
        ErrorKind::NotFound if command.get_program() == "setpriv" => DebianError::MissingTool { tool: "setpriv" },
        ErrorKind::NotFound => DebianError::MissingTool { tool },
        _ => DebianError::Io { operation: "start", path: tool.into(), source: error },
    })
}

/// Runs a short program to its end.
pub(crate) fn finish(command: &mut Command, tool: &'static str) -> Result<Finished> {
    watch(command, tool, Reach::Itself, || 0)
}

/// Runs a long program to its end, tied to this process. `prepare` sets its arguments. `progress` is called periodically
/// and returns a number that changes while the program makes progress. A program without progress for too long is
/// stopped.
pub(crate) fn finish_tied(
    tool: &'static str,
    prepare: impl FnOnce(&mut Command),
    progress: impl FnMut() -> u64,
) -> Result<Finished> {
    let mut command = tied(tool)?;
    prepare(&mut command);
    watch(&mut command, tool, Reach::Group, progress)
}

fn watch(
    command: &mut Command,
    tool: &'static str,
    reach: Reach,
    mut progress: impl FnMut() -> u64,
) -> Result<Finished> {
    let (mut stdout, mut stderr) = (nameless()?, nameless()?);
    let copy = |file: &File| file.try_clone().map_err(io("copy a descriptor for", tool));
    command.stdout(copy(&stdout)?).stderr(copy(&stderr)?);
    let mut running = start_with(command, tool, reach)?;
    let mut last = (progress(), Instant::now());
    let status = loop {
        if let Some(status) = running.child.try_wait().map_err(io("wait for", tool))? {
            break status;
        }
        std::thread::sleep(POLL_INTERVAL);
        let now = progress();
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > STALL_TIMEOUT {
            return Err(DebianError::Stalled { what: tool, limit: STALL_TIMEOUT });
        }
    };
    progress();
    Ok(Finished { status, stdout: printed(&mut stdout), stderr: printed(&mut stderr) })
}
