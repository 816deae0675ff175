//! The attacks in a VM. All run in one VM, because booting an emulated one takes long.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::registry::{self, Setup, VmSettings};
use cofferdam_contract::{ByteSize, Limits, Sandbox, Spec};

use super::guests::Guests;
use super::host::Host;
use super::row::{Row, WorkspaceKind};
use super::run::{Outcome, attack_in, block_on, output, report, still_usable, turn, verdict};
use crate::census::census;
use crate::cli::vms::{cache, with_vms};

/// The CPU time limit in seconds. All rows share it, and those that do not reach it use much less, even with emulation.
const CPU_SECONDS: u64 = 4;

/// Returns the reason why a row makes no sense in a VM; `None` for most rows. The kernel inside is the guest's own, and
/// the host must be safe even from a guest that becomes root there.
fn exception(row: &Row) -> Option<&'static str> {
    match row.name {
        "signals to a process of the host" => Some("a process number of the host means nothing in another kernel"),
        "mount calls in a shared workspace" => Some("a VM mounts no directory of the host"),
        "seeing the host's control group" => Some("all visible groups are those of the VM's kernel"),
        "writing the user map" => Some("a VM's guest is in its kernel's first user namespace, which maps all users"),
        "raising limits" => Some("it equals the row in a private workspace, where a VM has all programs"),
        _ => None,
    }
}

/// Adapts the workspace and the arguments of a row to the VM.
fn adapt(row: &mut Row) {
    row.workspace = WorkspaceKind::Private;
    match (row.guest, row.name) {
        // The host's process has no number inside. Process 1 and the attacker itself remain.
        ("ptrace_host" | "setns", _) => row.args = |_| Vec::new(),
        (_, "processor time in one process") => row.args = |_| burn("one"),
        (_, "processor time in four processes") => row.args = |_| burn("many"),
        (_, "CPU time of unreaped children") => row.args = |_| burn("unreaped"),
        (_, "processor time in a relay") => row.args = |_| burn("relay"),
        _ => {}
    }
}

fn burn(how: &str) -> Vec<String> {
    vec![how.to_owned(), CPU_SECONDS.to_string()]
}

fn spec() -> Spec {
    let limits = Limits {
        memory: Some(ByteSize::from_mebibytes(96)),
        disk: Some(ByteSize::from_mebibytes(64)),
        cpu_time: Some(Duration::from_secs(CPU_SECONDS)),
        ..Limits::default()
    };
    Spec::builder().limits(limits).build().expect("it is valid")
}

/// Runs the rows in one VM, without their controls outside.
pub fn run(test: &str, mut rows: Vec<Row>) {
    if with_vms(Command::new("true"), test).is_none() {
        return;
    }
    rows.retain(|row| {
        let why = exception(row);
        why.iter().for_each(|why| println!("SKIP hostile: {}, in a VM: {why}", row.name));
        why.is_none()
    });
    rows.iter_mut().for_each(adapt);
    let _turn = turn();
    let before = census();
    let guests = Guests::compile(&rows.iter().map(|row| row.guest).collect());
    let host = Host::new();
    let mut failures = Vec::new();
    block_on(async {
        let vms = VmSettings {
            images: Some(cache().join("vm")),
            image: Some("cli-tests".to_owned()),
            ..VmSettings::default()
        };
        let setup = Setup { vms, ..Setup::default() };
        let backend = registry::backend_with("vm", &setup).expect("the backend is built in");
        let sandbox = backend.create(spec()).await.expect("a VM");
        for row in &rows {
            match attack(&sandbox, &guests, &host, row).await {
                Ok(Outcome::Held) => {}
                Ok(Outcome::NotTried(why)) => println!("SKIP hostile: {}, in a VM: {why}", row.name),
                Err(why) => failures.push(format!("{}: {why}", row.name)),
            }
        }
        failures.extend(sandbox.close().await.err().map(|error| format!("cannot close: {error}")));
    });
    drop(host);
    drop(guests);
    report(rows.len(), failures, &before);
}

async fn attack(sandbox: &Arc<dyn Sandbox>, guests: &Guests, host: &Host, row: &Row) -> Result<Outcome, String> {
    let completed = attack_in(sandbox, guests, host, row, guests.directory()).await;
    let completed = completed.map_err(|error| format!("cannot run: {error}"))?;
    let outcome = verdict(row, host, &completed)?;
    still_usable(sandbox, row).await.map_err(|why| format!("{why}\n{}", output(&completed)))?;
    Ok(outcome)
}
