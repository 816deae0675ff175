//! Settings merged from options, environment, configuration file and defaults, in this order of precedence. Pure: all
//! inputs are arguments.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Display;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use cofferdam::code::{Bounds, CodeConfig, Languages, MODULE, Warn};
use cofferdam::registry::machines::{Build, Driver, Machines};
use cofferdam::registry::{self, BackendInfo, Containers, Setup};
use cofferdam::{
    ByteSize, DEFAULT_CANCEL_GRACE, DEFAULT_MAX_OUTPUT, Error, Level, Limits, Protection, Result, TenantId,
    parse_duration,
};

use crate::args::{LimitArgs, RunArgs};
use crate::bound::{Bound, Human, Seed};
use crate::config::{ConfigFile, ConfigLimits, ConfigMachines, ConfigWasm};
use crate::plan::STANDARD_INPUT;
use crate::report;
use crate::resident::DaemonUse;
use crate::style::Tone;

/// Settings from the environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Environment {
    /// `SANDBOX_TYPE`: the backend, in lower case but for the name of an OCI runtime.
    pub backend: Option<String>,
    /// `SANDBOX_TIMEOUT_SEC`: the maximum real time of a run.
    pub timeout: Option<Duration>,
    /// `COFFERDAM_DAEMON`: the use of a daemon.
    pub daemon: Option<DaemonUse>,
    /// `DOCKER_HOST`: the container engine's address.
    pub docker_host: Option<String>,
    /// `XDG_RUNTIME_DIR`: the directory with the sockets of rootless engines.
    pub runtime_dir: Option<PathBuf>,
    /// `COFFERDAM_VM_…`: settings of the VM backend.
    pub machines: ConfigMachines,
    /// `COFFERDAM_WASM_…`: settings of the WebAssembly backend.
    pub wasm: ConfigWasm,
}

