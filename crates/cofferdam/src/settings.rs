//! Settings merged from options, environment, configuration file and defaults, in this order of precedence. Pure: all
//! inputs are arguments.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use cofferdam::code::{Bounds, CodeConfig, Languages, MODULE, Warn};
use cofferdam::configuration::{Bound, Variables};
use cofferdam::registry::{self, BackendInfo, BackendOptions, Setup};
use cofferdam::{
    ByteSize, DEFAULT_CANCEL_GRACE, DEFAULT_MAX_OUTPUT, Error, Level, Limits, NetworkPolicy, Protection, Result,
    TenantId, parse_duration,
};

use crate::args::{Learn, LimitArgs, RunArgs, SandboxArgs};
use crate::config::{ConfigFile, ConfigLimits};
use crate::images;
use crate::plan::STANDARD_INPUT;
use crate::report;
use crate::resident::ServerUse;
use crate::style::Tone;

/// Settings from the environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Environment {
    /// `SANDBOX_TYPE`: the backend, in lower case but for the name of an OCI runtime.
    pub backend: Option<String>,
    /// `SANDBOX_TIMEOUT_SEC`: the maximum wall time of a run.
    pub timeout: Option<Duration>,
    /// `COFFERDAM_USE_SERVER`: the use of a server.
    pub use_server: Option<ServerUse>,
    /// `DOCKER_HOST`, `XDG_RUNTIME_DIR`, `COFFERDAM_VM_…` and `COFFERDAM_WASM_…`: settings of backends.
    pub setup: Setup,
}

impl Environment {
    /// Reads the variables through `variable`. Ignores empty ones.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let variables = Variables::new(&variable);
        Ok(Self {
            backend: variables.text("SANDBOX_TYPE").map(|text| backend_name(&text)),
            timeout: variables.text("SANDBOX_TIMEOUT_SEC").map(|text| seconds(&text)).transpose()?,
            use_server: variables.text("COFFERDAM_USE_SERVER").map(|text| use_server(&text)).transpose()?,
            setup: Setup::from_variables(variables)?,
        })
    }
}

/// Converts a backend's name to lower case, except the name of an OCI runtime as in `docker:NAME`, which is
/// case-sensitive.
fn backend_name(text: &str) -> String {
    match text.split_once(':') {
        Some((name, runtime)) if name.eq_ignore_ascii_case(registry::CONTAINER_BACKEND) => {
            format!("{}:{runtime}", registry::CONTAINER_BACKEND)
        }
        _ => text.to_ascii_lowercase(),
    }
}

fn seconds(text: &str) -> Result<Duration> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0);
    number.and_then(|_| parse_duration(text).ok()).ok_or_else(|| {
        let message = format!("SANDBOX_TIMEOUT_SEC is '{}', which is not a number of seconds", text.escape_debug());
        Error::invalid("read environment", message).with_remedy("set it to a number above 0, such as 60, or unset it")
    })
}

fn use_server(text: &str) -> Result<ServerUse> {
    text.parse().map_err(|_| {
        let message = format!("COFFERDAM_USE_SERVER is '{}', which is not a valid mode", text.escape_debug());
        Error::invalid("read environment", message).with_remedy("set it to auto, never, start or require, or unset it")
    })
}

/// The settings of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The backend of the sandbox.
    pub backend: &'static BackendInfo,
    /// Limits of the sandbox.
    pub limits: Limits,
    /// Maximum output in bytes.
    pub max_output: ByteSize,
    /// The tenant of the run.
    pub tenant: TenantId,
    /// Protections that may be weaker than requested.
    pub allow_weaker: BTreeSet<Protection>,
    /// The network policy.
    pub network: NetworkPolicy,
    /// Time between SIGTERM and SIGKILL.
    pub cancel_grace: Duration,
    /// Settings of code execution: languages, screening, audit log and bounds.
    pub code: CodeConfig,
    /// True if every run is screened, logged or bounded as a call, even without a request for the full result.
    pub watched: bool,
    /// The use of a server.
    pub use_server: ServerUse,
    /// Settings of backends.
    pub setup: Setup,
}

