//! Named volumes in each sandbox of a backend ([`around`]). The lock of a volume lives as long as its sandbox.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, BackendLayer, Capabilities, Capability, Error, ErrorKind, Result, Sandbox, Snapshot, Spec,
};
use cofferdam_volume::Store;
use cofferdam_volume::sandbox::without_snapshots;
pub use cofferdam_volume::sandbox::{VolumeMount, Volumes, failed};
use tokio::sync::oneshot;

/// Detaches volumes that supervisors left mounted for their engine when they were killed.
#[cfg(feature = "container")]
pub fn release_abandoned() {
    cofferdam_container::sweep_disks();
}

/// Returns a backend whose sandboxes each have these volumes, from their creation to their close. So a volume without
/// `:ro` is in one sandbox at a time. `purpose` is shown to other users of the volumes.
#[must_use]
pub fn around(
    inner: Arc<dyn Backend>,
    store: Store,
    mounts: Vec<VolumeMount>,
    purpose: &'static str,
) -> Arc<dyn Backend> {
    if mounts.is_empty() {
        return inner;
    }
    Arc::new(VolumeBackend { inner, store: Arc::new(store), mounts: mounts.into(), purpose })
}

#[derive(Debug)]
struct VolumeBackend {
    inner: Arc<dyn Backend>,
    store: Arc<Store>,
    mounts: Arc<[VolumeMount]>,
    purpose: &'static str,
}

#[async_trait]
impl BackendLayer for VolumeBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.retain(|it| !matches!(it, Capability::Snapshot | Capability::Fork | Capability::Warm));
        capabilities
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let (inner, store, mounts) = (Arc::clone(&self.inner), Arc::clone(&self.store), Arc::clone(&self.mounts));
        let purpose = self.purpose;
        let (sender, created) = oneshot::channel();
        // In a task of its own: a caller that stops waiting must not release volumes that a sandbox still has.
        tokio::spawn(async move {
            if let Err(Ok(sandbox)) = sender.send(create(inner, store, mounts, purpose, spec).await) {
                let _ = sandbox.close().await;
            }
        });
        created.await.map_err(interrupted)?
    }

    async fn restore(&self, _snapshot: Snapshot, _spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Err(without_snapshots("restore"))
    }
}

async fn create(
    inner: Arc<dyn Backend>,
    store: Arc<Store>,
    mounts: Arc<[VolumeMount]>,
    purpose: &'static str,
    spec: Spec,
) -> Result<Arc<dyn Sandbox>> {
    let level = inner.level();
    let opening = tokio::task::spawn_blocking(move || {
        #[cfg(feature = "container")]
        release_abandoned();
        Volumes::open(&store, &mounts, level, purpose).map_err(failed)
    });
    let volumes = opening.await.map_err(interrupted)??;
    let spec = volumes.add_to(spec.to_builder()).build()?;
    Ok(volumes.keep_for(inner.create(spec).await?))
}

fn interrupted(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Internal, "create", "the creation of a sandbox with volumes was interrupted")
        .with_source(error)
}
