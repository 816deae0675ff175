//! The services of the host. Each request needs its permission in the manifest.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{Context, Result, content};

/// A value of the store.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Stored<T> {
    /// The value, if the key exists.
    pub value: Option<T>,
    /// The version, for `if_version`.
    pub version: u64,
}

/// Options of [`Kv::set_with`].
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetOptions {
    /// The version that the key must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
    /// The time after which the key ends, such as `1h`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Keys {
    /// The keys in order.
    pub keys: Vec<String>,
    /// True if there are more.
    pub more: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FileEntry {
    /// The name.
    pub name: String,
    /// The kind, such as `file` or `directory`.
    pub kind: String,
    /// The size in bytes.
    pub size: u64,
}

/// The metadata of a file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FileStat {
    /// The kind, such as `file` or `directory`.
    pub kind: String,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last change, as in RFC 3339.
    pub modified: String,
}

/// A request of HTTP.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Request {
    /// The URL.
    pub url: String,
    /// The method. Default: GET.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body.
    #[serde(with = "content", skip_serializing_if = "Vec::is_empty")]
    pub body: Vec<u8>,
    /// The maximum time, such as `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// A response of HTTP.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The headers.
    #[serde(default)]
    pub headers: BTreeMap<String, Value>,
    /// The body.
    #[serde(with = "content")]
    pub body: Vec<u8>,
    /// True if the host cut the body.
    #[serde(default)]
    pub truncated: bool,
}

/// An artifact.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// The name.
    pub name: String,
    /// The digest.
    pub digest: String,
    /// The size in bytes.
    pub size: u64,
    /// The media type.
    #[serde(default)]
    pub media_type: Option<String>,
    /// The metadata.
    #[serde(default)]
    pub metadata: Value,
    /// The content. A list has none.
    #[serde(default, with = "content")]
    pub content: Vec<u8>,
}

/// The result of code in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Execution {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The exit status, if the code ended by itself.
    pub exit_code: Option<i32>,
    /// The value of the code.
    pub result: Value,
    /// The limit that ended the code.
    pub killed_by: Option<String>,
}

/// Adds the members of `options` to parameters.
fn with(mut params: Value, options: impl Serialize) -> Result<Value> {
    if let (Some(params), Value::Object(options)) = (params.as_object_mut(), serde_json::to_value(options)?) {
        params.extend(options);
    }
    Ok(params)
}

/// Returns a member of a result.
fn member<T: DeserializeOwned>(mut result: Map<String, Value>, name: &str) -> Result<T> {
    Ok(serde_json::from_value(result.remove(name).unwrap_or_default())?)
}

