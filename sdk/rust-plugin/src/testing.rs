//! Harness that runs the methods of a plugin without a host: services in memory, with the host's permission checks.
//!
//! Methods run on the caller's thread. Recurrences and the times of timers are not computed: a test fires timers itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::context::{Call, Context, Host};
use crate::{Error, ErrorKind, Plugin, Result};

type Answer = Arc<dyn Fn(&Value) -> Result<Value> + Send + Sync>;

/// A host in memory.
///
/// ```
/// use cofferdam_plugin_sdk::{Plugin, testing::Harness};
///
/// let plugin = Plugin::new().method("double", |n: u32, _| Ok(n * 2));
/// assert_eq!(Harness::new(plugin).call::<u32>("double", 21).unwrap(), 42);
/// ```
pub struct Harness {
    plugin: Plugin,
    memory: Arc<Memory>,
}

#[derive(Default)]
struct Memory(Mutex<Data>);

#[derive(Default)]
struct Data {
    config: Value,
    permissions: BTreeSet<String>,
    answers: BTreeMap<String, Answer>,
    next_id: u64,
    kv: BTreeMap<String, (Value, u64)>,
    secrets: BTreeMap<String, Value>,
    files: BTreeMap<String, Value>,
    timers: BTreeMap<String, Value>,
    calendar: BTreeMap<String, Value>,
    published: Vec<(String, Value)>,
    logs: Vec<Value>,
    progress: Vec<Value>,
    items: Vec<Value>,
}

/// Settings, which precede the first call.
impl Harness {
    /// Creates a harness without permissions.
    pub fn new(plugin: Plugin) -> Self {
        Self { plugin, memory: Arc::default() }
    }

    /// Grants a permission, such as `fs.read`.
    #[must_use]
    pub fn permission(self, permission: &str) -> Self {
        self.data().permissions.insert(permission.to_owned());
        self
    }

    /// Sets the configuration.
    #[must_use]
    pub fn config(self, config: Value) -> Self {
        self.data().config = config;
        self
    }

    /// Adds a secret. Others are denied.
    #[must_use]
    pub fn secret(self, name: &str, value: &str) -> Self {
        self.data().secrets.insert(name.to_owned(), json!(value));
        self
    }

    /// Adds a text file.
    #[must_use]
    pub fn file(self, path: &str, text: &str) -> Self {
        self.data().files.insert(path.to_owned(), json!({"text": text}));
        self
    }

    /// Answers a method of the protocol, such as `invoke` or `net.fetch`, after the permission check.
    #[must_use]
    pub fn answer<F>(self, method: &str, answer: F) -> Self
    where
        F: Fn(&Value) -> Result<Value> + Send + Sync + 'static,
    {
        self.data().answers.insert(method.to_owned(), Arc::new(answer));
        self
    }
}

impl Harness {
    /// Calls a method.
    pub fn call<T: DeserializeOwned>(&self, method: &str, input: impl Serialize) -> Result<T> {
        let output = self.dispatch("call", json!({"method": method, "input": serde_json::to_value(input)?}))?;
        Ok(serde_json::from_value(output)?)
    }

    /// Calls a method that streams. Returns its items and its result.
    pub fn stream(&self, method: &str, input: impl Serialize) -> Result<(Vec<Value>, Value)> {
        self.data().items.clear();
        let result = self.call(method, input)?;
        Ok((std::mem::take(&mut self.data().items), result))
    }

    /// Delivers an event.
    pub fn deliver(&self, name: &str, payload: impl Serialize) -> Result<()> {
        let payload = serde_json::to_value(payload)?;
        let event = json!({"id": "event", "name": name, "payload": payload, "attempt": 1, "subscription": name});
        self.dispatch("events.deliver", event).map(drop)
    }

    /// Fires a timer.
    pub fn fire(&self, name: &str, payload: impl Serialize) -> Result<()> {
        let payload = serde_json::to_value(payload)?;
        self.dispatch("scheduler.fire", json!({"id": "timer", "name": name, "payload": payload})).map(drop)
    }

    /// Runs the shutdown handlers.
    pub fn shutdown(&self) -> Result<()> {
        self.dispatch("shutdown", Value::Null).map(drop)
    }

    /// Returns a value of the store.
    pub fn value(&self, key: &str) -> Option<Value> {
        self.data().kv.get(key).map(|(value, _)| value.clone())
    }

    /// Returns the events that the plugin published.
    pub fn published(&self) -> Vec<(String, Value)> {
        self.data().published.clone()
    }

    /// Returns the log: objects with `level`, `message` and `fields`.
    pub fn logs(&self) -> Vec<Value> {
        self.data().logs.clone()
    }

    /// Returns the reported progress.
    pub fn progress(&self) -> Vec<Value> {
        self.data().progress.clone()
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.memory.data()
    }

    fn dispatch(&self, method: &str, params: Value) -> Result<Value> {
        let call = Arc::new(Call::new(json!(0), "test".to_owned()));
        let host: Arc<dyn Host> = Arc::clone(&self.memory) as _;
        self.plugin.dispatch(method, params, |fields| Context::new(host, call, fields))
    }
}

