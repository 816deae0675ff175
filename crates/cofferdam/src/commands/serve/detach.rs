//! Detaching of a server from the terminal and the process that start it.
//!
//! ```text
//! --detach --starts--> stage 1: session leader --starts--> stage 2: the server
//!     '--waits until it reports that it listens, or exits <------'
//! ```

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SERVING;
use crate::report::{self, FAILED};
use crate::style::Tone;
use crate::terminal::one_line;

/// Timeout until a started server listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of the messages that are read from a starting server.
const MAX_MESSAGES: usize = 64 * 1024;
/// Stage of the session leader.
pub const STAGE_SESSION: u8 = 1;
/// Stage of the server.
pub const STAGE_SERVER: u8 = 2;

/// Starts the first stage with this process's arguments, and waits until the server listens.
pub fn detach() -> Result<u8> {
    let mut child = own_command(STAGE_SESSION).stderr(Stdio::piped()).spawn().map_err(cannot_start)?;
    let stderr = child.stderr.take();
    // The child exits as soon as it has started the server, which inherits the pipe.
    child.wait().map_err(cannot_start)?;
    let messages = stderr.map(read_messages).transpose()?.unwrap_or_default();
    messages.lines().for_each(|line| report::remark(&one_line(line.trim_start_matches("cofferdam: ")), Tone::Good));
    if messages.contains(SERVING) {
        return Ok(0);
    }
    Ok(FAILED)
}

/// Becomes the leader of a session without a terminal, so that signals of the caller's terminal do not reach the
/// server, and starts the server. Does not wait for it, so that the server is reparented.
pub fn lead_session() -> Result<u8> {
    rustix::process::setsid().map_err(|errno| cannot_start(errno.into()))?;
    own_command(STAGE_SERVER).stderr(Stdio::inherit()).spawn().map_err(cannot_start)?;
    Ok(0)
}

/// Returns the command of this process with another stage.
fn own_command(stage: u8) -> Command {
    // An upgrade of the server starts what is at this path then.
    let program = crate::program::path().unwrap_or_else(|_| "cofferdam".into());
    let mut command = Command::new(program);
    let mut words = std::env::args_os().skip(1).peekable();
    while let Some(word) = words.next() {
        if word == "--stage" {
            drop(words.next());
        } else {
            command.arg(word);
        }
    }
    command.args(["--stage", &stage.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn cannot_start(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "serve", "cannot start the server").with_source(error)
}

/// Reads the messages of the server until it closes the pipe or exits.
fn read_messages(mut pipe: impl Read + std::os::fd::AsFd) -> Result<String> {
    let deadline = Instant::now() + START_TIMEOUT;
    let (mut messages, mut piece) = (Vec::new(), [0; 4096]);
    while messages.len() < MAX_MESSAGES {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&limit));
        match ready {
            Ok(0) => {
                return Err(Error::new(ErrorKind::Unavailable, "serve", "the server does not listen within 30 s"));
            }
            Ok(_) => match pipe.read(&mut piece).map_err(cannot_start)? {
                0 => break,
                count => messages.extend_from_slice(&piece[..count]),
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(cannot_start(errno.into())),
        }
    }
    Ok(String::from_utf8_lossy(&messages).into_owned())
}

/// Closes the pipe of the starting process, and leaves its working directory.
pub fn leave_terminal() -> std::io::Result<()> {
    std::env::set_current_dir("/")?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}
