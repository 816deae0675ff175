//! Directories that `cofferdam cp` copies.

use std::path::Path;

use async_trait::async_trait;
use cofferdam::{CopyOut, Error, Result, SandboxPath};
use cofferdam_changes::sandbox::{CopiedOut, CopyEnd, HostTree, copy_out_with};
use cofferdam_changes::text;
use cofferdam_contract::{CopyReport, FileReader};
use cofferdam_linux::named::Directory;
use cofferdam_server::client::Client;
use serde_json::{Value, json};
use tokio::io::AsyncWrite;

use crate::commands::review;
use crate::out_file::Existing;
use crate::report;
use crate::style::Tone;

/// The maximum number of skipped files that are printed.
const MAX_PRINTED: usize = 10;

/// The workspace of a sandbox of a server.
struct Remote<'a> {
    client: &'a Client,
    sandbox: &'a str,
}

#[async_trait]
impl CopyEnd for Remote<'_> {
    async fn receive(&self, to: &SandboxPath, tar: FileReader) -> Result<CopyReport> {
        self.client.copy_in(self.sandbox, to.as_str(), tar).await
    }

    async fn deliver(&self, wanted: &CopyOut, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<CopyReport> {
        let pattern = wanted.patterns.first().map_or("", |pattern| pattern.as_str());
        let path = [wanted.from.as_str(), pattern].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
        self.client.copy_out(self.sandbox, &path.join("/"), into).await
    }
}

/// Copies a directory of this host, with its name, into a directory of a sandbox.
pub(super) async fn upload(client: &Client, from: &Path, sandbox: &str, to: &str) -> Result<Value> {
    let (tree, to) = (HostTree::named(from)?, SandboxPath::new(to)?);
    let (sent, received) = tree.copy_in(&Remote { client, sandbox }, &to, |_| {}).await?;
    warn(sent.skipped_count + received.skipped_count, sent.skipped.into_iter().chain(lines(&received)));
    Ok(json!({ "bytes": received.bytes, "files": received.entries }))
}

/// Copies a directory of a sandbox, with its name, into a directory of this host. Returns false unless each file was
/// written.
pub(super) async fn download(
    client: &Client,
    sandbox: &str,
    from: &str,
    to: &Path,
    existing: Existing,
) -> Result<(bool, Value)> {
    let directory = Directory::open(to).map_err(|error| {
        Error::invalid("copy", format!("cannot copy a directory to '{}': {error}", text::path(to)))
            .with_remedy("name a directory of this host that exists")
    })?;
    let from = SandboxPath::new(from)?;
    let wanted = CopyOut::named(from.as_str())?;
    let existing = match existing {
        Existing::Keep => cofferdam_changes::Existing::Keep,
        Existing::Replace => cofferdam_changes::Existing::Replace,
    };
    let copied = copy_out_with(&Remote { client, sandbox }, &wanted, &directory, existing, &|_| {}).await?;
    let CopiedOut { report, applied } = copied;
    warn(report.skipped_count, lines(&report));
    review::print_not_applied(&applied);
    let document = json!({ "bytes": report.bytes, "files": applied.applied.len() });
    Ok((review::applied_whole(&applied), document))
}

fn lines(report: &CopyReport) -> impl Iterator<Item = String> {
    report.skipped.iter().map(ToString::to_string)
}

fn warn(count: u64, skipped: impl Iterator<Item = String>) {
    if count > 0 {
        let listed: Vec<_> = skipped.take(MAX_PRINTED).collect();
        let more = if count > listed.len() as u64 { "; …" } else { "" };
        report::remark(&format!("{count} files were skipped or changed: {}{more}", listed.join("; ")), Tone::Warning);
    }
}
