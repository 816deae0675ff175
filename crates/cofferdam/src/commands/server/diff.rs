//! `cofferdam diff`, and changes that are kept when a sandbox ends.

use cofferdam::{Error, Result};
use cofferdam_changes::sandbox::{KeptChanges, received};
use cofferdam_contract::WorkspaceChanges;
use cofferdam_server::client::{Client, Content, Method};
use cofferdam_server::rest::views::DeletedSandbox;

use super::client::encoded;
use super::connect;
use crate::args::{DiffArgs, ReviewArgs};
use crate::commands::block_on;
use crate::commands::review::{self, Review, Reviewed};
use crate::report::{self, Form};
use crate::style::Tone;

/// Shows, applies or saves the changes of a workspace.
pub fn main(args: &DiffArgs) -> u8 {
    let form = Form::of(args.json);
    match diff(args, form) {
        Err(error) => report::error(&error, form),
        Ok(Reviewed { status, document }) if form == Form::Json => report::printed(report::document(&document), status),
        Ok(Reviewed { status, .. }) => status,
    }
}

fn diff(args: &DiffArgs, form: Form) -> Result<Reviewed> {
    let client = connect(&args.client)?;
    if !client.is_on_socket() {
        // Another host's server does not say to which directory of this host its changes belong.
        return Err(Error::unsupported("diff", "changes belong to a directory of the server's host")
            .with_remedy("use the server's Unix socket on that host"));
    }
    let (file, skipped, count) = block_on(async {
        let WorkspaceChanges { layer, skipped, skipped_count } = client.changes(&args.sandbox).await?;
        Ok((received(layer).await?, skipped, skipped_count))
    })?;
    if count > 0 {
        report::remark(&format!("{count} changed files cannot be kept: {}", skipped.join("; ")), Tone::Warning);
    }
    let is_shown = !args.apply && args.save.is_none();
    let options = ReviewArgs { diff: is_shown, apply: args.apply, apply_if_ok: false, save_changes: args.save.clone() };
    review::review_live(&file, &skipped, Review { args: &options, form, quiet: false })
}

/// Closes a sandbox, and returns the changes that were kept.
pub(super) async fn close(client: &Client, sandbox: &str, discard: bool) -> Result<Option<KeptChanges>> {
    let query = if discard { "?changes=discard" } else { "" };
    let path = format!("/v1/sandboxes/{}{query}", encoded(sandbox));
    let deleted: Option<DeletedSandbox> = client.call_if_any(Method::DELETE, &path, Content::None).await?;
    Ok(deleted.map(|deleted| deleted.changes))
}

/// Prints the commands that show and apply changes that were kept.
pub(super) fn remind(stored: &[KeptChanges]) {
    for KeptChanges { id, workspace, files, skipped } in stored {
        review::remind(workspace, id, *files as u64);
        if *skipped > 0 {
            report::remark(&format!("{skipped} changed files could not be kept"), Tone::Warning);
        }
    }
}
