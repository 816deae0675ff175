//! A loaded plugin: its manifest, schemas and configuration, and how its processes start.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{Backend, Error, ErrorKind as Kind, ExecHandle, ExecRequest, Level, Result, Sandbox, Spec};
use cofferdam_linux::beneath;
use cofferdam_linux::named::Directory;
use cofferdam_util::private;
use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::copy::copy;
use super::debug::Debugging;
use super::files::Files;
use super::instance::{Instance, Start, TAIL};
use super::launch;
use super::log::{Log, Severity, Tail};
use super::permission::shown;
use super::plugin::{Launcher, Supervisor, Times};
use super::requests::{Calls, Requests};
use super::{Host, Inner, Mode, PluginStatus, local};
use crate::package::{Installed, MANIFEST_NAMES};
use crate::wire::{CallError, ErrorKind};
use crate::{Format, MAX_MANIFEST, Manifest, Problem, Strategy};

/// The default of the maximum time of a call.
const DEFAULT_CALL: Duration = Duration::from_secs(30);
/// The default of the maximum time until a plugin is ready. An emulated VM takes long.
const DEFAULT_START: Duration = Duration::from_secs(30);
const DEFAULT_START_VM: Duration = Duration::from_secs(180);
/// The default of the time between SIGTERM and SIGKILL.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// The maximum of that time. A call and the end of the host wait for it.
const MAX_GRACE: Duration = Duration::from_secs(10);
/// The time for the end of a process whose start was given up.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(30);
/// The minimum of the time without a call after which a plugin ends.
const MIN_IDLE: Duration = Duration::from_millis(100);
/// The time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The time between SIGTERM and SIGKILL of a plugin that writes its profile.
const PROFILE_GRACE: Duration = Duration::from_secs(30);
/// The time of a plugin that stands at a breakpoint.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);
/// The maximum number of errors of a schema that are reported.
const MAX_ERRORS: usize = 10;

/// Options of a load.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// The configuration, which the manifest's `configSchema` describes.
    pub config: Option<Value>,
    /// The strategy, in place of the manifest's.
    pub strategy: Option<Strategy>,
    /// Debugs the plugin, in development mode and without isolation only.
    pub debugging: Option<Debugging>,
    /// The installed plugin of the directory. Its files stay while the plugin is loaded.
    pub installed: Option<Arc<Installed>>,
}

/// The compiled schemas of a method.
struct Schemas {
    input: Option<Validator>,
    output: Option<Validator>,
}

/// A loaded plugin.
pub struct Loaded {
    pub manifest: Arc<Manifest>,
    pub calls: Arc<Calls>,
    pub log: Log,
    pub grace: Duration,
    pub files: Arc<Files>,
    strategy: Strategy,
    is_inspected: bool,
    schemas: BTreeMap<String, Schemas>,
    supervisor: Supervisor,
    _installed: Option<Arc<Installed>>,
}

impl Host {
    /// Loads the plugin in a directory. Returns the warnings about its manifest.
    ///
    /// # Errors
    /// - `InvalidInput` for a manifest with problems, or a configuration that does not fit.
    /// - `Denied` for a strategy without isolation, unless the host runs in development mode.
    /// - `Conflict` if a plugin of that name is loaded.
    pub async fn load(&self, directory: &Path, options: LoadOptions) -> Result<Vec<Problem>> {
        let package = open_package(directory)?;
        let (manifest, warnings) = read_manifest(&package)?;
        let strategy = options.strategy.unwrap_or_else(|| launch::strategy(&manifest));
        let log = Log::new(Arc::clone(&self.0.config.sink), &manifest.name);
        if let Some(debugging) = &options.debugging {
            debugging.check(manifest.runtime, strategy, self.0.config.mode).await?;
        }
        check_strategy(&manifest, strategy, self.0.config.mode, &log)?;
        let config = configuration(&manifest, options.config)?;
        let name = manifest.name.clone();
        if self.0.plugins.read().contains_key(&name) {
            return Err(conflict(&name));
        }
        let mut loaded = self.loaded(manifest, package, strategy, config, options.debugging, log)?;
        loaded._installed = options.installed;
        let mut plugins = self.0.plugins.write();
        if plugins.contains_key(&name) {
            return Err(conflict(&name));
        }
        loaded.log.write(
            Severity::Info,
            "plugin.loaded",
            None,
            json!({
                "version": loaded.manifest.version, "strategy": strategy, "permissions": loaded.manifest.permissions,
            }),
        );
        plugins.insert(name, Arc::new(loaded));
        Ok(warnings)
    }

