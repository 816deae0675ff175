//! What holds after options, environment, configuration file and defaults were put over one another, in that order of
//! precedence. Pure: everything comes in as arguments.

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

/// What the environment says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Environment {
    /// `SANDBOX_TYPE`: the backend, in lower case but for the name of an OCI runtime.
    pub backend: Option<String>,
    /// `SANDBOX_TIMEOUT_SEC`: the most real time that a run may have.
    pub timeout: Option<Duration>,
    /// `COFFERDAM_DAEMON`: whether a daemon runs things.
    pub daemon: Option<DaemonUse>,
    /// `DOCKER_HOST`: the container engine's address.
    pub docker_host: Option<String>,
    /// `XDG_RUNTIME_DIR`: where engines without root have their sockets.
    pub runtime_dir: Option<PathBuf>,
    /// `COFFERDAM_VM_…`: how virtual machines are made.
    pub machines: ConfigMachines,
    /// `COFFERDAM_WASM_…`: how WebAssembly runs.
    pub wasm: ConfigWasm,
}

impl Environment {
    /// Reads the variables through `variable`. One that is set but empty does not count.
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
            machines: machine_words(|name| text(name).filter(|text| !text.is_empty()))?,
            wasm: wasm_variables(|name| text(name).filter(|text| !text.is_empty()))?,
        })
    }
}

/// Puts a backend's name into lower case. The engine's name of an OCI runtime, as in `docker:NAME`, has a case of its own.
fn backend_name(text: &str) -> String {
    match text.split_once(':') {
        Some((name, runtime)) if name.eq_ignore_ascii_case(registry::CONTAINER_BACKEND) => {
            format!("{}:{runtime}", registry::CONTAINER_BACKEND)
        }
        _ => text.to_ascii_lowercase(),
    }
}

