//! `cofferdam image` with the images of a server.

use std::path::Path;

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_linux::named;
use cofferdam_server::client::{Client, Content, Method, encoded};
use cofferdam_server::rest::views::ImageList;
use cofferdam_server::{AddedImages, HostImageDetails, RemovedImages};
use serde_json::{Value, json};

use crate::args::ImageCommand;

/// Carries out a command, and returns its document.
pub async fn call(client: &Client, command: &ImageCommand) -> Result<Value> {
    Ok(match command {
        ImageCommand::List { .. } => list(client).await?,
        ImageCommand::Pull { name, .. } => {
            let path = format!("/v1/images/pull?name={}", encoded(name));
            json!(client.call::<AddedImages>(Method::POST, &path, None::<&()>).await?)
        }
        ImageCommand::Load { source, name, .. } => load(client, source, name.as_deref()).await?,
        ImageCommand::Rm { names, .. } => {
            let mut all = RemovedImages::default();
            for name in names {
                let path = format!("/v1/images?name={}", encoded(name));
                let removed: RemovedImages = client.call(Method::DELETE, &path, None::<&()>).await?;
                all.names.extend(removed.names);
                all.images.extend(removed.images);
                all.freed = all.freed.saturating_add(removed.freed);
                all.deferred |= removed.deferred;
            }
            json!(all)
        }
        ImageCommand::Prune { older_than, .. } => {
            let query = older_than.map(|time| format!("?older_than={}", time.as_secs_f64())).unwrap_or_default();
            let path = format!("/v1/images/prune{query}");
            json!(client.call::<RemovedImages>(Method::POST, &path, None::<&()>).await?)
        }
        ImageCommand::Inspect { name, .. } => {
            let path = format!("/v1/images/inspect?name={}", encoded(name));
            json!(client.call::<HostImageDetails>(Method::GET, &path, None::<&()>).await?)
        }
        ImageCommand::Import { .. } | ImageCommand::Build { .. } => {
            return Err(Error::unsupported("image", "a server takes complete images only"));
        }
    })
}

async fn list(client: &Client) -> Result<Value> {
    let mut path = "/v1/images?limit=1000".to_owned();
    let mut all: ImageList = client.call(Method::GET, &path, None::<&()>).await?;
    while let Some(next) = all.next.take() {
        path = format!("/v1/images?limit=1000&after={}", encoded(&next));
        let page: ImageList = client.call(Method::GET, &path, None::<&()>).await?;
        all.images.extend(page.images);
        all.next = page.next;
    }
    all.images.sort_by_cached_key(|image| (image.names.first().cloned(), image.digest.clone()));
    Ok(json!({"images": all.images, "size": all.size, "max_size": all.max_size}))
}

async fn load(client: &Client, source: &Path, name: Option<&str>) -> Result<Value> {
    let failed = |error: std::io::Error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Io };
        Error::new(kind, "load image", "cannot open the archive")
            .with_context("path", source.display().to_string())
            .with_source(error)
    };
    let archive = named::read(source).map_err(failed)?;
    if archive.metadata().map_err(failed)?.is_dir() {
        return Err(Error::invalid("load image", "a server takes an archive, and this is a directory")
            .with_context("path", source.display().to_string())
            .with_remedy("pack it: tar -C DIR -cf archive.tar ."));
    }
    let query = name.map(|name| format!("?name={}", encoded(name))).unwrap_or_default();
    let content = Content::reader(tokio::fs::File::from_std(archive));
    Ok(json!(client.call_with::<AddedImages>(Method::POST, &format!("/v1/images/load{query}"), content).await?))
}
