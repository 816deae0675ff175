//! The configuration file: where it is, what it may say.
//!
//! It is never looked for in the current directory: that may be the untrusted repository one is about to run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use cofferdam::code::{AuditConfig, Bounds, Language, ScreeningConfig, SessionBounds};
use cofferdam::registry::Pull;
use cofferdam::registry::machines::{Acceleration, Build, Driver, Jailer};
use cofferdam::{ByteSize, Cpus, Error, ErrorKind, Level, Protection, Result, TenantId};
use cofferdam_linux::trust::{self, Distrust, Secrecy};
use serde::{Deserialize, Deserializer, de};

use crate::bound::{Bound, Human, Seed};
use crate::resident::DaemonUse;

/// The longest configuration file that is read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// What a configuration file may say; every key is optional, an unknown one is an error.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigFile {
    /// The backend that makes sandboxes.
    pub backend: Option<String>,
    /// Least thickness of the wall.
    #[serde(deserialize_with = "parsed")]
    pub level: Option<Level>,
    /// Whose work runs.
    pub tenant: Option<TenantId>,
    /// Protections that may be weaker than asked.
    pub allow_weaker: Vec<Protection>,
    /// Bytes of output passed on.
    pub max_output: Option<Human<ByteSize>>,
    /// Bounds.
    pub limits: ConfigLimits,
    /// The only languages that may run.
    pub languages_allowed: Option<BTreeSet<String>>,
    /// Languages added or changed.
    pub languages: BTreeMap<String, Language>,
    /// Upper bounds of one call with code.
    pub code: Option<Bounds>,
    /// Whether code is screened, and by which rules.
    pub screening: Option<ScreeningConfig>,
    /// The audit log.
    pub audit: Option<AuditConfig>,
    /// How many sessions there are, and for how long.
    pub sessions: SessionBounds,
    /// Whether a daemon runs things.
    pub use_daemon: Option<DaemonUse>,
    /// How a daemon is set up.
    pub daemon: ConfigDaemon,
    /// How containers are made.
    pub containers: ConfigContainers,
    /// How virtual machines are made.
    pub machines: ConfigMachines,
    /// How WebAssembly runs.
    pub wasm: ConfigWasm,
    /// How agents are served.
    pub mcp: ConfigMcp,
}

/// The table `[mcp]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigMcp {
    /// Sandboxes at once.
    pub sandboxes: Option<usize>,
    /// Sandboxes of one client.
    pub sandboxes_of_client: Option<usize>,
    /// Snapshots at once.
    pub snapshots: Option<usize>,
    /// Snapshots of one client.
    pub snapshots_of_client: Option<usize>,
    /// Live interpreters of one client session.
    pub interpreters_of_client: Option<usize>,
    /// Time after which a sandbox is closed that no call uses.
    pub idle: Option<Human<Duration>>,
    /// Calls at once.
    pub calls: Option<usize>,
    /// Client sessions over HTTP.
    pub clients: Option<usize>,
    /// Connections over HTTP.
    pub connections: Option<usize>,
    /// The largest file that is read or written at once.
    pub max_file: Option<Human<ByteSize>>,
    /// The largest message of a client.
    pub max_message: Option<Human<ByteSize>>,
}

/// The table `[machines]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigMachines {
    /// Where images are kept.
    pub images: Option<PathBuf>,
    /// The image where none is named.
    pub image: Option<String>,
    /// Whether a missing image is made.
    #[serde(deserialize_with = "parsed")]
    pub build: Option<Build>,
    /// Memory of a machine without a limit on it.
    pub memory: Option<Human<ByteSize>>,
    /// Processors of a machine without a share of them.
    pub processors: Option<u32>,
    /// Which monitor makes machines.
    #[serde(deserialize_with = "parsed")]
    pub driver: Option<Driver>,
    /// Firecracker's program.
    pub firecracker: Option<PathBuf>,
    /// Whether its own jailer starts Firecracker.
    #[serde(deserialize_with = "parsed")]
    pub jailer: Option<Jailer>,
    /// QEMU's program.
    pub qemu: Option<PathBuf>,
    /// What runs a machine's instructions.
    #[serde(deserialize_with = "parsed")]
    pub accelerator: Option<Acceleration>,
    /// The processor that machines have.
    pub processor: Option<String>,
}