    fn loaded(
        &self,
        manifest: Manifest,
        package: Directory,
        strategy: Strategy,
        config: Value,
        debugging: Option<Debugging>,
        log: Log,
    ) -> Result<Loaded> {
        let state = &self.0.config.state;
        let data = state.join("files").join(&manifest.name);
        for directory in [state.as_path(), &state.join("files"), &data] {
            private::create_directory(directory)
                .map_err(|error| io_error("create the plugin's data directory", error))?;
        }
        let protected: Vec<&Path> =
            [state.as_path()].into_iter().chain(self.0.config.protected.iter().map(PathBuf::as_path)).collect();
        let files = Files::open(&manifest, &data, &protected)?;
        let manifest = Arc::new(manifest);
        let schemas = compile(&manifest)?;
        let calls = Arc::new(Calls::default());
        let timeouts = &manifest.sandbox.timeouts;
        let start = if strategy == Strategy::Vm { DEFAULT_START_VM } else { DEFAULT_START };
        let mut times = Times {
            start: timeouts.start.unwrap_or(start),
            idle: timeouts.idle.map(|idle| idle.max(MIN_IDLE)),
            grace: timeouts.grace.unwrap_or(DEFAULT_GRACE).min(MAX_GRACE),
            heartbeat: Some(HEARTBEAT),
        };
        let is_inspected = debugging.as_ref().is_some_and(Debugging::is_inspect);
        match &debugging {
            Some(Debugging::Inspect(_)) => times = Times { start: UNLIMITED, idle: None, heartbeat: None, ..times },
            Some(Debugging::Profile(_)) => times.grace = times.grace.max(PROFILE_GRACE),
            None => {}
        }
        let package_path = package.path().to_owned();
        let launcher = Arc::new(SandboxLauncher {
            starting: Mutex::default(),
            host: Arc::downgrade(&self.0),
            manifest: Arc::clone(&manifest),
            package,
            config: Arc::new(config),
            strategy,
            debugging,
            files: Arc::clone(&files),
            calls: Arc::clone(&calls),
            log: log.clone(),
        });
        let policy = (&manifest.sandbox.restart).into();
        let supervisor = Supervisor::start(launcher, policy, times, log.clone());
        if strategy == Strategy::Inline {
            supervisor.reload_on_change(&package_path);
        }
        Ok(Loaded {
            manifest,
            calls,
            log,
            grace: times.grace,
            files,
            strategy,
            is_inspected,
            schemas,
            supervisor,
            _installed: None,
        })
    }
}

impl Loaded {
    /// Returns the supervisor.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Returns the maximum time of a call of a method.
    pub fn timeout(&self, method: &str) -> Duration {
        if self.is_inspected {
            return UNLIMITED;
        }
        let own = self.manifest.methods.get(method).and_then(|method| method.timeout);
        own.or(self.manifest.sandbox.timeouts.call).unwrap_or(DEFAULT_CALL)
    }

    /// Checks the input of a call.
    pub fn check_input(&self, method: &str, input: &Value) -> Result<(), CallError> {
        let known =
            || CallError::new(ErrorKind::MethodNotFound, format!("the plugin has no method '{}'", shown(method)));
        let schemas = self.schemas.get(method).ok_or_else(known)?;
        check(schemas.input.as_ref(), input, "the input").map_err(CallError::invalid)
    }

    /// Checks the result of a call.
    pub fn check_output(&self, method: &str, output: &Value) -> Result<(), CallError> {
        let validator = self.schemas.get(method).and_then(|schemas| schemas.output.as_ref());
        check(validator, output, "the result").map_err(|message| CallError::new(ErrorKind::PluginFailed, message))
    }

