//! `cofferdam serve`, its keys, and its clients.

mod audit;
mod client;
mod code;
mod copy;
mod diff;
mod exec;
#[cfg(feature = "images")]
mod images;
mod keys;
mod live;
pub mod net;
#[cfg(feature = "plugins")]
pub mod plugins;
mod pools;
mod port;
mod serve;
mod state;
mod stats;
pub mod stored;
mod systemd;
mod traces;
mod trees;
mod upgrade;
#[cfg(feature = "vm")]
mod vms;
pub mod volumes;
mod watch;

use std::io::Read;
use std::path::{Path, PathBuf};

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_linux::trust::{self, Distrust, Secrecy};
use cofferdam_server::client::{Client, Credentials, Method};
use cofferdam_server::remote::variables::{CA, CLIENT_CERT, CLIENT_KEY, KEY, SERVER, TRACE};
use cofferdam_server::rest::views::SandboxList;
use cofferdam_server::{Database, Store, TlsFiles};

use crate::args::{ClientArgs, ServerCommand, StateArgs};
use crate::commands::block_on;
use crate::resident;

pub use audit::main as audit;
pub use serve::serve;

/// The most bytes of a file with a secret or with settings.
const MAX_SECRET: u64 = 64 << 10;

/// Runs a command of a server or of a client.
pub fn dispatch(command: ServerCommand) -> u8 {
    match command {
        ServerCommand::Keys(args) => keys::main(args),
        ServerCommand::Create(args) => client::create(*args),
        ServerCommand::Ls(args) => client::list(args),
        ServerCommand::Exec(args) => exec::main(*args),
        ServerCommand::Code(args) => code::main(&args),
        ServerCommand::Kernel(args) => code::kernel(&args),
        ServerCommand::Attach(args) => exec::attach(&args),
        ServerCommand::Logs(args) => exec::logs(args),
        ServerCommand::Cp(args) => copy::main(args),
        ServerCommand::Diff(args) => diff::main(&args),
        ServerCommand::Watch(args) => watch::main(&args),
        ServerCommand::Port(args) => port::main(&args),
        ServerCommand::Fork(args) => live::fork(&args),
        ServerCommand::Pause(args) => live::pause(&args),
        ServerCommand::Resume(args) => live::resume(&args),
        ServerCommand::Extend(args) => live::extend(&args),
        ServerCommand::Rename(args) => live::rename(&args),
        ServerCommand::Stats(args) => stats::main(&args),
        ServerCommand::Prune(args) => live::prune(&args),
        ServerCommand::Rm(args) => client::remove(args),
    }
}

/// Returns the names of the sandboxes of the server that the environment names, or the ids of those without one.
pub fn sandbox_names() -> Result<Vec<String>> {
    let client = connect(&ClientArgs::default())?;
    let list: SandboxList =
        block_on(async { client.call(Method::GET, "/v1/sandboxes?limit=1000", None::<&()>).await })?;
    Ok(list.sandboxes.into_iter().map(|one| one.name.unwrap_or(one.id)).collect())
}

/// Opens the database of a server that is used by keys.
async fn open(args: &StateArgs) -> Result<Store> {
    open_in(args, || state::directory(args.state.as_deref(), false)).await
}

async fn open_in(args: &StateArgs, directory: impl FnOnce() -> Result<PathBuf>) -> Result<Store> {
    let database = match &args.database_file {
        Some(file) => Database::Url(secret(file, "the file of the database's URL")?),
        None => Database::File(directory()?.join("state.db")),
    };
    Store::open(&database).await
}

/// Reads a secret from a file that only its owner can read.
fn secret(path: &Path, what: &str) -> Result<String> {
    text(path, Secrecy::Secret, what)
}

/// Reads a short file that no other user can change.
fn text(path: &Path, secrecy: Secrecy, what: &str) -> Result<String> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, "read file", format!("cannot read {what}"))
            .with_context("file", path.display().to_string())
            .with_source(error)
            .with_remedy("use a file that this user can read")
    };
    let opened = trust::open(path, secrecy).map_err(|distrust| match distrust {
        Distrust::Io { source, .. } => failed(source),
        distrust => Error::new(ErrorKind::Denied, "read file", format!("{what} is not trusted: {distrust}"))
            .with_remedy(distrust.remedy()),
    })?;
    let mut text = String::new();
    opened.take(MAX_SECRET).read_to_string(&mut text).map_err(failed)?;
    Ok(text.trim().to_owned())
}

/// Returns the client of the server that options or the environment name.
pub(super) fn connect(args: &ClientArgs) -> Result<Client> {
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let url = args.server.clone().or_else(|| variable(SERVER));
    // The user's own server needs no key.
    let key = match (&args.key_file, &url) {
        (Some(file), _) => Some(secret(file, "the file of the key")?),
        (None, Some(_)) => variable(KEY),
        (None, None) => None,
    };
    // The other variables are for a named server, too.
    let named = |name| variable(name).filter(|_| url.is_some()).map(PathBuf::from);
    let ca = args.ca.clone().or_else(|| named(CA));
    let certificate = match (&args.client_cert, &args.client_key) {
        (Some(certificate), Some(key)) => Some(TlsFiles { certificate: certificate.clone(), key: key.clone() }),
        _ => TlsFiles::of(named(CLIENT_CERT), named(CLIENT_KEY))?,
    };
    let url = url.unwrap_or_else(|| format!("unix:{}", resident::candidates().socket().display()));
    let credentials = Credentials { key: key.as_deref(), ca: ca.as_deref(), certificate: certificate.as_ref() };
    let client = Client::with(&url, &credentials)?;
    Ok(match variable(TRACE) {
        Some(parent) => client.traced(&parent),
        None => client,
    })
}
