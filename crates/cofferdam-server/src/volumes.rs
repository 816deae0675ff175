//! The volumes of all tenants: a store of `cofferdam-volume` for each tenant, below the server's state directory. Every
//! look-up is by tenant, and no name of a volume leads to the store of another tenant.
//!
//! A volume has a size, which counts against the quota of its tenant. The server's own user may have volumes without
//! one. Volumes outlive sandboxes and the server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, ErrorKind, Level, Result, Retry, Sandbox, Spec, TenantId};
use cofferdam_util::{hex, private};
use cofferdam_volume::sandbox::{VolumeMount, Volumes as OpenVolumes, failed};
use cofferdam_volume::{Name, Store, Volume, VolumeError};

use crate::quota::Quota;
use crate::refusal::exhausted;
use crate::turns::{Turns, blocking};

/// The purpose that the store records for the users of a volume.
const PURPOSE: &str = "cofferdam serve";
/// The interval after which a client may retry.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The settings of volumes.
#[derive(Debug, Clone)]
pub struct VolumesConfig {
    /// The directory of the stores, which is private to this server.
    pub directory: PathBuf,
    /// Detaches what killed processes left mounted, before volumes are used.
    pub before_use: fn(),
}

/// The volumes of all tenants.
#[derive(Debug)]
pub struct Volumes {
    config: VolumesConfig,
    turns: Turns,
    /// The turns of sandboxes, which may wait for a file system that is created again.
    attaches: Turns,
}

/// The volumes of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// The number of volumes.
    pub volumes: u32,
    /// The sizes of all together, in bytes.
    pub bytes: u64,
}

impl Volumes {
    /// Opens the volumes in a directory, which is created if it is missing.
    ///
    /// # Errors
    /// - `Denied` for a directory that other users can change.
    pub fn open(config: VolumesConfig) -> Result<Arc<Self>> {
        let directory = &config.directory;
        let found = private::create_directory(directory).and_then(|()| std::fs::metadata(directory));
        let found = found.map_err(|error| {
            Error::new(ErrorKind::Io, "serve", "cannot use the directory of volumes").with_source(error)
        })?;
        if let Some(exposure) = private::exposure(&found) {
            let message = format!("the directory of volumes is not safe: {exposure}");
            return Err(Error::new(ErrorKind::Denied, "serve", message)
                .with_context("directory", directory.display().to_string()));
        }
        Ok(Arc::new(Self { config, turns: Turns::default(), attaches: Turns::default() }))
    }

    /// Creates a volume with a size in bytes, or without a limit.
    ///
    /// # Errors
    /// - `Conflict` if the tenant has a volume with this name, `InvalidInput` for an invalid size.
    /// - `ResourceExhausted` if the tenant's quota is used up.
    pub async fn create(&self, tenant: &TenantId, name: Name, size: Option<u64>, quota: &Quota) -> Result<Volume> {
        // The sizes on the disk are the reservations, so creates of one tenant take turns.
        let _turn = self.turns.take(tenant).await?;
        let (path, quota) = (self.path(tenant), *quota);
        blocking(move || {
            let store = Store::open(&path).map_err(refused)?;
            let taken = store.inspect(&name).is_ok();
            if !taken {
                check_quota(&quota, used_of(&store)?, size)?;
            }
            store.create(&name, size).map_err(refused)?;
            store.inspect(&name).map_err(refused)
        })
        .await
    }

    /// Returns a tenant's volumes after the name `after`, in the order of names, at most `max`.
    ///
    /// # Errors
    /// - `Io` if the directory cannot be read.
    pub async fn list(&self, tenant: &TenantId, after: Option<String>, max: usize) -> Result<Vec<Volume>> {
        self.in_store(tenant, move |store| {
            let names = store.names().map_err(refused)?;
            let later = names.iter().filter(|name| after.as_deref().is_none_or(|after| name.as_str() > after));
            // A damaged volume is not listed. It can be deleted.
            Ok(later.filter_map(|name| store.inspect(name).ok()).take(max).collect())
        })
        .await
        .map(Option::unwrap_or_default)
    }

    /// Finds a tenant's volume.
    ///
    /// # Errors
    /// - `NotFound` if the tenant has none with this name. Volumes of other tenants are not found either.
    pub async fn find(&self, tenant: &TenantId, name: Name) -> Result<Volume> {
        self.in_store(tenant, move |store| store.inspect(&name).map_err(refused)).await?.ok_or_else(missing)
    }