fn machine_words(set: impl Fn(&str) -> Option<String>) -> Result<ConfigMachines> {
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

/// The value of a variable, or an error that names it.
fn value<T: FromStr<Err: Display>>(set: impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<T>> {
    let parse = |text: String| {
        text.parse().map_err(|error| {
            Error::invalid("read environment", format!("{name} is '{}': {error}", text.escape_debug()))
                .with_remedy("correct it, or unset it; docs/configuration.md says what it may be")
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
        let message = format!("COFFERDAM_DAEMON is '{}', which says nothing about a daemon", text.escape_debug());
        Error::invalid("read environment", message).with_remedy("set it to auto, never, start or require, or unset it")
    })
}

/// What holds for one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The backend that makes the sandbox.
    pub backend: &'static BackendInfo,
    /// Bounds.
    pub limits: Limits,
    /// Bytes of output passed on.
    pub max_output: ByteSize,
    /// Whose work it is.
    pub tenant: TenantId,
    /// Protections that may be weaker than asked.
    pub allow_weaker: BTreeSet<Protection>,
    /// Time between SIGTERM and SIGKILL.
    pub cancel_grace: Duration,
    /// How code runs: which languages, how it is screened and logged, and within which bounds.
    pub code: CodeConfig,
    /// Whether whatever runs has to be screened, logged or bounded as a call, even if nobody asks for the whole result.
    pub watched: bool,
    /// Whether a daemon runs it.
    pub daemon: DaemonUse,
    /// How containers and machines are made.
    pub setup: Setup,
    /// How WebAssembly runs; all of it unset for other backends.
    pub wasm: WasmSettings,
}

/// What the wasm backend is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WasmSettings {
    /// Seed of clocks and random bytes that are the same each time.
    pub seed: Option<String>,
    /// Steps that each exec may take.
    pub fuel: Option<NonZeroU64>,
}

impl Settings {
    /// Puts options over environment over file over defaults.
    pub fn resolve(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> Result<Self> {
        let tenant = flags.place.tenant.clone().or_else(|| file.tenant.clone()).unwrap_or_default();
        let weaker = match flags.limits.allow_weaker.is_empty() {
            true => &file.allow_weaker,
            false => &flags.limits.allow_weaker,
        };
        let backend = backend_for_run(flags, environment, file)?;
        has_use(flags.place.pull.is_some(), "--pull", registry::CONTAINER_BACKEND, &backend)?;
        has_use(flags.place.build.is_some(), "--build", registry::MACHINE_BACKEND, &backend)?;
        has_use(flags.place.deterministic.is_some(), "--deterministic", registry::MODULE_BACKEND, &backend)?;
        has_use(flags.place.fuel.is_some(), "--fuel", registry::MODULE_BACKEND, &backend)?;
        let machines = machines(flags.place.build, environment, file);
        let wasm = match backend.info.name == registry::MODULE_BACKEND {
            true => wasm(flags, environment, file),
            false => WasmSettings::default(),
        };
        Ok(Self {
            wasm,
            setup: Setup {
                containers: Containers {
                    runtime: backend.runtime,
                    pull: flags.place.pull.or(file.containers.pull).unwrap_or_default(),
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

/// How code runs. An option replaces the file's bound on output; of the two bounds in the file the smaller holds.
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

/// Refuses an option that only one backend knows, where another one was chosen: it would do nothing.
fn has_use(given: bool, option: &str, of: &str, chosen: &Chosen) -> Result<()> {
    if !given || chosen.info.name == of {
        return Ok(());
    }
    let message = format!("{option} is for {of}, and the backend is {}", chosen.info.name);
    Err(Error::invalid("select backend", message).with_remedy(format!("leave it out, or add --backend {of}")))
}

/// How containers are made, as far as no option says anything about it.
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

/// How virtual machines are made; `build` is what an option says.
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

/// How WebAssembly runs: options over environment over file.
fn wasm(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> WasmSettings {
    let (place, first, second) = (&flags.place, &environment.wasm, &file.wasm);
    let configured = first.deterministic.as_ref().or(second.deterministic.as_ref()).map(|Human(Seed(seed))| seed);
    WasmSettings {
        seed: place.deterministic.as_ref().or(configured).cloned(),
        fuel: place.fuel.or(first.fuel).or(second.fuel).and_then(Bound::into_option),
    }
}

/// How everything is made, as far as no option says anything about it.
pub fn setup(environment: &Environment, file: &ConfigFile) -> Setup {
    Setup { containers: containers(environment, file), machines: machines(None, environment, file) }
}

/// A backend that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// What is known about it.
    pub info: &'static BackendInfo,
    /// The OCI runtime that its name ended with.
    pub runtime: Option<String>,
    /// The driver that its name said.
    pub driver: Option<Driver>,
}

impl Chosen {
    /// The one of this name.
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

/// As [`backend`], but a run that names a WebAssembly module gets the backend for those where none is named and no
/// thicker wall is asked for, and so does a script that `--level wasm` stands before; and one that names an image gets the
/// backend for those where none is named.
fn backend_for_run(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> Result<Chosen> {
    let chosen = backend(flags.backend.as_deref(), flags.level, environment, file)?;
    let named = flags.backend.is_some() || environment.backend.is_some() || file.backend.is_some();
    let level = flags.level.or(file.level).unwrap_or(Level::Simulated);
    // Who asks for that very level wants what is in it, as far as it goes. It is a floor all the same.
    let asked = flags.level == Some(Level::Wasm) && names_script(flags);
    if !named && flags.place.image.is_some() && level <= Level::Container {
        return registry::find(registry::CONTAINER_BACKEND).map(Chosen::from);
    }
    if !named && level <= Level::Wasm && (names_module(flags) || asked) {
        return registry::find(registry::MODULE_BACKEND).map(Chosen::from);
    }
    Ok(chosen)
}

/// Whether what is to be run is a script in a language that there is an interpreter for WebAssembly of.
fn names_script(flags: &RunArgs) -> bool {
    let extension = || Path::new(flags.words.first()?).extension()?.to_str().map(str::to_ascii_lowercase);
    match &flags.lang {
        Some(lang) => lang == "python" || lang == "javascript",
        None if flags.code.is_some() => true,
        None if !flags.separated && flags.words.first().is_some_and(|word| word == STANDARD_INPUT) => true,
        None => !flags.separated && matches!(extension().as_deref(), Some("py" | "js" | "mjs" | "cjs")),
    }
}

/// Whether what is to be run is a WebAssembly module: FILE, or with `--level wasm` also what follows `--`.
pub fn names_module(flags: &RunArgs) -> bool {
    let first = flags.words.first().filter(|_| flags.code.is_none());
    let ends = first.is_some_and(|word| word.to_ascii_lowercase().ends_with(".wasm"));
    match &flags.lang {
        Some(lang) => lang == MODULE,
        None if flags.separated => ends && flags.level == Some(Level::Wasm),
        None => ends,
    }
}

/// The backend that was named, if its wall is thick enough; else one whose wall is.
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
                format!("the backend '{}' is of level {}, below the level {level} asked for", info.name, info.level);
            Err(Error::unsupported("select backend", message).with_context("named by", source).with_remedy(
                "ask for a lower level, or name no backend so that one is chosen; `cofferdam backends` lists them",
            ))
        }
        _ => Chosen::named(name),
    }
}

fn limits(flags: &LimitArgs, environment: &Environment, file: &ConfigLimits) -> Result<Limits> {
    let default = Limits::default();
    // The environment is the operator's: an option can ask for less than it allows, and not for more.
    let timeout = match (flags.timeout, environment.timeout) {
        (Some(asked), Some(cap)) => Some(asked.min(cap)),
        (asked, cap) => asked.or(cap).or(file.wall_time.map(|time| time.0)),
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
