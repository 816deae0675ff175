//! The attacks in containers, whose isolation differs but must hold too.

use std::sync::Arc;

use cofferdam::registry::{self, CONTAINER_BACKEND, ContainerSettings};
use cofferdam_contract::{Backend, Protection, Spec};

use super::guests::Guests;
use super::host::Host;
use super::row::{Row, WorkspaceKind, words};
use super::run::{Outcome, block_on, measured_attack, report, turn};
use crate::census::census;

/// Mebibytes of the host that the engine's own processes may take for one container.
const ENGINE_MIB: u64 = 64;

/// Returns the tests' engine with a runtime, or prints why there is none.
pub fn backend(runtime: Option<&str>) -> Option<Arc<dyn Backend>> {
    let Ok(socket) = std::env::var("COFFERDAM_TEST_DOCKER") else {
        println!("SKIP containers: COFFERDAM_TEST_DOCKER names no engine");
        return None;
    };
    let name = runtime.map_or_else(|| CONTAINER_BACKEND.to_owned(), |runtime| format!("{CONTAINER_BACKEND}:{runtime}"));
    let containers = ContainerSettings { host: Some(socket), ..ContainerSettings::default() };
    Some(registry::backend_with(&name, &containers.into()).expect("the name and the socket are valid"))
}

/// Returns the reason why a row does not apply to containers; `None` for most rows.
fn exception(row: &Row) -> Option<&'static str> {
    match row.name {
        "writing the user map" => Some(
            "an engine without user id mapping provides no user namespace, which the posture reports; no guest is root",
        ),
        _ if row.workspace == WorkspaceKind::Shared && rustix::process::geteuid().is_root() => {
            Some("root's directories are not mounted writable; an ordinary user's run tries it")
        }
        _ => None,
    }
}

/// Runs the rows in containers, without their controls outside.
pub fn run(runtime: Option<&str>, mut rows: Vec<Row>) {
    rows.retain(|row| {
        let why = exception(row);
        why.iter().for_each(|why| println!("SKIP hostile: {}, in a container: {why}", row.name));
        why.is_none()
    });
    for row in &mut rows {
        row.host_memory = row.host_memory.map(|slack| slack + ENGINE_MIB);
        match (row.guest, row.name) {
            // The image has its own package list, as the host does.
            ("host_files", _) => row.args = |host| [words(["--image"]), host.markers()].concat(),
            ("queue_bomb", _) => row.args = |_| words(["100000", "--own-user"]),
            // `/tmp` and `/dev/shm` have a quarter and a sixteenth of the limit in addition, which count as memory.
            (_, "disk by writing") => row.args = |_| words(["write", "42", "/workspace", "/tmp", "/dev/shm"]),
            (_, "disk by fallocate") => row.args = |_| words(["fallocate", "42", "/workspace", "/tmp", "/dev/shm"]),
            (_, "disk by mappings") => row.args = |_| words(["mmap", "42", "/workspace", "/tmp", "/dev/shm"]),
            (_, "disk by files without a name") => {
                row.args = |_| words(["unlinked", "42", "/tmp", "/workspace", "/dev/shm"]);
            }
            _ => {}
        }
    }
    let _turn = turn();
    let Some(backend) = backend(runtime) else { return };
    let before = census();
    let guests = Guests::compile(&rows.iter().map(|row| row.guest).collect());
    let host = Host::new();
    let mut failures = Vec::new();
    block_on(async {
        let spec = Spec::builder().allow_weaker(Protection::Memory).build().expect("it is valid");
        let first = backend.create(spec).await.expect("a container can be made");
        first.close().await.expect("it closes");
        for row in &rows {
            match measured_attack(backend.as_ref(), &guests, &host, row).await {
                Ok(Outcome::Held) => {}
                Ok(Outcome::NotTried(why)) => println!("SKIP hostile: {}, in a container: {why}", row.name),
                Err(why) => failures.push(format!("{}: {why}", row.name)),
            }
        }
    });
    drop(backend);
    drop(host);
    drop(guests);
    report(rows.len(), failures, &before);
}
