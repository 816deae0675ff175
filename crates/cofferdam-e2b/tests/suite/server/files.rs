//! Files of the agent: `/files` and `filesystem.Filesystem`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State as Axum};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cofferdam_contract::{
    DirEntry, EntryKind, ErrorKind, ExecRequest, FileReader, NewEntry, SandboxPath, Stdin, WORKSPACE_PATH,
};
use futures_util::TryStreamExt;
use serde_json::{Value, json};
use tokio_util::io::{ReaderStream, StreamReader};

use super::reply::{Refused, guest, refused};
use super::{Guest, State};

type Error = cofferdam_contract::Error;

/// The most bytes of a form.
const MAX_FORM: usize = 16 << 20;

pub async fn health(Axum(state): Axum<Arc<State>>, headers: HeaderMap) -> Result<StatusCode, Response> {
    guest(&state, &headers).map(|_| StatusCode::NO_CONTENT)
}

/// Returns the absolute path of a file. Relative ones begin in the home directory.
fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{WORKSPACE_PATH}/{path}") }
}

fn status(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::NotFound => 404,
        ErrorKind::ResourceExhausted => 507,
        ErrorKind::Conflict | ErrorKind::PathEscape => 400,
        _ => 500,
    };
    refused(status, &error.to_string())
}

pub async fn download(
    Axum(state): Axum<Arc<State>>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, Response> {
    let (guest, _) = guest(&state, &headers)?;
    let path = absolute(query.get("path").map_or("", String::as_str));
    let range = headers
        .get("range")
        .and_then(|value| value.to_str().ok()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let offset: u64 = range.unwrap_or(0);
    let path = SandboxPath::new(path).map_err(|error| status(&error))?;
    let size = entry(&guest, &path).await.map_err(IntoResponse::into_response).map(|entry| entry.size);
    if offset > 0 && size.is_ok_and(|size| offset >= size) {
        return Err(refused(416, "beyond the end"));
    }
    let reader = guest.sandbox.read_file_from(&path, offset).await.map_err(|error| status(&error))?;
    let code = if offset > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    Ok((code, Body::from_stream(ReaderStream::with_capacity(reader, 64 << 10))).into_response())
}

pub async fn upload(
    Axum(state): Axum<Arc<State>>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
    body: Body,
) -> Result<Response, Response> {
    let (guest, _) = guest(&state, &headers)?;
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if let Some(boundary) = kind.strip_prefix("multipart/form-data").and_then(|rest| rest.split_once("boundary=")) {
        let boundary = boundary.1.trim_matches('"').to_owned();
        let body = axum::body::to_bytes(body, MAX_FORM).await.map_err(|_| refused(413, "too large"))?;
        return form(&guest, query.get("path").map(String::as_str), &boundary, &body).await;
    }
    let path = absolute(query.get("path").map_or("", String::as_str));
    let body = body.into_data_stream().map_err(std::io::Error::other);
    let contents: FileReader = Box::new(StreamReader::new(body));
    let written = match SandboxPath::new(&path) {
        Ok(inside) => guest.sandbox.write_file(&inside, contents).await.map(drop),
        Err(_) => elsewhere(&guest, &path, contents).await,
    };
    written.map_err(|error| status(&error))?;
    let name = path.rsplit('/').next().unwrap_or_default();
    Ok(Json(json!([{ "name": name, "path": path, "type": "file" }])).into_response())
}

/// Writes the files of a form. One alone has its path in the query, several have theirs as file names.
async fn form(guest: &Guest, path: Option<&str>, boundary: &str, body: &[u8]) -> Result<Response, Response> {
    let mut written = Vec::new();
    let limit = format!("--{boundary}");
    let mut rest = split(body, limit.as_bytes()).ok_or_else(|| refused(400, "no boundary"))?.1;
    while let Some((part, after)) = split(rest, format!("\r\n{limit}").as_bytes()) {
        let (head, contents) = split(part, b"\r\n\r\n").ok_or_else(|| refused(400, "no head"))?;
        let head = String::from_utf8_lossy(head);
        let named = head.split_once("filename=\"").and_then(|(_, name)| name.split_once('"')).map(|(name, _)| name);
        let path = absolute(path.or(named).unwrap_or_default());
        let inside = SandboxPath::new(&path).map_err(|error| status(&error))?;
        let contents: FileReader = Box::new(std::io::Cursor::new(contents.to_vec()));
        guest.sandbox.write_file(&inside, contents).await.map_err(|error| status(&error))?;
        written.push(json!({ "name": path.rsplit('/').next(), "path": path, "type": "file" }));
        rest = after;
    }
    Ok(Json(written).into_response())
}

fn split<'a>(bytes: &'a [u8], by: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(by.len()).position(|part| part == by)?;
    Some((&bytes[..at], &bytes[at + by.len()..]))
}

/// Writes a file outside the workspace.
async fn elsewhere(guest: &Guest, path: &str, mut contents: FileReader) -> Result<(), Error> {
    let line = "mkdir -p -- \"${1%/*}\" && cat >\"$1\"";
    let request = ExecRequest::argv(["/bin/sh", "-c", line, "sh", path]).stdin(Stdin::Stream).build()?;
    let handle = guest.sandbox.start(request).await?;
    let mut stdin = handle.stdin().expect("a writer");
    let copied = tokio::io::copy(&mut contents, &mut stdin).await;
    drop(stdin);
    let exit = handle.exit().await?;
    match copied.is_ok() && exit.success() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Io, "upload", "cannot write the file")),
    }
}

