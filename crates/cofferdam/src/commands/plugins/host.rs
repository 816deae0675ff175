//! The host of plugins that a command opens: its state, its log, and the plugins that it loads.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam::plugins::{Host, HostConfig, LoadOptions, LocalConfig, LocalExtensions, Mode, Sink};
use cofferdam::{Error, ErrorKind, Result};
use cofferdam_linux::named;
use cofferdam_plugin::Strategy;
use cofferdam_plugin::package::{self, Installed};
use parking_lot::Mutex;
use serde_json::Value;

use super::{data, debug};
use crate::args::{HostArgs, RunArgs, StrategyArg};
use crate::report;
use crate::settings::{Environment, Settings};
use crate::style::Tone;
use crate::terminal::one_line;

/// The name of the log in the state directory. Its predecessor has the suffix `.1`.
pub const LOG: &str = "plugins.jsonl";
/// The size at which the log is renamed.
const MAX_LOG: u64 = 16 << 20;
/// The variable that allows what `--development` allows, if it is 1.
const DEVELOPMENT: &str = "COFFERDAM_PLUGIN_DEV_MODE";
/// The maximum size of a configuration.
const MAX_CONFIG: u64 = 1 << 20;
/// The time for which a command waits for another host on the same state.
const STATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the directory of the state.
pub fn state(configured: Option<&Path>) -> Result<PathBuf> {
    match configured {
        Some(path) => Ok(std::path::absolute(path).unwrap_or_else(|_| path.to_owned())),
        None => Ok(data::directory()?.join("plugin-state")),
    }
}

/// Opens the host, and waits if another command uses the state.
pub async fn open(args: &HostArgs, config: Option<PathBuf>) -> Result<Host> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let mut flags = RunArgs::default();
    flags.limits.allow_weaker.clone_from(&args.allow_weaker);
    open_with(args, &Settings::resolve(&flags, &Environment::read(variable)?, &file)?).await
}

/// Opens the host like [`open`], with settings that are known.
pub async fn open_with(args: &HostArgs, settings: &Settings) -> Result<Host> {
    let extensions = Arc::new(LocalExtensions::new(LocalConfig {
        setup: settings.setup.clone(),
        image: args.image.clone(),
        code: settings.code.clone(),
        allow_weaker: settings.allow_weaker.clone(),
    })?);
    let state = state(args.state.as_deref())?;
    let mode = mode(args.development, std::env::var_os(DEVELOPMENT).as_deref());
    cofferdam_util::private::create_directory(&state).map_err(|error| failed("create the state directory", error))?;
    let found = state.symlink_metadata().map_err(|error| failed("examine the state directory", error))?;
    if let Some(exposure) = cofferdam_util::private::exposure(&found) {
        let message = format!("the state directory cannot be used: {exposure}");
        return Err(Error::invalid("open the plugin host", message)
            .with_context("path", state.display().to_string())
            .with_remedy("name a directory that only this user can change"));
    }
    let sink = sink(&state, args);
    let traces = args.traces.as_deref().map(traces).transpose()?;
    let begun = Instant::now();
    loop {
        let config = HostConfig {
            state: state.clone(),
            // Without a directory for data, nothing is installed.
            protected: data::directory().into_iter().collect(),
            key: args.key.clone(),
            mode,
            tenant: None,
            sink: Arc::clone(&sink),
            traces: traces.clone(),
            extensions: Arc::clone(&extensions) as _,
        };
        match Host::open(config) {
            Err(error) if error.kind() == ErrorKind::Conflict && begun.elapsed() < STATE_TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            opened => return opened,
        }
    }
}

/// Loads the plugins of `--with`.
pub async fn load_others(host: &Host, args: &HostArgs) -> Result<()> {
    for other in &args.with {
        load_one(host, other, LoadOptions::default()).await?;
    }
    Ok(())
}

/// Loads a plugin with the options of the command line. Returns its name.
pub async fn load(host: &Host, plugin: &str, args: &HostArgs) -> Result<String> {
    let debugging = debug::debugging(args, plugin)?;
    let config = args.plugin_config.as_deref().map(configuration).transpose()?;
    let strategy = args.strategy.map(Into::into).or(debugging.as_ref().map(|_| Strategy::Thread));
    let options = LoadOptions { config, strategy, debugging: debugging.clone(), installed: None };
    let name = load_one(host, plugin, options).await?;
    debugging.iter().try_for_each(|debugging| debug::announce(debugging, plugin))?;
    Ok(name)
}