/// The table `[wasm]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigWasm {
    /// Seed of clocks and random bytes that are the same each time.
    pub deterministic: Option<Human<Seed>>,
    /// Steps that each exec may take.
    pub fuel: Option<Bound<NonZeroU64>>,
}

/// The table `[containers]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigContainers {
    /// The engine's address.
    pub host: Option<String>,
    /// The image where none is named.
    pub image: Option<String>,
    /// Whether images are pulled.
    #[serde(deserialize_with = "parsed")]
    pub pull: Option<Pull>,
    /// The only images that may be named.
    pub images_allowed: Option<Vec<String>>,
}

/// The table `[limits]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigLimits {
    /// CPU seconds of one exec.
    pub cpu_time: Option<Bound<Duration>>,
    /// Memory of the sandbox.
    pub memory: Option<Bound<ByteSize>>,
    /// Bytes stored.
    pub disk: Option<Bound<ByteSize>>,
    /// Real time of one exec.
    pub wall_time: Option<Human<Duration>>,
    /// Processes and threads alive at once.
    pub pids: Option<Bound<u32>>,
    /// Processes alive at once, without their threads.
    pub processes: Option<Bound<u32>>,
    /// Processor share.
    pub cpus: Option<Bound<Cpus>>,
}

/// The table `[daemon]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigDaemon {
    /// Time without a run after which it ends.
    pub idle_exit: Option<Bound<Duration>>,
    /// How long runs may go on when it is told to end.
    pub drain: Option<Human<Duration>>,
    /// Runs at once.
    pub connections: Option<usize>,
    /// Sandboxes kept ready.
    pub warm: Option<usize>,
    /// Python interpreters kept ready.
    pub python: Option<usize>,
    /// Modules that those import beforehand.
    pub python_modules: Vec<String>,
    /// Node interpreters kept ready.
    pub node: Option<usize>,
    /// Modules that those load beforehand.
    pub node_modules: Vec<String>,
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<Option<T>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

/// Reads the file that was named, or the user's own if there is one.
///
/// `named` is `--config`, else the variable `COFFERDAM_CONFIG`; a file that was named must exist.
pub fn load(named: Option<PathBuf>, variable: impl Fn(&str) -> Option<OsString>) -> Result<ConfigFile> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = named.or_else(|| set("COFFERDAM_CONFIG")) {
        return parse(&path, &read(&path)?);
    }
    let Some(path) = default_path(set("XDG_CONFIG_HOME"), set("HOME")) else { return Ok(ConfigFile::default()) };
    match trust::open(&path, Secrecy::Public) {
        Err(distrust) if distrust.is_missing() => Ok(ConfigFile::default()),
        opened => parse(&path, &contents(&path, opened)?),
    }
}

/// A relative path would be looked up in the current directory, so it does not count.
fn default_path(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let base = xdg.filter(absolute).or_else(|| home.filter(absolute).map(|home| home.join(".config")))?;
    Some(base.join("cofferdam").join("config.toml"))
}

fn read(path: &Path) -> Result<String> {
    contents(path, trust::open(path, Secrecy::Public))
}

/// Reads a file that only root and this user can change: it names programs that are started.
fn contents(path: &Path, opened: Result<File, Distrust>) -> Result<String> {
    let file = opened.map_err(|distrust| match distrust {
        Distrust::Io { source, .. } => unreadable(path, source),
        distrust => {
            let remedy = format!("{}; or name a file of your own with --config", distrust.remedy());
            Error::new(ErrorKind::Denied, "read configuration", format!("the file is not trusted: {distrust}"))
                .with_remedy(remedy)
        }
    })?;
    let mut text = String::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text).map_err(|error| unreadable(path, error))?;
    if text.len() as u64 > MAX_CONFIG_BYTES {
        return Err(Error::invalid("read configuration", format!("'{}' is longer than 1 MiB", path.display())));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::invalid("read configuration", format!("cannot read '{}'", path.display()))
        .with_source(error)
        .with_remedy("name another file with --config, or make this one readable")
}

fn parse(path: &Path, text: &str) -> Result<ConfigFile> {
    let refused = |message: String| {
        Error::invalid("read configuration", format!("{}{message}", path.display()))
            .with_remedy("correct the file; docs/configuration.md lists what it may say")
    };
    let screening = |table: &toml::Table| table.get("screening").and_then(toml::Value::as_table).cloned();
    if let Some(table) = toml::from_str(text).ok().as_ref().and_then(screening)
        && table.contains_key("rules")
        && !table.contains_key("mode")
    {
        return Err(refused(": [screening] has rules and no mode, by which nothing would be screened".to_owned()));
    }
    toml::from_str(text).map_err(|error| {
        let place = error.span().map(|span| place(text, span.start)).unwrap_or_default();
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        refused(format!("{place}: {message}"))
    })
}

