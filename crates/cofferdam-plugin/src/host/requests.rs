//! The requests of one plugin: permission, then the service that answers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam_audit::{PluginDenied, Text, Timestamp};
use cofferdam_contract::parse_duration;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::call::CallOptions;
use super::context::{Context, MAX_DEPTH, random_id};
use super::files::{Files, parse};
use super::log::{Log, Severity, Tail};
use super::permission::{self, shown};
use super::trace::Span;
use super::{Extensions, Inner};
use crate::Manifest;
use crate::services::{Caller, Services};
use crate::wire::{CallError, ErrorKind, Incoming, Served};

/// The maximum number of invocations and executions of one plugin at a time.
const MAX_LONG: usize = 32;
/// The maximum number of other requests that are answered at a time. Others wait in order.
const MAX_SHORT: usize = 16;
/// The maximum length of a path.
const MAX_PATH: usize = 4096;
/// The maximum number of ended calls whose late requests still belong to their tenant.
const MAX_ENDED: usize = 1024;
/// The maximum number of tracked files of one plugin.
const MAX_TRACKED: usize = 1000;
/// The maximum number of pointers to dropped values of one invocation.
const MAX_DROPPED: usize = 100;
/// The directory for temporary files.
const TEMPORARY: &str = "/tmp";
/// The maximum number of members of a log message of a plugin.
const MAX_FIELDS: usize = 32;

/// The host's side of one process of a plugin.
pub struct Requests {
    pub host: Weak<Inner>,
    pub manifest: Arc<Manifest>,
    pub config: Arc<Value>,
    pub files: Arc<Files>,
    pub services: Arc<Services>,
    pub extensions: Arc<dyn Extensions>,
    pub calls: Arc<Calls>,
    pub log: Log,
    pub tail: Arc<Mutex<Tail>>,
    pub long: Semaphore,
    pub short: Arc<Semaphore>,
}

/// The calls that run, by correlation identifier: their contexts, and the files to remove afterwards.
#[derive(Default)]
pub struct Calls {
    contexts: Mutex<HashMap<String, Context>>,
    ended: Mutex<VecDeque<(String, Context)>>,
    tracked: Mutex<Vec<(String, String)>>,
}

impl Calls {
    /// Adds a call. It is removed when the guard is dropped.
    pub fn add(self: &Arc<Self>, context: &Context) -> CallGuard {
        self.contexts.lock().insert(context.request_id.clone(), context.clone());
        CallGuard(Arc::clone(self), context.request_id.clone())
    }

    /// Returns the context of a call that runs or ended not long ago.
    fn get(&self, correlation: &str) -> Option<Context> {
        if let Some(context) = self.contexts.lock().get(correlation) {
            return Some(context.clone());
        }
        let ended = self.ended.lock();
        ended.iter().rev().find(|(id, _)| id == correlation).map(|(_, context)| context.clone())
    }

    /// Remembers a file of a call.
    fn track(&self, correlation: &str, path: String) -> Result<(), CallError> {
        let mut tracked = self.tracked.lock();
        if tracked.len() >= MAX_TRACKED {
            return Err(CallError::new(ErrorKind::Limit, format!("{MAX_TRACKED} files are tracked")));
        }
        tracked.push((correlation.to_owned(), path));
        Ok(())
    }

    /// Takes the files of a call, or of all.
    pub fn take_tracked(&self, correlation: Option<&str>) -> Vec<String> {
        let is_taken = |file: &mut (String, String)| correlation.is_none_or(|correlation| file.0 == correlation);
        self.tracked.lock().extract_if(.., is_taken).map(|(_, path)| path).collect()
    }
}

/// A running call in [`Calls`].
pub struct CallGuard(Arc<Calls>, String);

impl Drop for CallGuard {
    fn drop(&mut self) {
        let Some(context) = self.0.contexts.lock().remove(&self.1) else { return };
        let mut ended = self.0.ended.lock();
        if ended.len() >= MAX_ENDED {
            ended.pop_front();
        }
        // Metadata may be large.
        ended.push_back((self.1.clone(), Context { metadata: Map::new(), ..context }));
    }
}

