//! The call that shows the changes of a copy-on-write workspace. Applying them is left to the person at the host.

use cofferdam_changes::sandbox::review;
use cofferdam_contract::{Error, Result, Workspace};
use rmcp::model::{CallToolResult, ContentBlock};

use super::{Caller, structured};
use crate::arguments::ShowChanges;
use crate::results::{Changed, Changes};

/// Maximum size of the differences in one result.
const MAX_DIFF: usize = 64 * 1024;
/// Maximum number of skipped files in one result.
const MAX_SKIPPED: usize = 20;

impl Caller<'_> {
    pub(super) async fn show_changes(self, arguments: ShowChanges) -> Result<CallToolResult> {
        let sandbox = self.existing(arguments.sandbox.as_deref()).await?;
        let Workspace::CopyOnWrite { path } = sandbox.spec().workspace() else {
            return Err(Error::invalid("show_changes", "the workspace of this sandbox is not a copy-on-write one")
                .with_remedy("read its files instead: their changes are final"));
        };
        let mut changes = sandbox.changes().await?;
        let mut skipped = std::mem::take(&mut changes.skipped);
        skipped.truncate(MAX_SKIPPED);
        let skipped_count = changes.skipped_count;
        let reviewed = review(changes, path, MAX_DIFF).await?;
        let max = self.server.config.bounds.entries;
        let is_cut = reviewed.is_cut || reviewed.document.changes.len() > max;
        let listed = reviewed.document.changes.into_iter().take(max);
        let changes = Changes {
            files: reviewed.document.summary.files,
            insertions: reviewed.document.summary.insertions,
            deletions: reviewed.document.summary.deletions,
            changes: listed.map(|change| Changed { path: change.path, kind: change.kind, from: change.from }).collect(),
            truncated: is_cut,
            skipped,
            skipped_count,
        };
        structured(&changes, vec![ContentBlock::text(reviewed.diff)])
    }
}
