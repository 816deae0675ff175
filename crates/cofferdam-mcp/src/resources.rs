//! Files of workspaces as resources: listed for a session's own sandboxes, read by their address.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{EntryKind, Error, ErrorKind, Result, Sandbox, SandboxPath};
use rmcp::model::{ErrorData, ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::Value;

use crate::results::Entry;
use crate::server::Inner;
use crate::store::Owner;
use crate::{media, uri};

/// Resources of one page.
const PAGE: usize = 200;
/// Levels of directories that are looked at.
const MOST_DEPTH: u32 = 16;

/// What is below a directory, in order, at most `most` entries; and whether there is more.
pub async fn walk(sandbox: &dyn Sandbox, top: &SandboxPath, depth: u32, most: usize) -> Result<(Vec<Entry>, bool)> {
    let mut found = Vec::new();
    let mut ahead = vec![(top.clone(), 1)];
    let mut more = false;
    while let Some((directory, level)) = ahead.pop() {
        let entries = match sandbox.list_dir(&directory).await {
            Ok(entries) => entries,
            // What is below the top can go, or be replaced by a link, while somebody looks.
            Err(_) if level > 1 => continue,
            Err(error) => return Err(error),
        };
        let mut deeper = Vec::new();
        for entry in entries {
            if found.len() >= most {
                more = true;
                break;
            }
            let path = if directory.is_workspace() {
                entry.name.clone()
            } else {
                format!("{}/{}", directory.as_str(), entry.name)
            };
            if entry.kind == EntryKind::Directory
                && level < depth
                && let Ok(path) = SandboxPath::new(&path)
            {
                deeper.push((path, level + 1));
            }
            found.push(Entry::new(path, &entry));
        }
        ahead.extend(deeper.into_iter().rev());
        if more {
            break;
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((found, more))
}

/// One page of the files in a session's sandboxes. The cursor is the address after which it begins.
pub async fn list(server: &Inner, owner: Owner, cursor: Option<&str>) -> Result<ListResourcesResult, ErrorData> {
    if cursor.is_some_and(|cursor| uri::parse(cursor).is_err()) {
        return Err(ErrorData::invalid_params("the cursor is none that this server gave", None));
    }
    let _call = server.enter_call().map_err(|error| protocol(&error))?;
    let mut resources = Vec::new();
    let mut left = server.config.bounds.entries;
    for id in server.store.sandboxes(owner) {
        // One that is closed meanwhile has no files.
        let Ok(sandbox) = server.store.enter(owner, &id) else { continue };
        let Ok((entries, _)) = walk(&**sandbox, &SandboxPath::default(), MOST_DEPTH, left).await else { continue };
        left = left.saturating_sub(entries.len());
        let files = entries.into_iter().filter(|entry| entry.kind == "file");
        resources.extend(files.map(|entry| resource(&id, &entry)));
    }
    resources.sort_by(|a, b| a.uri.cmp(&b.uri));
    if let Some(cursor) = cursor {
        resources.retain(|resource| resource.uri.as_str() > cursor);
    }
    let mut page = ListResourcesResult::default();
    if resources.len() > PAGE {
        resources.truncate(PAGE);
        page.next_cursor = resources.last().map(|resource| resource.uri.clone());
    }
    page.resources = resources;
    Ok(page)
}

fn resource(id: &str, entry: &Entry) -> Resource {
    let name = entry.path.rsplit('/').next().unwrap_or(&entry.path);
    Resource::new(uri::of(id, &entry.path), name).with_title(entry.path.clone()).with_size(entry.size)
}

/// How the address of a file is made.
pub fn template() -> ResourceTemplate {
    ResourceTemplate::new(uri::TEMPLATE, "workspace file")
        .with_title("A file of a sandbox's workspace")
        .with_description("The sandbox is the id that create_sandbox gave, the path is relative to its workspace.")
}

/// The contents of a file: text where they are, else a blob.
pub async fn read(server: &Inner, owner: Owner, address: &str) -> Result<ReadResourceResult, ErrorData> {
    let contents = contents(server, owner, address).await.map_err(|error| protocol(&error))?;
    Ok(ReadResourceResult::new(vec![contents]))
}

async fn contents(server: &Inner, owner: Owner, address: &str) -> Result<ResourceContents> {
    let (id, path) = uri::parse(address)?;
    let _call = server.enter_call()?;
    let sandbox = server.store.enter(owner, &id)?;
    let data = sandbox.read_file_to_end(&path, server.config.bounds.file).await?;
    let media_type = media::media_type(path.as_str(), &data);
    Ok(blob_or_text(address, media_type, data))
}

/// Contents in the form that fits them.
pub fn blob_or_text(address: &str, media_type: &str, data: Vec<u8>) -> ResourceContents {
    let contents = match media::text(&data) {
        Some(text) => ResourceContents::text(text, address),
        None => ResourceContents::blob(STANDARD.encode(&data), address),
    };
    contents.with_mime_type(media_type)
}

/// A failed read, which has no form for tools' errors.
fn protocol(error: &Error) -> ErrorData {
    let message = match error.remedy() {
        Some(remedy) => format!("{error}; try: {remedy}"),
        None => error.to_string(),
    };
    let data = Some(Value::Object(serde_json::Map::from_iter([("error".to_owned(), error.to_json())])));
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Closed => ErrorData::resource_not_found(message, data),
        ErrorKind::Io | ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::ResourceExhausted => {
            ErrorData::internal_error(message, data)
        }
        _ => ErrorData::invalid_params(message, data),
    }
}
