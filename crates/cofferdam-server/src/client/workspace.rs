//! Copies of directories between this host and a sandbox of a server, and changes of its copy-on-write workspace.

use cofferdam_contract::{CopyReport, Error, ErrorKind, FileReader, Result, WorkspaceChanges};
use futures_util::TryStreamExt;
use http_body_util::BodyDataStream;
use hyper::Method;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio_util::io::StreamReader;

use super::{Client, Content, Transfer, encoded, foreign};
use crate::rest::{CHANGES_SKIPPED, COPY_REPORT, SkippedChanges};

impl Client {
    /// Copies an archive (tar) into a directory of a sandbox.
    ///
    /// # Errors
    /// Those of [`Client::send`].
    pub async fn copy_in(&self, sandbox: &str, to: &str, tar: FileReader) -> Result<CopyReport> {
        self.call_with(Method::PUT, &archive(sandbox, to), Content::reader(tar)).await
    }

    /// Writes files of a sandbox as an archive (tar). `path` may have wildcards.
    ///
    /// # Errors
    /// - Those of [`Client::send`].
    /// - `Unavailable` if the archive ends early.
    pub async fn copy_out(
        &self,
        sandbox: &str,
        path: &str,
        into: &mut (dyn AsyncWrite + Send + Unpin),
    ) -> Result<CopyReport> {
        let failed = |error| Error::new(ErrorKind::Io, "copy", "cannot write the archive").with_source(error);
        let mut from = Transfer::of(self.send_alone(Method::GET, &archive(sandbox, path)).await?);
        while let Some(data) = from.next().await? {
            into.write_all(&data).await.map_err(failed)?;
        }
        into.flush().await.map_err(failed)?;
        let report = from.trailer(COPY_REPORT).and_then(|value| serde_json::from_slice(value.as_bytes()).ok());
        report.ok_or_else(|| foreign("the archive has no report"))
    }

    /// Reads the changes of a copy-on-write workspace so far. The layer fails with an error if it ends early.
    ///
    /// # Errors
    /// - Those of [`Client::send`].
    pub async fn changes(&self, sandbox: &str) -> Result<WorkspaceChanges> {
        let path = format!("/v1/sandboxes/{}/changes", encoded(sandbox));
        let response = self.send_alone(Method::GET, &path).await?;
        let skipped = response.headers().get(&CHANGES_SKIPPED);
        let skipped: Option<SkippedChanges> = skipped.and_then(|value| serde_json::from_slice(value.as_bytes()).ok());
        let (skipped_count, skipped) =
            skipped.map(|SkippedChanges { count, first }| (count, first)).unwrap_or_default();
        let body = BodyDataStream::new(response.into_body()).map_err(std::io::Error::other);
        Ok(WorkspaceChanges { layer: Box::new(StreamReader::new(body)), skipped, skipped_count })
    }
}

fn archive(sandbox: &str, path: &str) -> String {
    format!("/v1/sandboxes/{}/files/archive?path={}", encoded(sandbox), encoded(path))
}
