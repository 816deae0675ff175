//! The image store of this user as the images of a server.

use std::fs::File;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam::registry::{ImageSettings, image_store};
use cofferdam::{Error, ErrorKind, Result};
use cofferdam_image::store::{ImageStore, LayerError, PruneOptions, Reference, StoreError};
use cofferdam_server::{AddedImages, HostImageDetails, HostImageList, HostImages, RemovedImages};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::commands::image::documents;
use crate::settings::Settings;

/// The image store of this user.
#[derive(Debug)]
pub struct StoredImages(ImageSettings);

impl StoredImages {
    /// Names the store. It is opened for each call.
    pub fn new(settings: &Settings) -> Self {
        Self(settings.setup.images.clone())
    }

    /// Works with the store on a thread that may block.
    async fn work<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&ImageStore, &ImageSettings) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let settings = self.0.clone();
        let work = move || work(&image_store::open(&settings).map_err(hidden(operation))?, &settings);
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, operation, "the work ended early").with_source(error))
        })
    }
}

#[async_trait]
impl HostImages for StoredImages {
    async fn images(&self) -> Result<HostImageList> {
        let operation = "list images";
        self.work(operation, move |store, _| view(documents::list(store).map_err(failed(operation))?)).await
    }

    async fn inspect(&self, name: &str) -> Result<HostImageDetails> {
        let (operation, name) = ("inspect image", name.to_owned());
        let work = move |store: &ImageStore, _: &_| {
            view(documents::inspected(&store.inspect(&name).map_err(failed(operation))?))
        };
        self.work(operation, work).await
    }

    async fn pull(&self, name: &str) -> Result<AddedImages> {
        let (operation, name) = ("pull image", name.parse::<Reference>().map_err(failed("pull image"))?);
        let work = move |store: &ImageStore, settings: &_| {
            let options = image_store::registry_options(settings, &name).map_err(hidden(operation))?;
            let added = store.pull(&name, &options, &mut |_| ()).map_err(failed(operation))?;
            view(documents::added(&[added]))
        };
        self.work(operation, work).await
    }

    async fn spool(&self) -> Result<File> {
        let operation = "load image";
        self.work(operation, move |store, _| store.spool().map_err(failed(operation))).await
    }

    async fn load(&self, archive: File, name: Option<&str>) -> Result<AddedImages> {
        let operation = "load image";
        let name = name.map(str::parse::<Reference>).transpose().map_err(failed(operation))?;
        let work = move |store: &ImageStore, _: &_| {
            let added = store.load_archive(archive, name.as_ref(), &mut |_| ()).map_err(failed(operation))?;
            view(documents::added(&added))
        };
        self.work(operation, work).await
    }

    async fn prune(&self, unused_for: Option<Duration>) -> Result<RemovedImages> {
        let operation = "prune images";
        let work = move |store: &ImageStore, _: &_| {
            view(documents::removed(&store.prune(PruneOptions { unused_for }).map_err(failed(operation))?))
        };
        self.work(operation, work).await
    }

    async fn remove(&self, name: &str) -> Result<RemovedImages> {
        let (operation, name) = ("remove image", name.to_owned());
        let work =
            move |store: &ImageStore, _: &_| view(documents::removed(&store.remove(&name).map_err(failed(operation))?));
        self.work(operation, work).await
    }
}

/// Reads a document of the command line as one of the server.
fn view<T: DeserializeOwned>(document: Value) -> Result<T> {
    let failed = |error| Error::new(ErrorKind::Internal, "read images", "a document differs").with_source(error);
    serde_json::from_value(document).map_err(failed)
}

/// Converts an error of the store for a client.
fn failed(operation: &'static str) -> impl Fn(StoreError) -> Error {
    move |error| {
        let names_files = matches!(
            error,
            StoreError::Layer(LayerError::Io { .. })
                | StoreError::Credentials { .. }
                | StoreError::Exposed { .. }
                | StoreError::LockTimeout { .. }
        );
        let error = error.into_contract(operation);
        if names_files { hidden(operation)(error) } else { error }
    }
}

/// Hides an error that names files of the host. Its source has it.
fn hidden(operation: &'static str) -> impl Fn(Error) -> Error {
    move |error| {
        let (kind, remedy) = match error.kind() {
            ErrorKind::ResourceExhausted => (ErrorKind::ResourceExhausted, "free space on the disk of the server"),
            _ => (ErrorKind::Unavailable, "see what the server prints"),
        };
        Error::new(kind, operation, "the server cannot use its image store")
            .with_fault(error.fault())
            .with_retry(error.retry())
            .with_remedy(remedy)
            .with_source(error)
    }
}
