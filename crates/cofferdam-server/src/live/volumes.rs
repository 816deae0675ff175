//! The volumes of new sandboxes.

use std::sync::Arc;

use cofferdam_contract::{Error, Level, Result, Sandbox, Spec};
use cofferdam_volume::sandbox::VolumeMount;

use super::Sandboxes;
use crate::report;

/// The result of a create, with its sandbox.
pub(super) trait Created {
    /// Replaces the sandbox.
    fn map_sandbox(self, map: impl FnOnce(Arc<dyn Sandbox>) -> Arc<dyn Sandbox>) -> Self;
}

impl Created for Arc<dyn Sandbox> {
    fn map_sandbox(self, map: impl FnOnce(Self) -> Self) -> Self {
        map(self)
    }
}

impl<T> Created for (Arc<dyn Sandbox>, T) {
    fn map_sandbox(self, map: impl FnOnce(Arc<dyn Sandbox>) -> Arc<dyn Sandbox>) -> Self {
        (map(self.0), self.1)
    }
}

/// Returns an error without the paths of the server's volumes, which its source has.
fn without_paths(error: Error) -> Error {
    if error.context().all(|(key, _)| key != "path") {
        return error;
    }
    let plain = Error::new(error.kind(), "create", error.message()).with_fault(error.fault()).with_retry(error.retry());
    let plain = match error.remedy() {
        Some(remedy) => plain.with_remedy(remedy),
        None => plain,
    };
    plain.with_source(error)
}

impl Sandboxes {
    /// Creates a sandbox with volumes of its tenant. They are in use until it has closed.
    ///
    /// # Errors
    /// - Those of [`crate::volumes::Volumes::attach`] and of `create`.
    pub(super) async fn with_volumes<T: Created>(
        &self,
        spec: Spec,
        volumes: Vec<VolumeMount>,
        level: Level,
        create: impl AsyncFnOnce(Spec) -> Result<T>,
    ) -> Result<T> {
        if volumes.is_empty() {
            return create(spec).await;
        }
        let attached = self.volumes()?.attach(&spec, volumes, level).await?;
        match create(attached.spec.clone()).await {
            Ok(created) => Ok(created.map_sandbox(|sandbox| attached.keep_for(sandbox))),
            Err(error) => {
                if let Err(failed) = attached.release().await {
                    // It names files of the host.
                    report::warning(&failed.to_string());
                }
                Err(without_paths(error))
            }
        }
    }
}
