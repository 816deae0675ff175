//! Directories as archives (tar), and events of watched ones.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, TRAILER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cofferdam_contract::{CopyOut, CopyReport, Error, ErrorKind, SandboxPath, WatchEvent, WatchOptions};
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use hyper::body::Frame;
use serde::Deserialize;
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio_util::io::{ReaderStream, StreamReader};
use utoipa::IntoParams;

use super::extract::{Path, Query};
use super::files::{FileQuery, Kept};
use super::problem::Failure;
use super::upload::Upload;
use super::views::{Copied, FileEvent};
use super::{Answer, App, COPY_REPORT};
use crate::caller::Caller;
use crate::live::LiveSandbox;

/// Bytes between the sandbox and the client.
const PIPE: usize = 256 << 10;
/// The most bytes of a report in a trailer. Fewer skipped files are listed in a longer one.
const MAX_REPORT: usize = 8 << 10;
/// The time between two comments that keep a quiet connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Copy files out of a sandbox as an archive (tar).
///
/// The path may have wildcards. A directory is included with its name and everything in it. Devices and what cannot be
/// read are skipped; the trailer `Cofferdam-Copy-Report` has a report, for clients that accept trailers.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/archive", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), FileQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn read(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let within = query.path.strip_prefix("/workspace").filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let wanted = CopyOut::named(within.map_or(query.path.as_str(), |rest| rest.trim_start_matches('/')))?;
    let body = ArchiveBody::begin(live, wanted).await?;
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(TRAILER, HeaderValue::from_static(COPY_REPORT));
    Ok(response)
}

/// An archive that is copied out of a sandbox, and its report.
struct ArchiveBody {
    first: Option<Bytes>,
    rest: ReaderStream<DuplexStream>,
    copy: Option<JoinHandle<Result<CopyReport, Error>>>,
}

impl ArchiveBody {
    /// Begins to copy. Returns an error that occurs before the first byte.
    async fn begin(live: Arc<LiveSandbox>, wanted: CopyOut) -> Result<Self, Failure> {
        let (reader, mut writer) = tokio::io::duplex(PIPE);
        let copy = tokio::spawn(async move {
            let _use = live.keep();
            live.used().copy_out(&wanted, &mut writer).await
        });
        let mut rest = ReaderStream::with_capacity(reader, PIPE);
        match rest.next().await {
            Some(Ok(first)) => Ok(Self { first: Some(first), rest, copy: Some(copy) }),
            _ => Err(match copy.await {
                Ok(Err(error)) => error.into(),
                _ => Error::new(ErrorKind::Internal, "copy_out", "the copy ended early").into(),
            }),
        }
    }
}

impl hyper::body::Body for ArchiveBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Some(data) = ready!(Pin::new(&mut self.rest).poll_next(context)) {
            return Poll::Ready(Some(data.map(Frame::data).map_err(Into::into)));
        }
        let Some(copy) = &mut self.copy else { return Poll::Ready(None) };
        let done = ready!(Pin::new(copy).poll(context));
        self.copy = None;
        // The client sees a connection that ends early.
        let report = done.map_err(Self::Error::from)??;
        Poll::Ready(Some(Ok(Frame::trailers(trailers(report)))))
    }
}

fn trailers(mut report: CopyReport) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    loop {
        let text = serde_json::to_vec(&report).unwrap_or_default();
        if text.len() <= MAX_REPORT || report.skipped.is_empty() {
            if let Ok(value) = HeaderValue::from_bytes(&text) {
                trailers.insert(COPY_REPORT, value);
            }
            return trailers;
        }
        report.skipped.truncate(report.skipped.len() / 2);
    }
}

/// Copy an archive (tar) into a directory of a sandbox.
///
/// The directory is created if it is missing. Existing files are replaced.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/files/archive", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), FileQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = Copied)))]
pub async fn write(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
    body: Body,
) -> Result<axum::Json<Copied>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let path = query.path()?;
    let _use = live.keep();
    let (upload, watch) = Upload::new(body, app.bounds().file, app.bounds().stall_time);
    let copied = live.used().copy_in(&path, Box::new(StreamReader::new(upload))).await;
    Ok(axum::Json(Copied { report: watch.outcome(copied)? }))
}

/// Parameters of a watch.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WatchQuery {
    /// The directory, relative to the workspace or below `/workspace`. Default: the workspace.
    #[serde(default)]
    #[param(max_length = 4096)]
    path: String,
    /// False watches the directory alone. Default: true.
    recursive: Option<bool>,
}

/// Watch a directory.
///
/// The events are `created`, `changed`, `removed`, `renamed`, and `overflow` when events were lost. The stream ends with
/// the directory or the sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/watch", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), WatchQuery),
    responses((status = 200, body = FileEvent, content_type = "text/event-stream")))]
pub async fn watch(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let path = SandboxPath::new(&query.path)?;
    let options = WatchOptions { recursive: query.recursive.unwrap_or(true), ..WatchOptions::default() };
    let events = live.used().watch(&path, options).await?;
    let events = stream::unfold(events, |mut events| async move { events.next().await.map(|event| (event, events)) });
    let inner = Box::pin(events.filter_map(async |event| sent(&event).map(Ok::<_, Infallible>)));
    let stream = Kept { inner, _use: live.keep() };
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn sent(event: &WatchEvent) -> Option<Event> {
    let (name, event) = match event {
        WatchEvent::Created(path) => ("created", FileEvent::Created { path: path.inside() }),
        WatchEvent::Changed(path) => ("changed", FileEvent::Changed { path: path.inside() }),
        WatchEvent::Removed(path) => ("removed", FileEvent::Removed { path: path.inside() }),
        WatchEvent::Renamed { from, to } => ("renamed", FileEvent::Renamed { from: from.inside(), to: to.inside() }),
        WatchEvent::Overflow => ("overflow", FileEvent::Overflow),
        // A later kind of event is unknown to clients of this version.
        _ => return None,
    };
    Some(Event::default().event(name).data(serde_json::to_string(&event).ok()?))
}