    /// Sends an event or a timer, and waits for the answer.
    pub async fn deliver(&self, method: &str, params: &Value, tenant: Option<String>) -> Result<(), CallError> {
        let timeout = self.timeout("");
        let running = self.supervisor.ready(Instant::now() + timeout).await?;
        let correlation = super::context::random_id();
        let context = super::Context { request_id: correlation.clone(), tenant, ..super::Context::default() };
        let _call = self.calls.add(&context);
        let late = |_| {
            let what = "the plugin did not take a delivery in time";
            running.instance().terminate(what.to_owned(), self.grace);
            CallError::new(ErrorKind::Timeout, what)
        };
        let outcome =
            tokio::time::timeout(timeout, running.instance().ask(method, params, &correlation)).await.map_err(late);
        let outcome = outcome.and_then(|answer| answer);
        let fields = json!({"method": method, "error": outcome.as_ref().err().map(CallError::to_json)});
        self.log.write(Severity::Debug, "plugin.delivery", Some(&correlation), fields);
        outcome.map(drop)
    }

    /// Returns the state for users.
    pub fn status(&self) -> PluginStatus {
        let status = self.supervisor.status();
        PluginStatus {
            name: self.manifest.name.clone(),
            version: self.manifest.version.clone(),
            strategy: self.strategy,
            state: status.state.as_str(),
            starts: status.starts,
            running: status.instance.map_or(0, |instance| instance.calls()),
            last_crash: Some(status.reason).filter(|reason| !reason.is_empty()),
        }
    }
}

fn conflict(name: &str) -> Error {
    Error::new(Kind::Conflict, "load plugin", format!("a plugin '{}' is loaded", shown(name)))
        .with_remedy("unload it first, or choose another name")
}

fn io_error(what: &str, error: std::io::Error) -> Error {
    Error::new(Kind::Io, "load plugin", format!("cannot {what}")).with_source(error)
}

/// Opens the directory of a plugin.
fn open_package(path: &Path) -> Result<Directory> {
    Directory::open(path).map_err(|error| {
        io_error("open the plugin's directory", error).with_context("path", path.display().to_string())
    })
}

/// Reads and checks the manifest of an opened package.
fn read_manifest(package: &Directory) -> Result<(Manifest, Vec<Problem>)> {
    for name in MANIFEST_NAMES {
        let Ok(Ok(file)) = beneath::open_plain(package.as_fd(), Path::new(name)) else { continue };
        let mut text = String::new();
        let file = std::fs::File::from(file).take(MAX_MANIFEST as u64 + 1);
        { file }.read_to_string(&mut text).map_err(|error| io_error("read the manifest", error))?;
        return crate::check(&text, Format::of(&PathBuf::from(name))).map_err(|problems| {
            let first = problems.first().map(ToString::to_string).unwrap_or_default();
            let message = format!("the manifest has {} problems; the first is {name}:{first}", problems.len());
            Error::invalid("load plugin", message).with_remedy("run `cofferdam plugins validate` on the directory")
        });
    }
    Err(Error::new(Kind::NotFound, "load plugin", "the directory has no plugin.toml and no plugin.json")
        .with_context("path", package.path().display().to_string()))
}

fn check_strategy(manifest: &Manifest, strategy: Strategy, mode: Mode, log: &Log) -> Result<()> {
    let level = launch::level(strategy);
    if level.is_none() {
        if mode == Mode::Production {
            let name = json!(strategy);
            let message = format!("the strategy {name} has no isolation, and is refused in production mode");
            return Err(Error::new(Kind::Denied, "load plugin", message)
                .with_remedy("use the strategy subprocess, or --development for a plugin that you wrote"));
        }
        let message = "THIS PLUGIN RUNS WITHOUT ISOLATION: it can do what this user can, and no limit holds";
        log.write(Severity::Warn, "plugin.no-isolation", None, json!({"message": message, "strategy": strategy}));
    }
    if let (Some(level), Some(wanted)) = (level, manifest.sandbox.level)
        && level < wanted
    {
        let message = format!("the strategy has the level {level}, and the manifest wants {wanted}");
        return Err(Error::new(Kind::WeakerThanRequired, "load plugin", message));
    }
    Ok(())
}

