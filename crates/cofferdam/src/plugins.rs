//! The parts of this program that the host of plugins uses: backends, execution of code, requests to the network.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_audit::PluginDenied;
use cofferdam_code::{CodeConfig, CodeRequest, Data, Executor};
use cofferdam_contract::{
    Backend, Limits, NetworkPolicy, Protection, Result, RootFs, Sandbox, Spec, SpecBuilder, parse_duration,
};
use cofferdam_egress::fetch::{Client, FetchError, FetchRequest};
pub use cofferdam_plugin::host::*;
use cofferdam_plugin::services::content;
use cofferdam_plugin::{CallError, ErrorKind, Manifest, Permission, Strategy};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::registry::{self, Setup};

/// The default and the maximum of the time of a request to the network.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a response. A frame holds it as base64.
const MAX_FETCHED: usize = 5 << 20;
/// The maximum time of an execution of code.
const MAX_EXECUTION: Duration = Duration::from_secs(300);

/// The configuration of [`LocalExtensions`].
#[derive(Debug, Clone, Default)]
pub struct LocalConfig {
    /// The settings of the backends.
    pub setup: Setup,
    /// The image of containers and VMs.
    pub image: Option<String>,
    /// The execution of code.
    pub code: CodeConfig,
    /// The protections of sandboxes that may be weaker than requested.
    pub allow_weaker: BTreeSet<Protection>,
}

/// The backends and services of this program, for a host of plugins.
pub struct LocalExtensions {
    setup: Setup,
    image: Option<String>,
    allow_weaker: BTreeSet<Protection>,
    executor: Executor,
    backends: Mutex<HashMap<Strategy, Arc<dyn Backend>>>,
}

impl LocalExtensions {
    /// Creates the extensions.
    ///
    /// # Errors
    /// The configuration of code execution is invalid.
    pub fn new(config: LocalConfig) -> Result<Self> {
        let LocalConfig { setup, image, code, allow_weaker } = config;
        Ok(Self { setup, image, allow_weaker, executor: Executor::new(code)?, backends: Mutex::default() })
    }
}

#[async_trait]
impl Extensions for LocalExtensions {
    async fn backend(&self, strategy: Strategy) -> Result<Arc<dyn Backend>> {
        let name = match strategy {
            Strategy::Container => registry::CONTAINER_BACKEND,
            Strategy::Vm => registry::VM_BACKEND,
            Strategy::Wasm => registry::MODULE_BACKEND,
            Strategy::Subprocess | Strategy::Thread | Strategy::Inline => registry::DEFAULT_BACKEND,
        };
        let mut backends = self.backends.lock();
        if let Some(backend) = backends.get(&strategy) {
            return Ok(Arc::clone(backend));
        }
        let backend = registry::backend_with(name, &self.setup)?;
        backends.insert(strategy, Arc::clone(&backend));
        Ok(backend)
    }

    fn spec(&self, strategy: Strategy, mut spec: SpecBuilder) -> SpecBuilder {
        for protection in &self.allow_weaker {
            spec = spec.allow_weaker(*protection);
        }
        match (&self.image, strategy) {
            (Some(image), Strategy::Container | Strategy::Vm) => spec.root(RootFs::Image { reference: image.clone() }),
            _ => spec,
        }
    }

    async fn observe(&self, sandbox: Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        self.executor.record_network(sandbox).await
    }

    async fn denied(&self, denial: PluginDenied) {
        self.executor.record_denial(denial).await;
    }

    async fn execute(&self, manifest: &Manifest, execution: Execution) -> Result<Value, CallError> {
        let timeout = duration(execution.timeout.as_deref(), MAX_EXECUTION)?;
        let own = &manifest.sandbox.limits;
        let defaults = Limits::default();
        let limits = Limits {
            memory: own.memory.or(defaults.memory),
            disk: own.disk.or(defaults.disk),
            pids: own.pids.or(defaults.pids),
            cpu_time: own.cpu_time.or(defaults.cpu_time),
            wall_time: timeout,
            ..defaults
        };
        let failed = |error: cofferdam_contract::Error| {
            use cofferdam_contract::ErrorKind as Kind;
            let kind = match error.kind() {
                Kind::InvalidInput => ErrorKind::InvalidParams,
                Kind::Denied => ErrorKind::PermissionDenied,
                Kind::NotFound | Kind::NotExecutable => ErrorKind::NotFound,
                Kind::ResourceExhausted => ErrorKind::Limit,
                _ => ErrorKind::Internal,
            };
            CallError::new(kind, error.to_string())
        };
        let spec = Spec::builder().limits(limits).label("cofferdam.plugin", &manifest.name);
        let spec = self.spec(Strategy::Subprocess, spec).build().map_err(failed)?;
        let backend = self.backend(Strategy::Subprocess).await.map_err(failed)?;
        let request = CodeRequest::new(execution.language, execution.code);
        let result = self.executor.run(&*backend, spec, request).await.map_err(failed)?;
        let text = |data: &Data| json!(data.text());
        Ok(json!({
            "stdout": text(&result.stdout),
            "stderr": text(&result.stderr),
            "exitCode": result.exit_code,
            "result": result.results.last().map(|last| json!(last)),
            "killedBy": result.killed_by.map(|limit| limit.as_str()),
            "timedOut": result.timed_out,
        }))
    }

    async fn fetch(&self, manifest: &Manifest, fetch: Fetch) -> Result<Value, CallError> {
        let policy = NetworkPolicy::Allow { hosts: manifest.sandbox.net.clone() };
        let client = Client::new(&policy).map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
        let request = FetchRequest {
            method: fetch.method.unwrap_or_default(),
            url: fetch.url,
            headers: fetch.headers.into_iter().collect(),
            body: fetch.body.map(|body| body.into_bytes()).transpose()?.unwrap_or_default(),
            timeout: duration(fetch.timeout.as_deref(), FETCH_TIMEOUT)?,
            max_body: MAX_FETCHED,
        };
        let response = client.fetch(request).await.map_err(|error| match error {
            FetchError::Denied { server, .. } => {
                denied(Permission::Net, &server, &format!("add \"{server}\" to sandbox.net"))
            }
            FetchError::Invalid(message) => CallError::invalid(message),
            FetchError::Failed(message) => CallError::new(ErrorKind::Unavailable, message),
            FetchError::Timeout => CallError::new(ErrorKind::Timeout, "the server did not answer in time"),
        })?;
        let headers: serde_json::Map<String, Value> =
            response.headers.into_iter().map(|(name, value)| (name, json!(value))).collect();
        let (body, truncated) = (content(response.body), response.truncated);
        Ok(json!({"status": response.status, "headers": headers, "body": body, "truncated": truncated}))
    }
}

fn duration(text: Option<&str>, max: Duration) -> Result<Duration, CallError> {
    let read = |text| parse_duration(text).map_err(|_| CallError::invalid("timeout is not a duration such as 5s"));
    Ok(text.map(read).transpose()?.unwrap_or(max).min(max))
}
