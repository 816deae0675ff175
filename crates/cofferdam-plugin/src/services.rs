//! The services behind the SDKs: key-value store, events, scheduler, calendar, secrets and artifacts.
//!
//! ```text
//! host --call(caller, method, parameters)--> Services --> database and files of the state directory
//!      <--deliver(plugin, method, parameters)-- event queues and scheduler
//! ```
//!
//! The services know nothing of processes or frames, and check no permissions: the host does both before it calls.
//! Objects belong to a plugin and a tenant. The calendar and artifacts belong to a tenant, and events to the whole host.

mod artifacts;
mod calendar;
mod content;
mod events;
mod kv;
mod retry;
mod scheduler;
mod secrets;
mod store;
#[cfg(test)]
mod testing;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use cofferdam_contract::{Error, ErrorKind as Kind, Result};
use cofferdam_util::private;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{CallError, ErrorKind};

use artifacts::Artifacts;
use events::Events;
use scheduler::Scheduler;
use secrets::Secrets;
use store::Store;

pub use content::{Content, content};
pub use retry::Retry;
pub use secrets::{AccessLog, SecretAccess, SecretAction};
pub use store::Quota;

/// The maximum number of a plugin's requests that use the database or files at a time. Others wait in order.
const MAX_BLOCKING: usize = 2;

/// The configuration of the services.
pub struct ServicesConfig {
    /// A directory of the host that no other user can change. It is created if it is missing.
    pub directory: PathBuf,
    /// The source of the key of secrets, such as `file:PATH`, `env:NAME` or `keyring:SERVICE/USER`: 32 bytes, or 64
    /// hexadecimal digits. Without one, a key file is created in the directory.
    pub key: Option<String>,
    /// The log of accesses to secrets.
    pub access_log: Arc<dyn AccessLog>,
    /// The limits.
    pub limits: ServiceLimits,
    /// The clock.
    pub clock: Clock,
}

/// A clock, which tests replace.
pub type Clock = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

impl ServicesConfig {
    /// Creates a configuration with a key file, the default limits and the clock of the system.
    pub fn new(directory: impl Into<PathBuf>, access_log: Arc<dyn AccessLog>) -> Self {
        let (limits, clock) = (ServiceLimits::default(), Arc::new(Utc::now));
        Self { directory: directory.into(), key: None, access_log, limits, clock }
    }
}

/// The limits of the services. A quota holds for one plugin and tenant, and that of the calendar for a tenant.
#[derive(Debug, Clone)]
pub struct ServiceLimits {
    /// The keys and bytes of the key-value store.
    pub kv: Quota,
    /// The bytes of a value in the key-value store.
    pub kv_value: usize,
    /// The events that wait for one plugin.
    pub event_queue: usize,
    /// The bytes of payloads that wait for one plugin.
    pub event_queue_bytes: usize,
    /// The bytes of the payload of an event or timer.
    pub payload: usize,
    /// The subscriptions of a plugin.
    pub subscriptions: usize,
    /// The retries of a delivery.
    pub retry: Retry,
    /// The timers and their bytes.
    pub timers: Quota,
    /// The timers of a plugin that are delivered at a time.
    pub firings: usize,
    /// The entries of a calendar and their bytes.
    pub calendar: Quota,
    /// The time that a query or an import may spend on recurrence rules.
    pub recurrence: Duration,
    /// The secrets and their bytes.
    pub secrets: Quota,
    /// The bytes of an artifact.
    pub artifact: usize,
    /// The artifacts and their bytes.
    pub artifacts: Quota,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            kv: Quota { count: 10_000, bytes: 64 << 20 },
            kv_value: 1 << 20,
            event_queue: 1024,
            event_queue_bytes: 16 << 20,
            payload: 256 << 10,
            subscriptions: 64,
            retry: Retry::default(),
            timers: Quota { count: 64, bytes: 4 << 20 },
            firings: 4,
            calendar: Quota { count: 10_000, bytes: 16 << 20 },
            recurrence: Duration::from_secs(2),
            secrets: Quota { count: 64, bytes: 1 << 20 },
            artifact: 16 << 20,
            artifacts: Quota { count: 1000, bytes: 256 << 20 },
        }
    }
}

/// The origin of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The name of the plugin.
    pub plugin: String,
    /// The tenant for which the plugin acts.
    pub tenant: Option<String>,
    /// The correlation identifier of the request.
    pub correlation: String,
}

/// A request to a plugin: `events.deliver` or `scheduler.fire`.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The name of the plugin.
    pub plugin: String,
    /// The tenant for which the plugin subscribed or created the timer.
    pub tenant: Option<String>,
    /// The method.
    pub method: &'static str,
    /// The parameters.
    pub params: Value,
}

/// The way from the services to the plugins.
#[async_trait]
pub trait Deliver: Send + Sync {
    /// Sends a request to a plugin and waits for its answer. An error repeats the delivery later.
    async fn deliver(&self, delivery: Delivery) -> std::result::Result<(), CallError>;
}

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Events that were not delivered in time, and are lost.
    pub events: usize,
    /// Timers that were not delivered in time. They run again after the next start.
    pub timers: usize,
    /// Events that were given up after all attempts, since the start.
    pub dead_letters: u64,
}

