//! Arguments of `cofferdam mcp`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use cofferdam::{ByteSize, Level, parse_duration};

use super::{LimitArgs, SandboxArgs, VolumeMountArgs};

const HELP: &str = "\
Examples:
  cofferdam mcp                                     one client, over standard input and output
  cofferdam mcp --workspace ~/project:rw --disk none   mount one host directory in all sandboxes
  cofferdam mcp --http 127.0.0.1:8765               many clients, at http://127.0.0.1:8765/mcp
  COFFERDAM_MCP_TOKEN=… cofferdam mcp --http 192.0.2.7:8765

These settings apply to every sandbox. Requests of clients can only tighten them. --workspace needs a
mode: with :rw and :ro, all clients share the files of DIR; with :cow, each sandbox has its own copy.
Without the option, each sandbox has an empty workspace.
docs/mcp.md lists the tools and the configuration of clients. SIGTERM and SIGINT close all sandboxes
and stop the server.";

/// `cofferdam mcp`.
#[derive(Debug, Default, Args)]
#[command(after_help = HELP)]
pub struct McpArgs {
    /// Listen on this address instead of serving one client over standard input and output
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,

    /// Read the token that HTTP clients must present from this file instead of COFFERDAM_MCP_TOKEN; required if other
    /// hosts can connect
    #[arg(long, value_name = "FILE", requires = "http")]
    pub token_file: Option<PathBuf>,

    /// Accept requests for this host name too
    #[arg(long, value_name = "NAME[:PORT]", requires = "http")]
    pub allow_host: Vec<String>,

    /// Accept requests of web pages with this origin, such as https://example.com
    #[arg(long, value_name = "ORIGIN", requires = "http")]
    pub allow_origin: Vec<String>,

    /// Limit the number of sandboxes [default: 32]
    #[arg(long, value_name = "N")]
    pub sandboxes: Option<usize>,

    /// Limit the number of sandboxes per client [default: 8]
    #[arg(long, value_name = "N")]
    pub sandboxes_of_client: Option<usize>,

    /// Close a sandbox that no call used for this time [default: 15m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub idle: Option<Duration>,

    /// Limit concurrent calls [default: 16]
    #[arg(long, value_name = "N")]
    pub calls: Option<usize>,

    /// Limit the size of a file that one call reads or writes [default: 8M]
    #[arg(long, value_name = "SIZE")]
    pub max_file: Option<ByteSize>,

    /// Require at least this isolation level: wasm (1), process (2), container, vm (3)
    #[arg(long)]
    pub level: Option<Level>,

    /// Select the backend of the sandboxes; `cofferdam backends` lists them
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub sandbox: SandboxArgs,

    #[command(flatten)]
    pub volumes: VolumeMountArgs,
}
