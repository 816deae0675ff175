//! Files of a sandbox of a server.

use cofferdam_contract::{Error, ErrorKind, FileReader, NewEntry, Result, SandboxPath};
use futures_util::TryStreamExt;
use http_body_util::BodyDataStream;
use hyper::Method;
use hyper::StatusCode;
use hyper::header::{CONNECTION, HeaderValue, RANGE};
use tokio_util::io::StreamReader;

use crate::client::{Client, Content, encoded};
use crate::rest::views::Written;

/// Reads a file from an offset. An offset beyond the end gives no bytes.
pub(super) async fn read(client: &Client, sandbox: &str, path: &SandboxPath, offset: u64) -> Result<FileReader> {
    let url = format!("{sandbox}/files?path={}", encoded(&path.inside()));
    let range = HeaderValue::try_from(format!("bytes={offset}-"));
    let range = range.ok().filter(|_| offset > 0).map(|range| (RANGE, range));
    let alone = (CONNECTION, HeaderValue::from_static("close"));
    let answer = match client.send_with(Method::GET, &url, Content::None, range.into_iter().chain([alone])).await {
        Err((Some(StatusCode::RANGE_NOT_SATISFIABLE), _)) => return Ok(Box::new(tokio::io::empty())),
        other => other.map_err(|(_, error)| error)?,
    };
    let body = BodyDataStream::new(answer.into_body()).map_err(std::io::Error::other);
    Ok(Box::new(StreamReader::new(body)))
}

/// Writes a file.
pub(super) async fn write(client: &Client, sandbox: &str, path: &SandboxPath, contents: FileReader) -> Result<u64> {
    let url = format!("{sandbox}/files?path={}", encoded(&path.inside()));
    upload(client, &url, "write_file", contents).await
}

/// Creates a file, directory or symlink.
pub(super) async fn put(client: &Client, sandbox: &str, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
    let path = encoded(&path.inside());
    let (what, contents): (_, FileReader) = match entry {
        NewEntry::File { mode, modified, contents } => (format!("file&mode={mode}&modified={modified}"), contents),
        NewEntry::Directory { mode } => (format!("directory&mode={mode}"), Box::new(tokio::io::empty())),
        NewEntry::Symlink { target } => (format!("symlink&target={}", encoded(&target)), Box::new(tokio::io::empty())),
    };
    upload(client, &format!("{sandbox}/files/entry?path={path}&kind={what}"), "put", contents).await
}

/// Sends contents. If they cannot be read, the error is theirs, and not that of the broken request.
async fn upload(client: &Client, url: &str, operation: &'static str, contents: FileReader) -> Result<u64> {
    let (contents, failure) = crate::client::noticed(contents);
    let sent = client.call_with(Method::PUT, url, Content::reader(contents)).await;
    match (sent, failure.take()) {
        (_, Some(error)) => Err(Error::new(ErrorKind::Io, operation, "cannot read the contents").with_source(error)),
        (sent, None) => sent.map(|Written { bytes }| bytes),
    }
}
