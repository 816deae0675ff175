//! Guest programs of the suite, described independently of any backend.

use std::fmt;

use cofferdam_contract::ExecRequestBuilder;
use serde::{Deserialize, Serialize};

/// The line that a program that runs forever prints, followed by a newline, once it is set up.
pub const READY: &str = "ready";

/// A small program for a guest. Paths are relative to the workspace, where the program starts, unless they begin with
/// `/`. Unless documented otherwise, a step that fails ends the program with a non-zero code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GuestProgram {
    /// Exits with code 0 and prints nothing.
    Succeed,
    /// Exits with this code.
    Exit(u8),
    /// Ends by sending this signal to itself.
    KillSelf(u8),
    /// Prints to both streams.
    Print {
        /// The text for standard output.
        stdout: String,
        /// The text for standard error.
        stderr: String,
    },
    /// Prints `line` and a newline repeatedly to standard output, cut at `total` bytes.
    PrintRepeated {
        /// The line.
        line: String,
        /// The number of bytes in total.
        total: u64,
    },
    /// Prints `o1`, `o2`, … to standard output and `e1`, `e2`, … to standard error, alternating, a line each.
    PrintNumbered {
        /// The number of lines on each stream.
        count: u32,
    },
    /// Prints the 256 byte values in order.
    PrintAllBytes,
    /// Prints `before`, waits for a line of input, prints `after`.
    PrintAroundInput {
        /// The text before the input.
        before: String,
        /// The text after the input.
        after: String,
    },
    /// Copies standard input to standard output until end-of-file, then exits with `code`.
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
    /// Prints [`READY`], then sleeps forever.
    SleepForever,
    /// Ignores SIGTERM, prints [`READY`], then sleeps forever.
    IgnoreTermAndSleep,
    /// Exits with `code` on SIGTERM. Prints [`READY`], then sleeps forever.
    ExitOnTerm {
        /// The exit code.
        code: u8,
    },
    /// Prints [`READY`], closes standard output and error, then sleeps forever.
    CloseOutputAndSleep,
    /// Starts a grandchild in a session of its own that ignores SIGTERM and appends a byte to `heartbeat` about every
    /// 50 ms. Then prints [`READY`] and sleeps forever.
    DaemoniseAndSleep {
        /// The file that grows.
        heartbeat: String,
    },
    /// Starts a grandchild in a session of its own that computes forever. Then prints [`READY`] and sleeps forever.
    DaemoniseAndSpin,
    /// Writes a file.
    WriteFile {
        /// The file.
        path: String,
        /// The contents.
        contents: String,
    },
    /// Prints a file.
    ReadFile {
        /// The file.
        path: String,
    },
    /// Creates a directory.
    MakeDirectory {
        /// The directory.
        path: String,
    },
    /// Creates a symbolic link.
    MakeSymlink {
        /// The link.
        path: String,
        /// The link's target.
        target: String,
    },
    /// Creates a FIFO.
    MakeFifo {
        /// The FIFO.
        path: String,
    },
    /// Creates `count` empty files named `f0`, `f1`, … in the directory `path`.
    MakeFiles {
        /// The directory.
        path: String,
        /// The number of files.
        count: u32,
    },
    /// Appends a byte to a file `count` times, each with a write of its own.
    Append {
        /// The file.
        path: String,
        /// The number of writes.
        count: u32,
    },
    /// Renames a file, link or directory.
    Rename {
        /// The former path.
        from: String,
        /// The new path.
        to: String,
    },
    /// Removes a file, link or directory with its contents.
    Remove {
        /// The path.
        path: String,
    },
    /// Exchanges a directory and a link to `target` at `path`, by renames, forever. Prints [`READY`] once the directory
    /// exists.
    SwapDirectoryForever {
        /// The directory.
        path: String,
        /// The target of the link.
        target: String,
    },
    /// Makes `path` a link to `inside` and to `outside` alternately, by atomic replacement, forever. Prints [`READY`]
    /// once the link exists.
    SwapSymlinkForever {
        /// The link.
        path: String,
        /// A target inside the workspace.
        inside: String,
        /// A target outside the workspace.
        outside: String,
    },
    /// Allocates `bytes` of memory in total, spread over this many processes, and touches every page. Prints
    /// `allocated` if all of it was allocated at the same time. Otherwise exits with a non-zero code or is killed.
    AllocateMemory {
        /// The number of bytes in total.
        bytes: u64,
        /// The number of processes. 1 means the program itself.
        processes: u32,
    },
    /// Starts a child that allocates `bytes` of memory and touches every page. Prints `child N`, where N is the child's
    /// exit code or minus the signal that killed it, and exits with `code`.
    AllocateMemoryInChild {
        /// The number of bytes that the child allocates.
        bytes: u64,
        /// The exit code of the program itself.
        code: u8,
    },
    /// Computes forever in this many processes.
    SpinCpu {
        /// The number of processes.
        processes: u32,
    },
    /// Starts up to `count` children that stay alive, until one is refused. Prints `forked N`, ends them, and exits
    /// with code 0.
    Fork {
        /// The maximum number of children.
        count: u32,
    },
    /// Writes `bytes` bytes into a file and prints `stored N`, the resulting size. Exits with code 28 if not all fit.
    FillDisk {
        /// The file.
        path: String,
        /// The number of bytes.
        bytes: u64,
    },
    /// Writes up to `bytes` bytes into each writable directory, prints `stored N`, the sum, and exits with code 0.
    FillEveryDirectory {
        /// The maximum number of bytes in each directory.
        bytes: u64,
    },
    /// Prints `tty ROWS COLUMNS` or `no tty`, at the start and after each resize, forever.
    WatchTerminal,
    /// Prints the kernel's status of this process: `/proc/self/status`.
    PrintStatus,
    /// Prints the number of visible processes, and a newline.
    CountProcesses,
    /// Tries to connect by TCP, prints `connected` or `refused`, and exits with code 0.
    Connect {
        /// An address.
        host: String,
        /// A port.
        port: u16,
    },
    /// Looks up the IPv4 address of a name, prints `found` or `unknown`, and exits with code 0.
    LookUp {
        /// The name.
        name: String,
    },
    /// Serves TCP connections to the IPv4 loopback address: sends back what arrives, then `end N` and a newline, where N
    /// is the number of bytes, and closes. Prints [`READY`] once it listens, and serves forever.
    EchoConnections {
        /// The port.
        port: u16,
    },
    /// A program that does not exist.
    Missing,
    /// The file at `path` in the workspace, executed as a program.
    RunFile {
        /// The file.
        path: String,
    },
    /// A sequence of the above, of programs that end by themselves, in one program. Stops at the first failure.
    Sequence(Vec<GuestProgram>),
}

impl GuestProgram {
    /// Returns the variant's name, for messages.
    pub fn name(&self) -> String {
        let debug = format!("{self:?}");
        debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }
}

/// The implementation of the suite's programs for a backend's guests.
pub trait Programs: Send + Sync + fmt::Debug {
    /// Returns a request that runs `program`, or `None` if these guests cannot. The cases that need it are then
    /// skipped.
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
