//! `--debug` of `cofferdam plugins call` and `run`: how to attach a debugger, and where a profile is.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam::plugins::{Debugging, Port};
use cofferdam::{Error, Result};
use cofferdam_plugin::{Manifest, Runtime};
use serde_json::Value;

use super::inspect;
use crate::args::{DebugArg, HostArgs};
use crate::report;
use crate::style::Tone;

/// The beginning of the line in which Node.js prints the URL of its inspector.
const LISTENING: &str = "Debugger listening on ";

/// Returns the debugging of a plugin that the options want. Reserves its port.
pub fn debugging(args: &HostArgs, plugin: &str) -> Result<Option<Debugging>> {
    Ok(match args.debug {
        None => None,
        Some(DebugArg::Inspect) => Some(Debugging::Inspect(Arc::new(Port::reserve()?))),
        Some(DebugArg::Profile) => Some(Debugging::Profile(profile(args, &inspect::manifest(plugin)?)?)),
    })
}

/// Prints how to attach a debugger to a loaded plugin.
pub fn announce(debugging: &Debugging, plugin: &str) -> Result<()> {
    let Debugging::Inspect(port) = debugging else { return Ok(()) };
    let manifest = inspect::manifest(plugin)?;
    let (name, port) = (&manifest.name, port.number());
    let how = match manifest.runtime {
        Runtime::Node => "for example Chrome at chrome://inspect".to_owned(),
        _ => format!(
            r#"for example VS Code: {{"type": "debugpy", "request": "attach", "connect": {{"host": "127.0.0.1", "port": {port}}}}}"#
        ),
    };
    report::remark(&format!("attach a debugger of {name} to 127.0.0.1:{port}, {how}"), Tone::Good);
    Ok(())
}

/// Prints the files of the profiles that plugins wrote.
pub fn report_profiles(args: &HostArgs, plugins: &[String]) {
    if args.debug != Some(DebugArg::Profile) {
        return;
    }
    let profiles = plugins.iter().filter_map(|plugin| profile(args, &inspect::manifest(plugin).ok()?).ok());
    for file in profiles {
        let shown = file.display();
        match file.exists() {
            true => report::remark(&format!("wrote the profile {shown}"), Tone::Good),
            false => report::remark(&format!("the plugin wrote no profile to {shown}"), Tone::Warning),
        }
    }
}

/// Prints the lines of the log that a developer needs at once.
pub fn show(line: &Value, debug: Option<DebugArg>) {
    let text = |name: &str| line[name].as_str().unwrap_or_default();
    let plugin = text("plugin");
    match text("event") {
        "plugin.no-isolation" => report::remark(&format!("{plugin}: {}", text("message")), Tone::Warning),
        "plugin.reloaded" => report::remark(&format!("reloads {plugin}: {} changed", text("path")), Tone::Good),
        "plugin.output" if debug == Some(DebugArg::Inspect) && text("text").starts_with(LISTENING) => {
            report::remark(&format!("{plugin}: {}", text("text")), Tone::Good);
        }
        _ => {}
    }
}

/// Returns the file of a plugin's profile.
fn profile(args: &HostArgs, manifest: &Manifest) -> Result<PathBuf> {
    let directory = args.profile_dir.clone().unwrap_or_else(|| ".".into());
    if !directory.is_dir() {
        let message = format!("'{}' is not a directory", directory.display());
        return Err(Error::invalid("debug plugin", message).with_remedy("create it, or choose another --profile-dir"));
    }
    let suffix = if manifest.runtime == Runtime::Node { "cpuprofile" } else { "trace.json" };
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    Ok(directory.join(format!("{}-{}.{suffix}", manifest.name, std::process::id())))
}