/// Returns the plugin's configuration: the given one, with the defaults of the schema.
fn configuration(manifest: &Manifest, configured: Option<Value>) -> Result<Value> {
    let mut config = configured.unwrap_or_else(|| Value::Object(Map::new()));
    let Some(schema) = manifest.config_schema.clone().map(Value::Object) else { return Ok(config) };
    add_defaults(&schema, &mut config, 0);
    let validator =
        jsonschema::validator_for(&schema).map_err(|error| Error::invalid("load plugin", error.to_string()))?;
    check(Some(&validator), &config, "the configuration").map_err(|message| Error::invalid("load plugin", message))?;
    Ok(config)
}

/// Adds the defaults of a schema's properties to a value.
fn add_defaults(schema: &Value, value: &mut Value, depth: usize) {
    let (Some(properties), Some(members)) = (schema["properties"].as_object(), value.as_object_mut()) else { return };
    if depth > 32 {
        return;
    }
    for (name, property) in properties {
        if let Some(default) = property.get("default") {
            members.entry(name.clone()).or_insert_with(|| default.clone());
        }
        if let Some(member) = members.get_mut(name) {
            add_defaults(property, member, depth + 1);
        }
    }
}

fn compile(manifest: &Manifest) -> Result<BTreeMap<String, Schemas>> {
    let validator = |schema: &Option<Map<String, Value>>| {
        let schema = schema.as_ref().map(|schema| Value::Object(schema.clone()));
        schema.map(|schema| jsonschema::validator_for(&schema)).transpose()
    };
    let compiled = manifest.methods.iter().map(|(name, method)| {
        let failed = |error: jsonschema::ValidationError<'static>| Error::invalid("load plugin", error.to_string());
        let input = validator(&method.input).map_err(failed)?;
        let output = validator(&method.output).map_err(failed)?;
        Ok((name.clone(), Schemas { input, output }))
    });
    compiled.collect()
}

