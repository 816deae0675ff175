//! Arguments of `cofferdam serve`, of its keys and of its clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::volumes::VolumeMount;
use cofferdam::{Level, NetworkPolicy, SandboxPath, TenantId, parse_duration};

use super::net::read_policy;
use crate::values::{parse_env, parse_label, parse_network};

/// Listeners, sandboxes and quotas of `cofferdam serve` over HTTP.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// Listen on this TCP address, where clients need a key
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<SocketAddr>,

    /// Listen on this Unix socket, where this user needs no key [default: the private one, if there is no --listen]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Use the certificate in this PEM file; it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Use the private key in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Accept the tokens of the OpenID Connect issuer in this JSON file; docs/server-access.md describes it
    #[arg(long, value_name = "FILE", help_heading = "Identity")]
    pub oidc: Option<PathBuf>,

    /// Accept client certificates signed by the authorities in this PEM file; it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Identity")]
    pub tls_client_ca: Option<PathBuf>,

    /// Reject client certificates revoked by the lists in this PEM file; it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_client_ca", help_heading = "Identity")]
    pub tls_client_crl: Option<PathBuf>,

    /// Require a certificate of every client, or let clients without one use a key [default: optional]
    #[arg(long, value_name = "WHEN", requires = "tls_client_ca", help_heading = "Identity")]
    pub client_certificates: Option<ClientCertificatesUse>,

    /// Map names in certificates of clients to tenants by this JSON file [default: cofferdam://tenant/NAME]
    #[arg(long, value_name = "FILE", requires = "tls_client_ca", help_heading = "Identity")]
    pub client_rules: Option<PathBuf>,

    /// Accept that other hosts can read keys and answers
    #[arg(long)]
    pub without_tls: bool,

    /// Accept every client that can connect, as the tenant of --tenant
    #[arg(long)]
    pub without_keys: bool,

    /// Let clients choose an image
    #[arg(long)]
    pub allow_images: bool,

    /// Let clients set a network policy of public host names
    #[arg(long)]
    pub allow_network: bool,

    /// The plugins.
    #[cfg(feature = "plugins")]
    #[command(flatten)]
    pub plugins: super::ServePluginsArgs,

    /// Forward requests for PORT-SANDBOX.DOMAIN to ports of sandboxes; the names must have this server's address
    #[arg(long, value_name = "DOMAIN")]
    pub port_domain: Option<String>,

    /// Use this tenant for callers without a key
    #[arg(long, value_parser = |text: &str| TenantId::new(text))]
    pub tenant: Option<TenantId>,

    /// Close a sandbox that was not used for this time, if its creator sets none [default: 15m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub idle: Option<Duration>,

    /// Close a sandbox after this time, if its creator sets none [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub life: Option<Duration>,

    /// Limit the lifetime that a creator can set [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub max_life: Option<Duration>,

    /// Close the remaining sandboxes this long after another process took over [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub handover: Option<Duration>,

    /// Take over from the process at the other end of standard input
    #[arg(long, hide = true)]
    pub successor: bool,

    /// Give each tenant the quota in this JSON file; docs/server-operations.md describes it [default: none]
    #[arg(long, value_name = "FILE", help_heading = "Quotas")]
    pub quota: Option<PathBuf>,

    /// Limit the sandboxes of all tenants together; creates beyond wait for room
    #[arg(long, value_name = "N", help_heading = "Quotas")]
    pub max_sandboxes: Option<u32>,

    /// Limit the memory of all sandboxes together, by their limits; creates beyond wait for room
    #[arg(long, value_name = "SIZE", help_heading = "Quotas")]
    pub max_memory: Option<cofferdam::ByteSize>,

    /// Let a create wait for room for this time [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Quotas")]
    pub queue_time: Option<Duration>,

    /// Answer at most this many requests at once, and a quarter of them for one tenant [default: 2048]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..), help_heading = "Quotas")]
    pub max_requests: Option<u32>,

    /// Count usage by the value of this label, too
    #[arg(long, value_name = "KEY", help_heading = "Quotas")]
    pub usage_label: Option<String>,

    /// Export traces to the OpenTelemetry collector at this URL by OTLP over HTTP [default: OTEL_EXPORTER_OTLP_ENDPOINT,
    /// else none]
    #[arg(long, value_name = "URL", help_heading = "Traces")]
    pub otlp: Option<String>,

    /// Record this part of the traces that begin here, from 0 to 1 [default: OTEL_TRACES_SAMPLER_ARG, else 1]
    #[arg(long, value_name = "RATIO", help_heading = "Traces")]
    pub trace_sample: Option<f64>,

    /// Check the settings and this host, and exit
    #[arg(long, conflicts_with = "detach")]
    pub check: bool,

    #[command(flatten)]
    pub state: StateArgs,
}

