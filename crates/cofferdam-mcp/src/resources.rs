//! Files of workspaces as resources: listed for a session's own sandboxes, read by their address.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{DirEntry, EntryKind, Error, ErrorKind, Result, Sandbox, SandboxPath};
use rmcp::model::{ErrorData, ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::Value;

use crate::results::Entry;
use crate::server::Inner;
use crate::store::Account;
use crate::{failure, media, uri};

/// Resources of one page.
const PAGE: usize = 200;
/// Levels of directories that are looked at.
const MAX_DEPTH: u32 = 16;

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

/// One page of the files in a session's sandboxes. The cursor is the address of what was looked at last: files come in
/// the order of sandboxes and paths, and the walk goes on after it, so that all are listed in the end.
pub async fn list(server: &Inner, account: Account, cursor: Option<&str>) -> Result<ListResourcesResult, ErrorData> {
    let bad = |_| ErrorData::invalid_params("the cursor is none that this server gave", None);
    let after = cursor.map(uri::parse).transpose().map_err(bad)?;
    let owner = account.owner;
    let _call = server.enter_call(account.client).map_err(|error| protocol(&error))?;
    let mut page = ListResourcesResult::default();
    let mut left = Left { files: PAGE, looks: server.config.bounds.entries, last: None };
    let begin = after.as_ref().map_or("", |(id, _)| id);
    for id in server.store.sandboxes(owner).into_iter().filter(|id| id.as_str() >= begin) {
        // One that is closed meanwhile has no files.
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

/// What one page may still have.
struct Left {
    files: usize,
    looks: usize,
    /// The address of what was looked at last.
    last: Option<String>,
}

/// Files of one workspace that come after a path, each directory before what is in it; and whether the page ended
/// before the workspace did.
async fn page_of(sandbox: &dyn Sandbox, id: &str, after: Option<&SandboxPath>, left: &mut Left) -> (Vec<Entry>, bool) {
    let after: Vec<&str> = after.map(|path| path.as_str().split('/').collect()).unwrap_or_default();
    let mut found = Vec::new();
    let mut ahead = below(sandbox, &SandboxPath::default(), &after).await;
    while let Some((path, entry)) = ahead.pop() {
        let words: Vec<&str> = path.as_str().split('/').collect();
        if words > after {
            if left.files == 0 || left.looks == 0 {
                return (found, true);
            }
            left.looks -= 1;
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

/// What is in a directory and not before a path, in falling order. What has a name that no address can hold is left
/// out, and a directory that is gone has nothing.
async fn below(sandbox: &dyn Sandbox, directory: &SandboxPath, after: &[&str]) -> Vec<(SandboxPath, DirEntry)> {
    let entries = sandbox.list_dir(directory).await.unwrap_or_default().into_iter();
    let mut entries: Vec<(SandboxPath, DirEntry)> = entries
        .filter_map(|entry| {
            let path = SandboxPath::new(joined(directory, &entry.name)).ok()?;
            let words: Vec<&str> = path.as_str().split('/').collect();
            // One that leads to where the page begins is gone through again.
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

/// How the address of a file is made.
pub fn template() -> ResourceTemplate {
    ResourceTemplate::new(uri::TEMPLATE, "workspace file")
        .with_title("A file of a sandbox's workspace")
        .with_description("The sandbox is the id that create_sandbox gave, the path is relative to its workspace.")
}

/// The contents of a file: text where they are, else a blob.
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