impl Requests {
    /// Returns the permits of a new process.
    pub fn permits() -> (Semaphore, Arc<Semaphore>) {
        (Semaphore::new(MAX_LONG), Arc::new(Semaphore::new(MAX_SHORT)))
    }

    async fn answer(
        &self,
        incoming: Incoming,
        correlation: &str,
        context: Option<Context>,
    ) -> Result<Value, CallError> {
        let Incoming { method, params, .. } = incoming;
        permission::check(&self.manifest, &method, &params)?;
        if matches!(method.as_str(), "invoke" | "sandbox.execute") {
            let busy =
                |_| CallError::new(ErrorKind::Limit, format!("{MAX_LONG} invocations of this plugin are running"));
            let _permit = self.long.try_acquire().map_err(busy)?;
            return match method.as_str() {
                "invoke" => self.invoke(parse(params)?, correlation, context.unwrap_or_default()).await,
                _ => self.extensions.execute(&self.manifest, parse(params)?).await,
            };
        }
        let closed = |_| CallError::new(ErrorKind::Unavailable, "the host shuts down");
        let permit = Arc::clone(&self.short).acquire_owned().await.map_err(closed)?;
        match method.split_once('.').map_or("", |(service, _)| service) {
            "config" => Ok(json!({"config": &*self.config})),
            "fs" => Arc::clone(&self.files).call(&method, params, Some(permit)).await,
            "net" => self.extensions.fetch(&self.manifest, parse(params)?).await,
            "resources" => self.track(parse(params)?, correlation),
            _ => {
                let caller = Caller {
                    plugin: self.manifest.name.clone(),
                    tenant: context.and_then(|context| context.tenant),
                    correlation: correlation.to_owned(),
                };
                self.services.call(&caller, &method, params).await
            }
        }
    }

