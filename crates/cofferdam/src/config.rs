//! The configuration file: its location and its keys.
//!
//! It is never searched in the current directory, which may be the untrusted repository that is about to run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam::code::{AuditConfig, Bounds, Language, ScreeningConfig, SessionBounds};
use cofferdam::configuration::{Bound, Human, from_text};
use cofferdam::registry::{
    ContainerSettings, E2bSettings, ImageSettings, RemoteSettings, Setup, VmSettings, WasmSettings,
};
use cofferdam::resident::ServeSettings;
use cofferdam::{ByteSize, Cpus, Error, ErrorKind, Level, NetworkRules, Protection, Result, TenantId};
use cofferdam_linux::trust::{self, Distrust, Secrecy};
use serde::{Deserialize, Deserializer};

use crate::resident::ServerUse;

/// Maximum size of a configuration file.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The keys of a configuration file. Every key is optional; an unknown key is an error.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigFile {
    /// The backend of sandboxes.
    pub backend: Option<String>,
    /// The minimum isolation level.
    #[serde(deserialize_with = "level")]
    pub level: Option<Level>,
    /// The tenant of all runs.
    pub tenant: Option<TenantId>,
    /// Protections that may be weaker than requested.
    pub allow_weaker: Vec<Protection>,
    /// The network policy of sandboxes.
    pub network: Option<NetworkRules>,
    /// Maximum output in bytes.
    pub max_output: Option<Human<ByteSize>>,
    /// Limits of sandboxes.
    pub limits: ConfigLimits,
    /// The only languages that may run.
    pub languages_allowed: Option<BTreeSet<String>>,
    /// Languages added or changed.
    pub languages: BTreeMap<String, Language>,
    /// Upper bounds of one call with code.
    pub code: Option<Bounds>,
    /// The mode and rules of screening.
    pub screening: Option<ScreeningConfig>,
    /// The audit log.
    pub audit: Option<AuditConfig>,
    /// Bounds on the number and lifetime of sessions.
    pub sessions: SessionBounds,
    /// The use of a server by runs.
    pub use_server: Option<ServerUse>,
    /// Settings of the server.
    pub serve: ServeSettings,
    /// Settings of the image store.
    pub images: ImageSettings,
    /// Settings of the container backend.
    pub containers: ContainerSettings,
    /// Settings of the VM backend.
    pub vms: VmSettings,
    /// Settings of the WebAssembly backend.
    pub wasm: WasmSettings,
    /// Settings of the remote backend.
    pub remote: RemoteSettings,
    /// Settings of the E2B backend.
    pub e2b: E2bSettings,
    /// Settings of the MCP server.
    pub mcp: ConfigMcp,
}

impl ConfigFile {
    /// Returns the settings of backends.
    pub fn setup(&self) -> Setup {
        Setup {
            images: self.images.clone(),
            containers: self.containers.clone(),
            vms: self.vms.clone(),
            wasm: self.wasm.clone(),
            remote: self.remote.clone(),
            e2b: self.e2b.clone(),
        }
    }
}

fn level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Level>, D::Error> {
    from_text(deserializer).map(Some)
}

/// The table `[mcp]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigMcp {
    /// Maximum number of sandboxes.
    pub sandboxes: Option<usize>,
    /// Maximum number of sandboxes of one client.
    pub sandboxes_of_client: Option<usize>,
    /// Maximum number of snapshots.
    pub snapshots: Option<usize>,
    /// Maximum number of snapshots of one client.
    pub snapshots_of_client: Option<usize>,
    /// Maximum number of live interpreters of one client session.
    pub interpreters_of_client: Option<usize>,
    /// Idle time after which a sandbox is closed.
    pub idle: Option<Human<Duration>>,
    /// Maximum number of concurrent calls.
    pub calls: Option<usize>,
    /// Maximum number of client sessions over HTTP.
    pub clients: Option<usize>,
    /// Maximum number of HTTP connections.
    pub connections: Option<usize>,
    /// Maximum size of a file that one call reads or writes.
    pub max_file: Option<Human<ByteSize>>,
    /// Maximum size of a client's message.
    pub max_message: Option<Human<ByteSize>>,
}

/// The table `[limits]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigLimits {
    /// Maximum CPU time of the sandbox during one exec.
    pub cpu_time: Option<Bound<Duration>>,
    /// Maximum memory of the sandbox.
    pub memory: Option<Bound<ByteSize>>,
    /// Maximum storage in bytes.
    pub disk: Option<Bound<ByteSize>>,
    /// Maximum wall time of one exec.
    pub wall_time: Option<Human<Duration>>,
    /// Maximum number of live processes and threads.
    pub pids: Option<Bound<u32>>,
    /// Maximum number of live processes, not counting threads.
    pub processes: Option<Bound<u32>>,
    /// Maximum number of CPUs in use.
    pub cpus: Option<Bound<Cpus>>,
}

/// Reads the named file, or the user's own if it exists.
///
/// `named` is the value of `--config`, else the variable `COFFERDAM_CONFIG` names the file. A named file must exist.
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

/// Returns the path of the user's own file. Ignores relative paths, which would refer to the current directory.
fn default_path(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let base = xdg.filter(absolute).or_else(|| home.filter(absolute).map(|home| home.join(".config")))?;
    Some(base.join("cofferdam").join("config.toml"))
}

