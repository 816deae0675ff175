//! The image store of this user as the images that a server lists.

use async_trait::async_trait;
use cofferdam::registry::{ImageSettings, stored};
use cofferdam::{Error, ErrorKind, Result};
use cofferdam_server::{HostImage, HostImages};

use crate::settings::Settings;

const OPERATION: &str = "list images";

/// The image store of this user.
#[derive(Debug)]
pub struct StoredImages(ImageSettings);

impl StoredImages {
    /// Names the store. It is opened for each list.
    pub fn new(settings: &Settings) -> Self {
        Self(settings.setup.images.clone())
    }
}

#[async_trait]
impl HostImages for StoredImages {
    async fn images(&self) -> Result<Vec<HostImage>> {
        let settings = self.0.clone();
        tokio::task::spawn_blocking(move || list(&settings)).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, OPERATION, "the work ended early").with_source(error))
        })
    }
}

fn list(settings: &ImageSettings) -> Result<Vec<HostImage>> {
    let Some(store) = stored::existing(settings)? else { return Ok(Vec::new()) };
    let images = store.list().map_err(|error| error.into_contract(OPERATION))?;
    let view = |image: stored::Listed| HostImage {
        names: image.names.iter().map(ToString::to_string).collect(),
        digest: image.manifest.to_string(),
        size: image.bytes,
    };
    Ok(images.into_iter().map(view).collect())
}
