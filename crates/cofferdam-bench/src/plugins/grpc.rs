//! gRPC over a Unix socket, as plugins of HashiCorp's programs have it: a server in Rust in a process of its own. Its
//! messages are bytes without a schema, so nothing is spent on Protocol Buffers.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes};
use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::server::{Grpc as Server, NamedService, ServerStreamingService, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

const MESSAGE: &[u8] = br#"{"text":"hello"}"#;
const ECHO: &str = "/bench.Plugin/Echo";
const STREAM: &str = "/bench.Plugin/Stream";
/// The time until the server accepts connections.
const START: Duration = Duration::from_secs(10);

/// A codec of bytes.
#[derive(Debug, Default, Clone, Copy)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

type Answering<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;
type Items = Pin<Box<dyn tokio_stream::Stream<Item = Result<Bytes, Status>> + Send>>;

/// The methods of the server.
#[derive(Debug, Clone, Copy)]
struct Echo;

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Answering<Bytes>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move { Ok(Response::new(request.into_inner())) })
    }
}

impl ServerStreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Items;
    type Future = Answering<Items>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move {
            let text = String::from_utf8_lossy(request.get_ref()).into_owned();
            let mut words = text.split(' ').map(|word| word.parse().unwrap_or(0));
            let (items, size) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            let item = Bytes::from(vec![b'x'; size]);
            let stream: Items = Box::pin(tokio_stream::iter((0..items).map(move |_| Ok(item.clone()))));
            Ok(Response::new(stream))
        })
    }
}

/// The service of the server.
#[derive(Debug, Clone, Copy)]
struct Service;

impl NamedService for Service {
    const NAME: &'static str = "bench.Plugin";
}

impl tonic::codegen::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut server = Server::new(BytesCodec);
            Ok(match request.uri().path() {
                ECHO => server.unary(Echo, request).await,
                _ => server.server_streaming(Echo, request).await,
            })
        })
    }
}

/// Runs the server.
pub fn serve(socket: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let incoming = UnixListenerStream::new(UnixListener::bind(socket)?);
        Ok(tonic::transport::Server::builder().add_service(Service).serve_with_incoming(incoming).await?)
    })
}

/// A connection to the server.
pub struct Grpc {
    _child: Child,
    client: Client<Channel>,
}

impl Grpc {
    /// Starts a server with a socket at this path, and connects to it.
    pub async fn start(socket: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["plugins", "--serve"]).arg(socket).stdin(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().context("cannot start the server")?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let begun = Instant::now();
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(error) if begun.elapsed() > START => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        Ok(Self { _child: child, client: Client::new(channel) })
    }

    /// Makes one call.
    pub async fn call(&self) -> Result<()> {
        echo(self.client.clone()).await
    }

    /// Makes calls in `at_once` tasks.
    pub async fn calls(&self, calls: usize, at_once: usize) -> Result<Duration> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..at_once {
            let client = self.client.clone();
            tasks.spawn(async move {
                for _ in 0..calls / at_once {
                    echo(client.clone()).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(begun.elapsed())
    }

    /// Receives a stream.
    pub async fn stream(&self, items: usize, size: usize) -> Result<Duration> {
        let begun = Instant::now();
        let mut client = self.client.clone();
        client.ready().await?;
        let request = Request::new(Bytes::from(format!("{items} {size}")));
        let response = client.server_streaming(request, PathAndQuery::from_static(STREAM), BytesCodec).await?;
        let (mut stream, mut received) = (response.into_inner(), 0);
        while let Some(item) = stream.message().await? {
            ensure!(item.len() == size, "an item has another size");
            received += 1;
        }
        ensure!(received == items, "the stream had {received} items");
        Ok(begun.elapsed())
    }
}

async fn echo(mut client: Client<Channel>) -> Result<()> {
    client.ready().await?;
    let request = Request::new(Bytes::from_static(MESSAGE));
    let response = client.unary(request, PathAndQuery::from_static(ECHO), BytesCodec).await?;
    ensure!(response.get_ref().as_ref() == MESSAGE, "the server returned another message");
    Ok(())
}
