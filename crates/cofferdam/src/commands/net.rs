//! `cofferdam net`: explains network policies. The policies of sandboxes of a server are in `server::net`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use cofferdam::registry::{BackendInfo, CONTAINER_BACKEND, DEFAULT_BACKEND, VM_BACKEND};
use cofferdam::{Error, ErrorKind, NetworkPolicy, Result};
use cofferdam_egress::{Content, Plan, Query, Reach, Refusal, Rules, Server, decide_literal};
use serde_json::{Value, json};

use crate::args::{ExplainArgs, NetArgs, NetCommand, RunArgs, SandboxArgs};
use crate::report::{self, Form, document, print, printed};
use crate::settings::{Environment, Settings};

const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// Runs the subcommand.
pub fn main(args: &NetArgs) -> u8 {
    match &args.command {
        NetCommand::Explain(args) => report::finish(explain(args), Form::of(args.json)),
        #[cfg(feature = "server")]
        NetCommand::Set(args) => super::server::net::set(args),
        #[cfg(feature = "server")]
        NetCommand::Show(args) => super::server::net::show(args),
    }
}

/// The decision about one kind of contents.
struct Verdict {
    what: String,
    /// The deciding rule, or the reason of the refusal.
    decided: std::result::Result<String, String>,
}

fn explain(args: &ExplainArgs) -> Result<u8> {
    let destination = Destination::read(&args.server)?;
    let settings = settings(args)?;
    let rules = Rules::of(&settings.network)?.unwrap_or_default();
    let verdicts = destination.verdicts(&rules, settings.backend, &args.method)?;
    let allowed = verdicts.iter().any(|verdict| verdict.decided.is_ok());
    let status = if allowed { 0 } else { 1 };
    if args.json {
        let list: Vec<Value> = verdicts
            .iter()
            .map(|Verdict { what, decided }| match decided {
                Ok(rule) => json!({"what": what, "allowed": true, "rule": rule}),
                Err(reason) => json!({"what": what, "allowed": false, "reason": reason}),
            })
            .collect();
        return Ok(printed(document(&json!({"server": args.server, "allowed": allowed, "verdicts": list})), status));
    }
    let mut text = String::new();
    for Verdict { what, decided } in &verdicts {
        // Writing to a string cannot fail.
        let _ = match decided {
            Ok(rule) => writeln!(text, "{what}: allowed by the rule {rule}"),
            Err(reason) => writeln!(text, "{what}: refused: {reason}"),
        };
    }
    Ok(printed(print(&text), status))
}

/// Returns the settings of a run with the same options.
fn settings(args: &ExplainArgs) -> Result<Settings> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(args.config.clone(), variable)?;
    let sandbox = SandboxArgs { network: args.network.clone(), ..SandboxArgs::default() };
    Settings::resolve(&RunArgs { sandbox, ..RunArgs::default() }, &Environment::read(variable)?, &file)
}

/// The server of a question.
struct Destination {
    host: String,
    port: Option<u16>,
    /// True over TLS, and the path. `None` for a host without a request.
    request: Option<(bool, String)>,
}

impl Destination {
    fn read(text: &str) -> Result<Self> {
        let (request, rest) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => {
                let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let path = rest[end..].split(['?', '#']).next().unwrap_or_default();
                let path = if path.is_empty() { "/" } else { path };
                (Some((scheme == "https", path.to_owned())), &rest[..end])
            }
            Some(_) => return Err(Error::invalid("explain", "the URL is not one of http or https")),
            None => (None, text),
        };
        let bracketed = rest.rfind(']').map_or(0, |end| end + 1);
        let bare = bracketed == 0 && rest.matches(':').count() > 1;
        let (host, port) = match rest[bracketed..].rsplit_once(':').filter(|_| !bare) {
            Some((before, port)) => {
                let port = port.parse().ok().filter(|port| *port != 0);
                let bad = || Error::invalid("explain", "the port is not a number from 1 to 65535");
                (&rest[..bracketed + before.len()], Some(port.ok_or_else(bad)?))
            }
            None => (rest, None),
        };
        let port = port.or(request.as_ref().map(|(secure, _)| if *secure { HTTPS } else { HTTP }));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains('@') {
            return Err(Error::invalid("explain", "name a host, such as example.com:443"));
        }
        Ok(Self { host: host.to_owned(), port, request })
    }

    fn verdicts(&self, rules: &Rules, backend: &BackendInfo, method: &str) -> Result<Vec<Verdict>> {
        let refused = |what: String, why: String| Verdict { what, decided: Err(why) };
        let name = match rules.lookup(&self.host) {
            Ok(Query::Name(target)) => target.name.clone(),
            Ok(Query::Address(_)) => self.host.clone(),
            Err(refusal) => {
                let what = if self.host.parse::<IpAddr>().is_ok() { "the address" } else { "the look-up of" };
                return Ok(vec![refused(format!("{what} {}", self.host), refusal.to_string())]);
            }
        };
        let server = name.parse().map_or(Server::Name(&name), Server::Address);
        // Without a port in the question, those of the rules.
        let ports = match self.port {
            Some(port) => BTreeSet::from([port]),
            None => rules.ports().unwrap_or_else(|| BTreeSet::from([HTTP, HTTPS])),
        };
        let mut verdicts = Vec::new();
        for port in ports {
            let refused = refusal(rules, server, port, backend)?;
            for content in self.contents(method, port) {
                let what = match &content {
                    Content::Any => format!("{name}:{port}, other protocols"),
                    Content::Tls => format!("{name}:{port}, TLS that passes through"),
                    Content::Request { secure, method, path } => {
                        let scheme = if *secure { "https" } else { "http" };
                        format!("{method} {scheme}://{name}:{port}{path}")
                    }
                };
                let decided = match unspoken(server, port, &content) {
                    // A question about a host asks which protocols are allowed there.
                    Some(_) if self.request.is_none() => continue,
                    Some(why) => Err(why.to_owned()),
                    None => match (&refused, rules.decide(server, port, &content)) {
                        (Some(why), Ok(_)) => Err(why.clone()),
                        (_, Ok(rule)) => Ok(rule.text.clone()),
                        (_, Err(refusal)) => Err(refusal.to_string()),
                    },
                };
                verdicts.push(Verdict { what, decided });
            }
        }
        Ok(verdicts)
    }

    /// Returns the contents to decide about. The gateway expects HTTP on port 80, and TLS on port 443.
    fn contents(&self, method: &str, port: u16) -> Vec<Content> {
        let request =
            |secure, path: &str| Content::Request { secure, method: method.to_owned(), path: path.to_owned() };
        match (&self.request, port) {
            (Some((secure, path)), _) => vec![request(*secure, path)],
            (None, HTTP) => vec![request(false, "/")],
            (None, HTTPS) => vec![Content::Tls, request(true, "/")],
            (None, _) => vec![Content::Tls, request(true, "/"), request(false, "/"), Content::Any],
        }
    }
}

