//! `cofferdam serve`: runs a server for the runs of this user and for clients over HTTP, queries or stops it.

mod detach;
mod prepared;
mod status;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::engine::PreparedBackend;
use cofferdam::resident::{Claimed, Http, ResidentConfig, ResidentServer, ServeSettings, SocketDirectory};
use cofferdam::{Error, ErrorKind, Result};
use cofferdam_linux::process::{self, Resource};
use tokio::sync::oneshot;

#[cfg(not(feature = "server"))]
use super::run::no_signals;
use super::run::signal_status;
use crate::args::{RunArgs, ServeArgs, ServeCommand};
use crate::interrupts::Interrupts;
use crate::report::{self, Form};
use crate::resident;
use crate::settings::{Environment, Settings};
use crate::style::Tone;

/// Beginning of the message of a server that listens.
pub const SERVING: &str = "serving ";
/// Timeout for closing sandboxes after a second signal.
const FORCED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A server to start: its options, the file, and both resolved.
pub struct Plan {
    /// The options.
    pub args: ServeArgs,
    /// The configuration file.
    #[cfg(feature = "server")]
    pub file: crate::config::ConfigFile,
    /// The settings of sandboxes.
    pub settings: Settings,
    /// The settings of runs and of prepared sandboxes.
    pub merged: ServeSettings,
}

/// Runs a server, or sends a command to a running one.
pub fn main(args: ServeArgs, config: Option<PathBuf>) -> u8 {
    let form = match &args.command {
        Some(ServeCommand::Status { json: true }) => Form::Json,
        _ => Form::Text,
    };
    let outcome = match (&args.command, args.stage) {
        (Some(ServeCommand::Status { .. }), _) => status::status(form),
        (Some(ServeCommand::Stop), _) => status::stop(),
        (None, Some(detach::STAGE_SESSION)) => detach::lead_session(),
        (None, None) if args.detach => detach::detach(),
        (None, _) => {
            // A sandbox holds descriptors for each port of its policy, and connections share what the limit allows.
            let _ = process::set_soft_limit(Resource::OPEN_FILES, u64::MAX);
            plan(args, config).and_then(start)
        }
    };
    report::finish(outcome, form)
}

fn plan(mut args: ServeArgs, config: Option<PathBuf>) -> Result<Plan> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let run = RunArgs {
        limits: std::mem::take(&mut args.limits),
        backend: args.backend.first().cloned(),
        ..RunArgs::default()
    };
    let settings = Settings::resolve(&run, &Environment::read(variable)?, &file)?;
    let merged = prepared::merged(&args, &file.serve, settings.backend.name);
    Ok(Plan {
        args,
        #[cfg(feature = "server")]
        file,
        settings,
        merged,
    })
}

#[cfg(feature = "server")]
fn start(plan: Plan) -> Result<u8> {
    super::serve_on_many(super::server::serve(plan))
}

#[cfg(not(feature = "server"))]
fn start(plan: Plan) -> Result<u8> {
    super::block_on(async move {
        let claimed = plan.claim()?;
        let url = format!("unix:{}", claimed.socket().display());
        let server = plan.resident(claimed, &plan.backend()?, None)?;
        let interrupts = Interrupts::listen().map_err(no_signals)?;
        plan.report([url])?;
        until_signal(interrupts, async |stop| server.run(async { drop(stop.await) }, async || Ok(())).await).await
    })
}

impl Plan {
    /// Creates the default backend, which prepares sandboxes and interpreters.
    pub fn backend(&self) -> Result<Arc<PreparedBackend>> {
        prepared::backend(&self.args, &self.settings, &self.merged)
    }

    /// Claims the private socket of this user.
    pub fn claim(&self) -> Result<Claimed> {
        SocketDirectory::claim(&resident::candidates().directory())
    }

    /// Returns the configuration of runs.
    pub fn config(&self) -> Result<ResidentConfig> {
        let base = ResidentConfig::new(resident::build(), resident::surroundings(&self.settings)?);
        Ok(self.merged.apply(base))
    }

    /// Creates the server of the private socket.
    pub fn resident(
        &self,
        claimed: Claimed,
        backend: &Arc<PreparedBackend>,
        http: Option<Http>,
    ) -> Result<ResidentServer> {
        ResidentServer::new(claimed, Arc::clone(backend), self.config()?, http)
    }

    /// Prints the addresses, and leaves the terminal if it was detached.
    pub fn report(&self, urls: impl IntoIterator<Item = String>) -> Result<()> {
        for url in urls {
            report::remark(&format!("{SERVING}{url}"), Tone::Good);
        }
        if self.args.stage == Some(detach::STAGE_SERVER) {
            let failed = |error| Error::new(ErrorKind::Io, "serve", "cannot leave the terminal").with_source(error);
            detach::leave_terminal().map_err(failed)?;
        }
        Ok(())
    }
}

/// Runs a server until it ends, or until a signal requests its end and it has ended. A second signal ends it at once.
pub async fn until_signal(
    mut interrupts: Interrupts,
    serve: impl AsyncFnOnce(oneshot::Receiver<()>) -> Result<()>,
) -> Result<u8> {
    let (stop, stopped) = oneshot::channel();
    let mut serving = pin!(serve(stopped));
    let number = tokio::select! {
        ended = &mut serving => return ended.map(|()| 0),
        number = interrupts.next() => number,
    };
    report::remark(&format!("signal {number}: the server exits when its runs and requests have ended"), Tone::Warning);
    drop(stop);
    tokio::select! {
        ended = &mut serving => ended.map(|()| 0),
        number = interrupts.next() => {
            // Remaining sandboxes die with this process.
            tokio::time::sleep(FORCED_SHUTDOWN_TIMEOUT).await;
            Ok(signal_status(number))
        }
    }
}