impl Memory {
    fn data(&self) -> MutexGuard<'_, Data> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for Memory {
    fn request(&self, _: &Call, method: &str, params: Value) -> Result<Value> {
        let mut data = self.data();
        if let Some(permission) = permission_of(method).filter(|permission| !data.permissions.contains(*permission)) {
            return Err(denied(permission, method, &params));
        }
        let Some(answer) = data.answers.get(method).cloned() else { return data.serve(method, params) };
        drop(data);
        answer(&params)
    }

    fn notify(&self, _: &Call, method: &str, mut params: Value) -> Result<()> {
        let mut data = self.data();
        match method {
            "log" => data.logs.push(params),
            "$/progress" => data.progress.push(params["value"].take()),
            "$/stream" => data.items.push(params["value"].take()),
            _ => {}
        }
        Ok(())
    }

    fn wait_for_credit(&self, _: &Call) {}

    fn config(&self) -> Value {
        self.data().config.clone()
    }
}

/// Returns the permission of a method of the protocol.
fn permission_of(method: &str) -> Option<&str> {
    Some(match method {
        "fs.read" | "fs.stat" | "fs.list" => "fs.read",
        "fs.write" | "fs.mkdir" | "fs.remove" => "fs.write",
        "net.fetch" => "net",
        "secrets.get" => "secrets.read",
        "secrets.set" | "secrets.delete" => "secrets.write",
        "events.unsubscribe" => "events.subscribe",
        "scheduler.list" => "scheduler.create",
        "calendar.create" | "calendar.delete" | "calendar.import" => "calendar.write",
        "calendar.query" | "calendar.export" => "calendar.read",
        "artifacts.list" => "artifacts.read",
        "events.publish" | "events.subscribe" | "scheduler.create" | "scheduler.cancel" | "calendar.read"
        | "artifacts.read" | "artifacts.write" | "invoke" | "sandbox.execute" => method,
        _ => return None,
    })
}

fn denied(permission: &str, method: &str, params: &Value) -> Error {
    let names = ["path", "url", "name", "plugin", "pattern"];
    let target = names.iter().find_map(|name| params[*name].as_str()).unwrap_or(method);
    Error::new(ErrorKind::PermissionDenied, format!("the manifest does not permit {permission} for {target}"))
        .with("permission", permission)
        .with("target", target)
        .with("remedy", format!("add \"{permission}\" to permissions"))
}

fn found(map: &BTreeMap<String, Value>, key: &str) -> Result<Value> {
    map.get(key).cloned().ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{key} does not exist")))
}

impl Data {
    fn serve(&mut self, method: &str, mut params: Value) -> Result<Value> {
        let key = ["key", "path", "name", "id", "digest"].iter().find_map(|name| params[*name].as_str());
        let key = key.unwrap_or_default().to_owned();
        match method {
            "kv.get" => Ok(self.kv.get(&key).map_or_else(
                || json!({"value": null, "version": 0}),
                |(value, version)| json!({"value": value, "version": version}),
            )),
            "kv.set" => {
                let version = self.check_version(&key, &params)? + 1;
                self.kv.insert(key, (params["value"].take(), version));
                Ok(json!({"version": version}))
            }
            "kv.delete" => {
                self.check_version(&key, &params)?;
                Ok(json!({"deleted": self.kv.remove(&key).is_some()}))
            }
            "kv.list" => Ok(self.list(&params)),
            "secrets.get" if self.secrets.contains_key(&key) => Ok(json!({"value": self.secrets[&key]})),
            "secrets.get" => Err(denied("secrets.read", method, &params)),
            "fs.read" => Ok(json!({"content": found(&self.files, &key)?})),
            "fs.write" if params["append"].as_bool() != Some(true) => {
                let content = params["content"].take();
                let size = content["text"].as_str().map_or(0, str::len);
                self.files.insert(key, content);
                Ok(json!({"size": size}))
            }
            "fs.remove" => found(&self.files, &key).map(|_| self.files.remove(&key)).map(|_| Value::Null),
            "events.publish" => {
                self.published.push((key, params["payload"].take()));
                Ok(json!({"id": "event", "subscribers": 0}))
            }
            "scheduler.create" => Ok(json!({"id": Self::create(&mut self.next_id, &mut self.timers, params)})),
            "scheduler.list" => Ok(json!({"timers": self.timers.values().collect::<Vec<_>>()})),
            "scheduler.cancel" => Ok(json!({"cancelled": self.timers.remove(&key).is_some()})),
            "calendar.create" => Ok(json!({"id": Self::create(&mut self.next_id, &mut self.calendar, params)})),
            "calendar.read" => found(&self.calendar, &key),
            "calendar.delete" => Ok(json!({"deleted": self.calendar.remove(&key).is_some()})),
            "resources.track" => Ok(Value::Null),
            _ => Err(Error::new(ErrorKind::Unavailable, format!("the harness has no answer for {method}"))),
        }
    }

