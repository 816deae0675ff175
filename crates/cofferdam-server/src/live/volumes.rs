//! The volumes of new sandboxes.

use cofferdam_contract::{Error, Level, Result, Spec};
use cofferdam_volume::sandbox::VolumeMount;

use super::Sandboxes;
use crate::layers::volumes::attached_to;
use crate::report;

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
    pub(super) async fn with_volumes<T>(
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
        let spec = attached.spec.clone();
        let (created, left) = attached_to(attached, create(spec)).await;
        debug_assert!(left.is_none() || created.is_err(), "a layer of the backend takes the volumes");
        if let Some(left) = left
            && let Err(failed) = left.release().await
        {
            // It names files of the host.
            report::warning(&failed.to_string());
        }
        created.map_err(without_paths)
    }
}