impl Environment {
    /// Reads the variables through `variable`. Ignores empty ones.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().trim().to_owned());
        let timeout = match text("SANDBOX_TIMEOUT_SEC").filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(seconds(&text)?),
        };
        let daemon = match text("COFFERDAM_DAEMON").filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(daemon(&text)?),
        };
        Ok(Self {
            backend: text("SANDBOX_TYPE").filter(|text| !text.is_empty()).map(|text| backend_name(&text)),
            timeout,
            daemon,
            docker_host: text("DOCKER_HOST").filter(|text| !text.is_empty()),
            runtime_dir: variable("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()).map(PathBuf::from),
            machines: machine_variables(|name| text(name).filter(|text| !text.is_empty()))?,
            wasm: wasm_variables(|name| text(name).filter(|text| !text.is_empty()))?,
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

fn machine_variables(set: impl Fn(&str) -> Option<String>) -> Result<ConfigMachines> {
    Ok(ConfigMachines {
        images: set("COFFERDAM_VM_IMAGES").map(PathBuf::from),
        image: set("COFFERDAM_VM_IMAGE"),
        build: value(&set, "COFFERDAM_VM_BUILD")?,
        memory: value(&set, "COFFERDAM_VM_MEMORY")?.map(Human),
        processors: value(&set, "COFFERDAM_VM_PROCESSORS")?,
        driver: value(&set, "COFFERDAM_VM_DRIVER")?,
        firecracker: set("COFFERDAM_VM_FIRECRACKER").map(PathBuf::from),
        jailer: value(&set, "COFFERDAM_VM_JAILER")?,
        qemu: set("COFFERDAM_VM_QEMU").map(PathBuf::from),
        accelerator: value(&set, "COFFERDAM_VM_ACCELERATOR")?,
        processor: set("COFFERDAM_VM_PROCESSOR"),
    })
}

fn wasm_variables(set: impl Fn(&str) -> Option<String>) -> Result<ConfigWasm> {
    Ok(ConfigWasm {
        deterministic: set("COFFERDAM_WASM_DETERMINISTIC").map(|seed| Human(Seed(seed))),
        fuel: value(&set, "COFFERDAM_WASM_FUEL")?,
    })
}

/// Parses the value of a variable. Errors name the variable.
fn value<T: FromStr<Err: Display>>(set: impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<T>> {
    let parse = |text: String| {
        text.parse().map_err(|error| {
            Error::invalid("read environment", format!("{name} is '{}': {error}", text.escape_debug()))
                .with_remedy("correct or unset it; docs/configuration.md lists its values")
        })
    };
    set(name).map(parse).transpose()
}

fn seconds(text: &str) -> Result<Duration> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0);
    number.and_then(|_| parse_duration(text).ok()).ok_or_else(|| {
        let message = format!("SANDBOX_TIMEOUT_SEC is '{}', which is not a number of seconds", text.escape_debug());
        Error::invalid("read environment", message).with_remedy("set it to a number above 0, such as 60, or unset it")
    })
}

fn daemon(text: &str) -> Result<DaemonUse> {
    text.parse().map_err(|_| {
        let message = format!("COFFERDAM_DAEMON is '{}', which is not a valid mode", text.escape_debug());
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
    /// Time between SIGTERM and SIGKILL.
    pub cancel_grace: Duration,
    /// Settings of code execution: languages, screening, audit log and bounds.
    pub code: CodeConfig,
    /// True if every run is screened, logged or bounded as a call, even without a request for the full result.
    pub watched: bool,
    /// The use of a daemon.
    pub daemon: DaemonUse,
    /// Settings of the container and VM backends.
    pub setup: Setup,
    /// Settings of the WebAssembly backend; unset for other backends.
    pub wasm: WasmSettings,
}

/// Settings of the WebAssembly backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WasmSettings {
    /// Seed of deterministic clocks and random bytes.
    pub seed: Option<String>,
    /// Maximum number of steps of each exec.
    pub fuel: Option<NonZeroU64>,
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
        check_option(flags.sandbox.pull.is_some(), "--pull", registry::CONTAINER_BACKEND, &backend)?;
        check_option(flags.sandbox.build.is_some(), "--build", registry::MACHINE_BACKEND, &backend)?;
        check_option(flags.sandbox.deterministic.is_some(), "--deterministic", registry::MODULE_BACKEND, &backend)?;
        check_option(flags.sandbox.fuel.is_some(), "--fuel", registry::MODULE_BACKEND, &backend)?;
        let machines = machines(flags.sandbox.build, environment, file);
        let wasm = match backend.info.name == registry::MODULE_BACKEND {
            true => wasm(flags, environment, file),
            false => WasmSettings::default(),
        };
        Ok(Self {
            wasm,
            setup: Setup {
                containers: Containers {
                    runtime: backend.runtime,
                    pull: flags.sandbox.pull.or(file.containers.pull).unwrap_or_default(),
                    ..containers(environment, file)
                },
                machines: Machines { driver: backend.driver.unwrap_or(machines.driver), ..machines },
            },
            backend: backend.info,
            limits: limits(&flags.limits, environment, &file.limits)?,
            max_output: flags.limits.max_output.or(file.max_output.map(|size| size.0)).unwrap_or(DEFAULT_MAX_OUTPUT),
            tenant,
            allow_weaker: weaker.iter().copied().collect(),
            cancel_grace: flags.cancel_grace.unwrap_or(DEFAULT_CANCEL_GRACE),
            code: code(flags, file)?,
            watched: file.screening.is_some() || file.audit.is_some() || file.code.is_some(),
            daemon: flags.daemon.or(environment.daemon).or(file.use_daemon).unwrap_or_default(),
        })
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
fn check_option(given: bool, option: &str, of: &str, chosen: &Chosen) -> Result<()> {
    if !given || chosen.info.name == of {
        return Ok(());
    }
    let message = format!("{option} is an option of backend {of}, but the backend is {}", chosen.info.name);
    Err(Error::invalid("select backend", message).with_remedy(format!("leave it out, or add --backend {of}")))
}

/// Returns the settings of the container backend without options.
pub fn containers(environment: &Environment, file: &ConfigFile) -> Containers {
    let file = &file.containers;
    Containers {
        host: environment.docker_host.clone().or_else(|| file.host.clone()),
        runtime_dir: environment.runtime_dir.clone(),
        runtime: None,
        image: file.image.clone(),
        pull: file.pull.unwrap_or_default(),
        images_allowed: file.images_allowed.clone(),
    }
}

/// Returns the settings of the VM backend. `build` is the value of an option.
pub fn machines(build: Option<Build>, environment: &Environment, file: &ConfigFile) -> Machines {
    let (first, second) = (environment.machines.clone(), file.machines.clone());
    Machines {
        images: first.images.or(second.images),
        image: first.image.or(second.image),
        build: build.or(first.build).or(second.build).unwrap_or_default(),
        memory: first.memory.or(second.memory).map(|size| size.0),
        processors: first.processors.or(second.processors),
        driver: first.driver.or(second.driver).unwrap_or_default(),
        firecracker: first.firecracker.or(second.firecracker),
        jailer: first.jailer.or(second.jailer).unwrap_or_default(),
        qemu: first.qemu.or(second.qemu),
        accelerator: first.accelerator.or(second.accelerator).unwrap_or_default(),
        processor: first.processor.or(second.processor),
    }
}

/// Merges the settings of the WebAssembly backend from options, environment and file, in this order of precedence.
fn wasm(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> WasmSettings {
    let (sandbox, first, second) = (&flags.sandbox, &environment.wasm, &file.wasm);
    let configured = first.deterministic.as_ref().or(second.deterministic.as_ref()).map(|Human(Seed(seed))| seed);
    WasmSettings {
        seed: sandbox.deterministic.as_ref().or(configured).cloned(),
        fuel: sandbox.fuel.or(first.fuel).or(second.fuel).and_then(Bound::into_option),
    }
}

/// Returns the settings of all backends without options.
pub fn setup(environment: &Environment, file: &ConfigFile) -> Setup {
    Setup { containers: containers(environment, file), machines: machines(None, environment, file) }
}

/// A selected backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Static information about it.
    pub info: &'static BackendInfo,
    /// The OCI runtime in its name.
    pub runtime: Option<String>,
    /// The VMM in its name.
    pub driver: Option<Driver>,
}

impl Chosen {
    /// Selects the backend of this name.
    pub fn named(name: &str) -> Result<Self> {
        let (runtime, driver) = (registry::runtime(name).map(str::to_owned), registry::driver(name));
        Ok(Self { info: registry::find(name)?, runtime, driver })
    }
}

impl From<&'static BackendInfo> for Chosen {
    fn from(info: &'static BackendInfo) -> Self {
        Self { info, runtime: None, driver: None }
    }
}

/// Selects a backend like [`backend`]. If no backend is named and no higher level is required, a run of a WebAssembly
/// module, and a script with `--level wasm`, get the module backend. If no backend is named, a run with an image gets
/// the container backend.
fn backend_for_run(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> Result<Chosen> {
    let chosen = backend(flags.backend.as_deref(), flags.level, environment, file)?;
    let named = flags.backend.is_some() || environment.backend.is_some() || file.backend.is_some();
    let level = flags.level.or(file.level).unwrap_or(Level::Simulated);
    // A script with an explicit `--level wasm` runs in that level if possible. The level is still a minimum.
    let requested = flags.level == Some(Level::Wasm) && names_script(flags);
    if !named && flags.sandbox.image.is_some() && level <= Level::Container {
        return registry::find(registry::CONTAINER_BACKEND).map(Chosen::from);
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
