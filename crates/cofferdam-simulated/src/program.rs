//! The language of simulated guests.

use cofferdam_contract::{Error, ExecRequest, ExecRequestBuilder, OutputStream, Result};
use serde::{Deserialize, Serialize};

/// The name of the only program: `["sim", STEPS]`, where STEPS is a [`Program`] as JSON.
pub const PROGRAM: &str = "sim";

/// The reaction of a program to SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnTerm {
    /// The program dies of the signal.
    #[default]
    Die,
    /// The program continues.
    Ignore,
    /// The program exits with this code.
    Exit(i32),
}

/// A step of a program. Paths are relative to the working directory, or begin with `/workspace`. Unless documented
/// otherwise, a step that fails prints an error to standard error and ends the program with code 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Step {
    /// Prints text.
    Print {
        /// The stream.
        stream: OutputStream,
        /// The text.
        text: String,
    },
    /// Prints bytes to standard output.
    PrintBytes(Vec<u8>),
    /// Prints `text` repeatedly to standard output, cut at `total` bytes.
    PrintRepeated {
        /// The repeated text.
        text: String,
        /// The number of bytes in total.
        total: u64,
    },
    /// Prints each variable as `NAME=value` followed by NUL.
    PrintEnvironment,
    /// Prints the working directory and a newline.
    PrintWorkingDirectory,
    /// Exits with this code.
    Exit(i32),
    /// Dies of this signal.
    Die(i32),
    /// Sleeps.
    Sleep {
        /// The time in milliseconds.
        millis: u64,
    },
    /// Sleeps forever.
    SleepForever,
    /// Sets the reaction to SIGTERM.
    OnTerm(OnTerm),
    /// Closes both output streams. Later output is discarded.
    CloseOutput,
    /// Copies standard input to standard output until end-of-file.
    CopyInput,
    /// Prints the number of input bytes and a newline.
    CountInput,
    /// Reads a line of input, or until its end.
    ReadLine,
    /// Creates or replaces a file.
    WriteFile {
        /// The file.
        path: String,
        /// The contents.
        contents: String,
    },
    /// Creates a file or appends to it.
    AppendFile {
        /// The file.
        path: String,
        /// The contents to append.
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
        /// True if the link atomically replaces an existing one.
        #[serde(default)]
        replace: bool,
    },
    /// Creates a FIFO.
    MakeFifo {
        /// The FIFO.
        path: String,
    },
    /// Allocates memory until the exec's end. Over the limit, the program is killed.
    Allocate {
        /// The number of bytes.
        bytes: u64,
    },
    /// Starts a child that allocates memory. Over the limit, the child is killed. Prints `child N`: 0, or minus the
    /// signal.
    AllocateInChild {
        /// The number of bytes.
        bytes: u64,
    },
    /// Computes forever in this many processes, including the program itself.
    Spin {
        /// The number of processes.
        processes: u32,
    },
    /// Starts up to `count` children, as many as the limit allows, prints `forked N`, and ends them.
    Fork {
        /// The maximum number of children.
        count: u32,
    },
    /// Writes up to `bytes` zeros into a file, as many as the limit allows, and prints `stored N`. Exits with code 28
    /// if not all fit.
    FillDisk {
        /// The file.
        path: String,
        /// The maximum number of bytes.
        bytes: u64,
    },
    /// Prints `tty ROWS COLUMNS` or `no tty`, now and after each resize, forever.
    WatchTerminal,
    /// Prints the number of processes in the sandbox and a newline.
    CountProcesses,
    /// Repeats steps.
    Repeat {
        /// The number of repetitions. Forever if `None`.
        times: Option<u64>,
        /// The steps to repeat.
        steps: Vec<Step>,
    },
    /// Executes these steps beside the program, as a grandchild that only SIGKILL ends.
    Daemon(Vec<Step>),
}

/// A sequence of steps. After the last one, the program exits with code 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Program(pub Vec<Step>);

impl Program {
    /// Creates a program of these steps.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self(steps.into_iter().collect())
    }

    /// Creates a program that prints a line and exits with `code`.
    pub fn print(line: impl AsRef<str>, code: i32) -> Self {
        let text = format!("{}\n", line.as_ref());
        Self::new([Step::Print { stream: OutputStream::Stdout, text }, Step::Exit(code)])
    }

    /// Returns the request that runs the program, with defaults for everything else.
    pub fn request(&self) -> ExecRequestBuilder {
        // Every step has a JSON form: its fields are text, numbers and lists of them.
        let steps = serde_json::to_string(self).unwrap_or_default();
        ExecRequest::argv([PROGRAM.to_owned(), steps])
    }

    pub(crate) fn parse(args: &[String]) -> Result<Self> {
        let [steps] = args else {
            return Err(Error::invalid("start", "'sim' takes one argument, its steps as JSON"));
        };
        serde_json::from_str(steps)
            .map_err(|error| Error::invalid("start", "the steps of 'sim' are invalid").with_source(error))
    }
}