    fn check_version(&self, key: &str, params: &Value) -> Result<u64> {
        let version = self.kv.get(key).map_or(0, |(_, version)| *version);
        match params["ifVersion"].as_u64() {
            Some(expected) if expected != version => {
                Err(Error::new(ErrorKind::Conflict, format!("the key {key} was changed")))
            }
            _ => Ok(version),
        }
    }

    fn list(&self, params: &Value) -> Value {
        let prefix = params["prefix"].as_str().unwrap_or_default();
        let after = params["after"].as_str().unwrap_or_default();
        let limit = params["limit"].as_u64().map_or(100, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let keys: Vec<_> = self.kv.keys().filter(|key| key.starts_with(prefix) && key.as_str() > after).collect();
        json!({"keys": keys.iter().take(limit).collect::<Vec<_>>(), "more": keys.len() > limit})
    }

    fn create(next_id: &mut u64, objects: &mut BTreeMap<String, Value>, mut object: Value) -> String {
        *next_id += 1;
        let id = format!("id-{next_id}");
        object["id"] = json!(id);
        objects.insert(id.clone(), object);
        id
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn permissions_are_checked() {
        let plugin = || Plugin::new().method("read", |path: String, ctx| Ok(String::from_utf8(ctx.fs().read(&path)?)?));
        let error = Harness::new(plugin()).file("a", "x").call::<String>("read", "a").unwrap_err();
        assert_eq!(error.kind, ErrorKind::PermissionDenied);
        assert_eq!(error.data["permission"], "fs.read");
        assert_eq!(error.data["target"], "a");
        let harness = Harness::new(plugin()).file("a", "x").permission("fs.read");
        assert_eq!(harness.call::<String>("read", "a").unwrap(), "x");
        assert_eq!(harness.call::<String>("read", "b").unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn versions_prevent_lost_updates() {
        use crate::services::SetOptions;

        let plugin = Plugin::new().method("set", |version: u64, ctx| {
            ctx.kv().set_with("k", 1, SetOptions { if_version: Some(version), ttl: None })
        });
        let harness = Harness::new(plugin);
        assert_eq!(harness.call::<u64>("set", 0).unwrap(), 1);
        assert_eq!(harness.call::<u64>("set", 0).unwrap_err().kind, ErrorKind::Conflict);
        assert_eq!(harness.value("k"), Some(json!(1)));
    }

    #[test]
    fn secrets_outside_the_list_are_denied() {
        let plugin = Plugin::new().method("get", |name: String, ctx| ctx.secrets().get(&name));
        let harness = Harness::new(plugin).permission("secrets.read").secret("A", "1");
        assert_eq!(harness.call::<String>("get", "A").unwrap(), "1");
        assert_eq!(harness.call::<String>("get", "B").unwrap_err().kind, ErrorKind::PermissionDenied);
    }

    #[test]
    fn events_timers_and_shutdown_reach_handlers() {
        let plugin = Plugin::new()
            .on_event("a.*", |event, ctx| ctx.kv().set("event", &event.payload).map(drop))
            .on_timer("tick", |timer, ctx| ctx.log().info(&timer.name, json!({})))
            .on_shutdown(|ctx| ctx.kv().delete("event").map(drop));
        let harness = Harness::new(plugin);
        harness.deliver("a.b", 5).unwrap();
        assert_eq!(harness.value("event"), Some(json!(5)));
        assert_eq!(harness.deliver("b", 5).unwrap_err().kind, ErrorKind::NotFound);
        harness.fire("tick", ()).unwrap();
        assert_eq!(harness.logs()[0]["message"], "tick");
        harness.shutdown().unwrap();
        assert_eq!(harness.value("event"), None);
    }

    #[test]
    fn temporary_files_are_removed() {
        let plugin = Plugin::new()
            .method("file", |(), ctx| ctx.temporary_file().map(|path| (path.exists(), path)))
            .method("remove", |(), ctx| Ok(std::fs::remove_file(ctx.temporary_file()?)?))
            .method("fail", |(), ctx| Err::<(), _>(Error::failed(ctx.temporary_file()?.display().to_string())));
        let harness = Harness::new(plugin);
        let (existed, path) = harness.call::<(bool, PathBuf)>("file", ()).unwrap();
        assert!(existed && !path.exists());
        harness.call::<()>("remove", ()).unwrap();
        let error = harness.call::<()>("fail", ()).unwrap_err();
        assert!(!Path::new(&error.message).exists());
    }

    #[test]
    fn other_services_have_answers_of_the_test() {
        let plugin = Plugin::new().method("ask", |n: u32, ctx| ctx.invoke::<u32>("other", "double", n));
        let answer = |params: &Value| Ok(json!(params["input"].as_u64().unwrap_or(0) * 2));
        let harness = Harness::new(plugin).permission("invoke").answer("invoke", answer);
        assert_eq!(harness.call::<u32>("ask", 4).unwrap(), 8);
    }
}
