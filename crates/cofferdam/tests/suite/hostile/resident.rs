//! The attacks through a server: the guest must not access the server or the sandboxes that it prepares.

use std::collections::BTreeSet;
use std::path::Path;

use cofferdam_contract::{Access, Backend, Spec, Workspace};

use super::guests::{Guests, open_temporary_directory};
use super::host::Host;
use super::row::{Row, WorkspaceKind as Where};
use super::run::{Outcome, attack_in, block_on, evaluate, output, report, turn, warm_up};
use crate::census::census;
use crate::resident::inside::Inside;

/// Runs the rows with mounted compiled programs: a server's client has no file API to install them elsewhere.
pub fn run(mut rows: Vec<Row>) {
    let _turn = turn();
    block_on(warm_up());
    let before = census();
    rows.retain(|row| row.workspace == Where::Mounted);
    let names: BTreeSet<&str> = rows.iter().map(|row| row.guest).collect();
    let guests = Guests::compile(&names);
    let host = Host::new();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cofferdam");
    let server = Inside::start(&path);
    let mut failures = Vec::new();
    for row in &rows {
        match block_on(attack(&path, &guests, &host, row)) {
            Ok(Outcome::Held) => {}
            Ok(Outcome::NotTried(why)) => println!("SKIP hostile: {}, through a server: {why}", row.name),
            Err(why) => failures.push(format!("{}: {why}", row.name)),
        }
    }
    failures.extend(server.end().err().map(|error| error.to_string()));
    drop(host);
    drop(guests);
    report(rows.len(), failures, &before);
}

async fn attack(path: &Path, guests: &Guests, host: &Host, row: &Row) -> Result<Outcome, String> {
    let text = |error: cofferdam_contract::Error| error.to_string();
    let workspace = Workspace::HostDir { path: guests.directory().to_owned(), access: Access::ReadOnly };
    let spec = Spec::builder().workspace(workspace).limits(row.limits.clone()).build().map_err(text)?;
    let sandbox = Inside::connect(path)?.create(spec).await.map_err(text)?;
    let shared = open_temporary_directory(0o777);
    let completed = attack_in(&sandbox, guests, host, row, shared.path()).await.map_err(text)?;
    let outcome = evaluate(row, &completed)?;
    sandbox.close().await.map_err(text)?;
    let damage = host.damage();
    if !damage.is_empty() {
        return Err(format!("{}\n{}", damage.join(", "), output(&completed)));
    }
    Ok(outcome)
}
