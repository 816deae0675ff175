//! `cofferdam pause`, `resume`, `extend`, `rename` and `prune`.

use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam::{Error, Result};
use cofferdam_server::client::{Client, Method};
use cofferdam_server::rest::views::{ExtendSandbox, ForkSandbox, RenameSandbox, SandboxView};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{all, encoded, print_id};
use super::{connect, diff};
use crate::args::{ExtendArgs, ForkArgs, PruneArgs, RenameArgs, SandboxesArgs};
use crate::commands::block_on;
use crate::prompt;
use crate::report::{self, Form};

/// Sandboxes that a question names. More are counted.
const MAX_NAMED: usize = 10;

/// Pauses sandboxes.
pub fn pause(args: &SandboxesArgs) -> u8 {
    change_each(args, "pause")
}

/// Resumes sandboxes.
pub fn resume(args: &SandboxesArgs) -> u8 {
    change_each(args, "resume")
}

fn change_each(args: &SandboxesArgs, operation: &str) -> u8 {
    let changed = connect(&args.client).and_then(|client| {
        block_on(async {
            let mut changed = Vec::new();
            for sandbox in &args.sandboxes {
                changed.push(change(&client, sandbox, operation, None::<&()>).await?);
            }
            Ok(json!({ "sandboxes": changed }))
        })
    });
    print(changed, Form::of(args.json))
}

async fn change(
    client: &Client,
    sandbox: &str,
    operation: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<Value> {
    let path = format!("/v1/sandboxes/{}/{operation}", encoded(sandbox));
    client.call(Method::POST, &path, body).await
}

/// Prints the document of a change. As text, a change that succeeds prints nothing.
fn print(changed: Result<Value>, form: Form) -> u8 {
    match changed {
        Err(error) => report::error(&error, form),
        Ok(changed) if form == Form::Json => report::printed(report::document(&changed), 0),
        Ok(_) => 0,
    }
}

/// Changes the times of a sandbox.
pub fn extend(args: &ExtendArgs) -> u8 {
    let body = ExtendSandbox { life: args.life, idle: args.idle };
    let changed = connect(&args.client)
        .and_then(|client| block_on(async { change(&client, &args.sandbox, "extend", Some(&body)).await }));
    print(changed, Form::of(args.json))
}

/// Copies a sandbox, and prints the id of the copy.
pub fn fork(args: &ForkArgs) -> u8 {
    let body = ForkSandbox { name: args.name.clone(), idle: args.idle, life: args.life };
    let created = connect(&args.client)
        .and_then(|client| block_on(async { change(&client, &args.sandbox, "fork", Some(&body)).await }));
    print_id(created, Form::of(args.json))
}

/// Gives a sandbox another name.
pub fn rename(args: &RenameArgs) -> u8 {
    let body = RenameSandbox { name: Some(args.name.clone()) };
    let changed = connect(&args.client)
        .and_then(|client| block_on(async { change(&client, &args.sandbox, "rename", Some(&body)).await }));
    print(changed, Form::of(args.json))
}

/// Closes sandboxes that are not in use, or that have labels.
pub fn prune(args: &PruneArgs) -> u8 {
    let form = Form::of(args.json);
    let removed = connect(&args.client).and_then(|client| {
        let chosen: Vec<_> =
            block_on(async { all(&client).await })?.into_iter().filter(|one| chosen(args, one)).collect();
        if !is_approved(args, &chosen)? {
            return Ok(Vec::new());
        }
        block_on(async {
            let mut removed = Vec::new();
            for one in &chosen {
                diff::remind(diff::close(&client, &one.id, false).await?.as_slice());
                removed.push(one.id.clone());
            }
            Ok(removed)
        })
    });
    match removed {
        Err(error) => report::error(&error, form),
        Ok(removed) if form == Form::Json => report::printed(report::document(&json!({ "removed": removed })), 0),
        Ok(removed) => {
            let lines: String = removed.iter().map(|id| format!("{id}\n")).collect();
            report::printed(report::print(&lines), 0)
        }
    }
}

fn chosen(args: &PruneArgs, one: &SandboxView) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    args.label.iter().all(|(key, value)| one.labels.get(key) == Some(value))
        && args.unused.is_none_or(|unused| now - one.used >= unused.as_secs_f64())
        && (args.running || !one.busy)
}

fn is_approved(args: &PruneArgs, chosen: &[SandboxView]) -> Result<bool> {
    if args.yes || chosen.is_empty() {
        return Ok(true);
    }
    if args.json || !prompt::is_interactive() {
        return Err(Error::invalid(
            "prune",
            format!("{} sandboxes would be closed, and there is no terminal to ask on", chosen.len()),
        )
        .with_remedy("pass --yes to close them"));
    }
    let names: Vec<_> = chosen.iter().take(MAX_NAMED).map(|one| one.name.as_deref().unwrap_or(&one.id)).collect();
    let more = if chosen.len() > MAX_NAMED { format!(" and {} more", chosen.len() - MAX_NAMED) } else { String::new() };
    prompt::ask("prune", &format!("Close {}{more}?", names.join(", ")))
}
