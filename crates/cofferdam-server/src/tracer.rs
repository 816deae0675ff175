//! Spans of requests, creates, execs, code calls and connections, by the OpenTelemetry SDK.
//!
//! The current span is that of [`opentelemetry::Context`], which futures carry. Spans have ids, outcomes and routes, never
//! output, environments, arguments or paths.

use axum::http::Method;
use cofferdam_contract::TenantId;
use opentelemetry::trace::{SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use crate::trace::TraceContext;

/// The attributes of the semantic conventions of OpenTelemetry.
pub const METHOD: &str = "http.request.method";
pub const ROUTE: &str = "http.route";
pub const STATUS: &str = "http.response.status_code";
pub const ERROR: &str = "error.type";
pub const EXIT_CODE: &str = "process.exit.code";
/// The attributes of Cofferdam.
pub const TENANT: &str = "cofferdam.tenant";
pub const BACKEND: &str = "cofferdam.backend";
pub const SANDBOX: &str = "cofferdam.sandbox.id";
pub const EXEC: &str = "cofferdam.exec.id";
pub const PLUGIN: &str = "cofferdam.plugin";
pub const LANGUAGE: &str = "cofferdam.code.language";

/// Starts spans. Without an exporter, they are not recorded.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<SdkTracer>);

/// A span. It ends at the latest when it is dropped.
#[derive(Debug)]
pub struct Span(Context);

impl Tracer {
    /// Creates a tracer whose spans are exported.
    pub fn new(inner: SdkTracer) -> Self {
        Self(Some(inner))
    }

    /// Starts the span of a request, in the trace of its client. Without an exporter, a request of a client without a trace
    /// has no span.
    pub fn request(&self, client: Option<&TraceContext>, method: &str, route: &str, tenant: &TenantId) -> Span {
        let Some(tracer) = &self.0 else {
            return Span(client.map_or_else(Context::new, TraceContext::of_request));
        };
        let parent = client.map_or_else(Context::new, TraceContext::of_client);
        let attributes = [
            KeyValue::new(METHOD, method.to_owned()),
            KeyValue::new(ROUTE, route.to_owned()),
            KeyValue::new(TENANT, tenant.as_str().to_owned()),
        ];
        let builder = SpanBuilder::from_name(format!("{method} {route}"));
        let builder = builder.with_kind(SpanKind::Server).with_attributes(attributes);
        Span(parent.with_span(tracer.build_with_context(builder, &parent)))
    }

    /// Starts a span below the current one. Without an exporter, returns the current one.
    pub fn start(&self, name: &'static str, attributes: impl IntoIterator<Item = KeyValue>) -> Span {
        let parent = Context::current();
        let Some(tracer) = &self.0 else { return Span(parent) };
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_attributes(attributes);
        Span(parent.with_span(tracer.build_with_context(builder, &parent)))
    }
}

impl Span {
    /// Returns the context of work that belongs to the span.
    pub fn context(&self) -> Context {
        self.0.clone()
    }

    /// Returns the ids of the span.
    pub fn ids(&self) -> SpanContext {
        self.0.span().span_context().clone()
    }

    /// Sets an attribute.
    pub fn set(&self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        self.0.span().set_attribute(KeyValue::new(key, value));
    }

    /// Links the span to another one.
    pub fn link(&self, other: &SpanContext) {
        if other.is_valid() {
            self.0.span().add_link(other.clone(), Vec::new());
        }
    }

    /// Marks the span as failed with an error type of low cardinality.
    pub fn fail(&self, reason: impl Into<opentelemetry::Value>) {
        self.set(ERROR, reason);
        self.0.span().set_status(Status::error(""));
    }

    /// Ends the span of a request that was answered. An error of the client is no error of the server.
    pub fn answered(self, status: u16) {
        self.set(STATUS, i64::from(status));
        if status >= 500 {
            self.fail(status.to_string());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // Contexts of unfinished work may keep the span itself.
        self.0.span().end();
    }
}

/// Returns the method of a request, or the name that the semantic conventions give to unknown ones.
pub fn method_name(method: &Method) -> &str {
    match *method {
        Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE | Method::OPTIONS => {
            method.as_str()
        }
        _ => "_OTHER",
    }
}

/// Returns the ids of the current span, if it is part of a trace.
pub fn current() -> Option<SpanContext> {
    let context = Context::current();
    let ids = context.span().span_context().clone();
    ids.is_valid().then_some(ids)
}
