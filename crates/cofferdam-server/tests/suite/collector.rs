//! A receiver of spans on this host, as OTLP over HTTP defines it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cofferdam_server::OtlpConfig;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message;

/// The behaviour of a receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    Accept,
    /// Answers so many requests with 503 first.
    Refuse(usize),
    /// Reads requests and never answers.
    Hang,
}

/// A receiver that runs until the end of the test.
pub struct Collector {
    pub url: String,
    received: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    pub requests: Arc<AtomicUsize>,
}

impl Collector {
    pub async fn start(behaviour: Behaviour) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received: Arc<Mutex<Vec<_>>> = Arc::default();
        let requests = Arc::new(AtomicUsize::new(0));
        let (into, count) = (Arc::clone(&received), Arc::clone(&requests));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (into, count) = (Arc::clone(&into), Arc::clone(&count));
                let service = service_fn(move |request| receive(request, behaviour, Arc::clone(&into), count.clone()));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { url, received, requests }
    }

    pub fn config(&self) -> OtlpConfig {
        OtlpConfig::collector(&self.url).unwrap()
    }

    /// Returns the attributes of the process.
    pub fn resource(&self) -> BTreeMap<String, String> {
        let received = self.received.lock();
        attributes(&received[0].resource_spans[0].resource.as_ref().unwrap().attributes)
    }

    pub fn spans(&self) -> Vec<Span> {
        let received = self.received.lock();
        let scopes = received.iter().flat_map(|request| &request.resource_spans).flat_map(|all| &all.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Returns the spans with a name.
    pub fn named(&self, name: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }

    /// Returns the only span with a name.
    pub fn only(&self, name: &str) -> Span {
        let mut found = self.named(name);
        let all: Vec<_> = self.spans().into_iter().map(|span| span.name).collect();
        assert_eq!(found.len(), 1, "{name}: {all:?}");
        found.remove(0)
    }
}

async fn receive(
    request: Request<hyper::body::Incoming>,
    behaviour: Behaviour,
    into: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    requests: Arc<AtomicUsize>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/v1/traces"));
    assert_eq!(head.headers["content-type"], "application/x-protobuf");
    let body = body.collect().await.unwrap().to_bytes();
    let number = requests.fetch_add(1, Ordering::SeqCst);
    let mut answer = Response::new(Full::default());
    match behaviour {
        Behaviour::Hang => std::future::pending().await,
        Behaviour::Refuse(first) if number < first => *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
        Behaviour::Refuse(_) | Behaviour::Accept => {
            into.lock().push(ExportTraceServiceRequest::decode(body).expect("a request of OTLP"));
        }
    }
    Ok(answer)
}

/// Returns attributes as text.
pub fn attributes(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    all.iter().map(|one| (one.key.clone(), text(&one.value))).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