/// The services. On drop, deliveries stop.
pub struct Services {
    inner: Arc<Inner>,
    events: Arc<Events>,
    scheduler: Arc<Scheduler>,
    /// The permits of each plugin to use the database and files, so that no plugin delays another.
    permits: Mutex<HashMap<String, Arc<Semaphore>>>,
    scheduler_task: Mutex<Option<JoinHandle<()>>>,
}

/// The services that use the database and files.
struct Inner {
    store: Store,
    secrets: Secrets,
    artifacts: Artifacts,
    limits: ServiceLimits,
    clock: Clock,
}

impl Services {
    /// Opens the state directory. Fails if another host uses it, or if the key does not fit its secrets.
    pub fn open(config: ServicesConfig) -> Result<Arc<Self>> {
        let ServicesConfig { directory, key, access_log, limits, clock } = config;
        prepare(&directory)?;
        let store = Store::open(&directory)?;
        let secrets = Secrets::open(&store, &directory, key.as_deref(), access_log)?;
        let artifacts = Artifacts::open(&store, &directory)?;
        let events = Arc::new(Events::new(limits.clone()));
        let inner = Arc::new(Inner { store, secrets, artifacts, limits, clock });
        let scheduler = Arc::new(Scheduler::new(Arc::clone(&inner)));
        let (permits, scheduler_task) = (Mutex::default(), Mutex::default());
        Ok(Arc::new(Self { inner, events, scheduler, permits, scheduler_task }))
    }

    /// Starts the deliveries of events and timers. Call it within a runtime of tokio, once.
    pub fn start(&self, deliver: Arc<dyn Deliver>) {
        self.events.start(Arc::clone(&deliver));
        let task = tokio::spawn(Arc::clone(&self.scheduler).run(deliver));
        *self.scheduler_task.lock() = Some(task);
    }

    /// Answers a request of a plugin. The host has checked its permissions.
    pub async fn call(&self, caller: &Caller, method: &str, params: Value) -> std::result::Result<Value, CallError> {
        type Method = fn(&Inner, &Caller, Value) -> std::result::Result<Value, CallError>;
        let run: Method = match method {
            "events.publish" => return self.events.publish(caller, params),
            "events.subscribe" => return self.events.subscribe(caller, params),
            "events.unsubscribe" => return self.events.unsubscribe(caller, params),
            "kv.get" => Inner::kv_get,
            "kv.set" => Inner::kv_set,
            "kv.delete" => Inner::kv_delete,
            "kv.list" => Inner::kv_list,
            "scheduler.create" => Inner::scheduler_create,
            "scheduler.list" => Inner::scheduler_list,
            "scheduler.cancel" => Inner::scheduler_cancel,
            "calendar.create" => Inner::calendar_create,
            "calendar.read" => Inner::calendar_read,
            "calendar.query" => Inner::calendar_query,
            "calendar.delete" => Inner::calendar_delete,
            "calendar.import" => Inner::calendar_import,
            "calendar.export" => Inner::calendar_export,
            "secrets.get" => Inner::secrets_get,
            "secrets.set" => Inner::secrets_set,
            "secrets.delete" => Inner::secrets_delete,
            "artifacts.write" => Inner::artifacts_write,
            "artifacts.read" => Inner::artifacts_read,
            "artifacts.list" => Inner::artifacts_list,
            other => {
                let message = format!("the services have no method {other}");
                return Err(CallError::new(ErrorKind::MethodNotFound, message));
            }
        };
        let permit = self.permits_of(&caller.plugin).acquire_owned().await.map_err(store::internal)?;
        let (inner, caller) = (Arc::clone(&self.inner), caller.clone());
        let work = move || {
            // The permit lives as long as the work, even if the request is cancelled.
            let _permit = permit;
            run(&inner, &caller, params)
        };
        let result = tokio::task::spawn_blocking(work).await.map_err(store::internal)?;
        if method == "scheduler.create" {
            self.scheduler.wake();
        }
        result
    }

    fn permits_of(&self, plugin: &str) -> Arc<Semaphore> {
        let mut permits = self.permits.lock();
        Arc::clone(permits.entry(plugin.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(MAX_BLOCKING))))
    }

    /// Removes the subscriptions of an ended plugin, with the events that wait for it. A plugin that restarts keeps them
    /// if the host does not call this.
    pub fn forget(&self, plugin: &str) {
        self.permits.lock().remove(plugin);
        self.events.forget(plugin);
    }

    /// Delivers the events that wait and the timers that run, then stops. Refuses new events and starts no timer.
    pub async fn drain(&self, within: Duration) -> Drained {
        self.events.refuse();
        let deadline = Instant::now() + within;
        let idle = tokio::time::timeout_at(deadline, self.events.idle());
        let (_, timers) = tokio::join!(idle, self.scheduler.finish(deadline));
        let task = self.scheduler_task.lock().take();
        if let Some(task) = task {
            // It ends by itself, after its last access to the database.
            let _ = task.await;
        }
        let (events, dead_letters) = self.events.stop();
        Drained { events, timers, dead_letters }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        let tasks = self.scheduler.stop();
        for task in tasks.into_iter().chain(self.scheduler_task.lock().take()) {
            task.abort();
        }
        self.events.stop();
    }
}