#[derive(Serialize, Deserialize)]
struct Bytes(#[serde(with = "content")] Vec<u8>);

macro_rules! services {
    ($($(#[$doc:meta])* $accessor:ident $name:ident,)*) => {
        impl Context {
            $($(#[$doc])* pub fn $accessor(&self) -> $name<'_> {
                $name(self)
            })*
        }
        $($(#[$doc])* pub struct $name<'a>(&'a Context);)*
    };
}

services! {
    /// The plugin's key-value store.
    kv Kv,
    /// The files of `sandbox.fsAccess`.
    fs Files,
    /// Requests of HTTP to the hosts of `sandbox.net`.
    net Net,
    /// The plugin's secrets.
    secrets Secrets,
    /// Events.
    events Events,
    /// Timers.
    scheduler Scheduler,
    /// The calendar. Entries have the members of the protocol.
    calendar Calendar,
    /// Artifacts.
    artifacts Artifacts,
}

impl Kv<'_> {
    /// Reads a value.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Stored<T>> {
        self.0.request("kv.get", json!({"key": key}))
    }

    /// Writes a value. Returns its version.
    pub fn set(&self, key: &str, value: impl Serialize) -> Result<u64> {
        self.set_with(key, value, SetOptions::default())
    }

    /// Writes a value with options. Returns its version.
    pub fn set_with(&self, key: &str, value: impl Serialize, options: SetOptions) -> Result<u64> {
        let params = json!({"key": key, "value": serde_json::to_value(value)?});
        member(self.0.request("kv.set", with(params, options)?)?, "version")
    }

    /// Removes a key. Returns false if it did not exist.
    pub fn delete(&self, key: &str) -> Result<bool> {
        member(self.0.request("kv.delete", json!({"key": key}))?, "deleted")
    }

    /// Lists keys with a prefix that come after a key.
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Keys> {
        let params = json!({"prefix": prefix, "limit": limit});
        self.0.request("kv.list", with(params, after.map(|after| json!({"after": after})))?)
    }
}

impl Files<'_> {
    /// Reads a file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let Bytes(content) = member(self.0.request("fs.read", json!({"path": path}))?, "content")?;
        Ok(content)
    }

    /// Reads a part of a file.
    pub fn read_at(&self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>> {
        let params = json!({"path": path, "offset": offset, "length": length});
        let Bytes(content) = member(self.0.request("fs.read", params)?, "content")?;
        Ok(content)
    }

    /// Returns the metadata of a file.
    pub fn stat(&self, path: &str) -> Result<FileStat> {
        self.0.request("fs.stat", json!({"path": path}))
    }

    /// Lists a directory.
    pub fn list(&self, path: &str) -> Result<Vec<FileEntry>> {
        member(self.0.request("fs.list", json!({"path": path}))?, "entries")
    }

    /// Replaces a file. Returns its size.
    pub fn write(&self, path: &str, content: &[u8]) -> Result<u64> {
        let params = json!({"path": path, "content": Bytes(content.to_vec())});
        member(self.0.request("fs.write", params)?, "size")
    }

    /// Appends to a file. Returns its size.
    pub fn append(&self, path: &str, content: &[u8]) -> Result<u64> {
        let params = json!({"path": path, "content": Bytes(content.to_vec()), "append": true});
        member(self.0.request("fs.write", params)?, "size")
    }

    /// Creates a directory.
    pub fn mkdir(&self, path: &str) -> Result<()> {
        self.0.request("fs.mkdir", json!({"path": path}))
    }

    /// Removes a file or an empty directory.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.0.request("fs.remove", json!({"path": path}))
    }
}

impl Net<'_> {
    /// Sends a request.
    pub fn fetch(&self, request: &Request) -> Result<Response> {
        self.0.request("net.fetch", serde_json::to_value(request)?)
    }

    /// Sends a GET request.
    pub fn get(&self, url: &str) -> Result<Response> {
        self.fetch(&Request { url: url.to_owned(), ..Request::default() })
    }
}

impl Secrets<'_> {
    /// Reads a secret.
    pub fn get(&self, name: &str) -> Result<String> {
        member(self.0.request("secrets.get", json!({"name": name}))?, "value")
    }

    /// Writes a secret.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        self.0.request("secrets.set", json!({"name": name, "value": value}))
    }

    /// Removes a secret.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.0.request("secrets.delete", json!({"name": name}))
    }
}

impl Events<'_> {
    /// Publishes an event. Returns the number of subscribers.
    pub fn publish(&self, name: &str, payload: impl Serialize) -> Result<u64> {
        let params = json!({"name": name, "payload": serde_json::to_value(payload)?});
        member(self.0.request("events.publish", params)?, "subscribers")
    }

    /// Subscribes to events. Returns the identifier of the subscription.
    pub fn subscribe(&self, pattern: &str) -> Result<String> {
        member(self.0.request("events.subscribe", json!({"pattern": pattern}))?, "subscription")
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, subscription: &str) -> Result<()> {
        self.0.request("events.unsubscribe", json!({"subscription": subscription}))
    }
}

