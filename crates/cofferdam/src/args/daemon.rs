//! The arguments of `cofferdam daemon`.

use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::configuration::{Bound, parse_bound};
use cofferdam::parse_duration;

const DAEMON_HELP: &str = "\
Examples:
  cofferdam daemon --detach            start a daemon in the background
  cofferdam daemon status              show its state
  cofferdam daemon stop                stop it
  cofferdam run --daemon start x.py    run a program, and start a daemon if none is running

The daemon listens on a socket that only its user can access. `cofferdam run` uses it while it runs.
SIGTERM and SIGINT let current runs finish; a second signal kills them.";

/// `cofferdam daemon`.
#[derive(Debug, Args)]
#[command(after_help = DAEMON_HELP, args_conflicts_with_subcommands = true)]
pub struct DaemonArgs {
    /// Query or stop a running daemon instead of starting one
    #[command(subcommand)]
    pub command: Option<DaemonCommand>,

    /// Detach from the terminal once the daemon listens
    #[arg(long)]
    pub detach: bool,

    /// Select the backend of the sandboxes
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    /// Exit after this time without a run [default: none; 15m if a run started the daemon]
    #[arg(long, value_name = "DURATION", value_parser = parse_bound::<Duration>)]
    pub idle_exit: Option<Bound<Duration>>,

    /// Let runs continue for this time after a stop request [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub drain: Option<Duration>,

    /// Limit concurrent runs; more are executed by their own process [default: 32]
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,

    /// Keep this many sandboxes prepared [default: 2]
    #[arg(long, value_name = "N")]
    pub warm: Option<usize>,

    /// Keep this many Python interpreters prepared [default: 1]
    #[arg(long, value_name = "N")]
    pub python: Option<usize>,

    /// Import these modules in prepared Python interpreters
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub python_modules: Vec<String>,

    /// Keep this many Node interpreters prepared [default: 1]
    #[arg(long, value_name = "N")]
    pub node: Option<usize>,

    /// Load these modules in prepared Node interpreters
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub node_modules: Vec<String>,

    /// Mark the daemon as started by a run
    #[arg(long, hide = true)]
    pub on_demand: bool,

    /// Set the stage of detaching
    #[arg(long, hide = true)]
    pub stage: Option<u8>,
}

/// Commands for a running daemon.
#[derive(Debug, Subcommand)]
pub enum DaemonCommand {
    /// Show the state of the daemon; the exit status is 1 if none is running
    Status {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Stop the daemon and wait until it has exited
    Stop,
}