    /// Deletes a tenant's volume.
    ///
    /// # Errors
    /// - `NotFound` as in [`Self::find`], `Conflict` while a sandbox uses it.
    pub async fn delete(&self, tenant: &TenantId, name: Name) -> Result<()> {
        let _turn = self.turns.take(tenant).await?;
        self.in_store(tenant, move |store| store.remove(&name).map_err(refused)).await?.ok_or_else(missing)
    }

    /// Returns what a tenant has.
    ///
    /// # Errors
    /// - `Io` if the directory cannot be read.
    pub async fn used(&self, tenant: &TenantId) -> Result<Used> {
        self.in_store(tenant, used_of).await.map(Option::unwrap_or_default)
    }

    /// Adds a tenant's volumes to the spec of a sandbox, and locks them. The caller keeps the result while the sandbox
    /// lives.
    ///
    /// # Errors
    /// - `NotFound` as in [`Self::find`], `Conflict` while another sandbox uses one.
    pub async fn attach(&self, spec: &Spec, wanted: Vec<VolumeMount>, level: Level) -> Result<Attached> {
        let mut names: Vec<_> = wanted.iter().map(|mount| &mount.name).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("volume", "a volume is named twice").with_remedy("mount it at one path"));
        }
        // A file system that was a disk of a VM is created again, which may take long.
        let _turn = self.attaches.take(spec.tenant()).await?;
        let before_use = self.config.before_use;
        let opened = self.in_store(spec.tenant(), move |store| {
            before_use();
            OpenVolumes::open(store, &wanted, level, PURPOSE).map_err(refused)
        });
        let volumes = opened.await?.ok_or_else(missing)?.with_errors(refused);
        match volumes.add_to(spec.to_builder()).build() {
            Ok(spec) => Ok(Attached { spec, volumes }),
            Err(error) => Err(error.with_failed_close(volumes.release().await)),
        }
    }

    /// Works with the store of a tenant, if it has one.
    async fn in_store<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: impl FnOnce(&Store) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let path = self.path(tenant);
        blocking(move || match path.try_exists() {
            Ok(false) => Ok(None),
            _ => work(&Store::open(&path).map_err(refused)?).map(Some),
        })
        .await
    }

    /// Returns the directory of a tenant's store. Its name is the tenant's in hexadecimal, so that the names of two
    /// tenants never mean one directory, whatever the file system does with them.
    fn path(&self, tenant: &TenantId) -> PathBuf {
        self.config.directory.join(hex::encode(tenant.as_str().as_bytes()))
    }
}

/// The volumes of a new sandbox. Dropping this releases them.
#[derive(Debug)]
pub struct Attached {
    /// The spec with the mounts.
    pub spec: Spec,
    volumes: OpenVolumes,
}

impl Attached {
    /// Keeps the volumes until a sandbox closes.
    pub fn keep_for(self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        self.volumes.keep_for(sandbox)
    }

    /// Releases the volumes of a sandbox that was not created.
    pub async fn release(self) -> Result<()> {
        self.volumes.release().await
    }
}

fn used_of(store: &Store) -> Result<Used> {
    let sizes = store.sizes().map_err(refused)?;
    let bytes = sizes.iter().flatten().fold(0_u64, |sum, size| sum.saturating_add(*size));
    Ok(Used { volumes: u32::try_from(sizes.len()).unwrap_or(u32::MAX), bytes })
}

fn check_quota(quota: &Quota, used: Used, size: Option<u64>) -> Result<()> {
    if quota.volumes.is_some_and(|max| used.volumes >= max) {
        return Err(used_up("volumes"));
    }
    let Some(max) = quota.volume_bytes.map(ByteSize::as_bytes) else { return Ok(()) };
    // A volume without a limit has no size that could be counted.
    match size.and_then(|size| used.bytes.checked_add(size)) {
        Some(total) if total <= max => Ok(()),
        _ => Err(used_up("volume_bytes")),
    }
}

fn used_up(quota: &'static str) -> Error {
    exhausted("volume", format!("the tenant's quota '{quota}' is used up"), RETRY_INTERVAL)
        .with_context("quota", quota)
        .with_remedy("delete a volume")
}

fn missing() -> Error {
    Error::new(ErrorKind::NotFound, "volume", "there is no such volume").with_remedy("create it first")
}

