//! The attacks once more, through a resident daemon: the guest must not get at the daemon either, nor at what it keeps
//! ready for others.

use std::collections::BTreeSet;
use std::path::Path;

use cofferdam::daemon::{Asked, Connection, DaemonBackend, DaemonConfig, Place, Server, Surroundings};
use cofferdam_contract::{Access, Backend, Spec, Workspace};
use tokio::sync::oneshot;

use super::guests::{Guests, open_temporary_directory};
use super::host::Host;
use super::row::{Place as Where, Row};
use super::run::{Outcome, attack_in, backend, block_on, judge, output, report, turn, warm_up};
use crate::census::census;

const BUILD: &str = "tests";

/// Runs the rows that start from the compiled programs, lent read-only: a daemon's client has no file API to put them
/// into another place.
pub fn run(mut rows: Vec<Row>) {
    let _turn = turn();
    block_on(warm_up());
    let before = census();
    rows.retain(|row| row.place == Where::Lent);
    let names: BTreeSet<&str> = rows.iter().map(|row| row.guest).collect();
    let guests = Guests::compile(&names);
    let host = Host::new();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cofferdam");
    let (started, listening) = std::sync::mpsc::channel();
    let (end, ended) = oneshot::channel::<()>();
    let daemon = std::thread::spawn({
        let path = path.clone();
        move || {
            block_on(async {
                let config = DaemonConfig::new(BUILD, Surroundings::default());
                let server = Server::start(path, backend(), config).expect("a daemon");
                started.send(()).expect("the test waits");
                server.run(async { drop(ended.await) }).await
            })
        }
    });
    listening.recv().expect("the daemon listens");
    let mut failures = Vec::new();
    for row in &rows {
        match block_on(attack(&path, &guests, &host, row)) {
            Ok(Outcome::Held) => {}
            Ok(Outcome::NotTried(why)) => println!("SKIP hostile: {}, through a daemon: {why}", row.name),
            Err(why) => failures.push(format!("{}: {why}", row.name)),
        }
    }
    drop(end);
    let result = daemon.join().expect("the daemon does not panic");
    failures.extend(result.err().map(|error| error.to_string()));
    drop(host);
    drop(guests);
    report(rows.len(), failures, &before);
}

async fn attack(path: &Path, guests: &Guests, host: &Host, row: &Row) -> Result<Outcome, String> {
    let text = |error: cofferdam_contract::Error| error.to_string();
    let asked = Asked { build: BUILD.to_owned(), surroundings: Surroundings::default(), backend: "process".to_owned() };
    let place = Place::open(path.to_owned()).map_err(text)?.ok_or("the daemon is gone")?;
    let connection = Connection::for_run(&place, &asked).map_err(text)?.map_err(|refusal| refusal.to_string())?;
    let workspace = Workspace::HostDir { path: guests.directory().to_owned(), access: Access::ReadOnly };
    let spec = Spec::builder().workspace(workspace).limits(row.limits.clone()).build().map_err(text)?;
    let sandbox = DaemonBackend::from(connection).create(spec).await.map_err(text)?;
    let shared = open_temporary_directory(0o777);
    let completed = attack_in(&sandbox, guests, host, row, shared.path()).await.map_err(text)?;
    let outcome = judge(row, &completed)?;
    sandbox.close().await.map_err(text)?;
    let damage = host.damage();
    if !damage.is_empty() {
        return Err(format!("{}\n{}", damage.join(", "), output(&completed)));
    }
    Ok(outcome)
}