/// The use of certificates of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ClientCertificatesUse {
    /// Clients without a certificate need a key
    Optional,
    /// Clients without a certificate cannot connect
    Required,
}

/// The location of a server's state.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "State")]
pub struct StateArgs {
    /// Keep keys and usage in this directory [default: $XDG_STATE_HOME/cofferdam/server or ~/.local/state/…]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Keep keys and usage in the PostgreSQL database whose URL is in this file, which only its owner can read
    #[arg(long, value_name = "FILE", conflicts_with = "state")]
    pub database_file: Option<PathBuf>,

    /// Name this server in a database that several servers share [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
}

const KEYS_HELP: &str = "\
Examples:
  cofferdam keys create --tenant acme --name ci --expires 720h
  cofferdam keys create --tenant acme --scope runs --scope usage:read
  cofferdam keys ls
  cofferdam keys rotate 6f3c… --grace 1h
  cofferdam keys revoke 6f3c…

A key is printed once. The database has its hash only. A running server refuses a revoked key at
once.";

/// `cofferdam keys`.
#[derive(Debug, Args)]
#[command(after_help = KEYS_HELP)]
pub struct KeysArgs {
    /// The command
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// Commands for keys.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Create a key and print it
    Create(CreateKeyArgs),
    /// List the keys
    Ls {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Replace a key: create one with the same rights, and let the old one expire
    Rotate {
        /// Select the key by its public part
        id: String,
        /// Accept the old key for this time [default: 1h]
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        grace: Option<Duration>,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Revoke a key at once
    Revoke {
        /// Select the key by its public part
        id: String,
        #[command(flatten)]
        state: StateArgs,
    },
}

/// `cofferdam keys create`.
#[derive(Debug, Args)]
pub struct CreateKeyArgs {
    /// Create a key of this tenant
    #[arg(long, value_parser = |text: &str| TenantId::new(text))]
    pub tenant: TenantId,
    /// Name the key
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    /// Grant this scope; may be repeated [default: all but admin and changes:apply]
    #[arg(long, value_name = "SCOPE", value_parser = |text: &str| text.parse::<cofferdam_server::Scope>())]
    pub scope: Vec<cofferdam_server::Scope>,
    /// End the key after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub expires: Option<Duration>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub state: StateArgs,
}

/// The server of a client.
#[derive(Debug, Default, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ClientArgs {
    /// Use the server at this address: https://HOST[:PORT], http://127.0.0.1:PORT or unix:PATH [default:
    /// COFFERDAM_SERVER, else the socket of this user's own server]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,

    /// Read the key from this file instead of COFFERDAM_KEY
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// Trust the authorities in this PEM file instead of those in COFFERDAM_CA, else of this host
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// Present the client certificate in this PEM file instead of COFFERDAM_CLIENT_CERT
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,

    /// Use the certificate's private key in this PEM file instead of COFFERDAM_CLIENT_KEY
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
}

impl ClientArgs {
    /// Returns true if an option names a server, or a credential for one.
    pub fn is_set(&self) -> bool {
        let Self { server, key_file, ca, client_cert, client_key } = self;
        server.is_some() || [key_file, ca, client_cert, client_key].into_iter().any(Option::is_some)
    }
}

const CREATE_HELP: &str = "\
Examples:
  cofferdam create --name build        create a sandbox and print its id
  cofferdam exec build -- make test
  cofferdam create --server https://sandboxes.example:8443 --memory 256M --idle 5m
  cofferdam create --name fix --workspace . && cofferdam exec fix -- make fmt && cofferdam diff fix

`cofferdam serve` must run. The sandbox is closed by `cofferdam rm`, after its idle time, and after
its lifetime. Changes of a --workspace that were not applied are kept for `cofferdam changes`.";

/// `cofferdam create`.
#[derive(Debug, Default, Args)]
#[command(after_help = CREATE_HELP)]
pub struct CreateArgs {
    /// Name the sandbox
    #[arg(long)]
    pub name: Option<String>,
    /// Use this backend of the server
    #[arg(long)]
    pub backend: Option<String>,
    /// Require at least this isolation level: wasm (1), process (2), container, vm (3)
    #[arg(long)]
    pub level: Option<Level>,
    /// Use this image as the root file system
    #[arg(long, value_name = "NAME")]
    pub image: Option<String>,
    /// Start from this snapshot of the server, with its backend and, unless others are given, its limits
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "image")]
    pub snapshot: Option<String>,
    /// Show this directory at /workspace; changes go to a copy. This user's own server only [default: an empty private
    /// directory]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["snapshot", "read_only"])]
    pub workspace: Option<String>,
    /// Mount a volume of the server; as its only writer, or with `:ro` as one of its readers
    #[arg(long, value_name = "NAME:GUEST[:ro]", conflicts_with = "snapshot")]
    pub volume: Vec<VolumeMount>,
    /// Make the workspace read-only for code
    #[arg(long)]
    pub read_only: bool,
    /// Allow connections to these hosts
    #[arg(long, value_name = "HOST,…", value_parser = parse_network)]
    pub net: Option<NetworkPolicy>,
    /// Allow connections and requests by the rules of this TOML file, without secrets
    #[arg(long, value_name = "FILE", value_parser = read_policy, conflicts_with = "net")]
    pub net_policy: Option<NetworkPolicy>,
    /// Attach a label
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// Close it when it was not used for this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub idle: Option<Duration>,
    /// Close it after this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub life: Option<Duration>,
    /// Limit the memory of all processes together
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<cofferdam::ByteSize>,
    /// Limit the storage
    #[arg(long, value_name = "SIZE")]
    pub disk: Option<cofferdam::ByteSize>,
    /// Limit the number of live processes and threads
    #[arg(long, value_name = "N")]
    pub pids: Option<u32>,
    /// Limit the CPU time of each command
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub cpu_time: Option<Duration>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam ls`.
#[derive(Debug, Args)]
pub struct ListSandboxesArgs {
    /// List sandboxes with this label only; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const EXEC_HELP: &str = "\
Examples:
  cofferdam exec build -- make test
  cofferdam exec -it build -- bash
  tar c src | cofferdam exec --stdin build -- tar x
  cofferdam exec --detach build -- ./server && cofferdam logs build

The client reconnects after a cut connection, and the output resumes. Ctrl-C ends the command;
without --detach the command ends with this client's signal. In a terminal, Ctrl-] leaves the
command running, and `cofferdam attach` connects to it again.
Exit status: as for `cofferdam run`.";

/// `cofferdam exec`.
#[derive(Debug, Args)]
#[command(after_help = EXEC_HELP)]
pub struct ExecArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Run this command with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Pass standard input to the command
    #[arg(long, short = 'i')]
    pub stdin: bool,
    /// Allocate a terminal and connect it to this one
    #[arg(long, short = 't', conflicts_with_all = ["json", "detach"])]
    pub tty: bool,
    /// Print the id of the exec and leave the command running
    #[arg(long, conflicts_with = "stdin")]
    pub detach: bool,
    /// Start in this directory of the workspace
    #[arg(long, value_name = "PATH", value_parser = |text: &str| SandboxPath::new(text))]
    pub working_dir: Option<SandboxPath>,
    /// Set an environment variable
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env)]
    pub env: Vec<(String, String)>,
    /// Limit wall time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Limit the output
    #[arg(long, value_name = "SIZE")]
    pub max_output: Option<cofferdam::ByteSize>,
    /// Print only one JSON document, at the end
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam logs`.
#[derive(Debug, Args)]
pub struct OutputOfExecArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Select the exec by its id [default: the newest]
    pub exec: Option<String>,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const COPY_HELP: &str = "\
Examples:
  cofferdam cp data.csv build:data.csv
  cofferdam cp build:out/report.html report.html
  cofferdam cp build:log.txt -         to standard output
  cofferdam cp src build:project       a directory, which becomes project/src
  cofferdam cp build:out .             a directory, which becomes ./out

A directory is copied with its name into the other one. Existing files of this host are replaced
only with --force. Files that programs of the host obey, such as .git/config, are never replaced.";

/// `cofferdam cp`.
#[derive(Debug, Args)]
#[command(after_help = COPY_HELP)]
pub struct CopyFilesArgs {
    /// Copy this file or directory: PATH of this host, SANDBOX:PATH, or - for standard input
    #[arg(add = crate::completion::ends_of_copies())]
    pub from: String,
    /// Copy to this file, or into this directory: PATH of this host, SANDBOX:PATH, or - for standard output
    #[arg(add = crate::completion::ends_of_copies())]
    pub to: String,
    /// Replace files of this host
    #[arg(long)]
    pub force: bool,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam rm`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Select the sandboxes by their ids or names
    #[arg(required = true, add = crate::completion::sandboxes())]
    pub sandboxes: Vec<String>,
    /// Discard changes of a --workspace, which are otherwise kept for `cofferdam changes`
    #[arg(long)]
    pub discard_changes: bool,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}
