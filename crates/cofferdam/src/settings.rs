//! What holds after options, environment, configuration file and defaults were put over one another, in that order of
//! precedence. Pure: everything comes in as arguments.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use cofferdam::registry::{self, BackendInfo};
use cofferdam::{
    ByteSize, DEFAULT_CANCEL_GRACE, DEFAULT_MAX_OUTPUT, Error, Level, Limits, Protection, Result, TenantId,
    parse_duration,
};

use crate::args::{LimitArgs, RunArgs};
use crate::bound::Bound;
use crate::config::{ConfigFile, ConfigLimits};
use crate::languages::Languages;
use crate::resident::DaemonUse;

/// What the environment says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `SANDBOX_TYPE`: the backend.
    pub backend: Option<String>,
    /// `SANDBOX_TIMEOUT_SEC`: real time allowed.
    pub timeout: Option<Duration>,
    /// `COFFERDAM_DAEMON`: whether a daemon runs things.
    pub daemon: Option<DaemonUse>,
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
        Ok(Self { backend: text("SANDBOX_TYPE").filter(|text| !text.is_empty()), timeout, daemon })
    }
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
    /// The languages that may run.
    pub languages: Languages,
    /// Whether a daemon runs it.
    pub daemon: DaemonUse,
}

impl Settings {
    /// Puts options over environment over file over defaults.
    pub fn resolve(flags: &RunArgs, environment: &Environment, file: &ConfigFile) -> Result<Self> {
        let tenant = flags.place.tenant.clone().or_else(|| file.tenant.clone()).unwrap_or_default();
        let weaker = match flags.limits.allow_weaker.is_empty() {
            true => &file.allow_weaker,
            false => &flags.limits.allow_weaker,
        };
        Ok(Self {
            backend: backend(flags.backend.as_deref(), flags.level, environment, file)?,
            limits: limits(&flags.limits, environment, &file.limits)?,
            max_output: flags.limits.max_output.or(file.max_output.map(|size| size.0)).unwrap_or(DEFAULT_MAX_OUTPUT),
            tenant,
            allow_weaker: weaker.iter().copied().collect(),
            cancel_grace: flags.limits.cancel_grace.unwrap_or(DEFAULT_CANCEL_GRACE),
            languages: Languages::new(&file.languages, file.languages_allowed.as_ref())?,
            daemon: flags.daemon.or(environment.daemon).or(file.use_daemon).unwrap_or_default(),
        })
    }
}

/// The backend that was named, if its wall is thick enough; else one whose wall is.
pub fn backend(
    flag: Option<&str>,
    level: Option<Level>,
    environment: &Environment,
    file: &ConfigFile,
) -> Result<&'static BackendInfo> {
    let level = level.or(file.level);
    let named = [
        (flag, "--backend"),
        (environment.backend.as_deref(), "SANDBOX_TYPE"),
        (file.backend.as_deref(), "the configuration file"),
    ];
    let Some((name, source)) = named.into_iter().find_map(|(name, source)| name.map(|name| (name, source))) else {
        return registry::for_level(level.unwrap_or(Level::Simulated));
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
        _ => Ok(info),
    }
}

fn limits(flags: &LimitArgs, environment: &Environment, file: &ConfigLimits) -> Result<Limits> {
    let default = Limits::default();
    let timeout = flags.timeout.or(environment.timeout).or(file.wall_time.map(|time| time.0));
    let limits = Limits {
        cpu_time: pick(flags.cpu_time, file.cpu_time, default.cpu_time),
        memory: pick(flags.memory, file.memory, default.memory),
        disk: pick(flags.disk, file.disk, default.disk),
        wall_time: timeout.unwrap_or(default.wall_time),
        processes: pick(flags.pids, file.processes, default.processes),
        cpus: pick(flags.cpus, file.cpus, default.cpus),
    };
    limits.validate()?;
    Ok(limits)
}

