//! The host of plugins that a command opens: its state, its log, and the plugins that it loads.

use std::ffi::OsStr;
use std::fs::OpenOptions;
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
pub fn state(given: Option<&Path>) -> Result<PathBuf> {
    match given {
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
    let settings = Settings::resolve(&flags, &Environment::read(variable)?, &file)?;
    let extensions = Arc::new(LocalExtensions::new(LocalConfig {
        setup: settings.setup.clone(),
        image: args.image.clone(),
        code: settings.code.clone(),
        allow_weaker: settings.allow_weaker.clone(),
    })?);
    let state = state(args.state.as_deref())?;
    let mode = mode(args.development, variable(DEVELOPMENT).as_deref());
    cofferdam_util::private::create_directory(&state).map_err(|error| failed("create the state directory", error))?;
    let sink = sink(&state, args)?;
    let traces = args.traces.as_deref().map(traces).transpose()?;
    let begun = Instant::now();
    loop {
        let config = HostConfig {
            state: state.clone(),
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

/// Loads a plugin and those that it may invoke. Returns its name.
pub async fn load(host: &Host, plugin: &str, args: &HostArgs) -> Result<String> {
    for other in &args.with {
        load_one(host, other, LoadOptions::default()).await?;
    }
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

async fn load_one(host: &Host, plugin: &str, options: LoadOptions) -> Result<String> {
    let (directory, installed) = find(plugin)?;
    let options = LoadOptions { installed: installed.map(Arc::new), ..options };
    let before: Vec<String> = host.plugins().into_iter().map(|status| status.name).collect();
    for warning in host.load(&directory, options).await? {
        report::remark(&one_line(&format!("{plugin}: {warning}")), Tone::Warning);
    }
    let loaded = host.plugins().into_iter().find(|status| !before.contains(&status.name));
    loaded.map(|status| status.name).ok_or_else(|| Error::invalid("load plugin", "the plugin was not loaded"))
}

/// Returns the directory of a plugin: a path with a slash or a dot at its beginning, else an installed one.
pub fn find(plugin: &str) -> Result<(PathBuf, Option<Installed>)> {
    if plugin.contains('/') || plugin.starts_with('.') {
        return Ok((plugin.into(), None));
    }
    match package::find(&data::directory()?, plugin) {
        Ok(installed) => Ok((installed.directory.clone(), Some(installed))),
        Err(_) if Path::new(plugin).is_dir() => Ok((plugin.into(), None)),
        Err(error) => Err(error.into_error("find plugin")),
    }
}

fn configuration(path: &Path) -> Result<Value> {
    let mut text = String::new();
    let read = named::read(path).and_then(|file| file.take(MAX_CONFIG).read_to_string(&mut text));
    read.map_err(|error| failed("read the configuration", error))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::invalid("load plugin", format!("the configuration is not JSON: {error}")))
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "open the plugin host", format!("cannot {what}")).with_source(error)
}

/// Returns the log: a file of JSON lines in the state directory.
fn sink(state: &Path, args: &HostArgs) -> Result<Sink> {
    let (verbose, debug) = (args.verbose, args.debug);
    let path = state.join(LOG);
    let open = move || OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = open().map_err(|error| failed("open the log", error))?;
    let (file, state) = (Mutex::new(file), state.to_owned());
    Ok(Arc::new(move |line: &Value| {
        let text = format!("{line}\n");
        if verbose {
            let _ = std::io::stderr().write_all(text.as_bytes());
        } else {
            debug::show(line, debug);
        }
        let mut file = file.lock();
        if file.metadata().is_ok_and(|found| found.len() > MAX_LOG)
            && std::fs::rename(state.join(LOG), state.join(format!("{LOG}.1"))).is_ok()
            && let Ok(new) = open()
        {
            *file = new;
        }
        let _ = file.write_all(text.as_bytes());
    }))
}

/// Returns the receiver of spans: a file that grows by a line for each.
fn traces(path: &Path) -> Result<Sink> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let file = Mutex::new(file.map_err(|error| failed("open the file of traces", error))?);
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
