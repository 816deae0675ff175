//! What the kit asks guests to do, in words that no backend owns.

use std::fmt;

use cofferdam_contract::ExecRequestBuilder;
use serde::{Deserialize, Serialize};

/// What a program that goes on for ever prints, with a newline, once it is set up.
pub const READY: &str = "ready";

/// A small program for a guest. Paths are relative to the workspace, where the program starts, unless they begin with
/// `/`. A step that fails ends the program with a non-zero code, unless its description says more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GuestProgram {
    /// Ends with code 0 and prints nothing.
    Succeed,
    /// Ends with this code.
    Exit(u8),
    /// Ends by sending this signal to itself.
    KillSelf(u8),
    /// Prints to both streams.
    Print {
        /// To standard output.
        stdout: String,
        /// To standard error.
        stderr: String,
    },
    /// Prints `line` and a newline again and again to standard output, cut at `total` bytes.
    PrintRepeated {
        /// The line.
        line: String,
        /// Bytes in all.
        total: u64,
    },
    /// Prints `o1`, `o2`, … to standard output and `e1`, `e2`, … to standard error, a line each, taking turns.
    PrintNumbered {
        /// Lines on each stream.
        count: u32,
    },
    /// Prints the 256 byte values in order.
    PrintAllBytes,
    /// Prints `before`, waits for a line of input, prints `after`.
    PrintAroundInput {
        /// Before the input.
        before: String,
        /// After it.
        after: String,
    },
    /// Copies standard input to standard output until end-of-file, then ends with `code`.
    CopyInput {
        /// The exit code.
        code: u8,
    },
    /// Prints the number of input bytes and a newline.
    CountInput,
    /// Prints each variable as `NAME=value` followed by NUL.
    PrintEnvironment,
    /// Prints the working directory and a newline.
    PrintWorkingDir,
    /// Prints [`READY`], then sleeps for ever.
    SleepForever,
    /// Ignores SIGTERM, prints [`READY`], then sleeps for ever.
    IgnoreTermAndSleep,
    /// Ends with `code` on SIGTERM; prints [`READY`], then sleeps for ever.
    ExitOnTerm {
        /// The exit code.
        code: u8,
    },
    /// Prints [`READY`], closes standard output and error, then sleeps for ever.
    CloseOutputAndSleep,
    /// Starts a grandchild in a session of its own that ignores SIGTERM and appends a byte to `heartbeat` about every
    /// 50 ms; then prints [`READY`] and sleeps for ever.
    DaemoniseAndSleep {
        /// The file that grows.
        heartbeat: String,
    },
    /// Starts a grandchild in a session of its own that computes for ever; then prints [`READY`] and sleeps for ever.
    DaemoniseAndSpin,
    /// Writes a file.
    WriteFile {
        /// Where.
        path: String,
        /// What.
        contents: String,
    },
    /// Prints a file.
    ReadFile {
        /// Which.
        path: String,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Where.
        path: String,
    },
    /// Makes a symbolic link.
    MakeSymlink {
        /// Where.
        path: String,
        /// What it names.
        target: String,
    },
    /// Makes a fifo.
    MakeFifo {
        /// Where.
        path: String,
    },
    /// Makes `count` empty files named `f0`, `f1`, … in the directory `path`.
    MakeFiles {
        /// The directory.
        path: String,
        /// How many.
        count: u32,
    },
    /// Makes `path` a link to `inside` and to `outside` by turns, each time by an atomic replacement, for ever; prints
    /// [`READY`] once the link is there.
    SwapSymlinkForever {
        /// The link.
        path: String,
        /// A target inside the workspace.
        inside: String,
        /// A target outside.
        outside: String,
    },
    /// Takes `bytes` of memory in all, spread over this many processes at once, and touches every page; prints
    /// `allocated` if all of it was there at once, else ends with another code than 0 or is killed.
    AllocateMemory {
        /// Bytes in all.
        bytes: u64,
        /// Processes, 1 meaning the program itself.
        processes: u32,
    },
    /// Starts a child that takes `bytes` of memory and touches every page; prints `child N`, where N is the child's exit
    /// code or minus the signal that ended it, and ends with `code`.
    AllocateMemoryInChild {
        /// Bytes that the child takes.
        bytes: u64,
        /// The exit code of the program itself.
        code: u8,
    },
    /// Computes for ever in this many processes.
    SpinCpu {
        /// How many.
        processes: u32,
    },
    /// Starts up to `count` children that stay alive, until one is refused; prints `forked N`, ends them, and ends
    /// with code 0.
    Fork {
        /// How many.
        count: u32,
    },
    /// Writes `bytes` bytes into a file; prints `stored N`, the size that it then has; ends with code 28 if not all
    /// fitted.
    FillDisk {
        /// The file.
        path: String,
        /// How many.
        bytes: u64,
    },
    /// Writes up to `bytes` bytes into each directory it can write to; prints `stored N`, the sum; ends with code 0.
    FillEveryDirectory {
        /// How many in each.
        bytes: u64,
    },
    /// Prints `tty ROWS COLUMNS` or `no tty`, at the start and after each change of size; goes on for ever.
    WatchTerminal,
    /// Prints what the kernel says about this process: `/proc/self/status`.
    PrintStatus,
    /// Prints the number of processes that can be seen, and a newline.
    CountProcesses,
    /// Tries to connect by TCP; prints `connected` or `refused`; ends with code 0.
    Connect {
        /// An address.
        host: String,
        /// A port.
        port: u16,
    },
    /// A program that does not exist.
    Missing,
    /// The file at `path` in the workspace, run as a program.
    RunFile {
        /// Which.
        path: String,
    },
    /// Several of the above that end by themselves, one after the other, in one program; stops at the first failure.
    Sequence(Vec<GuestProgram>),
}

impl GuestProgram {
    /// The variant's name, for messages.
    pub fn name(&self) -> String {
        let debug = format!("{self:?}");
        debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }
}

/// Says how a backend's guests run the kit's programs.
pub trait Programs: Send + Sync + fmt::Debug {
    /// A request that runs `program`, or `None` where these guests can't; the cases that need it are then skipped.
    fn request(&self, program: &GuestProgram) -> Option<ExecRequestBuilder>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_and_round_trip() {
        let program = GuestProgram::Sequence(vec![GuestProgram::Exit(3), GuestProgram::Fork { count: 2 }]);
        assert_eq!(program.name(), "Sequence");
        assert_eq!(GuestProgram::CopyInput { code: 1 }.name(), "CopyInput");
        let json = serde_json::to_string(&program).unwrap();
        assert_eq!(serde_json::from_str::<GuestProgram>(&json).unwrap(), program);
    }
}