/// Returns the error for a tenant. It names no file and no process of the host; its source does.
pub fn refused(error: VolumeError) -> Error {
    match error {
        VolumeError::NotFound { .. } => missing(),
        VolumeError::Exists { .. } => {
            Error::new(ErrorKind::Conflict, "volume", "there is a volume with this name already")
                .with_remedy("use another name, or delete that volume")
        }
        VolumeError::InUse { .. } => Error::new(ErrorKind::Conflict, "volume", "the volume is in use by a sandbox")
            .with_retry(Retry::MayHelp)
            .with_remedy("close the sandbox; only readers (read_only) share a volume"),
        VolumeError::TooMany { .. } => used_up("volumes"),
        VolumeError::Unclean { .. } => {
            Error::new(ErrorKind::Conflict, "volume", "the volume's file system was not closed by its last writer")
                .with_remedy("use it once without read_only, which writes its journal")
        }
        VolumeError::Damaged { .. } => {
            Error::new(ErrorKind::Io, "volume", "the volume is damaged").with_remedy("delete it, or read it in a VM")
        }
        VolumeError::DoesNotFit { .. } => {
            let message = "the files of the volume, which a VM wrote, do not fit into it without their hard links";
            Error::new(ErrorKind::ResourceExhausted, "volume", message)
                .with_remedy("use it in a VM, and copy its files to a larger volume")
        }
        VolumeError::InvalidName { .. } | VolumeError::InvalidSize { .. } => {
            Error::invalid("volume", error.to_string())
        }
        _ => {
            let source = failed(error);
            Error::new(source.kind(), "volume", "the server cannot use the volume")
                .with_fault(source.fault())
                .with_retry(source.retry())
                .with_source(source)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes() -> (tempfile::TempDir, Arc<Volumes>) {
        let directory = tempfile::tempdir().unwrap();
        let config = VolumesConfig { directory: directory.path().join("volumes"), before_use: || {} };
        (directory, Volumes::open(config).unwrap())
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// Promise (Server): Volumes of two tenants whose names differ in case only are apart on every file system.
    #[tokio::test]
    async fn tenants_have_stores_of_their_own() {
        let (_directory, volumes) = volumes();
        let (upper, lower) = (tenant("A"), tenant("a"));
        volumes.create(&upper, name("data"), None, &Quota::default()).await.unwrap();
        assert_eq!(volumes.find(&lower, name("data")).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(volumes.delete(&lower, name("data")).await.unwrap_err().kind(), ErrorKind::NotFound);
        volumes.create(&lower, name("data"), None, &Quota::default()).await.unwrap();
        volumes.delete(&upper, name("data")).await.unwrap();
        assert_eq!(volumes.list(&lower, None, 10).await.unwrap().len(), 1);
        let lowered = |tenant| volumes.path(tenant).to_string_lossy().to_lowercase();
        assert_ne!(lowered(&upper), lowered(&lower));
    }

    /// Promise (Server): A volume counts against the quota of its tenant, and one without a limit does not fit a quota of
    /// bytes.
    #[test]
    fn a_volume_fits_its_quota_or_is_refused() {
        let quota = Quota { volumes: Some(3), volume_bytes: Some(ByteSize::from_bytes(100)), ..Quota::default() };
        let check = |volumes, bytes, size| check_quota(&quota, Used { volumes, bytes }, size).is_ok();
        assert!(check(2, 60, Some(40)) && !check(2, 60, Some(41)) && !check(3, 0, Some(1)));
        assert!(!check(0, 0, None) && !check(0, 1, Some(u64::MAX)));
        assert!(check_quota(&Quota::default(), Used { volumes: 9, bytes: u64::MAX }, None).is_ok());
    }

    /// Promise (Server): Creates of volumes at the same time do not exceed a quota together.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn creates_at_the_same_time_keep_to_the_quota() {
        let (_directory, volumes) = volumes();
        let quota = Quota { volumes: Some(3), ..Quota::default() };
        let creates = (0..8).map(|number| {
            let volumes = Arc::clone(&volumes);
            tokio::spawn(async move { volumes.create(&tenant("a"), name(&format!("v{number}")), None, &quota).await })
        });
        let created = futures_util::future::join_all(creates.collect::<Vec<_>>()).await;
        assert_eq!(created.into_iter().filter(|created| created.as_ref().unwrap().is_ok()).count(), 3);
        assert_eq!(volumes.used(&tenant("a")).await.unwrap().volumes, 3);
    }

    /// Promise (Server): An error about a volume names no file and no process of the host.
    #[test]
    fn errors_for_tenants_name_no_host_details() {
        let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        for error in [
            VolumeError::Io { operation: "open", path: "/secret".into(), source },
            VolumeError::InUse { name: "v".into(), by: "process 42".into() },
            VolumeError::Exposed { path: "/secret".into(), reason: "it is open" },
        ] {
            let refused = refused(error);
            assert!(!refused.message().contains("secret") && !refused.message().contains("42"), "{refused:?}");
        }
    }
}
