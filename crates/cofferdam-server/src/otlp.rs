//! The export of spans by OTLP over HTTP, in the binary form.
//!
//! ```text
//! ended span --(less than 2048 wait)--> queue --(512 spans or 1 s)--> POST --> exported
//!            '--(full)--> dropped                                     '--(retries for 10 s)--> failed
//! ```
//!
//! Requests never wait for it: a thread of the SDK sends the batches. The SDK reads the variables
//! `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SPAN_*` itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Result};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span as SdkSpan, SpanData, SpanExporter,
    SpanProcessor,
};
use reqwest::Url;
use tokio::runtime::Handle;

use crate::client::tls_config;
use crate::metrics::Metrics;
use crate::report;
use crate::tracer::Tracer;

/// The path of the receiver of spans, below the address of a collector.
const PATH: &str = "/v1/traces";
/// Ended spans that wait for their export.
const MAX_WAITING: usize = 2048;
/// Spans of one request.
const MAX_BATCH: usize = 512;
/// The time between two exports.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The time of an export, with its retries.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for the last export, when the server stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of the export of spans.
#[derive(Debug, Clone)]
pub struct OtlpConfig {
    endpoint: Url,
    /// The value of `service.name`.
    pub service: String,
    /// A PEM file of the authorities that sign the receiver's certificate, instead of those of this host.
    pub authorities: Option<PathBuf>,
    ratio: f64,
}

impl OtlpConfig {
    /// Reads the address of a collector, below which the receiver of spans is.
    ///
    /// # Errors
    /// - `InvalidInput` if it is no URL of HTTP.
    pub fn collector(url: &str) -> Result<Self> {
        let mut endpoint = address(url)?;
        endpoint.set_path(&format!("{}{PATH}", endpoint.path().trim_end_matches('/')));
        Ok(Self::at(endpoint))
    }

    /// Reads the address of a receiver of spans.
    ///
    /// # Errors
    /// - `InvalidInput` if it is no URL of HTTP.
    pub fn receiver(url: &str) -> Result<Self> {
        address(url).map(Self::at)
    }

    fn at(endpoint: Url) -> Self {
        Self { endpoint, service: "cofferdam".to_owned(), authorities: None, ratio: 1.0 }
    }

    /// Records a part of the traces that begin here. A client's trace is recorded if the client records it.
    ///
    /// # Errors
    /// - `InvalidInput` if the ratio is not between 0 and 1.
    pub fn sampled(self, ratio: f64) -> Result<Self> {
        match (0.0..=1.0).contains(&ratio) {
            true => Ok(Self { ratio, ..self }),
            false => Err(Error::invalid("serve", format!("the ratio of traces is {ratio}, not between 0 and 1"))),
        }
    }
}

fn address(url: &str) -> Result<Url> {
    let found = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    found.filter(|url| url.username().is_empty() && url.password().is_none()).ok_or_else(|| {
        Error::invalid("serve", "the address of the OTLP receiver is no URL of HTTP without a password")
            .with_remedy("use http://HOST:4318 or https://HOST, and OTEL_EXPORTER_OTLP_HEADERS for credentials")
    })
}

/// An exporter that runs.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Starts the export. `instance` names this process of the server.
    ///
    /// # Errors
    /// - `InvalidInput` for a file of authorities or headers that cannot be used.
    pub fn start(config: &OtlpConfig, instance: &str, metrics: Arc<Metrics>) -> Result<Self> {
        let client = Client { inner: client(config)?, runtime: Handle::current() };
        let retries = RetryPolicy::recommended()
            .with_max_retries(usize::MAX)
            .with_initial_delay(Duration::from_millis(250))
            .with_max_delay(Duration::from_secs(4));
        let exporter = OtlpExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(config.endpoint.as_str())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(EXPORT_TIMEOUT)
            .with_retry_policy(retries)
            .build()
            .map_err(|error| Error::invalid("serve", format!("cannot export traces: {error}")))?;
        let backlog = Arc::new(Backlog { waiting: AtomicUsize::new(0), is_failing: AtomicBool::new(false), metrics });
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_WAITING)
            .with_max_export_batch_size(MAX_BATCH)
            .with_scheduled_delay(EXPORT_INTERVAL)
            .build();
        let counted = CountedExporter { inner: exporter, backlog: Arc::clone(&backlog) };
        let inner = BatchSpanProcessor::builder(counted).with_batch_config(batches).build();
        let resource = Resource::builder()
            .with_service_name(config.service.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
            .build();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.ratio)));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BoundedProcessor { inner, backlog })
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        Ok(Self(provider))
    }

    /// Returns a tracer whose spans are exported.
    pub fn tracer(&self) -> Tracer {
        Tracer::new(self.0.tracer("cofferdam-server"))
    }

    /// Exports the spans that wait, and stops.
    pub async fn stop(self) {
        let stop = move || self.0.shutdown_with_timeout(FLUSH_TIMEOUT);
        if !matches!(tokio::task::spawn_blocking(stop).await, Ok(Ok(()))) {
            report::warning("some spans could not be exported");
        }
    }
}