fn read(path: &Path) -> Result<String> {
    contents(path, trust::open(path, Secrecy::Public))
}

/// Reads a file that only root and this user can change, because it names programs to start.
fn contents(path: &Path, opened: Result<File, Distrust>) -> Result<String> {
    let file = opened.map_err(|distrust| match distrust {
        Distrust::Io { source, .. } => unreadable(path, source),
        distrust => {
            let remedy = format!("{}; or pass another file with --config", distrust.remedy());
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
        .with_remedy("pass another file with --config, or make this one readable")
}

fn parse(path: &Path, text: &str) -> Result<ConfigFile> {
    let refused = |message: String| {
        Error::invalid("read configuration", format!("{}{message}", path.display()))
            .with_remedy("correct the file; docs/configuration.md lists all keys")
    };
    let screening = |table: &toml::Table| table.get("screening").and_then(toml::Value::as_table).cloned();
    if let Some(table) = toml::from_str(text).ok().as_ref().and_then(screening)
        && table.contains_key("rules")
        && !table.contains_key("mode")
    {
        return Err(refused(": [screening] has rules and no mode, so it would screen nothing".to_owned()));
    }
    toml::from_str(text).map_err(|error| {
        let location = error.span().map(|span| location(text, span.start)).unwrap_or_default();
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        refused(format!("{location}: {message}"))
    })
}

/// Returns `:LINE` and, if the line sets a key, the name of the key.
fn location(text: &str, offset: usize) -> String {
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
    #[cfg(feature = "wasm")]
    use std::num::NonZeroU64;

    #[cfg(feature = "vm")]
    use cofferdam::registry::vms::{Acceleration, Jailer};

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
        #[cfg(feature = "vm")]
        {
            assert_eq!(config.vms.accelerator, Some(Acceleration::Auto));
            assert_eq!(config.vms.jailer, Some(Jailer::Off));
            assert_eq!(config.vms.memory, Some(Human(ByteSize::from_mebibytes(512))));
        }
        assert_eq!(config.limits.cpu_time, Some(Bound::None));
        #[cfg(feature = "wasm")]
        {
            assert_eq!(config.wasm.deterministic.as_ref().map(|seed| seed.0.0.as_str()), Some("a seed"));
            assert_eq!(config.wasm.fuel, NonZeroU64::new(1_000_000_000).map(Bound::Of));
        }
        #[cfg(feature = "server")]
        assert_eq!(config.setup().remote.server.as_deref(), Some("https://sandboxes.example"));
        #[cfg(feature = "e2b")]
        assert_eq!(config.setup().e2b.lifetime, Some(Human(Duration::from_secs(300))));
        assert_eq!(config.limits.wall_time, Some(Human(Duration::from_secs(20))));
        assert!(config.languages.contains_key("ruby"));
        cofferdam::code::Languages::new(&config.languages, config.languages_allowed.as_ref()).unwrap();
    }

    #[test]
    fn screening_rules_without_a_mode_are_refused() {
        let message = error("[screening.rules]\nmax_findings = 3\n");
        assert!(message.contains("has rules and no mode"), "{message}");
        for mode in ["off", "warn", "block"] {
            let text = format!("[screening]\nmode = \"{mode}\"\nrules = {{ max_findings = 3 }}\n");
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
        assert!(error("backend = ").starts_with("/c.toml:1"));
    }

    #[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
    #[test]
    fn errors_in_settings_of_backends_name_file_line_and_key() {
        let message = error("[wasm]\nfuel = 0\n");
        assert!(message.starts_with("/c.toml:2: fuel: '0' is not a whole number above 0"), "{message}");
        let message = error("[vms]\naccelerator = \"hvf\"\n");
        assert!(message.starts_with("/c.toml:2: accelerator: 'hvf' is not an accelerator"), "{message}");
        let message = error("[containers]\n\npull = \"always\"\n");
        assert!(message.starts_with("/c.toml:3: pull: 'always' is not a pull policy"), "{message}");
        let message = error("[containers]\nruntime = \"runsc\"\n");
        assert!(message.starts_with("/c.toml:2: runtime: unknown field `runtime`, expected one of"), "{message}");
    }

    #[cfg(all(feature = "e2b", feature = "server"))]
    #[test]
    fn keys_are_refused_in_the_file() {
        for table in ["remote", "e2b"] {
            let message = error(&format!("[{table}]\nkey = \"secret\"\n"));
            assert!(message.starts_with("/c.toml:2: key: unknown field `key`, expected one of"), "{message}");
        }
    }

    #[test]
    fn tables_of_all_backends_are_known_to_every_build() {
        let all = "[containers]\npull = \"never\"\n[vms]\nbuild = \"never\"\n[wasm]\nfuel = \"none\"\n\
             [remote]\nserver = \"unix:/s\"\n[e2b]\ntemplate = \"mine\"\n";
        parse(Path::new("/c.toml"), all).unwrap();
        assert!(error("wasm = 1\n").starts_with("/c.toml:1: wasm"));
    }

    #[test]
    fn only_absolute_config_paths_are_read() {
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
