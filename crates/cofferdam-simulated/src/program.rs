//! The language of simulated guests.

use cofferdam_contract::{Error, ExecRequest, ExecRequestBuilder, OutputStream, Result};
use serde::{Deserialize, Serialize};

/// The name of the one program there is: `["sim", STEPS]`, where STEPS is a [`Program`] as JSON.
pub const PROGRAM: &str = "sim";

/// What a program does when it is sent SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnTerm {
    /// It dies of it.
    #[default]
    Die,
    /// It goes on.
    Ignore,
    /// It ends with this code.
    Exit(i32),
}

/// One step of a program. Paths are relative to the working directory, or begin with `/workspace`. A step that fails
/// says so on standard error and ends the program with code 1, unless its description says more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Step {
    /// Prints text.
    Print {
        /// Where to.
        stream: OutputStream,
        /// What.
        text: String,
    },
    /// Prints bytes to standard output.
    PrintBytes(Vec<u8>),
    /// Prints `text` again and again to standard output, cut at `total` bytes.
    PrintRepeated {
        /// What.
        text: String,
        /// Bytes in all.
        total: u64,
    },
    /// Prints each variable as `NAME=value` followed by NUL.
    PrintEnvironment,
    /// Prints the working directory and a newline.
    PrintWorkingDirectory,
    /// Ends with this code.
    Exit(i32),
    /// Dies of this signal.
    Die(i32),
    /// Sleeps.
    Sleep {
        /// How long.
        millis: u64,
    },
    /// Sleeps for ever.
    SleepForever,
    /// Chooses what SIGTERM does from now on.
    OnTerm(OnTerm),
    /// Closes both output streams; what is printed from then on is gone.
    CloseOutput,
    /// Copies standard input to standard output until end-of-file.
    CopyInput,
    /// Prints the number of input bytes and a newline.
    CountInput,
    /// Waits for a line of input or its end.
    ReadLine,
    /// Makes or replaces a file.
    WriteFile {
        /// Where.
        path: String,
        /// What.
        contents: String,
    },
    /// Makes a file or adds to it.
    AppendFile {
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
        /// Whether a link of that name gives way, in one step.
        #[serde(default)]
        replace: bool,
    },
    /// Makes a fifo.
    MakeFifo {
        /// Where.
        path: String,
    },
    /// Takes memory until the exec's end; over the limit the program is killed.
    Allocate {
        /// How much.
        bytes: u64,
    },
    /// Starts a child that takes memory; over the limit the child is killed. Prints `child N`: 0, or minus the signal.
    AllocateInChild {
        /// How much.
        bytes: u64,
    },
    /// Computes for ever in this many processes, the program itself being one.
    Spin {
        /// How many.
        processes: u32,
    },
    /// Starts up to `count` children, as many as the limit leaves; prints `forked N`; ends them.
    Fork {
        /// How many.
        count: u32,
    },
    /// Writes `bytes` zeros into a file, as many as the limit leaves; prints `stored N`; ends with code 28 if not all
    /// fitted.
    FillDisk {
        /// The file.
        path: String,
        /// How many.
        bytes: u64,
    },
    /// Prints `tty ROWS COLUMNS` or `no tty`, now and after each change of size, for ever.
    WatchTerminal,
    /// Prints the number of processes in the sandbox and a newline.
    CountProcesses,
    /// Repeats steps.
    Repeat {
        /// How often; for ever without a number.
        times: Option<u64>,
        /// What.
        steps: Vec<Step>,
    },
    /// Goes on with these steps beside the program, as a grandchild that no signal but SIGKILL ends.
    Daemon(Vec<Step>),
}

/// Steps, one after the other; at their end the program ends with code 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Program(pub Vec<Step>);

impl Program {
    /// A program of these steps.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self(steps.into_iter().collect())
    }

    /// A program that prints a line and ends with `code`.
    pub fn print(line: impl AsRef<str>, code: i32) -> Self {
        let text = format!("{}\n", line.as_ref());
        Self::new([Step::Print { stream: OutputStream::Stdout, text }, Step::Exit(code)])
    }

    /// The request that runs it, all else default.
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
            .map_err(|error| Error::invalid("start", "the steps of 'sim' are not understood").with_source(error))
    }
}
