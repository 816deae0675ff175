//! The images of the host that sandboxes can have as their root file system. The program lists them: the server knows no
//! image store, and neither pulls nor removes images.

use async_trait::async_trait;
use cofferdam_contract::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An image of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostImage {
    /// The names, each of which `image` of a request can be.
    pub names: Vec<String>,
    /// The digest, such as `sha256:…`.
    pub digest: String,
    /// The bytes that it takes on the host.
    pub size: u64,
}

/// The images of the host.
#[async_trait]
pub trait HostImages: Send + Sync + std::fmt::Debug + 'static {
    /// Returns all images.
    ///
    /// # Errors
    /// - Those of the image store.
    async fn images(&self) -> Result<Vec<HostImage>>;
}
