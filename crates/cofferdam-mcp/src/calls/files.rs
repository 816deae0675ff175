//! Calls that read, write, edit and list files of workspaces.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{ByteSize, Error, ErrorKind, Result, Sandbox, SandboxPath};
use rmcp::model::{CallToolResult, ContentBlock};
use tokio::io::AsyncReadExt;

use super::{Caller, structured};
use crate::arguments::{EditFile, Encoding, ListFiles, ReadFile, WriteFile};
use crate::results::{Edited, FileContents, Listing, Written};
use crate::{media, resources, uri};

/// Default number of bytes to read.
const DEFAULT_READ: u64 = 256 * 1024;
/// Maximum number of directory levels to list.
const MAX_DEPTH: u32 = 32;

impl Caller<'_> {
    pub(super) async fn read_file(self, arguments: ReadFile) -> Result<CallToolResult> {
        let path = file_path(&arguments.path)?;
        let found = self.find_lasting(arguments.sandbox.as_deref()).await?;
        let max = self.server.config.bounds.file;
        let limit = match arguments.limit {
            Some(limit) if limit > max.as_bytes() => return Err(too_large("limit", max)),
            limit => limit,
        };
        let (data, more) = read_part(&**found.sandbox, &path, arguments.offset, limit, max).await?;
        let media_type = media::media_type(path.as_str(), &data);
        let whole = arguments.offset == 0 && !more;
        let text = media::text(&data).map(str::to_owned);
        let content = match &text {
            Some(text) => ContentBlock::text(text.clone()),
            None if whole && media::image(&data).is_some() => ContentBlock::image(STANDARD.encode(&data), media_type),
            None => {
                let address = uri::of(found.sandbox.id(), path.as_str());
                ContentBlock::resource(resources::blob_or_text(&address, media_type, data.clone()))
            }
        };
        let contents = FileContents {
            path: path.as_str().to_owned(),
            media_type: media_type.to_owned(),
            offset: arguments.offset,
            bytes: data.len() as u64,
            more,
            text,
        };
        structured(&contents, vec![content])
    }

    pub(super) async fn write_file(self, arguments: WriteFile) -> Result<CallToolResult> {
        let path = file_path(&arguments.path)?;
        let data = match arguments.encoding {
            Encoding::Text => arguments.content.into_bytes(),
            Encoding::Base64 => STANDARD.decode(arguments.content.trim_ascii()).map_err(|error| {
                Error::invalid("write_file", format!("the content is not valid base64: {error}"))
                    .with_remedy("encode it with the standard alphabet and padding, or leave out encoding for text")
            })?,
        };
        let max = self.server.config.bounds.file;
        if data.len() as u64 > max.as_bytes() {
            return Err(too_large("content", max));
        }
        let found = self.find_lasting(arguments.sandbox.as_deref()).await?;
        let bytes = found.sandbox.write_bytes(&path, data).await?;
        structured(&Written { path: path.as_str().to_owned(), bytes, used: found.used.clone() }, Vec::new())
    }

    pub(super) async fn edit_file(self, arguments: EditFile) -> Result<CallToolResult> {
        let path = file_path(&arguments.path)?;
        let found = self.find_lasting(arguments.sandbox.as_deref()).await?;
        let max = self.server.config.bounds.file;
        let data = found.sandbox.read_file_to_end(&path, max).await?;
        let text = String::from_utf8(data).map_err(|_| {
            Error::new(ErrorKind::Conflict, "edit_file", "the file is not UTF-8 text")
                .with_context("path", path.to_string())
                .with_remedy("replace the whole file with write_file and encoding base64")
        })?;
        let (edited, replacements) = edit(&text, &arguments, max)?;
        let bytes = found.sandbox.write_bytes(&path, edited).await?;
        structured(&Edited { path: path.as_str().to_owned(), replacements, bytes }, Vec::new())
    }

    pub(super) async fn list_files(self, arguments: ListFiles) -> Result<CallToolResult> {
        let path = SandboxPath::new(&arguments.path)?;
        if !(1..=MAX_DEPTH).contains(&arguments.depth) {
            return Err(Error::invalid("list_files", format!("depth must be 1 to {MAX_DEPTH}")));
        }
        let found = self.find_lasting(arguments.sandbox.as_deref()).await?;
        let max = self.server.config.bounds.entries;
        let (entries, truncated) = resources::walk(&**found.sandbox, &path, arguments.depth, max).await?;
        structured(&Listing { path: path.as_str().to_owned(), entries, truncated }, Vec::new())
    }
}

