//! Parts of a request, with problem documents for what is malformed.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use cofferdam_contract::{Error, ErrorKind};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::App;
use super::problem::Failure;

/// A JSON body. An empty body counts as an empty object.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        let bytes = read(request.into_body(), app.bounds().json, app.bounds().body_time).await?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        // serde would read an array as the members in their order, which no document describes.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Failure::bad_request("the body is not a JSON object"));
        }
        let parsed = serde_json::from_slice(text);
        parsed.map(Self).map_err(|error| Failure::bad_request(format!("the body is not the expected JSON: {error}")))
    }
}

/// Reads a whole body of at most `max` bytes.
pub async fn read(body: Body, max: usize, limit: Duration) -> Result<bytes::Bytes, Failure> {
    let collected = tokio::time::timeout(limit, Limited::new(body, max).collect()).await;
    let collected = collected.map_err(|_| too_slow())?;
    collected.map(|body| body.to_bytes()).map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            too_large(max as u64)
        } else {
            Failure::bad_request("the body ended early")
        }
    })
}

/// Creates the answer to a body that is too large.
pub fn too_large(max: u64) -> Failure {
    let error = Error::invalid("read request", format!("the body is larger than {max} bytes"));
    Failure(StatusCode::PAYLOAD_TOO_LARGE, error)
}

/// Creates the answer to a body that does not arrive.
pub fn too_slow() -> Failure {
    let error = Error::new(ErrorKind::InvalidInput, "read request", "the body did not arrive in time");
    Failure(StatusCode::REQUEST_TIMEOUT, error)
}

/// Parameters of the query.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(error) => Err(Failure::bad_request(error.body_text())),
        }
    }
}

/// Parameters of the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(error) => Err(Failure::bad_request(error.body_text())),
        }
    }
}