impl Inner {
    fn now(&self) -> DateTime<Utc> {
        (self.clock)()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.now().timestamp_millis()).unwrap_or(0)
    }
}

fn prepare(directory: &std::path::Path) -> Result<()> {
    let failed = |kind, reason: String| {
        Error::new(kind, "open", format!("cannot use the state directory of the services: {reason}"))
            .with_context("path", directory.display().to_string())
            .with_remedy("name a directory that only this user can change")
    };
    private::create_directory(directory).map_err(|error| failed(Kind::Io, error.to_string()))?;
    let found = directory.metadata().map_err(|error| failed(Kind::Io, error.to_string()))?;
    match private::exposure(&found) {
        Some(reason) => Err(failed(Kind::InvalidInput, reason.to_owned())),
        None => Ok(()),
    }
}

/// Reads the parameters of a method. None are an empty object.
fn parse<T: DeserializeOwned>(params: Value) -> std::result::Result<T, CallError> {
    let params = if params.is_null() { json!({}) } else { params };
    if !params.is_object() {
        return Err(CallError::invalid("the parameters are not an object"));
    }
    serde_json::from_value(params).map_err(|error| CallError::invalid(format!("the parameters do not fit: {error}")))
}

/// Returns the length of a page: 100 by default, at most 1000.
fn page(limit: Option<usize>) -> std::result::Result<usize, CallError> {
    match limit.unwrap_or(100) {
        limit @ 1..=1000 => Ok(limit),
        _ => Err(CallError::invalid("limit is a number from 1 to 1000")),
    }
}

/// Checks a short text: not empty, at most `max` bytes, without control characters.
fn check_text(key: &str, text: &str, max: usize) -> std::result::Result<(), CallError> {
    if text.is_empty() || text.len() > max || text.chars().any(char::is_control) {
        let message = format!("{key} has 1 to {max} bytes, without control characters");
        return Err(CallError::invalid(message));
    }
    Ok(())
}

/// Returns the text of a payload, which has a maximum length.
fn payload_text(payload: &Value, max: usize) -> std::result::Result<String, CallError> {
    let text = payload.to_string();
    if text.len() > max {
        let message = format!("the payload has {} bytes, and may have {max}", text.len());
        return Err(CallError::new(ErrorKind::Limit, message));
    }
    Ok(text)
}

/// Reads a time in RFC 3339.
fn time(key: &str, text: &str) -> std::result::Result<DateTime<chrono::FixedOffset>, CallError> {
    DateTime::parse_from_rfc3339(text)
        .map_err(|_| CallError::invalid(format!("{key} is no time, such as 2026-01-31T09:00:00+01:00")))
}

/// Returns a time in RFC 3339.
fn rfc3339<Z: chrono::TimeZone<Offset: std::fmt::Display>>(time: &DateTime<Z>) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}

/// Reads the name of a time zone.
fn zone(name: &str) -> std::result::Result<chrono_tz::Tz, CallError> {
    let unknown = || CallError::invalid("timezone is no name of IANA's time zones, such as Europe/Berlin");
    name.parse().map_err(|_| unknown())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::testing::{Fixture, caller};
    use super::*;

    #[tokio::test]
    async fn unknown_methods_and_keys_are_refused() {
        let fixture = Fixture::new();
        let a = caller("a", None);
        for method in ["kv.clear", "secrets.list", "fs.read", ""] {
            assert_eq!(fixture.err(&a, method, json!({})).await.kind, ErrorKind::MethodNotFound, "{method}");
        }
        for (method, params) in [
            ("kv.get", json!({"key": "k", "more": 1})),
            ("events.publish", json!({"name": "x", "more": 1})),
            ("scheduler.list", json!({"more": 1})),
            ("calendar.export", json!({"more": 1})),
            ("artifacts.list", json!({"more": 1})),
            ("secrets.get", json!({"name": "X", "more": 1})),
        ] {
            assert_eq!(fixture.err(&a, method, params).await.kind, ErrorKind::InvalidParams, "{method}");
        }
    }

    #[tokio::test]
    async fn a_plugin_that_waits_for_its_permits_delays_no_other() {
        let fixture = Fixture::new();
        let services = fixture.services();
        let held = services.permits_of("a").acquire_many_owned(2).await.unwrap();
        let (a, b) = (caller("a", None), caller("b", None));
        let waiting = services.call(&a, "kv.list", json!({}));
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            answer = &mut waiting => panic!("{answer:?}"),
            _ = fixture.ok(&b, "kv.list", json!({})) => {}
        }
        drop(held);
        assert!(waiting.await.is_ok());
    }

    #[tokio::test]
    async fn a_directory_that_others_can_change_is_refused() {
        let mut fixture = Fixture::new();
        fixture.services = None;
        let config = fixture.config();
        std::fs::set_permissions(&config.directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Services::open(config).err().expect("the directory is refused");
        assert_eq!(error.kind(), Kind::InvalidInput);
    }
}
