//! Server for one client over standard input and output, or any two pipes.

use std::collections::HashSet;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::serve_server_with_ct;
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Server;

/// Timeout for answering the last calls after the client has closed its side.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for closing all sandboxes at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves one client until it closes its side or `stop` is cancelled, then closes all sandboxes.
pub async fn serve(
    server: &Server,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> Result<()> {
    let served = serve_client(server, input, output, stop).await;
    let closed = server.shutdown(SHUTDOWN_TIMEOUT).await;
    served.and(closed)
}

async fn serve_client(
    server: &Server,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> Result<()> {
    let bounds = &server.config().bounds;
    let ended = CancellationToken::new();
    let input = Watched { input, ended: ended.clone() };
    let max_message = usize::try_from(bounds.message.as_bytes()).unwrap_or(usize::MAX);
    let lines = AsyncRwTransport::new_server(input, output).with_max_line_length(max_message);
    let transport = Bounded { inner: lines, max: bounds.requests, open: Arc::default(), refusing: None };
    // Cancelling this token cancels only this connection.
    let connection = stop.child_token();
    let cancel = connection.clone();
    let watch = tokio::spawn(async move {
        ended.cancelled().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
        cancel.cancel();
    });
    let served = match serve_server_with_ct(server.session(), transport, connection).await {
        Ok(running) => running.waiting().await.map(drop).map_err(|error| failed(&error)),
        // A client that disconnects before its first message is not an error.
        Err(_) if stop.is_cancelled() || watch.is_finished() => Ok(()),
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(failed(&error)),
    };
    watch.abort();
    served
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    let text: String = error.to_string().chars().take(500).collect();
    Error::new(ErrorKind::Io, "serve", format!("the connection with the client failed: {text}")).with_remedy(
        "begin with an initialize request, or with requests that contain their protocol revision, in the client",
    )
}

/// An input that reports when the client has closed its side.
struct Watched<R> {
    input: R,
    ended: CancellationToken,
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.input).poll_read(context, buffer);
        let over = match &polled {
            Poll::Ready(Ok(())) => buffer.filled().len() == before && buffer.capacity() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if over {
            self.ended.cancel();
        }
        polled
    }
}

/// A transport that stops reading at a number of unanswered requests, because a client may read no answers.
struct Bounded<T> {
    inner: T,
    max: usize,
    open: Arc<Open>,
    /// A refusal that is being sent.
    refusing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Unanswered requests.
#[derive(Default)]
struct Open {
    ids: Mutex<HashSet<RequestId>>,
    freed: Notify,
}

impl Open {
    fn ids(&self) -> MutexGuard<'_, HashSet<RequestId>> {
        self.ids.lock()
    }

    fn answered(&self, id: Option<&RequestId>) {
        if let Some(id) = id {
            self.ids().remove(id);
        }
        self.freed.notify_waiters();
    }

    async fn room(&self, max: usize) {
        loop {
            let freed = self.freed.notified();
            if self.ids().len() < max {
                return;
            }
            freed.await;
        }
    }
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for Bounded<T> {
    type Error = T::Error;

    fn send(&mut self, item: ServerJsonRpcMessage) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let answered = match &item {
            JsonRpcMessage::Response(response) => Some(response.id.clone()),
            JsonRpcMessage::Error(error) => error.id.clone(),
            _ => None,
        };
        let open = Arc::clone(&self.open);
        let sent = self.inner.send(item);
        async move {
            let result = sent.await;
            open.answered(answered.as_ref());
            result
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            // Kept across calls, because the caller may cancel this one.
            if let Some(refusing) = &mut self.refusing {
                refusing.await;
                self.refusing = None;
            }
            self.open.room(self.max).await;
            let message = self.inner.receive().await?;
            if let JsonRpcMessage::Notification(notification) = &message
                && let ClientNotification::CancelledNotification(cancelled) = &notification.notification
            {
                // A cancelled request gets no answer.
                self.open.answered(cancelled.params.request_id.as_ref());
            }
            let JsonRpcMessage::Request(request) = &message else { return Some(message) };
            if self.open.ids().insert(request.id.clone()) {
                return Some(message);
            }
            // Two requests with the same id would count as one.
            let problem = ErrorData::invalid_request("a request with this id is not answered yet", None);
            let sent = self.inner.send(JsonRpcMessage::error(problem, Some(request.id.clone())));
            // The next answer reports a failed write.
            self.refusing = Some(Box::pin(async move { drop(sent.await) }));
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
