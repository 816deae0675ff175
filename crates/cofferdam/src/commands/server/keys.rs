//! `cofferdam keys`.

use std::time::Duration;

use cofferdam_server::{Key, KeyRecord, NewKey, Scope, keys};
use serde_json::{Value, json};

use super::open;
use crate::args::{CreateKeyArgs, KeysArgs, KeysCommand};
use crate::commands::block_on;
use crate::report::{self, Form};

/// The time for which the other key stays valid after a rotation.
const DEFAULT_GRACE: Duration = Duration::from_secs(60 * 60);

/// Runs a command for keys.
pub fn main(args: KeysArgs) -> u8 {
    let json = match &args.command {
        KeysCommand::Create(CreateKeyArgs { json, .. }) => *json,
        KeysCommand::Ls { json, .. } | KeysCommand::Rotate { json, .. } => *json,
        KeysCommand::Revoke { .. } => false,
    };
    let form = Form::of(json);
    let done = block_on(async move {
        match args.command {
            KeysCommand::Create(CreateKeyArgs { tenant, name, scope, expires, state, .. }) => {
                let scopes = if scope.is_empty() { Scope::of_tenants() } else { scope.into_iter().collect() };
                let created =
                    keys::create(&open(&state).await?, NewKey { tenant, name, scopes, life: expires }).await?;
                Ok(printed(&created, form))
            }
            KeysCommand::Ls { state, .. } => Ok(listed(&open(&state).await?.keys().await?, form)),
            KeysCommand::Rotate { id, grace, state, .. } => {
                let store = open(&state).await?;
                Ok(printed(&keys::rotate(&store, &id, grace.unwrap_or(DEFAULT_GRACE)).await?, form))
            }
            KeysCommand::Revoke { id, state } => keys::revoke(&open(&state).await?, &id).await.map(|()| 0),
        }
    });
    report::finish(done, form)
}

/// Prints a new key, which cannot be printed again.
fn printed((key, record): &(Key, KeyRecord), form: Form) -> u8 {
    match form {
        Form::Json => {
            let mut document = described(record);
            document["key"] = key.reveal().into();
            report::printed(report::document(&document), 0)
        }
        _ => report::printed(report::print(&format!("{}\n", key.reveal())), 0),
    }
}

fn described(key: &KeyRecord) -> Value {
    let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    json!({ "id": key.id, "tenant": key.tenant, "name": key.name, "scopes": scopes, "created": key.created,
        "expires": key.expires, "revoked": key.revoked, "valid": key.is_valid(now()) })
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn listed(all: &[KeyRecord], form: Form) -> u8 {
    if form == Form::Json {
        let all: Vec<_> = all.iter().map(described).collect();
        return report::printed(report::document(&json!({ "keys": all })), 0);
    }
    let mut table = format!("{:<16}  {:<16}  {:<8}  {}\n", "ID", "TENANT", "STATE", "NAME");
    for key in all {
        let state = match key.revoked {
            Some(_) => "revoked",
            None if key.is_valid(now()) => "valid",
            None => "expired",
        };
        table.push_str(&format!("{:<16}  {:<16}  {state:<8}  {}\n", key.id, key.tenant.as_str(), key.name));
    }
    report::printed(report::print(&table), 0)
}
