//! Images of the host: list, inspect, pull, load, remove, prune.

use std::fs::File;
use std::io;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use cofferdam_audit::Text;
use cofferdam_contract::{Error, ErrorKind, serde_optional_duration};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio_util::io::StreamReader;
use utoipa::IntoParams;

use super::extract::Query;
use super::pages::PageQuery;
use super::problem::Failure;
use super::upload::Upload;
use super::views::ImageList;
use super::{App, actions, detached};
use crate::caller::{Caller, Scope};
use crate::images::{AddedImages, HostImageDetails, RemovedImages};
use crate::report;

type Answer<T> = Result<axum::Json<T>, Failure>;

/// The name of an image.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct NameQuery {
    /// The name, such as `python:3.13-slim`. A digest, or its start, names an image of the host, too.
    #[param(max_length = 512)]
    name: String,
}

/// Parameters of a load.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LoadQuery {
    /// A name for the image, if the archive has only one. Default: its own names.
    #[param(max_length = 512)]
    name: Option<String>,
}

/// Parameters of a removal of unused images.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PruneQuery {
    /// Also removes images that no sandbox used for this time, in seconds or as text such as `720h`.
    #[serde(default, with = "serde_optional_duration")]
    #[param(value_type = Option<String>)]
    older_than: Option<Duration>,
}

/// Checks that the caller may see images. Callers with the scope `admin` manage them.
fn check_reader(app: &App, caller: &Caller) -> Result<(), Failure> {
    if !caller.may(Scope::Admin) {
        app.policy().check_images()?;
    }
    Ok(())
}

/// Reports the source of an error, which may name files of the host, to the operator.
fn reported(error: Error) -> Error {
    if std::error::Error::source(&error).is_some() {
        report::warning(&error.to_string());
    }
    error
}

/// List the images of the host that sandboxes can have.
///
/// Callers with the scope `admin` pull and remove them. The operator decides whether other clients may choose one.
#[utoipa::path(get, path = "/v1/images", tag = "images", params(PageQuery),
    responses((status = 200, body = ImageList)))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<PageQuery>,
) -> Answer<ImageList> {
    check_reader(&app, &caller)?;
    let Some(store) = &app.services().images else {
        return Ok(axum::Json(ImageList { images: Vec::new(), next: None, size: None, max_size: None }));
    };
    let all = store.images().await.map_err(reported)?;
    let (mut images, next) = query.page(all.images, |image| &image.digest)?;
    let is_admin = caller.may(Scope::Admin);
    if !is_admin {
        images = images.into_iter().map(|image| image.without_use()).collect();
    }
    let (size, max_size) = (is_admin.then_some(all.size), is_admin.then_some(all.max_size));
    Ok(axum::Json(ImageList { images, next, size, max_size }))
}

/// Describe an image of the host.
#[utoipa::path(get, path = "/v1/images/inspect", tag = "images", params(NameQuery),
    responses((status = 200, body = HostImageDetails)))]
pub async fn inspect(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<NameQuery>,
) -> Answer<HostImageDetails> {
    check_reader(&app, &caller)?;
    let mut details = app.images()?.inspect(&query.name).await.map_err(reported)?;
    if !caller.may(Scope::Admin) {
        details.image = details.image.without_use();
    }
    Ok(axum::Json(details))
}

/// Pull an image from its registry.
///
/// The server uses the logins of its user. Answers when the image is stored. The pull continues if the client leaves.
#[utoipa::path(post, path = "/v1/images/pull", tag = "images", params(NameQuery),
    responses((status = 200, body = AddedImages)))]
pub async fn pull(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<NameQuery>,
) -> Answer<AddedImages> {
    let images = app.images()?;
    let pulled = detached(async move {
        let _turn = app.image_turns().take(&caller.tenant).await?;
        recorded(&app, &caller, "image-pull", Some(&query.name), images.pull(&query.name), digest).await
    });
    Ok(axum::Json(pulled.await.map_err(reported)?))
}

/// Load images from an archive.
///
/// The body is an archive of `docker save`, or a tar of an OCI image layout.
#[utoipa::path(post, path = "/v1/images/load", tag = "images", params(LoadQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = AddedImages)))]
pub async fn load(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<LoadQuery>,
    body: Body,
) -> Answer<AddedImages> {
    let images = app.images()?;
    let (max, stall) = (app.bounds().image, app.bounds().stall_time);
    let loaded = detached(async move {
        let _turn = app.image_turns().take(&caller.tenant).await?;
        let spool = images.spool().await?;
        let (upload, watch) = Upload::new(body, max, stall);
        let receiving = tokio::time::timeout(app.bounds().transfer_time, received(upload, spool));
        let archive = receiving.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "load image", "the archive did not arrive in time"))
        });
        let archive = watch.outcome(archive)?;
        let name = query.name.as_deref();
        Ok(recorded(&app, &caller, "image-load", name, images.load(archive, name), digest).await?)
    });
    Ok(axum::Json(loaded.await.map_err(|Failure(status, error)| Failure(status, reported(error)))?))
}

/// Does work on images between the records of its begin and its end.
async fn recorded<T>(
    app: &App,
    caller: &Caller,
    action: &str,
    name: Option<&str>,
    work: impl Future<Output = Result<T, Error>>,
    digest: impl FnOnce(&T) -> Option<&str>,
) -> Result<T, Error> {
    let begun = actions::begin(app, caller, action, |record| record.image = name.map(Text::new)).await?;
    let outcome = work.await;
    begun.end(&outcome, |record, done| record.digest = digest(done).map(Text::new)).await;
    outcome
}

/// Returns the digest of the first image that was added.
fn digest(added: &AddedImages) -> Option<&str> {
    added.images.first().map(|image| image.digest.as_str())
}

/// Writes an upload to a file.
async fn received(upload: Upload, spool: File) -> Result<File, Error> {
    let failed = |error: io::Error| {
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let kind = if is_full { ErrorKind::ResourceExhausted } else { ErrorKind::Io };
        let error = Error::new(kind, "load image", "the server cannot store the archive").with_source(error);
        if is_full { error.with_remedy("free space on the server: cofferdam image prune") } else { error }
    };
    let mut file = tokio::fs::File::from_std(spool);
    tokio::io::copy(&mut StreamReader::new(upload), &mut file).await.map_err(failed)?;
    file.flush().await.map_err(failed)?;
    Ok(file.into_std().await)
}

/// Remove images without a name.
///
/// Files that no image has are removed, too. Images that a sandbox uses remain.
#[utoipa::path(post, path = "/v1/images/prune", tag = "images", params(PruneQuery),
    responses((status = 200, body = RemovedImages)))]
pub async fn prune(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<PruneQuery>,
) -> Answer<RemovedImages> {
    let images = app.images()?;
    let removed = detached(async move {
        recorded(&app, &caller, "image-prune", None, images.prune(query.older_than), |_| None).await
    });
    Ok(axum::Json(removed.await.map_err(reported)?))
}

/// Remove a name of an image, and the image unless it has others.
///
/// A digest removes the image with all its names. An image that a sandbox uses is not removed.
#[utoipa::path(delete, path = "/v1/images", tag = "images", params(NameQuery),
    responses((status = 200, body = RemovedImages)))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<NameQuery>,
) -> Answer<RemovedImages> {
    let images = app.images()?;
    let removed = detached(async move {
        recorded(&app, &caller, "image-rm", Some(&query.name), images.remove(&query.name), |_| None).await
    });
    Ok(axum::Json(removed.await.map_err(reported)?))
}