/// `:LINE` and, where the line sets a key, its name.
fn place(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    let number = before.matches('\n').count() + 1;
    match line.split_once('=') {
        Some((key, _)) => format!(":{number}: {}", key.trim()),
        None => format!(":{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(Path::new("/c.toml"), text).unwrap_err().message().to_owned()
    }

    #[test]
    fn the_documented_example_is_valid() {
        let text = include_str!("../../../docs/configuration.md");
        let example = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let config = parse(Path::new("docs/configuration.md"), example).unwrap();
        assert_eq!(config.backend.as_deref(), Some("process"));
        assert_eq!(config.level, Some(Level::Process));
        assert_eq!(config.limits.memory, Some(Bound::Of(ByteSize::from_mebibytes(256))));
        assert_eq!(config.machines.accelerator, Some(Acceleration::Auto));
        assert_eq!(config.machines.jailer, Some(Jailer::Off));
        assert_eq!(config.machines.memory, Some(Human(ByteSize::from_mebibytes(512))));
        assert_eq!(config.limits.cpu_time, Some(Bound::None));
        assert_eq!(config.wasm.deterministic, Some(Human(Seed("a seed".to_owned()))));
        assert_eq!(config.wasm.fuel, NonZeroU64::new(1_000_000_000).map(Bound::Of));
        assert_eq!(config.limits.wall_time, Some(Human(Duration::from_secs(20))));
        assert!(config.languages.contains_key("ruby"));
        cofferdam::code::Languages::new(&config.languages, config.languages_allowed.as_ref()).unwrap();
    }

    #[test]
    fn rules_that_nothing_would_be_judged_by_are_refused() {
        let message = error("[screening.rules]\nmost_findings = 3\n");
        assert!(message.contains("has rules and no mode"), "{message}");
        for mode in ["off", "warn", "block"] {
            let text = format!("[screening]\nmode = \"{mode}\"\nrules = {{ most_findings = 3 }}\n");
            parse(Path::new("/c.toml"), &text).unwrap();
        }
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let message = error("[limits]\nmemroy = 1\n");
        assert!(message.starts_with("/c.toml:2: memroy: unknown field `memroy`, expected one of"), "{message}");
        let message = error("level = \"9\"\n");
        assert!(message.starts_with("/c.toml:1: level: '9' is not a level"), "{message}");
        let message = error("[limits]\n\nmemory = \"lots\"\n");
        assert!(message.starts_with("/c.toml:3: memory: 'lots' is not a size"), "{message}");
        assert!(error("allow_weaker = [\"all\"]").starts_with("/c.toml:1: allow_weaker: unknown variant `all`"));
        let message = error("[wasm]\nfuel = 0\n");
        assert!(message.starts_with("/c.toml:2: fuel: '0' is not a whole number above 0"), "{message}");
        let message = error("[machines]\naccelerator = \"hvf\"\n");
        assert!(message.starts_with("/c.toml:2: accelerator: 'hvf' is no accelerator"), "{message}");
        assert!(error("backend = ").starts_with("/c.toml:1"));
    }

    #[test]
    fn only_absolute_places_are_looked_at() {
        let path = |xdg: Option<&str>, home: Option<&str>| {
            default_path(xdg.map(PathBuf::from), home.map(PathBuf::from)).map(|path| path.display().to_string())
        };
        assert_eq!(path(Some("/x"), Some("/h")).as_deref(), Some("/x/cofferdam/config.toml"));
        assert_eq!(path(Some("x"), Some("/h")).as_deref(), Some("/h/.config/cofferdam/config.toml"));
        assert_eq!(path(None, Some("h")), None);
        assert_eq!(path(None, None), None);
    }

    #[test]
    fn a_named_file_must_exist() {
        assert!(load(Some("/no/such.toml".into()), |_| None).is_err());
        assert!(load(None, |name| (name == "COFFERDAM_CONFIG").then(|| "/no/such.toml".into())).is_err());
        assert!(load(None, |name| (name == "HOME").then(|| "/no/such".into())).is_ok());
    }
}
