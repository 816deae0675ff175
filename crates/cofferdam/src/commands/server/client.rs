//! `cofferdam create`, `ls` and `rm`.

use cofferdam::{Limits, Result};
use cofferdam_server::client::Client;
use cofferdam_server::client::Method;
use cofferdam_server::rest::views::{
    CreateSandbox, HostDirectory, MountVolume, SandboxList, SandboxState, SandboxView,
};
use serde_json::{Value, json};

use super::{connect, diff};
use crate::args::{CreateArgs, ListSandboxesArgs, RemoveArgs};
use crate::commands::block_on;
use crate::plan::served_workspace;
use crate::report::{self, Form};
use crate::terminal::one_line;

/// Creates a sandbox and prints its id.
pub fn create(args: CreateArgs) -> u8 {
    let form = Form::of(args.json);
    let created = connect(&args.client).and_then(|client| {
        let request = request(args)?;
        block_on(async { client.call::<Value>(Method::POST, "/v1/sandboxes", Some(&request)).await })
    });
    print_id(created, form)
}

/// Prints the id of a new object, or its document.
pub(super) fn print_id(created: Result<Value>, form: Form) -> u8 {
    match created {
        Err(error) => report::error(&error, form),
        Ok(created) if form == Form::Json => report::printed(report::document(&created), 0),
        Ok(created) => {
            let id = created["id"].as_str().unwrap_or_default();
            report::printed(report::print(&format!("{}\n", one_line(id))), 0)
        }
    }
}

fn request(args: CreateArgs) -> Result<CreateSandbox> {
    let CreateArgs { memory, disk, pids, cpu_time, .. } = &args;
    let some = memory.is_some() || disk.is_some() || pids.is_some() || cpu_time.is_some();
    let base = Limits::default();
    let workspace = args.workspace.as_deref().map(served_workspace).transpose()?;
    let limits = some.then(|| Limits {
        memory: memory.or(base.memory),
        disk: disk.or(base.disk),
        pids: pids.or(base.pids),
        cpu_time: cpu_time.or(base.cpu_time),
        ..base
    });
    Ok(CreateSandbox {
        backend: args.backend,
        level: args.level,
        name: args.name,
        image: args.image,
        snapshot: args.snapshot,
        workspace: workspace.map(|(path, id)| HostDirectory { path, id: Some(id) }),
        volumes: args.volume.iter().map(MountVolume::of).collect(),
        read_only: args.read_only,
        limits,
        network: args.net.or(args.net_policy).unwrap_or_default(),
        labels: args.label.into_iter().collect(),
        idle: args.idle,
        life: args.life,
    })
}

/// Lists the sandboxes.
pub fn list(args: ListSandboxesArgs) -> u8 {
    let form = Form::of(args.json);
    let all = connect(&args.client).and_then(|client| block_on(async { all(&client).await }));
    let wanted = |one: &SandboxView| args.label.iter().all(|(key, value)| one.labels.get(key) == Some(value));
    match all {
        Err(error) => report::error(&error, form),
        Ok(mut all) => {
            all.retain(wanted);
            match form {
                Form::Json => report::printed(report::document(&json!({ "sandboxes": all })), 0),
                _ => report::printed(report::print(&table(&all)), 0),
            }
        }
    }
}

pub(super) async fn all(client: &Client) -> Result<Vec<SandboxView>> {
    let (mut all, mut path) = (Vec::new(), "/v1/sandboxes?limit=1000".to_owned());
    loop {
        let page: SandboxList = client.call(Method::GET, &path, None::<&()>).await?;
        all.extend(page.sandboxes);
        match page.next {
            Some(next) => path = format!("/v1/sandboxes?limit=1000&after={}", encoded(&next)),
            None => return Ok(all),
        }
    }
}

fn table(all: &[SandboxView]) -> String {
    let mut table = format!("{:<46}  {:<16}  {:<10}  {:<8}  {}\n", "ID", "NAME", "BACKEND", "STATE", "EXECS");
    for one in all {
        let state = if one.state == SandboxState::Paused { "paused" } else { "running" };
        let name = one.name.as_deref().unwrap_or("-");
        let row = format!("{:<46}  {name:<16}  {:<10}  {state:<8}  {}", one.id, one.backend, one.running);
        table.push_str(&format!("{}\n", one_line(&row)));
    }
    table
}

/// Closes sandboxes.
pub fn remove(args: RemoveArgs) -> u8 {
    let form = Form::of(args.json);
    let done = connect(&args.client).and_then(|client| {
        block_on(async {
            let mut all = Vec::new();
            for sandbox in &args.sandboxes {
                let changes = diff::close(&client, sandbox, args.discard_changes).await?;
                diff::remind(changes.as_slice());
                all.extend(changes);
            }
            Ok(all)
        })
    });
    match done {
        Err(error) => report::error(&error, form),
        Ok(changes) if form == Form::Json => {
            report::printed(report::document(&json!({ "removed": args.sandboxes, "changes": changes })), 0)
        }
        Ok(_) => 0,
    }
}

/// Encodes a part of a path or query.
pub(super) fn encoded(text: &str) -> String {
    cofferdam_server::client::encoded(text)
}