    async fn invoke(&self, invocation: Invocation, correlation: &str, parent: Context) -> Result<Value, CallError> {
        let host = self.host.upgrade().ok_or_else(|| CallError::new(ErrorKind::Unavailable, "the host shuts down"))?;
        let mut path = parent.path;
        path.push(self.manifest.name.clone());
        if path.contains(&invocation.plugin) {
            let message = format!("the invocation is a cycle: {} -> {}", path.join(" -> "), shown(&invocation.plugin));
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        if path.len() >= MAX_DEPTH as usize {
            return Err(CallError::new(ErrorKind::Limit, format!("the invocation is nested deeper than {MAX_DEPTH}")));
        }
        let timeout = invocation.timeout.as_deref().map(duration).transpose()?;
        let dropped = invocation.dropped.iter().take(MAX_DROPPED).map(|pointer| shown(pointer)).collect();
        let metadata = invocation.metadata.unwrap_or(parent.metadata);
        let request_id = random_id();
        let fields = json!({"plugin": shown(&invocation.plugin), "invocation": request_id});
        self.log.write_own(Severity::Debug, "plugin.invokes", Some(correlation), fields);
        let context = Context { request_id, path, metadata, dropped, ..parent };
        let options = CallOptions { context, timeout, stream: false };
        let result = host.call(&invocation.plugin, &invocation.method, invocation.input, options).result().await;
        result.map_err(crossing)
    }

    /// Returns the audit record of a denied request.
    fn denial(&self, method: &str, correlation: &str, error: &CallError) -> PluginDenied {
        let text = |name: &str| error.data.get(name).and_then(Value::as_str).unwrap_or_default();
        PluginDenied {
            plugin: Text::new(&self.manifest.name),
            tenant: self.calls.get(correlation).and_then(|context| context.tenant).map(Text::new),
            time: Timestamp::now(),
            correlation: Text::new(correlation),
            method: Text::new(method),
            permission: Text::new(text("permission")),
            target: Text::new(text("target")),
        }
    }

    fn track(&self, resource: Resource, correlation: &str) -> Result<Value, CallError> {
        let Resource { path } = resource;
        if path.len() > MAX_PATH {
            return Err(CallError::invalid("the path is longer than 4096 bytes"));
        }
        let allowed = &self.manifest.sandbox.fs_access.write;
        if !permission::is_below(&path, TEMPORARY) && !allowed.iter().any(|entry| permission::is_below(&path, entry)) {
            let remedy = format!("add \"{}\" to sandbox.fsAccess.write", shown(&path));
            return Err(permission::denied(crate::Permission::FsWrite, &path, &remedy));
        }
        self.calls.track(correlation, path).map(|()| Value::Null)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Invocation {
    plugin: String,
    method: String,
    #[serde(default)]
    input: Value,
    timeout: Option<String>,
    metadata: Option<Map<String, Value>>,
    #[serde(default)]
    dropped: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    path: String,
}

/// Returns the error of an invocation as another plugin may see it: without the callee's output and stack. A denial of
/// the callee is none of the caller.
fn crossing(mut error: CallError) -> CallError {
    for private in ["lastOutput", "stack"] {
        error.data.remove(private);
    }
    if error.kind == ErrorKind::PermissionDenied {
        error.kind = ErrorKind::PluginFailed;
        error.data.clear();
    }
    error
}

/// Reads a duration such as `5s`.
pub fn duration(text: &str) -> Result<Duration, CallError> {
    parse_duration(text).map_err(|error| CallError::invalid(shown(&error.to_string())))
}

#[async_trait]
impl Served for Requests {
    async fn request(&self, incoming: Incoming) -> Result<Value, CallError> {
        let correlation = incoming.correlation.clone().unwrap_or_else(random_id);
        let method = shown(&incoming.method);
        let target = shown(&permission::target(&incoming.method, &incoming.params));
        let begun = Instant::now();
        let host = self.host.upgrade();
        let traces = host.as_ref().and_then(|host| host.config.traces.as_ref());
        let span = traces.map(|sink| {
            let parent = self.calls.get(&correlation).and_then(|context| context.traceparent);
            (sink, Span::request(parent.as_deref()))
        });
        // A request that waits belongs to the call during which it was made.
        let context = self.calls.get(&correlation);
        let outcome = self.answer(incoming, &correlation, context).await;
        if let Some((sink, span)) = span {
            let attributes =
                [("plugin", &*self.manifest.name), ("rpc.method", &method), ("correlation_id", &correlation)];
            span.end(sink, &format!("plugin.request {method}"), &attributes, outcome.as_ref().err());
        }
        let mut fields = json!({"method": method, "target": target, "seconds": begun.elapsed().as_secs_f64()});
        let (severity, event) = match &outcome {
            Ok(_) => (Severity::Debug, "plugin.request"),
            Err(error) => {
                fields["error"] = error.to_json();
                let denied = error.kind == ErrorKind::PermissionDenied;
                if denied { (Severity::Warn, "plugin.denied") } else { (Severity::Info, "plugin.request") }
            }
        };
        if let Some(host) = &host {
            host.metrics.request(&self.manifest.name, outcome.as_ref().err().map(|error| error.kind));
        }
        if severity == Severity::Warn {
            self.log.write(severity, event, Some(&correlation), fields);
        } else {
            self.log.write_own(severity, event, Some(&correlation), fields);
        }
        if let Err(error) = &outcome
            && error.kind == ErrorKind::PermissionDenied
        {
            self.extensions.denied(self.denial(&method, &correlation, error)).await;
        }
        outcome
    }

    fn notification(&self, incoming: Incoming) {
        let Incoming { method, params, correlation } = incoming;
        if method != "log" {
            self.log.write_own(
                Severity::Debug,
                "plugin.ignored",
                correlation.as_deref(),
                json!({"method": shown(&method)}),
            );
            return;
        }
        let text = params.get("message").and_then(Value::as_str).unwrap_or_default();
        let severity = Severity::of(params.get("level").and_then(Value::as_str).unwrap_or_default());
        let fields: Map<String, Value> = params
            .get("fields")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .take(MAX_FIELDS)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let line = json!({"message": bounded(text), "fields": fields});
        self.log.write_own(severity, "plugin.log", correlation.as_deref(), line);
    }

    fn log(&self, bytes: &[u8]) {
        let lines = self.tail.lock().add(bytes);
        self.log.printed(&lines);
    }
}

fn bounded(text: &str) -> &str {
    const MAX: usize = 8192;
    &text[..text.floor_char_boundary(MAX.min(text.len()))]
}