fn client(config: &OtlpConfig) -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder();
    // Plain HTTP needs no authorities, which a host may lack.
    let builder = match config.endpoint.scheme() {
        "https" => builder.tls_backend_preconfigured(tls(config.authorities.as_deref())?),
        _ => builder.tls_backend_preconfigured(no_tls()?),
    };
    builder
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .timeout(EXPORT_TIMEOUT)
        .user_agent(concat!("cofferdam/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, "export traces", "cannot set TLS up").with_source(error))
}

fn tls(authorities: Option<&Path>) -> Result<rustls::ClientConfig> {
    tls_config(authorities, None).map(Arc::unwrap_or_clone)
}

fn no_tls() -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Internal, "export traces", "cannot set TLS up").with_source(error))?;
    Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

/// A client of HTTP for the SDK's thread, which has no runtime.
#[derive(Debug)]
struct Client {
    inner: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(
        &self,
        request: opentelemetry_http::Request<Bytes>,
    ) -> Result<opentelemetry_http::Response<Bytes>, HttpError> {
        let client = self.inner.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// The spans that wait for their export, or are exported now.
#[derive(Debug)]
struct Backlog {
    waiting: AtomicUsize,
    is_failing: AtomicBool,
    metrics: Arc<Metrics>,
}

impl Backlog {
    /// Takes a permit of the queue, if there is one.
    fn take(&self) -> bool {
        let more = |waiting: usize| (waiting < MAX_WAITING).then_some(waiting + 1);
        let taken = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !taken {
            self.metrics.spans("dropped", 1);
        }
        taken
    }

    /// Releases the permits of exported spans. Reports the first of several failures.
    fn exported(&self, count: usize, result: &OTelSdkResult) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        self.metrics.spans(if result.is_ok() { "exported" } else { "failed" }, count as u64);
        let Err(error) = result else { return self.is_failing.store(false, Ordering::Relaxed) };
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            report::warning(&format!("cannot export traces: {error}"));
        }
    }
}

/// The queue of the SDK. It drops spans without a count that can be read, so that it must never be full.
#[derive(Debug)]
struct BoundedProcessor {
    inner: BatchSpanProcessor,
    backlog: Arc<Backlog>,
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut SdkSpan, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.backlog.take() {
            self.inner.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// An exporter that counts spans.
#[derive(Debug)]
struct CountedExporter {
    inner: OtlpExporter,
    backlog: Arc<Backlog>,
}

impl SpanExporter for CountedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = self.inner.export(batch).await;
        self.backlog.exported(count, &result);
        result
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.inner.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors_and_receivers_are_read() {
        for (url, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://otel.example/base/", "https://otel.example/base/v1/traces"),
        ] {
            assert_eq!(OtlpConfig::collector(url).unwrap().endpoint.as_str(), expected);
        }
        let receiver = OtlpConfig::receiver("http://127.0.0.1:4318/spans").unwrap();
        assert_eq!(receiver.endpoint.as_str(), "http://127.0.0.1:4318/spans");
        for url in ["", "localhost:4317", "grpc://host", "http://", "https://user:secret@host"] {
            let error = OtlpConfig::collector(url).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        for ratio in [-0.1, 1.1, f64::NAN] {
            assert!(receiver.clone().sampled(ratio).is_err(), "{ratio}");
        }
    }

    #[test]
    fn a_full_backlog_drops_and_counts() {
        let metrics = Arc::new(Metrics::default());
        let backlog = Backlog {
            waiting: AtomicUsize::new(MAX_WAITING - 1),
            is_failing: AtomicBool::new(false),
            metrics: Arc::clone(&metrics),
        };
        assert_eq!([backlog.take(), backlog.take(), backlog.take()], [true, false, false]);
        backlog.exported(2, &Ok(()));
        assert!(backlog.take());
        let text = metrics.text(0);
        assert!(text.contains("cofferdam_spans_total{outcome=\"dropped\"} 2"), "{text}");
        assert!(text.contains("cofferdam_spans_total{outcome=\"exported\"} 2"), "{text}");
    }
}
