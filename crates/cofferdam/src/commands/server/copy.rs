//! `cofferdam cp`.

use std::path::Path;

use cofferdam::{EntryKind, Error, ErrorKind, Result};
use cofferdam_linux::named;
use cofferdam_server::client::{Client, Content, Method, Transfer};
use cofferdam_server::rest::views::{FileStat, Written};
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, BufWriter};

use super::client::encoded;
use super::{connect, trees};
use crate::args::CopyFilesArgs;
use crate::commands::block_on;
use crate::out_file::{Existing, OutFile};
use crate::report::{self, FAILED, Form};

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum End<'a> {
    Standard,
    Host(&'a str),
    Sandbox(&'a str, &'a str),
}

impl<'a> End<'a> {
    /// Parses an end. A path of this host with a colon is written with a slash, such as `./a:b`.
    fn of(text: &'a str) -> Self {
        match text.split_once(':') {
            None if text == "-" => Self::Standard,
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => Self::Sandbox(sandbox, path),
            _ => Self::Host(text),
        }
    }
}

/// Copies a file or directory into or out of a sandbox.
pub fn main(args: CopyFilesArgs) -> u8 {
    let form = Form::of(args.json);
    let copied = connect(&args.client).and_then(|client| block_on(async { copy(&client, &args).await }));
    match copied {
        Err(error) => report::error(&error, form),
        Ok((is_whole, done)) => {
            let status = if is_whole { 0 } else { FAILED };
            match form == Form::Json && args.to != "-" {
                true => report::printed(report::document(&done), status),
                false => status,
            }
        }
    }
}

/// Returns true if everything was copied, and a document.
async fn copy(client: &Client, args: &CopyFilesArgs) -> Result<(bool, Value)> {
    match (End::of(&args.from), End::of(&args.to)) {
        (End::Sandbox(sandbox, path), End::Host(to)) => {
            if is_directory(client, sandbox, path).await? {
                return trees::download(client, sandbox, path, Path::new(to), existing(args.force)).await;
            }
            let mut from = Transfer::of(client.send(Method::GET, &address(sandbox, path), Content::None).await?);
            let bytes = download(&mut from, Path::new(to), args.force).await?;
            Ok((true, json!({ "bytes": bytes })))
        }
        (End::Sandbox(sandbox, path), End::Standard) => {
            let mut from = Transfer::of(client.send(Method::GET, &address(sandbox, path), Content::None).await?);
            pour(&mut from, tokio::io::stdout()).await.map(|bytes| (true, json!({ "bytes": bytes })))
        }
        (End::Host(path), End::Sandbox(sandbox, inside)) => {
            let failed = |error: std::io::Error| {
                Error::new(ErrorKind::NotFound, "copy", "cannot open the file")
                    .with_context("file", path.to_owned())
                    .with_source(error)
                    .with_remedy("name a file or directory that this user can read")
            };
            // A guest may own a directory above the file. No link of it is followed.
            let file = named::read(Path::new(path)).map_err(failed)?;
            if file.metadata().map_err(failed)?.is_dir() {
                return trees::upload(client, Path::new(path), sandbox, inside).await.map(|done| (true, done));
            }
            let file = tokio::fs::File::from_std(file);
            upload(client, &address(sandbox, inside), Content::reader(file)).await
        }
        (End::Standard, End::Sandbox(sandbox, inside)) => {
            upload(client, &address(sandbox, inside), Content::reader(tokio::io::stdin())).await
        }
        _ => Err(Error::invalid("copy", "one of the two must be a file of a sandbox, and the other one of this host")
            .with_remedy("write SANDBOX:PATH for a file of a sandbox")),
    }
}

fn existing(force: bool) -> Existing {
    if force { Existing::Replace } else { Existing::Keep }
}

async fn is_directory(client: &Client, sandbox: &str, path: &str) -> Result<bool> {
    let path = format!("/v1/sandboxes/{}/files/stat?path={}", encoded(sandbox), encoded(path));
    let stat: FileStat = client.call(Method::GET, &path, None::<&()>).await?;
    Ok(stat.kind == EntryKind::Directory)
}

fn address(sandbox: &str, path: &str) -> String {
    format!("/v1/sandboxes/{}/files?path={}", encoded(sandbox), encoded(path))
}

async fn upload(client: &Client, address: &str, content: Content) -> Result<(bool, Value)> {
    let written: Written = client.call_with(Method::PUT, address, content).await?;
    Ok((true, json!({ "bytes": written.bytes })))
}

async fn download(from: &mut Transfer, path: &Path, force: bool) -> Result<u64> {
    let out = OutFile::begin(path, existing(force))?;
    let bytes = pour(from, tokio::fs::File::from_std(out.file()?)).await?;
    out.finish()?;
    Ok(bytes)
}

pub(super) async fn pour(from: &mut Transfer, to: impl tokio::io::AsyncWrite + Unpin) -> Result<u64> {
    let failed = |error| Error::new(ErrorKind::Io, "copy", "cannot write the file").with_source(error);
    let (mut to, mut bytes) = (BufWriter::with_capacity(256 << 10, to), 0);
    while let Some(data) = from.next().await? {
        to.write_all(&data).await.map_err(failed)?;
        bytes += data.len() as u64;
    }
    to.flush().await.map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_files_of_sandboxes_or_of_this_host() {
        for (text, end) in [
            ("-", End::Standard),
            ("a", End::Host("a")),
            ("./a:b", End::Host("./a:b")),
            (":b", End::Host(":b")),
            ("box:a/b", End::Sandbox("box", "a/b")),
            ("box:", End::Sandbox("box", "")),
            ("box:/workspace/a:b", End::Sandbox("box", "/workspace/a:b")),
        ] {
            assert_eq!(End::of(text), end);
        }
    }
}
