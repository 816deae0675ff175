//! The host of plugins, with plugins in real sandboxes. The names of tests begin with the proof of the requirements
//! that they are.

mod calls;
mod debuggers;
mod debugging;
mod hostile;
mod interop;
#[cfg(feature = "net")]
mod network;
mod services;
mod strategies;
mod supervision;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam::code::{AuditConfig, CodeConfig};
use cofferdam::plugins::{CallOptions, Host, HostConfig, LoadOptions, LocalConfig, LocalExtensions, Mode, Sink};
use cofferdam_plugin::CallError;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::census::{census, left_behind};

/// The longest time that a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A host with its state, its log and a directory for plugins.
pub struct Bench {
    directory: TempDir,
    host: Host,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Bench {
    /// Opens a host in production mode.
    pub fn new() -> Self {
        Self::with_mode(Mode::Production)
    }

    /// Opens a host.
    pub fn with_mode(mode: Mode) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // The sandbox's user reads the plugin.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("its mode changes");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let host = open(&directory.path().join("state"), mode, &lines);
        Self { directory, host, lines }
    }

    /// Ends the host, and opens another one on the same state.
    pub async fn reopen(&mut self) {
        self.host.drain(Some(Duration::from_secs(5))).await;
        // The database of one host is closed before another one opens it.
        self.host = open(&self.directory.path().join("other"), Mode::Production, &self.lines);
        self.host = open(&self.directory.path().join("state"), Mode::Production, &self.lines);
    }

    /// Ends the host, and opens another one with an audit log.
    pub async fn reopen_with(&mut self, audit: AuditConfig) {
        self.host.drain(Some(Duration::from_secs(5))).await;
        let state = self.directory.path().join("audited");
        let code = CodeConfig { audit: Some(audit), ..CodeConfig::default() };
        self.host = open_with(&state, Mode::Production, &self.lines, code);
    }

    /// Writes a plugin in Python. `manifest` has further keys, and its first lines are not in a table.
    pub fn python(&self, name: &str, manifest: &str, code: &str) -> PathBuf {
        let head = format!(
            "manifest = 1\nname = \"{name}\"\nversion = \"1.0.0\"\nruntime = \"python\"\nentry = \"main:activate\"\n"
        );
        self.package(name, &format!("{head}{manifest}"), &[("main.py", code)])
    }

    /// Writes a plugin.
    pub fn package(&self, name: &str, manifest: &str, files: &[(&str, &str)]) -> PathBuf {
        let package = self.directory.path().join("plugins").join(name);
        fs::create_dir_all(&package).expect("a directory");
        fs::write(package.join("plugin.toml"), manifest).expect("the manifest");
        for (file, text) in files {
            fs::write(package.join(file), text).expect("a file");
        }
        package
    }

    /// Loads a plugin in Python.
    pub async fn load_python(&self, name: &str, manifest: &str, code: &str) {
        self.load(&self.python(name, manifest, code)).await;
    }

    /// Loads a plugin.
    pub async fn load(&self, package: &Path) {
        self.host.load(package, LoadOptions::default()).await.expect("the plugin loads");
    }

    /// Calls a method and waits for the result.
    pub async fn call(&self, plugin: &str, method: &str, input: Value) -> Result<Value, CallError> {
        self.host.call(plugin, method, input, CallOptions::default()).result().await
    }

    /// Returns the lines of an event of the log.
    pub fn events(&self, event: &str) -> Vec<Value> {
        self.lines.lock().iter().filter(|line| line["event"] == event).cloned().collect()
    }

    /// Waits until the log has a number of lines of an event.
    pub async fn wait_for(&self, event: &str, count: usize) -> Vec<Value> {
        let found = tokio::time::timeout(TIMEOUT, async {
            loop {
                let found = self.events(event);
                if found.len() >= count {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        found.await.unwrap_or_else(|_| panic!("{count} lines of {event}: {:#?}", self.lines.lock()))
    }

    /// Returns the directory with the files of a plugin.
    pub fn data(&self, plugin: &str) -> PathBuf {
        self.directory.path().join("state/files").join(plugin)
    }

    /// Ends the host.
    pub async fn end(self) {
        self.host.drain(Some(Duration::from_secs(5))).await;
    }
}

fn open(state: &Path, mode: Mode, lines: &Arc<Mutex<Vec<Value>>>) -> Host {
    open_with(state, mode, lines, CodeConfig::default())
}

fn open_with(state: &Path, mode: Mode, lines: &Arc<Mutex<Vec<Value>>>, code: CodeConfig) -> Host {
    let (lines, spans) = (Arc::clone(lines), Arc::clone(lines));
    // A span is a line of the event `span`.
    let traces: Sink = Arc::new(move |line: &Value| {
        let span = &line["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        spans.lock().push(json!({"event": "span", "span": span}));
    });
    let sink: Sink = Arc::new(move |line: &Value| lines.lock().push(line.clone()));
    let extensions = Arc::new(
        LocalExtensions::new(LocalConfig { code, ..LocalConfig::default() }).expect("the extensions are created"),
    );
    Host::open(HostConfig {
        protected: Vec::new(),
        state: state.to_owned(),
        key: None,
        mode,
        tenant: None,
        sink,
        traces: Some(traces),
        extensions,
    })
    .expect("the host opens")
}

/// Runs a test on a runtime, with a census.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let before = census();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(test());
    drop(runtime);
    let left = left_behind(&before, TIMEOUT);
    assert!(left.is_empty(), "left behind: {left:#?}");
}

/// Returns the kind of an error.
pub fn kind(result: &Result<Value, CallError>) -> String {
    match result {
        Ok(value) => format!("ok: {value}"),
        Err(error) => json!(error.kind).as_str().unwrap_or_default().to_owned(),
    }
}
