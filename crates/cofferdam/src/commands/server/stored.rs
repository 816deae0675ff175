//! `cofferdam snapshot take`, `ls`, `rm`, `download` and `upload`.

use std::path::Path;

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_linux::named;
use cofferdam_server::client::{Client, Content, Method, Transfer};
use cofferdam_server::rest::views::{SnapshotList, SnapshotView, TakeSnapshot};
use cofferdam_util::sha256;
use serde_json::{Value, json};

use super::client::{encoded, print_id};
use super::connect;
use super::copy::pour;
use crate::args::StoredCommand;
use crate::commands::block_on;
use crate::out_file::{Existing, OutFile};
use crate::report::{self, Form};
use crate::terminal::one_line;

/// Runs a command for snapshots of a server.
pub fn main(command: StoredCommand, form: Form) -> u8 {
    let done = match command {
        StoredCommand::Take { sandbox, name, client, .. } => {
            let path = format!("/v1/sandboxes/{}/snapshot", encoded(&sandbox));
            let body = TakeSnapshot { name };
            let taken = connect(&client)
                .and_then(|client| block_on(async { client.call(Method::POST, &path, Some(&body)).await }));
            return print_id(taken, form);
        }
        StoredCommand::Upload { file, backend, name, client, .. } => {
            let sent =
                connect(&client).and_then(|client| block_on(async { upload(&client, &file, backend, name).await }));
            return print_id(sent, form);
        }
        StoredCommand::Ls { client, .. } => {
            connect(&client).and_then(|client| block_on(async { all(&client).await })).map(|all| list(&all, form))
        }
        StoredCommand::Rm { snapshots, client, .. } => connect(&client).and_then(|client| {
            block_on(async {
                for snapshot in &snapshots {
                    let path = format!("/v1/snapshots/{}", encoded(snapshot));
                    client.send(Method::DELETE, &path, Content::None).await?;
                }
                Ok(print_done(&json!({ "removed": snapshots }), form))
            })
        }),
        StoredCommand::Download { snapshot, file, force, client, .. } => connect(&client)
            .and_then(|client| block_on(async { download(&client, &snapshot, &file, force).await }))
            .map(|view| print_done(&json!(view), form)),
    };
    report::finish(done, form)
}

fn print_done(document: &Value, form: Form) -> u8 {
    if form == Form::Json { report::printed(report::document(document), 0) } else { 0 }
}

async fn all(client: &Client) -> Result<Vec<SnapshotView>> {
    let (mut all, mut path) = (Vec::new(), "/v1/snapshots?limit=1000".to_owned());
    loop {
        let page: SnapshotList = client.call(Method::GET, &path, None::<&()>).await?;
        all.extend(page.snapshots);
        match page.next {
            Some(next) => path = format!("/v1/snapshots?limit=1000&after={}", encoded(&next)),
            None => return Ok(all),
        }
    }
}

fn list(all: &[SnapshotView], form: Form) -> u8 {
    if form == Form::Json {
        return report::printed(report::document(&json!({ "snapshots": all })), 0);
    }
    let mut table = format!("{:<46}  {:<16}  {:<10}  {:>12}\n", "ID", "NAME", "BACKEND", "SIZE");
    for one in all {
        let (name, size) = (one.name.as_deref().unwrap_or("-"), cofferdam::ByteSize::from_bytes(one.bytes).to_string());
        let row = format!("{:<46}  {name:<16}  {:<10}  {size:>12}", one.id, one.backend);
        table.push_str(&format!("{}\n", one_line(&row)));
    }
    report::printed(report::print(&table), 0)
}

async fn upload(client: &Client, file: &Path, backend: Option<String>, name: Option<String>) -> Result<Value> {
    let from = named::read(file).map_err(|error| {
        Error::new(ErrorKind::NotFound, "upload snapshot", "cannot open the file")
            .with_context("file", file.display().to_string())
            .with_source(error)
            .with_remedy("name a regular file that this user can read")
    })?;
    let parameters = [("backend", backend), ("name", name)];
    let query: Vec<_> = parameters
        .iter()
        .filter_map(|(key, value)| value.as_ref().map(|value| format!("{key}={}", encoded(value))))
        .collect();
    let path = format!("/v1/snapshots?{}", query.join("&"));
    client.call_with(Method::POST, &path, Content::reader(tokio::fs::File::from_std(from))).await
}

/// Downloads a snapshot, and compares it with its hash before the file appears.
async fn download(client: &Client, snapshot: &str, file: &Path, force: bool) -> Result<SnapshotView> {
    let path = format!("/v1/snapshots/{}", encoded(snapshot));
    let view: SnapshotView = client.call(Method::GET, &path, None::<&()>).await?;
    let out = OutFile::begin(file, if force { Existing::Replace } else { Existing::Keep })?;
    let content = client.send(Method::GET, &format!("{path}/content"), Content::None).await?;
    pour(&mut Transfer::of(content), tokio::fs::File::from_std(out.file()?)).await?;
    let failed =
        |error| Error::new(ErrorKind::Io, "download snapshot", "cannot read the file again").with_source(error);
    let mut written = out.file()?;
    std::io::Seek::rewind(&mut written).map_err(failed)?;
    if sha256::of_reader(written).map_err(failed)? != view.sha256 {
        return Err(Error::new(ErrorKind::Unavailable, "download snapshot", "the snapshot arrived damaged")
            .with_remedy("download it again"));
    }
    out.finish()?;
    Ok(view)
}