fn failed(error: &Error) -> Refused {
    let code = match error.kind() {
        ErrorKind::NotFound => "not_found",
        ErrorKind::Conflict | ErrorKind::PathEscape | ErrorKind::InvalidInput => "invalid_argument",
        _ => "internal",
    };
    Refused(code, error.to_string())
}

/// Finds an entry in its directory.
async fn entry(guest: &Guest, path: &SandboxPath) -> Result<DirEntry, Refused> {
    let (parent, name) = path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()));
    let parent = SandboxPath::new(format!("./{parent}")).map_err(|error| failed(&error))?;
    if path.is_workspace() {
        let mode = 0o755;
        return Ok(DirEntry {
            name: "workspace".to_owned(),
            kind: EntryKind::Directory,
            size: 0,
            mode,
            modified: 0,
            target: None,
        });
    }
    let listed = guest.sandbox.list_dir(&parent).await.map_err(|error| failed(&error))?;
    let found = listed.into_iter().find(|entry| entry.name == name);
    found.ok_or_else(|| Refused("not_found", format!("file not found: {path}")))
}

fn view(entry: &DirEntry, path: &str) -> Value {
    let kind = match entry.kind {
        EntryKind::File => "FILE_TYPE_FILE",
        EntryKind::Directory => "FILE_TYPE_DIRECTORY",
        EntryKind::Symlink => "FILE_TYPE_SYMLINK",
        EntryKind::Other => "FILE_TYPE_UNSPECIFIED",
    };
    json!({
        "name": entry.name, "type": kind, "path": path, "size": entry.size.to_string(), "mode": entry.mode,
        "permissions": format!("{:o}", entry.mode), "owner": "user", "group": "user",
        "modifiedTime": "2026-01-01T00:00:00Z",
    })
}

pub async fn call(
    Axum(state): Axum<Arc<State>>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Response> {
    let (guest, _) = guest(&state, &headers)?;
    let message: Value = serde_json::from_slice(&body).map_err(|error| refused(400, &error.to_string()))?;
    operate(&guest, &method, &message)
        .await
        .map(|answer| Json(answer).into_response())
        .map_err(IntoResponse::into_response)
}

async fn operate(guest: &Guest, method: &str, message: &Value) -> Result<Value, Refused> {
    let path = |name: &str| {
        let path = absolute(message[name].as_str().unwrap_or_default());
        SandboxPath::new(path).map_err(|error| failed(&error))
    };
    let described = async |path: &SandboxPath| {
        entry(guest, path).await.map(|entry| json!({ "entry": view(&entry, &path.inside()) }))
    };
    match method {
        "Stat" => described(&path("path")?).await,
        "MakeDir" => {
            let path = path("path")?;
            if entry(guest, &path).await.is_ok() {
                return Err(Refused("already_exists", format!("directory already exists: {path}")));
            }
            let created = guest.sandbox.put(&path, NewEntry::Directory { mode: 0o755 }).await;
            created.map_err(|error| failed(&error))?;
            described(&path).await
        }
        "Move" => {
            let (from, to) = (path("source")?, path("destination")?);
            let argv = ["mv", "-T", "--", &from.inside(), &to.inside()].map(str::to_owned);
            let moved = guest.sandbox.exec(ExecRequest::argv(argv).build().unwrap()).await;
            match moved.map_err(|error| failed(&error))?.exit.success() {
                true => described(&to).await,
                false => Err(Refused("not_found", format!("source file not found: {from}"))),
            }
        }
        "Remove" => {
            let path = path("path")?;
            match guest.sandbox.remove(&path).await {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(&error)),
                _ => Ok(json!({})),
            }
        }
        "ListDir" => {
            let path = path("path")?;
            let listed = guest.sandbox.list_dir(&path).await.map_err(|error| failed(&error))?;
            let one = |entry: &DirEntry| view(entry, &format!("{}/{}", path.inside(), entry.name));
            Ok(json!({ "entries": listed.iter().map(one).collect::<Vec<_>>() }))
        }
        _ => Err(Refused("unimplemented", format!("no method {method}"))),
    }
}