/// Checks a value. The message of an error names locations in the value, and never the value.
fn check(validator: Option<&Validator>, value: &Value, what: &str) -> std::result::Result<(), String> {
    let Some(validator) = validator else { return Ok(()) };
    let errors: Vec<String> = validator
        .iter_errors(value)
        .take(MAX_ERRORS)
        .map(|error| {
            let location = error.instance_path().to_string();
            format!("{}: {}", if location.is_empty() { "/" } else { &location }, shown(&error.masked().to_string()))
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(format!("{what} does not fit its schema: {}", errors.join("; "))) }
}

/// Starts processes of one plugin.
struct SandboxLauncher {
    /// The process that is not ready yet.
    starting: Mutex<Option<Arc<Instance>>>,
    host: Weak<Inner>,
    manifest: Arc<Manifest>,
    package: Directory,
    config: Arc<Value>,
    strategy: Strategy,
    debugging: Option<Debugging>,
    files: Arc<Files>,
    calls: Arc<Calls>,
    log: Log,
}

#[async_trait]
impl Launcher for SandboxLauncher {
    async fn launch(&self) -> Result<Arc<Instance>, CallError> {
        let host = self.host.upgrade().ok_or_else(|| CallError::new(ErrorKind::Unavailable, "the host shuts down"))?;
        let begun = Instant::now();
        let requests = Arc::new(self.requests(&host));
        let started = self.start(&host, &requests).await.map_err(|error| {
            CallError::new(ErrorKind::Unavailable, format!("cannot start the plugin: {}", shown(&error.to_string())))
        })?;
        *self.starting.lock() = Some(Arc::clone(&started));
        let instance = &started;
        let mode = host.config.mode.as_str();
        if let Err(error) = instance.initialize(&self.manifest, &self.config, mode).await {
            instance.kill(format!("it did not start: {}", error.message));
            let ended = instance.ended().await;
            return Err(error.with("lastOutput", ended.tail));
        }
        self.check_cpu_time(instance).await?;
        let fields = json!({"seconds": begun.elapsed().as_secs_f64(), "strategy": self.strategy});
        self.log.write(Severity::Info, "plugin.started", None, fields);
        *self.starting.lock() = None;
        Ok(started)
    }

    async fn abandon(&self) {
        let Some(instance) = self.starting.lock().take() else { return };
        instance.kill("its start was given up".to_owned());
        let _ = tokio::time::timeout(ABANDON_TIMEOUT, instance.ended()).await;
    }
}

impl SandboxLauncher {
    fn requests(&self, host: &Arc<Inner>) -> Requests {
        let (long, short) = Requests::permits();
        Requests {
            host: Weak::clone(&self.host),
            manifest: Arc::clone(&self.manifest),
            config: Arc::clone(&self.config),
            files: Arc::clone(&self.files),
            services: Arc::clone(&host.services),
            extensions: Arc::clone(&host.config.extensions),
            calls: Arc::clone(&self.calls),
            log: self.log.clone(),
            tail: Arc::new(Mutex::new(Tail::new(TAIL))),
            long,
            short,
        }
    }

    async fn start(&self, host: &Inner, requests: &Arc<Requests>) -> Result<Arc<Instance>> {
        let debugging = self.debugging.as_ref().map(|debugging| debugging.options(self.manifest.runtime));
        let request = launch::request(&self.manifest, &debugging.unwrap_or_default())?;
        let (sandbox, exec) = match launch::level(self.strategy) {
            None => {
                let scratch = host.config.state.join("scratch").join(&self.manifest.name);
                std::fs::create_dir_all(&scratch).map_err(|error| io_error("create a directory", error))?;
                self.debugging.iter().for_each(Debugging::release);
                (None, local::start(&request, self.package.path(), &scratch)?)
            }
            Some(level) => {
                let backend = host.config.extensions.backend(self.strategy).await?;
                check_level(&*backend, level)?;
                let spec = launch::spec(&self.manifest, &self.package, host.config.tenant.as_ref(), self.strategy)?;
                let spec = host.config.extensions.spec(self.strategy, spec.to_builder()).build()?;
                let (sandbox, exec) = match launch::is_copied(self.strategy) {
                    true => self.start_copied(&*backend, spec, request).await?,
                    false => backend.start_one(spec, request).await?,
                };
                (Some(host.config.extensions.observe(sandbox).await?), exec)
            }
        };
        let (served, tail, log) = (Arc::clone(requests) as _, Arc::clone(&requests.tail), self.log.clone());
        Instance::serve(Start { exec, sandbox, served, tail, log, clean_up: self.clean_up() })
    }

    /// Creates a sandbox, copies the package into it and starts the plugin.
    async fn start_copied(
        &self,
        backend: &dyn Backend,
        spec: Spec,
        request: ExecRequest,
    ) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        let sandbox = backend.create(spec).await?;
        let package = self.package.as_fd().try_clone_to_owned();
        let started = async {
            copy(package.map_err(|error| io_error("open the plugin's directory", error))?, &*sandbox).await?;
            sandbox.start(request).await
        };
        match started.await {
            Ok(exec) => Ok((sandbox, exec)),
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
    }

    /// Refuses a plugin whose CPU time cannot be counted although it has a limit.
    async fn check_cpu_time(&self, instance: &Instance) -> Result<(), CallError> {
        if self.manifest.sandbox.limits.cpu_time.is_some()
            && instance.sandbox().is_some()
            && instance.cpu_seconds().await.is_none()
        {
            let message = "the backend cannot count the CPU time that sandbox.limits.cpuTime limits";
            return Err(CallError::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Returns the removal of the files that a process left.
    fn clean_up(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (calls, files) = (Arc::clone(&self.calls), Arc::clone(&self.files));
        let is_isolated = launch::level(self.strategy).is_some();
        Box::pin(async move {
            let tracked = calls.take_tracked(None);
            if !is_isolated {
                // A sandbox's own temporary files are gone with it.
                files.remove_temporary(&tracked).await;
            }
            files.remove(tracked).await;
        })
    }
}

fn check_level(backend: &dyn Backend, wanted: Level) -> Result<()> {
    if backend.level() >= wanted {
        return Ok(());
    }
    let message = format!("the backend {} has the level {}, and {wanted} is needed", backend.name(), backend.level());
    Err(Error::new(Kind::WeakerThanRequired, "start plugin", message))
}
