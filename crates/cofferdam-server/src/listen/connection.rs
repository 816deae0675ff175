//! Connections: accepts them, negotiates TLS, serves HTTP/1.1 and HTTP/2, ends them in order.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use cofferdam_linux::peer::{self, Distrust};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::{Listener, Tls};
use crate::bounds::Bounds;
use crate::handover::Successor;
use crate::identity::{Peer, PeerCertificate};
use crate::report;
use crate::rest::ports::route_by_host;
use cofferdam_util::stall::Stalling;

/// The pause after a failed accept, such as without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The most bytes, and the time, that a client may send after the negotiation of TLS failed.
const LINGER_BYTES: u64 = 64 << 10;
const LINGER_TIME: Duration = Duration::from_secs(1);
/// The time for the first request of a connection that was accepted just before the stop.
const FIRST_TIME: Duration = Duration::from_secs(1);
/// The most concurrent streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// The most bytes of a body that wait in one stream of HTTP/2.
const STREAM_WINDOW: u32 = 256 << 10;
/// The most header fields of a request.
const MAX_HEADERS: usize = 100;

/// The connections of a server.
#[derive(Clone)]
pub struct Connections {
    bounds: Bounds,
    router: Router,
    port_domain: Option<Arc<str>>,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
    /// Cancelled when no new request is accepted.
    stop: CancellationToken,
    /// Cancelled when every connection ends at once.
    kill: CancellationToken,
}

impl Connections {
    /// Creates an empty set.
    pub fn new(
        bounds: Bounds,
        router: Router,
        port_domain: Option<String>,
        tasks: TaskTracker,
        stop: CancellationToken,
        kill: CancellationToken,
    ) -> Self {
        let port_domain = port_domain.map(Arc::from);
        let room = Arc::new(Semaphore::new(bounds.connections));
        Self { bounds, router, port_domain, room, tasks, stop, kill }
    }

    /// Accepts connections until the server stops.
    pub async fn accept(self, mut listener: Listener) {
        let stop = self.stop.clone();
        let all = async {
            match &mut listener {
                Listener::Socket(listener, _) => loop {
                    let permit = self.permit().await;
                    match listener.accept().await {
                        Ok((stream, _)) => self.spawn(permit, local(&stream), stream),
                        Err(error) => failed(&error).await,
                    }
                },
                Listener::Shared(accepted, _) => loop {
                    let permit = self.permit().await;
                    let Some(stream) = accepted.recv().await else { return };
                    self.spawn(permit, local(&stream), stream);
                },
                Listener::Tcp(listener, tls) => {
                    let reload = tls.clone().map(|tls| tokio::spawn(tls.reload()));
                    let _reload = Aborted(reload);
                    loop {
                        let permit = self.permit().await;
                        match listener.accept().await {
                            Ok((stream, from)) => {
                                let _ = stream.set_nodelay(true);
                                match tls {
                                    Some(tls) => self.negotiate(permit, from, stream, Arc::clone(tls)),
                                    None => self.spawn(permit, Peer::Network(from), stream),
                                }
                            }
                            Err(error) => failed(&error).await,
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = all => {}
            () = stop.cancelled() => {}
        }
    }

    /// Serves the connections of the process that took over, until it has ended.
    pub async fn serve_successor(&self, successor: &Successor) {
        loop {
            let permit = self.permit().await;
            let Some(stream) = successor.connection().await else { return };
            self.spawn(permit, Peer::Successor, stream);
        }
    }

    /// Waits until all connections have ended.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    fn negotiate(&self, permit: Option<OwnedSemaphorePermit>, from: SocketAddr, stream: TcpStream, tls: Arc<Tls>) {
        let (this, heard) = (self.clone(), CancellationToken::new());
        self.tasks.spawn(async move {
            let accepted = tokio::time::timeout(this.bounds.head_time, tls.acceptor().accept(stream).into_fallible());
            tokio::select! {
                accepted = accepted => match accepted {
                    Ok(Ok(stream)) => {
                        let peer = match stream.get_ref().1.peer_certificates() {
                            Some(chain) => Peer::Certified(from, Arc::new(PeerCertificate::new(chain, tls))),
                            None => Peer::Network(from),
                        };
                        this.serve(permit, peer, stream).await;
                    }
                    Ok(Err((_, stream))) => linger(stream).await,
                    Err(_) => {}
                },
                () = stopped(&this.stop, &heard) => {}
            }
        });
    }

    fn spawn<S>(&self, permit: Option<OwnedSemaphorePermit>, peer: Peer, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let this = self.clone();
        self.tasks.spawn(async move { this.serve(permit, peer, stream).await });
    }

    async fn serve<S>(self, _permit: Option<OwnedSemaphorePermit>, peer: Peer, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { bounds, router, port_domain, stop, kill, .. } = self;
        let heard = CancellationToken::new();
        let spoken = heard.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            spoken.cancel();
            request.extensions_mut().insert(peer.clone());
            if let Some(domain) = &port_domain {
                route_by_host(&mut request, domain);
            }
            router.clone().oneshot(request.map(Body::new))
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head_time)
            .max_headers(MAX_HEADERS)
            .max_buf_size(bounds.head.max(8192));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            // A body that is not read must not stop the others of its connection.
            .initial_connection_window_size(MAX_STREAMS * STREAM_WINDOW)
            .max_header_list_size(u32::try_from(bounds.head).unwrap_or(u32::MAX))
            .keep_alive_interval(Some(bounds.stall_time / 2))
            .keep_alive_timeout(bounds.stall_time / 2);
        let stream = TokioIo::new(Stalling::new(stream, bounds.stall_time));
        let mut connection = pin!(builder.serve_connection_with_upgrades(stream, service));
        // A client's broken connection is no news.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = silence(&heard, bounds.head_time) => return,
            () = stopped(&stop, &heard) => connection.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = connection => {}
            () = kill.cancelled() => {}
        }
    }
}

/// Returns the process at the other end of a Unix socket.
fn local(stream: &tokio::net::UnixStream) -> Peer {
    match peer::Peer::of(stream) {
        Ok(_) => Peer::User(rustix::process::geteuid().as_raw()),
        Err(Distrust::OtherUser(user)) => Peer::User(user),
        Err(_) => Peer::Guest,
    }
}

/// Closes a connection without TLS in order. Else the client's system may discard the alert that says why.
async fn linger(mut stream: TcpStream) {
    let reading = async {
        let _ = stream.shutdown().await;
        let mut discarded = (&mut stream).take(LINGER_BYTES);
        tokio::io::copy(&mut discarded, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(LINGER_TIME, reading).await;
}

/// Returns if no first request came in time. Hyper waits forever for the bytes that distinguish HTTP/1.1 from HTTP/2.
async fn silence(heard: &CancellationToken, limit: Duration) {
    if tokio::time::timeout(limit, heard.cancelled()).await.is_ok() {
        std::future::pending().await
    }
}

/// Waits for the stop, and then a moment for the first request of a connection that was just accepted. A client cannot
/// know whether a request on a connection that ends without an answer was done.
async fn stopped(stop: &CancellationToken, heard: &CancellationToken) {
    stop.cancelled().await;
    // Hyper answers a request that has begun.
    let _ = tokio::time::timeout(FIRST_TIME, heard.cancelled()).await;
}

/// A task that ends with this value.
struct Aborted(Option<tokio::task::JoinHandle<()>>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.as_ref().inspect(|task| task.abort());
    }
}

async fn failed(error: &std::io::Error) {
    report::warning(&format!("cannot accept a connection: {error}"));
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