/// Parses a path below the workspace.
fn file_path(text: &str) -> Result<SandboxPath> {
    let path = SandboxPath::new(text)?;
    if path.is_workspace() {
        return Err(Error::invalid("path", "the path is the workspace itself, not a file in it"));
    }
    Ok(path)
}

fn too_large(what: &str, max: ByteSize) -> Error {
    let message = format!("{what} exceeds {max}, the server's limit for one call");
    Error::new(ErrorKind::Denied, "file", message).with_remedy("process the file in parts with run_command")
}

/// Reads part of a file. Returns the data, and true if the file continues. Without a limit, reads an image completely.
async fn read_part(
    sandbox: &dyn Sandbox,
    path: &SandboxPath,
    offset: u64,
    limit: Option<u64>,
    max: ByteSize,
) -> Result<(Vec<u8>, bool)> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, "read_file", "cannot read the file")
            .with_context("path", path.to_string())
            .with_source(error)
    };
    let mut reader = sandbox.read_file_from(path, offset).await?;
    let default = DEFAULT_READ.min(max.as_bytes());
    let mut data = Vec::new();
    (&mut reader).take(limit.unwrap_or(default) + 1).read_to_end(&mut data).await.map_err(failed)?;
    let mut limit = limit.unwrap_or(default);
    if data.len() as u64 > limit && limit == default && offset == 0 && media::image(&data).is_some() {
        limit = max.as_bytes();
        (&mut reader).take(limit + 1 - data.len() as u64).read_to_end(&mut data).await.map_err(failed)?;
    }
    let more = data.len() as u64 > limit;
    data.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    if more {
        // Drops a character that is cut at the end of text.
        let cut = std::str::from_utf8(&data).err().filter(|error| error.error_len().is_none());
        data.truncate(cut.map_or(data.len(), |error| error.valid_up_to()));
    }
    Ok((data, more))
}

/// Edits a text. Returns the new text and the number of replacements.
fn edit(text: &str, arguments: &EditFile, max: ByteSize) -> Result<(String, u64)> {
    let EditFile { old_text, new_text, replace_all, .. } = arguments;
    let bad = |kind, message: String, remedy: &str| {
        Err(Error::new(kind, "edit_file", message).with_fault(cofferdam_contract::Fault::Caller).with_remedy(remedy))
    };
    if old_text.is_empty() {
        return bad(ErrorKind::InvalidInput, "old_text is empty".to_owned(), "create a file with write_file");
    }
    let count = text.matches(old_text.as_str()).count();
    if count == 0 {
        return bad(
            ErrorKind::NotFound,
            "old_text does not occur in the file".to_owned(),
            "read the file, and pass the exact text with its whitespace and line ends",
        );
    }
    if count > 1 && !replace_all {
        return bad(
            ErrorKind::Conflict,
            format!("old_text occurs {count} times in the file"),
            "include more of the surrounding text, or set replace_all",
        );
    }
    let after = (text.len() - count * old_text.len()).saturating_add(count.saturating_mul(new_text.len()));
    if after as u64 > max.as_bytes() {
        return Err(too_large("the edited file", max));
    }
    Ok((text.replace(old_text.as_str(), new_text), count as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, old: &str, new: &str, replace_all: bool, max: u64) -> Result<(String, u64)> {
        let arguments = EditFile {
            path: "x".to_owned(),
            old_text: old.to_owned(),
            new_text: new.to_owned(),
            replace_all,
            sandbox: None,
        };
        edit(text, &arguments, ByteSize::from_bytes(max))
    }

    #[test]
    fn an_edit_is_exact_and_bounded() {
        assert_eq!(edited("a b", "b", "c", false, 10).unwrap(), ("a c".to_owned(), 1));
        assert_eq!(edited("bb", "b", "cc", true, 10).unwrap(), ("cccc".to_owned(), 2));
        for (old, all, kind) in [
            ("", true, ErrorKind::InvalidInput),
            ("x", true, ErrorKind::NotFound),
            ("b", false, ErrorKind::Conflict),
            ("b", true, ErrorKind::Denied),
        ] {
            assert_eq!(edited("b b", old, &"y".repeat(9), all, 10).unwrap_err().kind(), kind, "{old:?}");
        }
    }
}