/// Returns the reason for which the gateway refuses a server, whatever the contents of the connection are.
fn refusal(rules: &Rules, server: Server<'_>, port: u16, backend: &BackendInfo) -> Result<Option<String>> {
    let out_of_reach = out_of_reach(server, port, backend);
    let Server::Address(address) = server else { return Ok(out_of_reach) };
    let decided = decide_literal(rules, SocketAddr::new(address, port)).map_err(|error| {
        Error::new(ErrorKind::Io, "explain", "cannot find the addresses of this host").with_source(error)
    })?;
    Ok(out_of_reach.or(decided.err().map(|refusal| refusal.to_string())))
}

/// Returns the reason for which no policy of the backend reaches a server.
fn out_of_reach(server: Server<'_>, port: u16, backend: &BackendInfo) -> Option<String> {
    let reach = match backend.name {
        DEFAULT_BACKEND => Reach::Addresses,
        CONTAINER_BACKEND | VM_BACKEND => Reach::Names,
        // Its sandboxes have no gateway.
        _ => return None,
    };
    let host = match server {
        Server::Name(name) => format!("{name}:{port}"),
        Server::Address(address) => SocketAddr::new(address, port).to_string(),
    };
    match (Plan::of(&NetworkPolicy::Allow { hosts: vec![host] }, backend.name, reach), server) {
        (Err(error), _) => Some(error.message().to_owned()),
        // A policy can have the address for names only.
        (Ok(Some(plan)), Server::Address(_)) if plan.addresses.is_empty() => Some(Refusal::NotLookedUp.to_string()),
        (Ok(_), _) => None,
    }
}

/// Returns the reason for which the gateway accepts no such content on a port, whatever the rules are.
fn unspoken(server: Server<'_>, port: u16, content: &Content) -> Option<&'static str> {
    let tls = matches!(content, Content::Tls | Content::Request { secure: true, .. });
    let plain = matches!(content, Content::Request { secure: false, .. });
    match (server, port) {
        // Connections to addresses pass unchecked.
        (Server::Address(_), _) => None,
        (_, HTTPS) if !tls => Some("nothing but TLS is spoken on port 443"),
        (_, HTTP) if !plain => Some("nothing but HTTP without TLS is spoken on port 80"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read() {
        for (text, host, port, path) in [
            ("a.example", "a.example", None, None),
            ("a.example:443", "a.example", Some(443), None),
            ("[::1]:80", "::1", Some(80), None),
            ("::1", "::1", None, None),
            ("https://a.example/x?y", "a.example", Some(443), Some("/x")),
            ("http://a.example:8080", "a.example", Some(8080), Some("/")),
        ] {
            let destination = Destination::read(text).unwrap();
            let found = (
                destination.host.as_str(),
                destination.port,
                destination.request.as_ref().map(|(_, path)| path.as_str()),
            );
            assert_eq!(found, (host, port, path), "{text}");
        }
        for text in ["", "a:0", "a:x", "ftp://a", "https://", "https://u@a/"] {
            assert!(Destination::read(text).is_err(), "{text}");
        }
    }
}
