//! `cofferdam mcp`: serves sandboxes to agents over the Model Context Protocol.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam::{Backend, Error, ErrorKind, FindingState, Level, Result, Spec, registry};
use cofferdam_linux::trust::{self, Distrust, Secrecy};
use cofferdam_mcp::http::{HttpConfig, Listening, Token};
use cofferdam_mcp::{Bounds, CancellationToken, McpConfig, Server, stdio};

use super::keeping;
use super::review;
use super::run::{no_signals, signal_status};
use super::{serve_on_many, volume};
use crate::args::{McpArgs, RunArgs};
use crate::config::ConfigMcp;
use crate::interrupts::Interrupts;
use crate::plan;
use crate::report::{self, Form};
use crate::settings::{Environment, Settings};
use crate::style::Tone;

/// The environment variable with the token.
const TOKEN: &str = "COFFERDAM_MCP_TOKEN";
/// Maximum size of a token file.
const MAX_TOKEN: u64 = 4096;
/// Timeout for closing sandboxes after a second signal.
const FORCED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until the client disconnects or a signal arrives.
pub fn main(args: McpArgs, config: Option<PathBuf>) -> u8 {
    // Standard output belongs to the client, so errors go to standard error.
    report::finish(serve(args, config), Form::Text)
}

fn serve(args: McpArgs, config: Option<PathBuf>) -> Result<u8> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let McpArgs { http, token_file, allow_host, allow_origin, level, backend, limits, sandbox, volumes, .. } = args;
    let bounds = bounds(
        &BoundOptions {
            sandboxes: args.sandboxes,
            sandboxes_of_client: args.sandboxes_of_client,
            idle: args.idle,
            calls: args.calls,
            max_file: args.max_file,
        },
        &file.mcp,
    );
    let run = RunArgs { level, backend, limits, sandbox, ..RunArgs::default() };
    let settings = Settings::resolve(&run, &Environment::read(variable)?, &file)?;
    let spec = plan::sandbox(&run, &settings)?;
    review::check_server(&spec)?;
    let code = settings.code.clone();
    let config = McpConfig { spec, code, bounds };
    let listen = match http {
        None => None,
        Some(address) => {
            Some(HttpConfig { address, token: token(token_file.as_deref())?, hosts: allow_host, origins: allow_origin })
        }
    };
    serve_on_many(async move {
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let backend = registry::backend_with(settings.backend.name, &settings.setup)?;
        // Without the volumes, which may be in use until a call needs them.
        tokio::select! {
            tested = self_test(&*backend, &settings, &config.spec) => tested?,
            number = interrupts.next() => return Ok(signal_status(number)),
        }
        let backend = keeping::around(volume::around(backend, volumes.volume, "cofferdam mcp")?);
        let server = Server::new(backend, config)?;
        let stop = CancellationToken::new();
        let on_signal = stop.clone();
        let mut signals = tokio::spawn(async move {
            let number = interrupts.next().await;
            on_signal.cancel();
            let second = interrupts.next().await;
            (number, second)
        });
        let served = serve_clients(&server, listen, stop.clone());
        tokio::select! {
            served = served => {
                signals.abort();
                served.map(|()| 0)
            }
            // Remaining sandboxes die with this process.
            ended = &mut signals => {
                tokio::time::sleep(FORCED_SHUTDOWN_TIMEOUT).await;
                Ok(signal_status(ended.map_or(0, |(_, second)| second)))
            }
        }
    })
}

/// Checks that calls can succeed before serving: creates one sandbox and closes it. Under emulation a VM takes too long
/// to start for this check, so it only examines the host.
async fn self_test(backend: &dyn Backend, settings: &Settings, spec: &Spec) -> Result<()> {
    if backend.level() == Level::Vm {
        let report = registry::doctor(settings.backend.name, &settings.setup).await?;
        let missing = report.items.iter().find(|item| item.state == FindingState::Missing);
        return match (report.usable, missing) {
            (true, _) | (false, None) => Ok(()),
            (false, Some(item)) => {
                let message = format!("the backend '{}' cannot be used: {}", settings.backend.name, item.name);
                let remedy = format!("see `cofferdam doctor --backend {}`", settings.backend.name);
                Err(Error::new(ErrorKind::Unavailable, "start the server", message).with_remedy(remedy))
            }
        };
    }
    backend.create(spec.clone()).await?.close().await
}