fn pick<T>(flag: Option<Bound<T>>, file: Option<Bound<T>>, default: Option<T>) -> Option<T> {
    flag.or(file).map_or(default, Bound::into_option)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command};
    use crate::bound::Human;

    fn flags(line: &str) -> RunArgs {
        let raw: Vec<_> = ["cofferdam", "run"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
        match args::parse(&raw).unwrap().command {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }

    fn environment(entries: &[(&str, &str)]) -> Result<Environment> {
        Environment::read(|name| entries.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn options_beat_environment_beats_file_beats_defaults() {
        let file = ConfigFile {
            limits: ConfigLimits { wall_time: Some(Human(Duration::from_secs(3))), ..ConfigLimits::default() },
            backend: Some("simulated".to_owned()),
            ..ConfigFile::default()
        };
        let set = environment(&[("SANDBOX_TIMEOUT_SEC", "2"), ("SANDBOX_TYPE", "local")]).unwrap();
        let unset = Environment::default();
        for (line, environment, file, seconds, backend) in [
            ("--timeout 1s --backend simulated x.py", &set, &file, 1, "simulated"),
            ("x.py", &set, &file, 2, "process"),
            ("x.py", &unset, &file, 3, "simulated"),
            ("x.py", &unset, &ConfigFile::default(), 60, "process"),
        ] {
            let settings = Settings::resolve(&flags(line), environment, file).unwrap();
            assert_eq!(settings.limits.wall_time, Duration::from_secs(seconds), "{line}");
            assert_eq!(settings.backend.name, backend, "{line}");
        }
    }

    #[test]
    fn a_limit_can_be_lifted_on_each_layer() {
        let file = ConfigFile {
            limits: ConfigLimits {
                memory: Some(Bound::None),
                processes: Some(Bound::Of(3)),
                ..ConfigLimits::default()
            },
            ..ConfigFile::default()
        };
        let settings = Settings::resolve(&flags("--pids none x.py"), &Environment::default(), &file).unwrap();
        assert_eq!((settings.limits.memory, settings.limits.processes), (None, None));
        let settings = Settings::resolve(&flags("--memory 1M x.py"), &Environment::default(), &file).unwrap();
        assert_eq!(settings.limits.memory, Some(ByteSize::from_mebibytes(1)));
        assert_eq!(settings.limits.processes, Some(3));
        assert_eq!(settings.limits.disk, Limits::default().disk);
    }

    #[test]
    fn the_level_is_a_floor_under_every_source_of_the_backend() {
        let none = Environment::default();
        let choose = |line: &str, environment: &Environment, file: &ConfigFile| {
            Settings::resolve(&flags(line), environment, file).map(|settings| settings.backend.name)
        };
        let file = ConfigFile { level: Some(Level::Process), ..ConfigFile::default() };
        assert_eq!(choose("--level 1 x.py", &none, &ConfigFile::default()).unwrap(), "process");
        assert!(choose("--level vm x.py", &none, &ConfigFile::default()).is_err());
        assert!(choose("--backend simulated x.py", &none, &file).is_err());
        let simulated = environment(&[("SANDBOX_TYPE", "simulated")]).unwrap();
        assert!(choose("x.py", &simulated, &file).is_err());
        assert_eq!(choose("--level simulated x.py", &simulated, &file).unwrap(), "simulated");
    }

    #[test]
    fn whether_a_daemon_is_used_is_settled_like_everything_else() {
        let file = ConfigFile { use_daemon: Some(DaemonUse::Start), ..ConfigFile::default() };
        let set = environment(&[("COFFERDAM_DAEMON", "never")]).unwrap();
        let choose = |line: &str, environment: &Environment, file: &ConfigFile| {
            Settings::resolve(&flags(line), environment, file).unwrap().daemon
        };
        assert_eq!(choose("--daemon require x.py", &set, &file), DaemonUse::Require);
        assert_eq!(choose("x.py", &set, &file), DaemonUse::Never);
        assert_eq!(choose("x.py", &Environment::default(), &file), DaemonUse::Start);
        assert_eq!(choose("x.py", &Environment::default(), &ConfigFile::default()), DaemonUse::Auto);
        let error = environment(&[("COFFERDAM_DAEMON", "yes")]).unwrap_err();
        assert!(error.message().starts_with("COFFERDAM_DAEMON is 'yes'"), "{error}");
    }

    #[test]
    fn bad_variables_are_named() {
        for value in ["soon", "0", "-1", "NaN", "inf", "1e30", "60s"] {
            let error = environment(&[("SANDBOX_TIMEOUT_SEC", value)]).unwrap_err();
            assert!(error.message().starts_with("SANDBOX_TIMEOUT_SEC is"), "{error}");
        }
        assert_eq!(environment(&[("SANDBOX_TIMEOUT_SEC", ""), ("SANDBOX_TYPE", "")]).unwrap(), Environment::default());
        for name in ["docker", "e2b", "wasm", "qemu", "firecracker"] {
            let environment = environment(&[("SANDBOX_TYPE", name)]).unwrap();
            let error = Settings::resolve(&flags("x.py"), &environment, &ConfigFile::default()).unwrap_err();
            assert_eq!(error.kind(), cofferdam::ErrorKind::Unsupported, "{name}");
            assert_eq!(error.context().next(), Some(("named by", "SANDBOX_TYPE")));
        }
    }
}
