//! Files of workspaces as resources: listed for the sandboxes of a session, read by address.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{DirEntry, EntryKind, Error, ErrorKind, Result, Sandbox, SandboxPath};
use rmcp::model::{ErrorData, ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::Value;

use crate::results::Entry;
use crate::server::Inner;
use crate::store::Account;
use crate::{failure, media, uri};

/// Maximum number of resources on one page.
const PAGE: usize = 200;
/// Maximum depth of listed directories.
const MAX_DEPTH: u32 = 16;

/// Lists at most `max_entries` entries below a directory, in order. Returns true with them if there are more.
pub async fn walk(
    sandbox: &dyn Sandbox,
    top: &SandboxPath,
    depth: u32,
    max_entries: usize,
) -> Result<(Vec<Entry>, bool)> {
    let mut found = Vec::new();
    let mut ahead = vec![(top.clone(), 1)];
    let mut more = false;
    while let Some((directory, level)) = ahead.pop() {
        let entries = match sandbox.list_dir(&directory).await {
            Ok(entries) => entries,
            // Directories below the top can be deleted or replaced by a link during the walk.
            Err(_) if level > 1 => continue,
            Err(error) => return Err(error),
        };
        let mut deeper = Vec::new();
        for entry in entries {
            if found.len() >= max_entries {
                more = true;
                break;
            }
            let path = joined(&directory, &entry.name);
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

/// Lists one page of the files in a session's sandboxes. The cursor is the address of the last inspected entry: files
/// are in the order of sandboxes and paths, and the walk continues after it, so that all files are listed in the end.
pub async fn list(server: &Inner, account: Account, cursor: Option<&str>) -> Result<ListResourcesResult, ErrorData> {
    let bad = |_| ErrorData::invalid_params("the cursor does not come from this server", None);
    let after = cursor.map(uri::parse).transpose().map_err(bad)?;
    let owner = account.owner;
    let _call = server.enter_call(account.client).map_err(|error| protocol(&error))?;
    let mut page = ListResourcesResult::default();
    let mut left = Left { files: PAGE, entries: server.config.bounds.entries, last: None };
    let begin = after.as_ref().map_or("", |(id, _)| id);
    for id in server.store.sandboxes(owner).into_iter().filter(|id| id.as_str() >= begin) {
        // Skips a sandbox that was closed in the meantime.
        let Ok(sandbox) = server.store.enter(owner, &id) else { continue };
        let after = after.as_ref().filter(|(of, _)| *of == id).map(|(_, path)| path);
        let (files, more) = page_of(&**sandbox, &id, after, &mut left).await;
        page.resources.extend(files.iter().map(|entry| resource(&id, entry)));
        if more {
            page.next_cursor = left.last;
            break;
        }
    }
    Ok(page)
}

/// The remaining capacity of one page.
struct Left {
    files: usize,
    /// Remaining entries to inspect, including those that are not listed.
    entries: usize,
    /// The address of the last inspected entry.
    last: Option<String>,
}

/// Lists the files of one workspace after a path, with each directory before its entries. Returns true with them if the
/// page ended before the workspace did.
async fn page_of(sandbox: &dyn Sandbox, id: &str, after: Option<&SandboxPath>, left: &mut Left) -> (Vec<Entry>, bool) {
    let after: Vec<&str> = after.map(|path| path.as_str().split('/').collect()).unwrap_or_default();
    let mut found = Vec::new();
    let mut ahead = below(sandbox, &SandboxPath::default(), &after).await;
    while let Some((path, entry)) = ahead.pop() {
        let words: Vec<&str> = path.as_str().split('/').collect();
        if words > after {
            if left.files == 0 || left.entries == 0 {
                return (found, true);
            }
            left.entries -= 1;
            left.last = Some(uri::of(id, path.as_str()));
            if entry.kind == EntryKind::File {
                left.files -= 1;
                found.push(Entry::new(path.as_str().to_owned(), &entry));
            }
        }
        if entry.kind == EntryKind::Directory && words.len() < MAX_DEPTH as usize {
            ahead.extend(below(sandbox, &path, &after).await);
        }
    }
    (found, false)
}

/// Returns the entries of a directory that are not before a path, in descending order. Omits entries whose names do not
/// fit into an address. A deleted directory has no entries.
async fn below(sandbox: &dyn Sandbox, directory: &SandboxPath, after: &[&str]) -> Vec<(SandboxPath, DirEntry)> {
    let entries = sandbox.list_dir(directory).await.unwrap_or_default().into_iter();
    let mut entries: Vec<(SandboxPath, DirEntry)> = entries
        .filter_map(|entry| {
            let path = SandboxPath::new(joined(directory, &entry.name)).ok()?;
            let words: Vec<&str> = path.as_str().split('/').collect();
            // Visits a parent directory of the page's beginning again.
            (words.as_slice() > after || after.starts_with(&words)).then_some((path.clone(), entry))
        })
        .collect();
    entries.sort_by(|(a, _), (b, _)| b.as_str().split('/').cmp(a.as_str().split('/')));
    entries
}

fn joined(directory: &SandboxPath, name: &str) -> String {
    if directory.is_workspace() { name.to_owned() } else { format!("{}/{name}", directory.as_str()) }
}

fn resource(id: &str, entry: &Entry) -> Resource {
    let name = entry.path.rsplit('/').next().unwrap_or(&entry.path);
    Resource::new(uri::of(id, &entry.path), name).with_title(entry.path.clone()).with_size(entry.size)
}

/// Returns the template of file addresses.
pub fn template() -> ResourceTemplate {
    ResourceTemplate::new(uri::TEMPLATE, "workspace file")
        .with_title("A file of a sandbox's workspace")
        .with_description("The sandbox is an id returned by create_sandbox. The path is relative to its workspace.")
}

/// Reads a file as text or as a blob.
pub async fn read(server: &Inner, account: Account, address: &str) -> Result<ReadResourceResult, ErrorData> {
    let contents = contents(server, account, address).await.map_err(|error| protocol(&error))?;
    Ok(ReadResourceResult::new(vec![contents]))
}

async fn contents(server: &Inner, account: Account, address: &str) -> Result<ResourceContents> {
    let (id, path) = uri::parse(address)?;
    let _call = server.enter_call(account.client)?;
    let sandbox = server.store.enter(account.owner, &id)?;
    let data = sandbox.read_file_to_end(&path, server.config.bounds.file).await?;
    let media_type = media::media_type(path.as_str(), &data);
    Ok(blob_or_text(address, media_type, data))
}

/// Returns contents as text if they are text, else as a blob.
pub fn blob_or_text(address: &str, media_type: &str, data: Vec<u8>) -> ResourceContents {
    let contents = match media::text(&data) {
        Some(text) => ResourceContents::text(text, address),
        None => ResourceContents::blob(STANDARD.encode(&data), address),
    };
    contents.with_mime_type(media_type)
}

/// Converts an error of a resource request to a protocol error.
fn protocol(error: &Error) -> ErrorData {
    let message = match error.remedy() {
        Some(remedy) => format!("{}; try: {remedy}", failure::clipped(&error.to_string())),
        None => failure::clipped(&error.to_string()),
    };
    let data = Some(Value::Object(serde_json::Map::from_iter([("error".to_owned(), failure::parts(error))])));
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Closed => ErrorData::resource_not_found(message, data),
        ErrorKind::Io | ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::ResourceExhausted => {
            ErrorData::internal_error(message, data)
        }
        _ => ErrorData::invalid_params(message, data),
    }
}
