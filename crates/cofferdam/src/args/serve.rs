//! The arguments of `cofferdam serve` that every build has.

use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::configuration::{Bound, parse_bound};
use cofferdam::parse_duration;

#[cfg(feature = "server")]
use super::HttpArgs;
use super::LimitArgs;

#[cfg(feature = "server")]
const SERVE_HELP: &str = "\
Examples:
  cofferdam serve --detach             for this user, in the background
  cofferdam serve status               show its state
  cofferdam serve stop                 stop it
  cofferdam run --use-server start x.py
                                       run a program, and start a server if none is running
  cofferdam keys create --tenant acme && cofferdam serve --listen 127.0.0.1:8080
  cofferdam serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  cofferdam serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --oidc oidc.json
  cofferdam serve --check              check the settings and this host, and exit

A server without --listen and --socket has a private socket, which only its user can access. It runs
the commands of `cofferdam run`, and answers HTTP without keys.
Limits are those of sandboxes that set none, and the most that a client of HTTP can set.
docs/server-api.md describes the API. SIGTERM and SIGINT drain: new sandboxes are refused, runs and
requests end, then all sandboxes are closed. A second signal ends the server at once. SIGUSR2 starts
the program again, hands the sockets of --listen and --socket over to it, and ends this process with
its sandboxes.";

#[cfg(not(feature = "server"))]
const SERVE_HELP: &str = "\
Examples:
  cofferdam serve --detach             start a server in the background
  cofferdam serve status               show its state
  cofferdam serve stop                 stop it
  cofferdam run --use-server start x.py
                                       run a program, and start a server if none is running

The server listens on a socket that only its user can access. `cofferdam run` uses it while it runs.
This build serves no HTTP. SIGTERM and SIGINT let current runs finish; a second signal kills them.";

/// `cofferdam serve`.
#[derive(Debug, Default, Args)]
#[command(after_help = SERVE_HELP, args_conflicts_with_subcommands = true)]
pub struct ServeArgs {
    /// Query or stop a running server instead of starting one
    #[command(subcommand)]
    pub command: Option<ServeCommand>,

    /// Detach from the terminal once the server listens
    #[arg(long)]
    pub detach: bool,

    /// Serve this backend, the first one by default; may be repeated [default: process]
    #[arg(long, value_name = "NAME")]
    pub backend: Vec<String>,

    /// Wait at most this long for runs and requests after a stop request [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub drain: Option<Duration>,

    /// Exit after this time without use; only with the private socket [default: none; 15m if a run started the server]
    #[arg(long, value_name = "DURATION", value_parser = parse_bound::<Duration>)]
    pub idle_exit: Option<Bound<Duration>>,

    /// Limit concurrent commands of `cofferdam run` on the private socket; more are executed by their own process [default: 32]
    #[arg(long, value_name = "N")]
    pub max_runs: Option<usize>,

    #[command(flatten)]
    pub prepared: PreparedArgs,

    #[cfg(feature = "server")]
    #[command(flatten)]
    pub http: HttpArgs,

    #[command(flatten)]
    pub limits: LimitArgs,

    /// Mark the server as started by a run
    #[arg(long, hide = true)]
    pub on_demand: bool,

    /// Set the stage of detaching
    #[arg(long, hide = true)]
    pub stage: Option<u8>,
}

/// The sandboxes and interpreters that a server prepares.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Prepared sandboxes")]
pub struct PreparedArgs {
    /// Keep this many sandboxes of the default backend prepared [default: 2; 0 for e2b and remote]
    #[arg(long, value_name = "N")]
    pub warm: Option<usize>,

    /// Keep this many Python interpreters prepared [default: 1; 0 for e2b and remote]
    #[arg(long, value_name = "N")]
    pub python: Option<usize>,

    /// Import these modules in prepared Python interpreters
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub python_modules: Vec<String>,

    /// Keep this many Node interpreters prepared [default: 1; 0 for e2b and remote]
    #[arg(long, value_name = "N")]
    pub node: Option<usize>,

    /// Load these modules in prepared Node interpreters
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub node_modules: Vec<String>,
}

/// Commands for a running server.
#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    /// Show the state of this user's server; the exit status is 1 if none is running
    Status {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Stop this user's server and wait until it has exited
    Stop,
}