impl Settings {
    /// Merges options, environment, file and defaults, in this order of precedence.
    pub fn resolve(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> Result<Self> {
        let tenant = flags.sandbox.tenant.clone().or_else(|| file.tenant.clone()).unwrap_or_default();
        let weaker = match flags.limits.allow_weaker.is_empty() {
            true => &file.allow_weaker,
            false => &flags.limits.allow_weaker,
        };
        let backend = backend_for_run(flags, environment, file)?;
        // The image of a process sandbox can be pulled as well.
        let pulls = flags.sandbox.image.is_some() && backend.info.name == registry::DEFAULT_BACKEND;
        check_option(flags.sandbox.pull.is_some() && !pulls, "--pull", registry::CONTAINER_BACKEND, &backend)?;
        check_option(flags.sandbox.build.is_some(), "--build", registry::VM_BACKEND, &backend)?;
        check_option(flags.sandbox.deterministic.is_some(), "--deterministic", registry::MODULE_BACKEND, &backend)?;
        check_option(flags.sandbox.fuel.is_some(), "--fuel", registry::MODULE_BACKEND, &backend)?;
        let observes = flags.observe.net_learn.is_some() || flags.observe.net_log.is_some();
        if observes && backend.info.name == registry::MODULE_BACKEND {
            return Err(Error::unsupported("run", "level wasm does not report connections")
                .with_remedy("leave out --net-learn and --net-log, or use another --level"));
        }
        Ok(Self {
            setup: options(flags).or(backend.setup).or(setup(environment, file)),
            backend: backend.info,
            limits: limits(&flags.limits, environment, &file.limits)?,
            max_output: flags.limits.max_output.or(file.max_output.map(|size| size.0)).unwrap_or(DEFAULT_MAX_OUTPUT),
            tenant,
            allow_weaker: weaker.iter().copied().collect(),
            network: network(flags, file),
            cancel_grace: flags.cancel_grace.unwrap_or(DEFAULT_CANCEL_GRACE),
            code: code(flags, file)?,
            watched: file.screening.is_some() || file.audit.is_some() || file.code.is_some(),
            use_server: flags.use_server.or(environment.use_server).or(file.use_server).unwrap_or_default(),
        })
    }
}

/// Returns the network policy.
fn network(flags: &RunArgs, file: &ConfigFile) -> NetworkPolicy {
    match flags.observe.net_learn {
        Some(learn) => NetworkPolicy::Learn { allow: learn == Learn::Allow },
        None => {
            let in_file = || file.network.clone().map(NetworkPolicy::Rules);
            flags.sandbox.network.policy().cloned().or_else(in_file).unwrap_or_default()
        }
    }
}

/// Returns the settings of code execution. An option replaces the file's bound on output. Of the two bounds in the
/// file, the smaller one applies.
fn code(flags: &RunArgs, file: &ConfigFile) -> Result<CodeConfig> {
    let bounds = file.code.clone().unwrap_or_default();
    let in_file = file.max_output.map_or(bounds.max_output, |size| size.0.min(bounds.max_output));
    Ok(CodeConfig {
        languages: Languages::new(&file.languages, file.languages_allowed.as_ref())?,
        bounds: Bounds { max_output: flags.limits.max_output.unwrap_or(in_file), ..bounds },
        screening: file.screening.clone().unwrap_or_default(),
        audit: file.audit.clone(),
        sessions: file.sessions.clone(),
        warn: Warn::new(|text| report::remark(text, Tone::Warning)),
    })
}

/// Refuses an option of one backend if another one is selected, because it would have no effect.
fn check_option(is_set: bool, option: &str, of: &str, chosen: &Chosen) -> Result<()> {
    if !is_set || chosen.info.name == of {
        return Ok(());
    }
    let message = format!("{option} is an option of backend {of}, but the backend is {}", chosen.info.name);
    Err(Error::invalid("select backend", message).with_remedy(format!("leave it out, or add --backend {of}")))
}

/// Returns the settings of backends in options.
fn options(flags: &RunArgs) -> Setup {
    let SandboxArgs { pull, build, deterministic, fuel, .. } = &flags.sandbox;
    BackendOptions { pull: *pull, build: *build, deterministic: deterministic.clone(), fuel: *fuel }.into()
}

/// Returns the settings of all backends without options.
pub fn setup(environment: &Environment, file: &ConfigFile) -> Setup {
    environment.setup.clone().or(file.setup())
}

/// A selected backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Static information about it.
    pub info: &'static BackendInfo,
    /// The settings in its name, such as an OCI runtime or a VMM.
    pub setup: Setup,
}

impl Chosen {
    /// Selects the backend of this name.
    pub fn named(name: &str) -> Result<Self> {
        Ok(Self { info: registry::find(name)?, setup: registry::setup_of(name)? })
    }
}

impl From<&'static BackendInfo> for Chosen {
    fn from(info: &'static BackendInfo) -> Self {
        Self { info, setup: Setup::default() }
    }
}

