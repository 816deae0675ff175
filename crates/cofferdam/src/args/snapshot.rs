//! The words of `cofferdam snapshot`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::{ByteSize, TenantId, parse_duration};

use super::{LimitArgs, OutputArgs, PlaceArgs, RunArgs, StartArgs};
use crate::bound::Bound;

const SNAPSHOT_HELP: &str = "\
Examples:
  cofferdam snapshot save --out m.snap --when-prints ready -- python3 -c '...'
  cofferdam snapshot inspect --verify m.snap
  cofferdam snapshot restore m.snap -- cat counter
  cofferdam snapshot restore m.snap --attach
  cofferdam snapshot restore m.snap --lang python --code 'print(1)'
  cofferdam snapshot restore m.snap --for 10s

What was in the machine's memory is in the file, passwords and keys too: it is readable by its owner
only. With --key-file it is encrypted, and restored only if it was written by somebody with that key:
  (umask 077; head -c 32 /dev/urandom > m.key)";

/// `cofferdam snapshot`.
#[derive(Debug, Args)]
#[command(after_help = SNAPSHOT_HELP)]
pub struct SnapshotArgs {
    /// What to do
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// What to do with snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Run something in a virtual machine, and freeze it to a file while it runs
    Save(Box<SaveArgs>),
    /// Let a machine go on that was frozen, here
    Restore(Box<RestoreArgs>),
    /// Show what a file holds; needs no machine
    Inspect(InspectArgs),
}

const SAVE_USAGE: &str = "\
cofferdam snapshot save [OPTIONS] --out FILE -- COMMAND [ARGS]...
       cofferdam snapshot save [OPTIONS] --out FILE PROGRAM [ARGS]...";

/// `cofferdam snapshot save`.
#[derive(Debug, Default, Args)]
#[command(override_usage = SAVE_USAGE)]
pub struct SaveArgs {
    /// PROGRAM and its arguments, or after `--` a command and its arguments
    #[arg(trailing_var_arg = true, value_name = "PROGRAM [ARGS] | -- COMMAND")]
    pub words: Vec<String>,

    /// The file to write; it is there whole or not at all
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,

    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,

    /// Freeze when it has run for this time [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with_all = ["when_prints", "when_done"])]
    pub after: Option<Duration>,

    /// Freeze as soon as it prints this text
    #[arg(long, value_name = "TEXT", conflicts_with = "when_done")]
    pub when_prints: Option<String>,

    /// Freeze when it has ended, with the files that it made and what it left running
    #[arg(long)]
    pub when_done: bool,

    /// Encrypt with the key in this file: 32 bytes or 64 hexadecimal digits, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// How hard to compress, from 1 (fast) to 19 (small) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub compression: Option<i32>,

    /// Language of the code, instead of the one that PROGRAM's extension picks
    #[arg(long, value_name = "LANG")]
    pub lang: Option<String>,

    /// Code to run, instead of PROGRAM; needs --lang
    #[arg(long, value_name = "TEXT", requires = "lang", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// Backend of machines: vm, vm:qemu or vm:firecracker [default: vm]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub place: PlaceArgs,

    #[command(flatten)]
    pub start: StartArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,

    /// Whether `--` stood before the words; filled in after parsing.
    #[arg(skip)]
    pub separated: bool,
}

/// How a command on snapshots answers.
#[derive(Debug, Default, Clone, Copy, Args)]
#[command(next_help_heading = "Output")]
pub struct AnswerArgs {
    /// Print one JSON document at the end, and nothing else
    #[arg(long)]
    pub json: bool,

    /// Do not make terminal control sequences in the output harmless
    #[arg(long)]
    pub raw_output: bool,

    /// No remarks of Cofferdam's own on standard error, only errors
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
    /// The run that is to be frozen; what it has of the other arguments is taken away.
    pub fn take_run(&mut self) -> RunArgs {
        RunArgs {
            words: std::mem::take(&mut self.words),
            backend: self.backend.take().or_else(|| Some(cofferdam::registry::MACHINE_BACKEND.to_owned())),
            lang: self.lang.take(),
            code: self.code.take(),
            limits: std::mem::take(&mut self.limits),
            place: std::mem::take(&mut self.place),
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
    /// What `cofferdam snapshot save` wrote
    pub file: PathBuf,

    /// Command to run in the machine, with its arguments, or arguments of --code; then the machine ends
    #[arg(last = true, value_name = "COMMAND")]
    pub words: Vec<String>,

    /// Language of --code
    #[arg(long, value_name = "LANG", requires = "code")]
    pub lang: Option<String>,

    /// Code to run in the machine instead of COMMAND, screened as any; needs --lang
    #[arg(long, value_name = "TEXT", requires = "lang", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// How long the machine runs before COMMAND, or before it ends [default: without COMMAND, until it is interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub time: Option<Duration>,

    /// The key that it was encrypted with
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// The largest workspace that is taken [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub max_disk: Option<ByteSize>,

    /// Show the output of the program that was running, and exit with its status; then the machine ends
    #[arg(long, conflicts_with_all = ["words", "code", "time", "stdin"])]
    pub attach: bool,

    /// Whose work it is: a snapshot of another tenant is refused [default: of the configuration, else default]
    #[arg(long, value_name = "NAME", value_parser = |text: &str| TenantId::new(text))]
    pub tenant: Option<TenantId>,

    #[command(flatten)]
    pub limits: LimitArgs,

    /// Pass standard input on to COMMAND
    #[arg(long, conflicts_with = "json")]
    pub stdin: bool,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

impl RestoreArgs {
    /// What runs COMMAND.
    ///
    /// What the archive may use is bounded by these limits as well.
    pub fn run(&mut self) -> RunArgs {
        let mut limits = std::mem::take(&mut self.limits);
        limits.disk = limits.disk.or(self.max_disk.map(Bound::Of));
        RunArgs {
            words: self.words.clone(),
            lang: self.lang.clone(),
            code: self.code.clone(),
            backend: Some(cofferdam::registry::MACHINE_BACKEND.to_owned()),
            limits,
            place: PlaceArgs { tenant: self.tenant.clone(), ..PlaceArgs::default() },
            output: OutputArgs { stdin: self.stdin, ..self.answer.output() },
            separated: true,
            ..RunArgs::default()
        }
    }
}

/// `cofferdam snapshot inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// What `cofferdam snapshot save` wrote
    pub file: PathBuf,

    /// Read all of it, and compare every hash
    #[arg(long)]
    pub verify: bool,

    /// The key that it was encrypted with
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

impl SnapshotCommand {
    /// Whether the answer is JSON.
    pub fn json(&self) -> bool {
        match self {
            Self::Save(args) => args.answer.json,
            Self::Restore(args) => args.answer.json,
            Self::Inspect(args) => args.json,
        }
    }
}
