//! Arguments of `cofferdam snapshot save`, `restore` and `inspect`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use cofferdam::{ByteSize, TenantId, parse_duration};

use super::{LimitArgs, OutputArgs, RunArgs, SandboxArgs, StartArgs};
use cofferdam::configuration::Bound;

const SAVE_USAGE: &str = "\
cofferdam snapshot save [OPTIONS] --out FILE -- COMMAND [ARGS]...
       cofferdam snapshot save [OPTIONS] --out FILE PROGRAM [ARGS]...";

/// `cofferdam snapshot save`.
#[derive(Debug, Default, Args)]
#[command(override_usage = SAVE_USAGE)]
pub struct SaveArgs {
    /// Run PROGRAM with its arguments, or after `--` a command with its arguments
    #[arg(trailing_var_arg = true, value_name = "PROGRAM [ARGS] | -- COMMAND")]
    pub words: Vec<String>,

    /// Write to this file; it appears complete or not at all
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,

    /// Save when the command has run for this time [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    #[arg(conflicts_with_all = ["when_prints", "when_done"])]
    pub after: Option<Duration>,

    /// Save when the command prints this text
    #[arg(long, value_name = "TEXT", conflicts_with = "when_done")]
    pub when_prints: Option<String>,

    /// Save when the command has exited, with its files and the processes that it left running
    #[arg(long)]
    pub when_done: bool,

    /// Encrypt with the key in this file: 32 bytes or 64 hexadecimal digits, readable only by its owner
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// Set the compression level, from 1 (fast) to 19 (small) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub compression: Option<i32>,

    /// Set the language of the code instead of deriving it from PROGRAM's extension
    #[arg(long, value_name = "LANG")]
    pub lang: Option<String>,

    /// Run this code instead of PROGRAM; needs --lang
    #[arg(long, value_name = "TEXT", requires = "lang", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// Select the VM backend: vm, vm:qemu or vm:firecracker [default: vm]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub sandbox: SandboxArgs,

    #[command(flatten)]
    pub start: StartArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,

    /// True if `--` precedes the words; set after parsing.
    #[arg(skip)]
    pub separated: bool,
}

/// Output options of snapshot commands.
#[derive(Debug, Default, Clone, Copy, Args)]
#[command(next_help_heading = "Output")]
pub struct AnswerArgs {
    /// Print only one JSON document, at the end
    #[arg(long)]
    pub json: bool,

    /// Print the output with its terminal control sequences instead of escaping them
    #[arg(long)]
    pub raw_output: bool,

    /// Print no messages on standard error except errors
    #[arg(long, short)]
    pub quiet: bool,
}

impl AnswerArgs {
    fn output(self) -> OutputArgs {
        let Self { json, raw_output, quiet } = self;
        OutputArgs { json, raw_output, quiet, ..OutputArgs::default() }
    }
}

impl SaveArgs {
    /// Takes the arguments of the run to save out of these arguments.
    pub fn take_run(&mut self) -> RunArgs {
        RunArgs {
            words: std::mem::take(&mut self.words),
            backend: self.backend.take().or_else(|| Some(cofferdam::registry::VM_BACKEND.to_owned())),
            lang: self.lang.take(),
            code: self.code.take(),
            limits: std::mem::take(&mut self.limits),
            sandbox: std::mem::take(&mut self.sandbox),
            start: std::mem::take(&mut self.start),
            output: self.answer.output(),
            separated: self.separated,
            ..RunArgs::default()
        }
    }
}

/// `cofferdam snapshot restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Restore this file of `cofferdam snapshot save`
    pub file: PathBuf,

    /// Run this command with its arguments in the VM, or pass arguments to --code, then stop the VM
    #[arg(last = true, value_name = "COMMAND")]
    pub words: Vec<String>,

    /// Set the language of --code
    #[arg(long, value_name = "LANG", requires = "code")]
    pub lang: Option<String>,

    /// Run this code in the VM instead of COMMAND, after static analysis like other code; needs --lang
    #[arg(long, value_name = "TEXT", requires = "lang", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// Let the VM run for this time before COMMAND starts or the VM stops [default: without COMMAND, until interrupted]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub time: Option<Duration>,

    /// Decrypt with the key in this file
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// Limit the size of the workspace [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub max_disk: Option<ByteSize>,

    /// Print the output of the restored program and exit with its status, then stop the VM
    #[arg(long, conflicts_with_all = ["words", "code", "time", "stdin"])]
    pub attach: bool,

    /// Restore on behalf of this tenant; snapshots of other tenants are refused [default: that of the configuration
    /// file, else default]
    #[arg(long, value_name = "NAME", value_parser = |text: &str| TenantId::new(text))]
    pub tenant: Option<TenantId>,

    #[command(flatten)]
    pub limits: LimitArgs,

    /// Pass standard input to COMMAND
    #[arg(long, conflicts_with = "json")]
    pub stdin: bool,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

impl RestoreArgs {
    /// Returns the arguments of the run of COMMAND.
    ///
    /// These limits also bound the archive.
    pub fn run(&mut self) -> RunArgs {
        let mut limits = std::mem::take(&mut self.limits);
        limits.disk = limits.disk.or(self.max_disk.map(Bound::Of));
        RunArgs {
            words: self.words.clone(),
            lang: self.lang.clone(),
            code: self.code.clone(),
            backend: Some(cofferdam::registry::VM_BACKEND.to_owned()),
            limits,
            sandbox: SandboxArgs { tenant: self.tenant.clone(), ..SandboxArgs::default() },
            output: OutputArgs { stdin: self.stdin, ..self.answer.output() },
            separated: true,
            ..RunArgs::default()
        }
    }
}

/// `cofferdam snapshot inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Read this file of `cofferdam snapshot save`
    pub file: PathBuf,

    /// Read the whole file and verify every hash
    #[arg(long)]
    pub verify: bool,

    /// Decrypt with the key in this file
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}