impl Scheduler<'_> {
    /// Creates a timer. `options` has one of `at`, `every` and `cron`, and the optional members of the protocol. Returns
    /// its identifier.
    pub fn create(&self, name: &str, options: Value) -> Result<String> {
        member(self.0.request("scheduler.create", with(json!({"name": name}), options)?)?, "id")
    }

    /// Lists the plugin's timers: objects with `id`, `name` and `next`.
    pub fn list(&self) -> Result<Vec<Value>> {
        member(self.0.request("scheduler.list", json!({}))?, "timers")
    }

    /// Cancels a timer. Returns false if it did not exist.
    pub fn cancel(&self, id: &str) -> Result<bool> {
        member(self.0.request("scheduler.cancel", json!({"id": id}))?, "cancelled")
    }
}

impl Calendar<'_> {
    /// Creates an entry. Returns its identifier.
    pub fn create(&self, entry: Value) -> Result<String> {
        member(self.0.request("calendar.create", entry)?, "id")
    }

    /// Reads an entry.
    pub fn read(&self, id: &str) -> Result<Value> {
        self.0.request("calendar.read", json!({"id": id}))
    }

    /// Lists occurrences between two times: objects with `id`, `summary`, `start` and `end`.
    pub fn query(&self, from: &str, to: &str) -> Result<Vec<Value>> {
        member(self.0.request("calendar.query", json!({"from": from, "to": to}))?, "occurrences")
    }

    /// Removes an entry. Returns false if it did not exist.
    pub fn delete(&self, id: &str) -> Result<bool> {
        member(self.0.request("calendar.delete", json!({"id": id}))?, "deleted")
    }

    /// Imports a file of iCalendar. Returns the identifiers of the entries.
    pub fn import(&self, ics: &str) -> Result<Vec<String>> {
        member(self.0.request("calendar.import", json!({"ics": ics}))?, "ids")
    }

    /// Exports all entries as a file of iCalendar.
    pub fn export(&self) -> Result<String> {
        member(self.0.request("calendar.export", json!({}))?, "ics")
    }
}

impl Artifacts<'_> {
    /// Stores an artifact. `options` may have `mediaType` and `metadata`. Returns its digest.
    pub fn write(&self, name: &str, content: &[u8], options: Value) -> Result<String> {
        let params = json!({"name": name, "content": Bytes(content.to_vec())});
        member(self.0.request("artifacts.write", with(params, options)?)?, "digest")
    }

    /// Reads an artifact by its name.
    pub fn read(&self, name: &str) -> Result<Artifact> {
        self.0.request("artifacts.read", json!({"name": name}))
    }

    /// Reads an artifact by its digest.
    pub fn read_digest(&self, digest: &str) -> Result<Artifact> {
        self.0.request("artifacts.read", json!({"digest": digest}))
    }

    /// Lists artifacts, without contents.
    pub fn list(&self) -> Result<Vec<Artifact>> {
        member(self.0.request("artifacts.list", json!({}))?, "artifacts")
    }
}

impl Context {
    /// Calls a method of another plugin.
    pub fn invoke<T: DeserializeOwned>(&self, plugin: &str, method: &str, input: impl Serialize) -> Result<T> {
        let params = json!({"plugin": plugin, "method": method, "input": serde_json::to_value(input)?});
        self.request("invoke", params)
    }

    /// Runs code in a sandbox.
    pub fn execute(&self, language: &str, code: &str) -> Result<Execution> {
        self.request("sandbox.execute", json!({"language": language, "code": code}))
    }

    /// Creates an empty file that is removed when the call ends.
    pub fn temporary_file(&self) -> Result<PathBuf> {
        let random = RandomState::new().build_hasher().finish();
        // The standard library knows no such directory on WASI.
        let directory = if cfg!(target_os = "wasi") { PathBuf::from("/tmp") } else { std::env::temp_dir() };
        let path = directory.join(format!("plugin-{random:016x}"));
        self.request::<()>("resources.track", json!({"path": path}))?;
        self.keep_until_end(path.clone());
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path)?;
        Ok(path)
    }
}
