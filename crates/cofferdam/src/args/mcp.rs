//! The words of `cofferdam mcp`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use cofferdam::{ByteSize, Level, parse_duration};

use super::{LimitArgs, PlaceArgs};

const HELP: &str = "\
Examples:
  cofferdam mcp                                     one client, over standard input and output
  cofferdam mcp --workspace ~/project --disk none   all sandboxes work in one directory of this machine
  cofferdam mcp --http 127.0.0.1:8765               many clients, at http://127.0.0.1:8765/mcp
  COFFERDAM_MCP_TOKEN=… cofferdam mcp --http 192.0.2.7:8765

What is set here holds for every sandbox; nothing that a client sends widens it. With --workspace all
clients share the files of that directory; without it each sandbox has its own. docs/mcp.md has the
tools, and how clients are told of this server. SIGTERM and SIGINT close everything and end it.";

/// `cofferdam mcp`.
#[derive(Debug, Default, Args)]
#[command(after_help = HELP)]
pub struct McpArgs {
    /// Listen on this address, instead of serving one client over standard input and output
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,

    /// File with the token that clients over HTTP must present; COFFERDAM_MCP_TOKEN may hold it instead. Needed where others
    /// than this machine can connect
    #[arg(long, value_name = "FILE", requires = "http")]
    pub token_file: Option<PathBuf>,

    /// Another name by which requests may call this server
    #[arg(long, value_name = "NAME[:PORT]", requires = "http")]
    pub allow_host: Vec<String>,

    /// Another origin of web pages that may call this server, such as https://example.com
    #[arg(long, value_name = "ORIGIN", requires = "http")]
    pub allow_origin: Vec<String>,

    /// Sandboxes at once [default: 32]
    #[arg(long, value_name = "N")]
    pub sandboxes: Option<usize>,

    /// Sandboxes of one client at once [default: 8]
    #[arg(long, value_name = "N")]
    pub sandboxes_of_client: Option<usize>,

    /// Time after which a sandbox is closed that no call uses [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub idle: Option<Duration>,

    /// Calls at once [default: 16]
    #[arg(long, value_name = "N")]
    pub calls: Option<usize>,

    /// The largest file that is read or written at once [default: 8M]
    #[arg(long, value_name = "SIZE")]
    pub max_file: Option<ByteSize>,

    /// Least thickness of the wall: wasm (1), process (2), container, vm (3)
    #[arg(long)]
    pub level: Option<Level>,

    /// Backend that makes the sandboxes; see `cofferdam backends`
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub place: PlaceArgs,
}
