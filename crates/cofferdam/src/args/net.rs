//! Options of the network, and the arguments of `cofferdam net`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use cofferdam::{NetworkPolicy, NetworkRules};

use crate::values::parse_network;

/// The maximum size of a policy file.
const MAX_POLICY_BYTES: u64 = 1 << 20;

/// The network policy of a sandbox.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct NetworkArgs {
    /// Allow no network (`none`), or connections to these hosts only: NAME:PORT, *.DOMAIN:PORT, ADDRESS:PORT,
    /// ADDRESS/PREFIX:PORT, @PRESET
    #[arg(long, value_name = "none|HOST,…", value_parser = parse_network)]
    pub net: Option<NetworkPolicy>,

    /// Allow connections and requests by the rules of this TOML file, which can also have secrets
    #[arg(long, value_name = "FILE", value_parser = read_policy, conflicts_with = "net")]
    pub net_policy: Option<NetworkPolicy>,
}

impl NetworkArgs {
    /// Returns the policy, if an option sets one.
    pub fn policy(&self) -> Option<&NetworkPolicy> {
        self.net.as_ref().or(self.net_policy.as_ref())
    }
}

/// Observation of the network of a run.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct ObserveArgs {
    /// Learn a policy: refuse everything, or allow it (`allow`), and print the smallest policy that would do
    #[arg(
        long, value_name = "refuse|allow", num_args = 0..=1, require_equals = true, default_missing_value = "refuse",
        conflicts_with_all = ["net", "net_policy"]
    )]
    pub net_learn: Option<Learn>,

    /// Append each connection and request to this file, one JSON document per line
    #[arg(long, value_name = "FILE")]
    pub net_log: Option<PathBuf>,
}

/// The treatment of connections while a policy is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Learn {
    /// Refuse all connections. Programs may stop before they have requested everything.
    Refuse,
    /// Allow connections to all names with public addresses.
    Allow,
}

/// Reads a policy file.
pub(super) fn read_policy(path: &str) -> Result<NetworkPolicy, String> {
    use std::io::Read;
    let mut text = String::new();
    cofferdam_linux::named::read(Path::new(path))
        .and_then(|file| file.take(MAX_POLICY_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot read the policy: {error}"))?;
    if text.len() as u64 > MAX_POLICY_BYTES {
        return Err("the policy is larger than 1 MiB".to_owned());
    }
    toml::from_str::<NetworkRules>(&text).map(NetworkPolicy::Rules).map_err(|error| error.to_string())
}

/// `cofferdam net`.
#[derive(Debug, Args)]
pub struct NetArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: NetCommand,
}

/// The subcommands of `cofferdam net`.
#[derive(Debug, Subcommand)]
pub enum NetCommand {
    /// Explain what a policy allows for a host or URL, and by which rule; exit status 1 if nothing
    Explain(ExplainArgs),
    /// Replace the policy of a sandbox of a server; connections that the new one does not allow end
    #[cfg(feature = "server")]
    Set(SetNetworkArgs),
    /// Print the policy of a sandbox of a server
    #[cfg(feature = "server")]
    Show(ShowNetworkArgs),
}

#[cfg(feature = "server")]
const SET_HELP: &str = "\
Examples:
  cofferdam net set build --net pypi.org:443
  cofferdam net set build --net none   deny everything

The sandbox was created with --net. The new policy can have no ports that the first one did not have.";

/// `cofferdam net set`.
#[cfg(feature = "server")]
#[derive(Debug, Args)]
#[command(after_help = SET_HELP, group = clap::ArgGroup::new("policy").args(["net", "net_policy"]).required(true))]
pub struct SetNetworkArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: super::ClientArgs,
}

/// `cofferdam net show`.
#[cfg(feature = "server")]
#[derive(Debug, Args)]
pub struct ShowNetworkArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: super::ClientArgs,
}

/// `cofferdam net explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Explain this HOST, HOST:PORT (IPv6 in brackets), or http or https URL
    #[arg(value_name = "HOST[:PORT]|URL")]
    pub server: String,

    /// Read this configuration file instead of the user's own
    // The global option: this command gets its value here.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub network: NetworkArgs,

    /// Set the method of the request
    #[arg(long, default_value = "GET")]
    pub method: String,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_file_can_be_named_anywhere() {
        use crate::args::{Command, parse};
        for line in [
            "cofferdam --config c.toml net explain a.example",
            "cofferdam net --config c.toml explain a.example",
            "cofferdam net explain --config c.toml a.example",
        ] {
            let raw: Vec<_> = line.split(' ').map(Into::into).collect();
            let cli = parse(&raw).expect(line);
            let Command::Net(NetArgs { command: NetCommand::Explain(args) }) = cli.command else { panic!("{line}") };
            assert_eq!((args.config, cli.config), (Some("c.toml".into()), Some("c.toml".into())), "{line}");
        }
    }

    #[test]
    fn a_policy_file_has_rules_and_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_policy(path.to_str().unwrap())
        };
        let policy = read(
            "[[allow]]\nhost = \"a.example:443\"\nmethods = [\"GET\"]\nmax_bytes = \"1M\"\n[[secret]]\nname = \
             \"TOKEN\"\nfrom = \"env:TOKEN\"\nhosts = [\"a.example:443\"]\nplace = { query = \"key\" }\n",
        );
        let Ok(NetworkPolicy::Rules(rules)) = policy else { panic!("{policy:?}") };
        assert_eq!((rules.allow.len(), rules.secrets.len()), (1, 1));
        for text in ["[[deny]]\nhost = \"a\"\n", "[[allow]]\nhots = \"a\"\n", "x"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read_policy("/nonexistent/policy.toml").unwrap_err().starts_with("cannot read the policy"));
    }
}