/// Selects a backend like [`backend`]. If no backend is named and no higher level is required, a run of a WebAssembly
/// module, and a script with `--level wasm`, get the module backend. If no backend is named, a run with an image gets
/// the process backend if the image store has it or may pull it, else the container backend.
fn backend_for_run(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> Result<Chosen> {
    let chosen = backend(flags.backend.as_deref(), flags.level, environment, file)?;
    let named = flags.backend.is_some() || environment.backend.is_some() || file.backend.is_some();
    let level = flags.level.or(file.level).unwrap_or(Level::Simulated);
    // A script with an explicit `--level wasm` runs in that level if possible. The level is still a minimum.
    let requested = flags.level == Some(Level::Wasm) && names_script(flags);
    if let Some(image) = flags.sandbox.image.as_deref().filter(|_| !named && level <= Level::Container) {
        let stored = level <= Level::Process && images::is_available(image, flags.sandbox.pull, &file.images);
        let name = if stored { registry::DEFAULT_BACKEND } else { registry::CONTAINER_BACKEND };
        return registry::find(name).map(Chosen::from);
    }
    if !named && level <= Level::Wasm && (names_module(flags) || requested) {
        return registry::find(registry::MODULE_BACKEND).map(Chosen::from);
    }
    Ok(chosen)
}

/// Returns true if the arguments name a script in a language with a WebAssembly interpreter.
fn names_script(flags: &RunArgs) -> bool {
    let extension = || Path::new(flags.words.first()?).extension()?.to_str().map(str::to_ascii_lowercase);
    match &flags.lang {
        Some(lang) => lang == "python" || lang == "javascript",
        None if flags.code.is_some() => true,
        None if !flags.separated && flags.words.first().is_some_and(|word| word == STANDARD_INPUT) => true,
        None => !flags.separated && matches!(extension().as_deref(), Some("py" | "js" | "mjs" | "cjs")),
    }
}

/// Returns true if the arguments name a WebAssembly module: FILE, or with `--level wasm` also the command after `--`.
pub fn names_module(flags: &RunArgs) -> bool {
    let first = flags.words.first().filter(|_| flags.code.is_none());
    let ends = first.is_some_and(|word| word.to_ascii_lowercase().ends_with(".wasm"));
    match &flags.lang {
        Some(lang) => lang == MODULE,
        None if flags.separated => ends && flags.level == Some(Level::Wasm),
        None => ends,
    }
}

/// Returns the named backend, or an error if its level is too low. If none is named, selects one by level.
pub fn backend(
    flag: Option<&str>,
    level: Option<Level>,
    environment: &Environment,
    file: &ConfigFile,
) -> Result<Chosen> {
    let level = level.or(file.level);
    let named = [
        (flag, "--backend"),
        (environment.backend.as_deref(), "SANDBOX_TYPE"),
        (file.backend.as_deref(), "the configuration file"),
    ];
    let Some((name, source)) = named.into_iter().find_map(|(name, source)| name.map(|name| (name, source))) else {
        return registry::for_level(level.unwrap_or(Level::Simulated)).map(Chosen::from);
    };
    let info = registry::find(name).map_err(|error| error.with_context("named by", source))?;
    match level {
        Some(level) if info.level < level => {
            let message =
                format!("the backend '{}' has level {}, below the required level {level}", info.name, info.level);
            Err(Error::unsupported("select backend", message)
                .with_context("named by", source)
                .with_remedy("require a lower level, or leave out the backend; `cofferdam backends` lists the levels"))
        }
        _ => Chosen::named(name),
    }
}

fn limits(flags: &LimitArgs, environment: &Environment, file: &ConfigLimits) -> Result<Limits> {
    let default = Limits::default();
    // The environment belongs to the operator: an option can only tighten its timeout.
    let timeout = match (flags.timeout, environment.timeout) {
        (Some(requested), Some(cap)) => Some(requested.min(cap)),
        (requested, cap) => requested.or(cap).or(file.wall_time.map(|time| time.0)),
    };
    let limits = Limits {
        cpu_time: pick(flags.cpu_time, file.cpu_time, default.cpu_time),
        memory: pick(flags.memory, file.memory, default.memory),
        disk: pick(flags.disk, file.disk, default.disk),
        wall_time: timeout.unwrap_or(default.wall_time),
        pids: pick(flags.pids, file.pids, default.pids),
        processes: pick(flags.processes, file.processes, default.processes),
        cpus: pick(flags.cpus, file.cpus, default.cpus),
    };
    limits.validate()?;
    Ok(limits)
}

fn pick<T>(flag: Option<Bound<T>>, file: Option<Bound<T>>, default: Option<T>) -> Option<T> {
    flag.or(file).map_or(default, Bound::into_option)
}

#[cfg(test)]
mod tests;
