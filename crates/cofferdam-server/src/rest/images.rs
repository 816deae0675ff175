//! Images of the host: list.

use axum::extract::State;
use cofferdam_contract::{Error, ErrorKind};

use super::App;
use super::extract::Query;
use super::pages::PageQuery;
use super::problem::Failure;
use super::views::ImageList;
use crate::report;

/// List the images of the host that sandboxes can have.
///
/// The operator pulls and removes them, and decides whether clients may choose one.
#[utoipa::path(get, path = "/v1/images", tag = "images", params(PageQuery),
    responses((status = 200, body = ImageList)))]
pub async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> Result<axum::Json<ImageList>, Failure> {
    app.policy().check_images()?;
    let images = match &app.services().images {
        None => Vec::new(),
        Some(images) => images.images().await.map_err(|error| {
            // It names files of the host.
            report::warning(&error.to_string());
            Error::new(ErrorKind::Unavailable, "list images", "the server cannot read its images")
        })?,
    };
    let (images, next) = query.page(images, |image| &image.digest)?;
    Ok(axum::Json(ImageList { images, next }))
}