async fn serve_clients(server: &Server, listen: Option<HttpConfig>, stop: CancellationToken) -> Result<()> {
    let Some(listen) = listen else {
        return stdio::serve(server, tokio::io::stdin(), tokio::io::stdout(), stop).await;
    };
    let guarded = if listen.token.is_some() { "with a token" } else { "for this host only, without a token" };
    let listening = Listening::bind(listen).await?;
    let address = listening.address();
    report::remark(&format!("serving http://{address}{}, {guarded}", cofferdam_mcp::http::PATH), Tone::Good);
    listening.serve(server, stop).await
}

/// The server's bounds as given by options.
struct BoundOptions {
    sandboxes: Option<usize>,
    sandboxes_of_client: Option<usize>,
    idle: Option<Duration>,
    calls: Option<usize>,
    max_file: Option<cofferdam::ByteSize>,
}

/// Merges options, file and defaults, in this order of precedence.
fn bounds(options: &BoundOptions, file: &ConfigMcp) -> Bounds {
    let base = Bounds::default();
    let file_size = options.max_file.or(file.max_file.map(|size| size.0)).unwrap_or(base.file);
    Bounds {
        sandboxes: options.sandboxes.or(file.sandboxes).unwrap_or(base.sandboxes),
        sandboxes_of_client: options
            .sandboxes_of_client
            .or(file.sandboxes_of_client)
            .unwrap_or(base.sandboxes_of_client),
        snapshots: file.snapshots.unwrap_or(base.snapshots),
        snapshots_of_client: file.snapshots_of_client.unwrap_or(base.snapshots_of_client),
        interpreters_of_client: file.interpreters_of_client.unwrap_or(base.interpreters_of_client),
        idle: options.idle.or(file.idle.map(|time| time.0)).unwrap_or(base.idle),
        calls: options.calls.or(file.calls).unwrap_or(base.calls),
        clients: file.clients.unwrap_or(base.clients),
        connections: file.connections.unwrap_or(base.connections),
        file: file_size,
        // A message has room for a file in base64 and the rest of the call.
        message: file.max_message.map_or_else(
            || base.message.max(cofferdam::ByteSize::from_bytes(file_size.as_bytes().saturating_mul(2))),
            |size| size.0,
        ),
        ..base
    }
}

/// Reads the token from the given file, else from the environment. It is never an argument: all users of this host can
/// read those.
fn token(file: Option<&Path>) -> Result<Option<Token>> {
    if let Some(path) = file {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Io, "read token", "cannot read the token file")
                .with_context("file", path.display().to_string())
                .with_source(error)
                .with_remedy("use a file that this user can read")
        };
        let mut text = String::new();
        let opened = trust::open(path, Secrecy::Secret).map_err(|distrust| match distrust {
            Distrust::Io { source, .. } => failed(source),
            distrust => {
                let message = format!("the token file is not trusted: {distrust}");
                let remedy =
                    format!("{}; generate a new token if other users may have read the file", distrust.remedy());
                Error::new(ErrorKind::Denied, "read token", message).with_remedy(remedy)
            }
        });
        opened?.take(MAX_TOKEN).read_to_string(&mut text).map_err(failed)?;
        return Token::new(&text).map(Some);
    }
    match std::env::var_os(TOKEN).filter(|text| !text.is_empty()) {
        Some(text) => Token::new(&text.to_string_lossy()).map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam::ByteSize;
    use cofferdam::configuration::Human;

    #[test]
    fn options_come_before_the_file_and_messages_hold_files() {
        let file = ConfigMcp {
            sandboxes: Some(3),
            calls: Some(4),
            idle: Some(Human(Duration::from_secs(9))),
            ..ConfigMcp::default()
        };
        let options = BoundOptions {
            sandboxes: Some(5),
            sandboxes_of_client: None,
            idle: None,
            calls: None,
            max_file: Some(ByteSize::from_mebibytes(20)),
        };
        let bounds = bounds(&options, &file);
        assert_eq!((bounds.sandboxes, bounds.calls, bounds.sandboxes_of_client), (5, 4, 8));
        assert_eq!((bounds.idle, bounds.message), (Duration::from_secs(9), ByteSize::from_mebibytes(40)));
    }
}
