//! Events of a watched directory of a server's sandbox, from its event stream.

use cofferdam_contract::{Result, SandboxPath, WatchChange, WatchEvents, WatchOptions, WatchPublisher};
use futures_util::TryStreamExt;
use http_body_util::BodyDataStream;
use hyper::Method;
use hyper::body::Incoming;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio_util::io::StreamReader;

use crate::client::{Client, encoded};
use crate::rest::views::FileEvent;

/// The most bytes of a line of the stream.
const MAX_LINE: u64 = 64 << 10;

/// Watches a directory until the events are dropped, or the stream ends.
pub(super) async fn watch(
    client: &Client,
    sandbox: &str,
    path: &SandboxPath,
    options: &WatchOptions,
) -> Result<WatchEvents> {
    options.validate()?;
    let url = format!("{sandbox}/files/watch?path={}&recursive={}", encoded(&path.inside()), options.recursive);
    let answer = client.send_alone(Method::GET, &url).await?;
    let (publisher, events) = WatchEvents::channel(options);
    tokio::spawn(async move {
        tokio::select! {
            () = publish(answer.into_body(), &publisher) => {}
            () = publisher.dropped() => {}
        }
    });
    Ok(events)
}

/// Publishes the events of a stream. Events that cannot be read are lost ones.
async fn publish(body: Incoming, publisher: &WatchPublisher) {
    let body = BodyDataStream::new(body).map_err(std::io::Error::other);
    let mut reader = BufReader::new(StreamReader::new(body));
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).await {
            Ok(count) if count > 0 && line.ends_with(b"\n") => {}
            // The connection was cut, or the directory or the sandbox has ended.
            _ => return,
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            publisher.publish([change(data.trim_ascii()).unwrap_or(WatchChange::Lost)]);
        }
    }
}

fn change(data: &[u8]) -> Option<WatchChange> {
    let named = |path: String| SandboxPath::new(path).ok();
    Some(match serde_json::from_slice(data).ok()? {
        FileEvent::Created { path } => WatchChange::Created(named(path)?),
        FileEvent::Changed { path } => WatchChange::Changed(named(path)?),
        FileEvent::Removed { path } => WatchChange::Removed(named(path)?),
        // Right for files as well: what was reported before has the former names.
        FileEvent::Renamed { from, to } => WatchChange::Renamed { from: named(from)?, to: named(to)?, directory: true },
        FileEvent::Overflow => WatchChange::Lost,
    })
}