/// Returns the mode of the host: that of the option, or of the environment.
fn mode(development: bool, variable: Option<&OsStr>) -> Mode {
    if variable == Some(OsStr::new("1")) {
        let message = format!("DEVELOPMENT MODE, by {DEVELOPMENT}=1: plugins may ask for no isolation");
        report::remark(&message, Tone::Warning);
        return Mode::Development;
    }
    if development { Mode::Development } else { Mode::Production }
}

/// Loads a plugin: an installed one, or a directory. Returns its name.
pub async fn load_one(host: &Host, plugin: &str, options: LoadOptions) -> Result<String> {
    let (directory, installed) = find(plugin)?;
    if installed.is_none() && host.mode() == Mode::Production {
        refuse_installed_name(plugin)?;
    }
    let options = LoadOptions { installed: installed.map(Arc::new), ..options };
    let before: Vec<String> = host.plugins().into_iter().map(|status| status.name).collect();
    for warning in host.load(&directory, options).await? {
        report::remark(&one_line(&format!("{plugin}: {warning}")), Tone::Warning);
    }
    let loaded = host.plugins().into_iter().find(|status| !before.contains(&status.name));
    loaded.map(|status| status.name).ok_or_else(|| Error::invalid("load plugin", "the plugin was not loaded"))
}

/// Refuses a directory whose plugin has the name of an installed one: their secrets and files are found by the name.
fn refuse_installed_name(plugin: &str) -> Result<()> {
    let Ok(data) = data::directory() else { return Ok(()) };
    let name = super::inspect::manifest(plugin)?.name;
    if package::find(&data, &name).is_err() {
        return Ok(());
    }
    let message = format!("a plugin '{name}' is installed, and its secrets and files would be those of this directory");
    Err(Error::new(ErrorKind::Denied, "load plugin", message)
        .with_remedy("use --development or another --state for a plugin that you wrote"))
}

/// Returns the directory of a plugin: a path with a slash or a dot at its beginning, else an installed one.
pub fn find(plugin: &str) -> Result<(PathBuf, Option<Installed>)> {
    if plugin.contains('/') || plugin.starts_with('.') {
        return Ok((plugin.into(), None));
    }
    match package::find(&data::directory()?, plugin) {
        Ok(installed) => Ok((installed.directory.clone(), Some(installed))),
        Err(error) => {
            let error = error.into_error("find plugin");
            Err(if Path::new(plugin).is_dir() {
                error.with_remedy(format!("write ./{plugin} for the directory"))
            } else {
                error
            })
        }
    }
}

/// Reads the configuration of a plugin.
pub fn configuration(path: &Path) -> Result<Value> {
    let mut text = String::new();
    let read = named::read(path).and_then(|file| file.take(MAX_CONFIG).read_to_string(&mut text));
    read.map_err(|error| failed("read the configuration", error))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::invalid("load plugin", format!("the configuration is not JSON: {error}")))
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "open the plugin host", format!("cannot {what}")).with_source(error)
}

/// Returns the log: a file of JSON lines in the state directory. It is opened with the first line, when no other host uses
/// the state any more.
fn sink(state: &Path, args: &HostArgs) -> Sink {
    let (verbose, debug) = (args.verbose, args.debug);
    let (path, old) = (state.join(LOG), state.join(format!("{LOG}.1")));
    let file: Mutex<Option<File>> = Mutex::new(None);
    Arc::new(move |line: &Value| {
        let text = format!("{line}\n");
        if verbose {
            let _ = std::io::stderr().write_all(text.as_bytes());
        } else {
            debug::show(line, debug);
        }
        let mut file = file.lock();
        let is_full = file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|found| found.len() > MAX_LOG);
        if is_full && std::fs::rename(&path, &old).is_ok() {
            *file = None;
        }
        if file.is_none() {
            *file = append_to(&path).ok();
        }
        if let Some(file) = &mut *file {
            let _ = file.write_all(text.as_bytes());
        }
    })
}

/// Opens a file for lines of this user. Follows no link at its name.
fn append_to(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)
}

/// Returns the receiver of spans: a file that grows by a line for each.
fn traces(path: &Path) -> Result<Sink> {
    let file = Mutex::new(append_to(path).map_err(|error| failed("open the file of traces", error))?);
    Ok(Arc::new(move |line: &Value| {
        let _ = file.lock().write_all(format!("{line}\n").as_bytes());
    }))
}

impl From<StrategyArg> for Strategy {
    fn from(strategy: StrategyArg) -> Self {
        match strategy {
            StrategyArg::Subprocess => Self::Subprocess,
            StrategyArg::Container => Self::Container,
            StrategyArg::Vm => Self::Vm,
            StrategyArg::Wasm => Self::Wasm,
            StrategyArg::Thread => Self::Thread,
            StrategyArg::Inline => Self::Inline,
        }
    }
}
