//! Traces: a span and a task for each exec, a span for each create. A traced program finds its span in `TRACEPARENT`.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use cofferdam_contract::{Error, ExecRequest, Exit, Result, Sandbox, Spec, TenantId};
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanContext;
use parking_lot::Mutex;

use super::Concern;
use super::metrics::outcome_name;
use crate::live::CREATED;
use crate::tasks::{Task, TaskGuard, TaskKind, Tasks};
use crate::trace::{VARIABLE, traceparent};
use crate::tracer::{BACKEND, EXEC, EXIT_CODE, SANDBOX, Span, TENANT, Tracer};

tokio::task_local! {
    /// The exec that this task starts for a client.
    pub static STARTED: Arc<Started>;
}

/// An exec that a client knows.
#[derive(Debug)]
pub struct Started {
    /// The id for clients.
    pub id: String,
    /// The span, once it has started.
    pub span: OnceLock<SpanContext>,
}

/// The traces of all sandboxes of a backend.
#[derive(Debug)]
pub struct TracesConcern {
    /// The backend's name.
    pub backend: String,
    /// The tracer of the server.
    pub tracer: Tracer,
    /// The tasks of the server.
    pub tasks: Arc<Tasks>,
}

/// The traces of one sandbox.
#[derive(Debug)]
pub struct Held {
    tenant: TenantId,
    /// The id for clients. A run has none.
    sandbox: Option<String>,
    create: Mutex<Option<Span>>,
}

/// The span and the task of an exec.
pub struct Exec {
    span: Span,
    _task: TaskGuard,
}

impl TracesConcern {
    fn attributes(&self, tenant: &TenantId, sandbox: Option<&String>, exec: Option<&String>) -> Vec<KeyValue> {
        let mut all =
            vec![KeyValue::new(BACKEND, self.backend.clone()), KeyValue::new(TENANT, tenant.as_str().to_owned())];
        all.extend(sandbox.map(|id| KeyValue::new(SANDBOX, id.clone())));
        all.extend(exec.map(|id| KeyValue::new(EXEC, id.clone())));
        all
    }
}

#[async_trait]
impl Concern for TracesConcern {
    type Held = Held;
    type Exec = Exec;

    async fn enter(&self, spec: &Spec) -> Result<Held> {
        let (tenant, sandbox) = (spec.tenant().clone(), CREATED.try_with(|(id, _)| id.clone()).ok());
        let create = self.tracer.start("create", self.attributes(&tenant, sandbox.as_ref(), None));
        Ok(Held { tenant, sandbox, create: Mutex::new(Some(create)) })
    }

    async fn created(&self, held: &Held, created: Result<&Arc<dyn Sandbox>, &Error>) -> Result<()> {
        let span = held.create.lock().take();
        if let (Some(span), Err(error)) = (span, created) {
            span.fail(error.kind().as_str());
        }
        Ok(())
    }

    async fn starting(&self, held: &Held, _: &Spec, _: &ExecRequest) -> Result<Exec> {
        let (started, sandbox) = (STARTED.try_with(Arc::clone).ok(), held.sandbox.as_ref());
        let id = started.as_ref().map(|started| &started.id);
        let span = self.tracer.start("exec", self.attributes(&held.tenant, sandbox, id));
        let task = Task::new(TaskKind::Exec, &self.backend, Some(&held.tenant));
        let task = self.tasks.add(Task { sandbox: sandbox.cloned(), exec: id.cloned(), ..task });
        if let Some(started) = &started {
            // A second exec of the same request would be a program's own.
            let _ = started.span.set(span.ids());
        }
        Ok(Exec { span, _task: task })
    }

    fn traced(&self, exec: &Exec, request: ExecRequest) -> ExecRequest {
        let ids = exec.span.ids();
        if !ids.is_valid() || request.env().iter().any(|(name, _)| name == VARIABLE) {
            return request;
        }
        // A request without the variable still runs the program.
        request.to_builder().env(VARIABLE, traceparent(&ids)).build().unwrap_or(request)
    }

    async fn ended(&self, _: &Held, exec: Exec, outcome: &Result<Exit>) {
        if let Ok(exit) = outcome {
            exec.span.set(EXIT_CODE, i64::from(exit.code));
        }
        match outcome_name(outcome) {
            "ok" => {}
            other => exec.span.fail(other),
        }
    }

    async fn closing(&self, _: &Held, _: &dyn Sandbox) {}

    async fn closed(&self, _: &Held) {}
}
