//! `cofferdam plugins`: manifests, packages and the host of plugins.

pub mod call;
mod data;
mod debug;
pub mod host;
mod inspect;
mod install;
mod list;
mod logs;
mod new;
mod package;
mod run;

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_linux::named::{self, Directory};
use cofferdam_plugin::package::MANIFEST_NAMES;
use cofferdam_plugin::{Format, MAX_MANIFEST, Manifest, Problem};
use rustix::fs::{AtFlags, statat};
use serde_json::{Value, json};

use crate::args::{PluginsArgs, PluginsCommand, ValidateArgs};
use crate::report::{self, Form, document, print, printed};

/// Runs the subcommand.
pub fn main(args: &PluginsArgs, config: Option<PathBuf>) -> u8 {
    match &args.command {
        PluginsCommand::Validate(args) => finish(validate(args), args.json),
        PluginsCommand::Schema => printed(document(&cofferdam_plugin::schema()), 0),
        PluginsCommand::New(args) => finish(new::create(args), args.json),
        PluginsCommand::Call(args) => finish(call::call(args, config), args.json),
        PluginsCommand::Run(args) => finish(run::run(args, config), false),
        PluginsCommand::Logs(args) => finish(logs::logs(args), args.json),
        PluginsCommand::Inspect(args) => finish(inspect::inspect(args), args.json),
        PluginsCommand::Secret(args) => finish(call::secret(args), false),
        PluginsCommand::Keygen(args) => finish(package::keygen(args), args.json),
        PluginsCommand::Package(args) => finish(package::pack(args), args.json),
        PluginsCommand::Install(args) => finish(install::install(args), args.json),
        PluginsCommand::Uninstall(args) => finish(install::uninstall(args), args.json),
        PluginsCommand::List(args) => finish(list::list(args), args.json),
    }
}

/// Returns the exit status, after reporting an error.
fn finish(result: Result<u8>, json: bool) -> u8 {
    report::finish(result, Form::of(json))
}

/// Prints the result of a command. Returns the exit status.
fn answer(json: bool, value: &Value, text: &str) -> u8 {
    printed(report::show(Form::of(json), value, text), 0)
}

fn validate(args: &ValidateArgs) -> Result<u8> {
    let mut checked = Vec::new();
    for path in &args.paths {
        let path = manifest_at(path)?;
        let text = read(&path)?;
        checked.push((path.clone(), cofferdam_plugin::check(&text, Format::of(&path))));
    }
    let status = u8::from(checked.iter().any(|(_, result)| result.is_err()));
    if args.json {
        let manifests: Vec<_> = checked
            .iter()
            .map(|(path, result)| {
                let path = path.display().to_string();
                match result {
                    Ok((manifest, warnings)) => json!({"path": path, "manifest": manifest, "problems": warnings}),
                    Err(problems) => json!({"path": path, "problems": problems}),
                }
            })
            .collect();
        return Ok(printed(document(&json!({"valid": status == 0, "manifests": manifests})), status));
    }
    let text: String = checked.iter().map(|(path, result)| shown(path, result)).collect();
    Ok(printed(print(&text), status))
}

fn shown(path: &Path, result: &std::result::Result<(Manifest, Vec<Problem>), Vec<Problem>>) -> String {
    let path = path.display().to_string();
    let path: String = path.chars().flat_map(char::escape_debug).collect();
    let lines = |problems: &[Problem]| problems.iter().map(|problem| format!("{path}:{problem}\n")).collect::<String>();
    match result {
        Ok((manifest, warnings)) => {
            format!("{}{path}: ok, {} {}\n", lines(warnings), manifest.name, manifest.version)
        }
        Err(problems) => format!("{}{path}: {} problems\n", lines(problems), problems.len()),
    }
}

/// Returns the manifest of a directory, or the path itself.
fn manifest_at(path: &Path) -> Result<PathBuf> {
    let Ok(directory) = Directory::open(path) else { return Ok(path.to_owned()) };
    let directory = OwnedFd::from(directory);
    let found = MANIFEST_NAMES.iter().find(|name| statat(&directory, **name, AtFlags::SYMLINK_NOFOLLOW).is_ok());
    found.map(|name| path.join(name)).ok_or_else(|| {
        Error::invalid("validate", "the directory has no plugin.toml and no plugin.json")
            .with_context("path", path.display().to_string())
            .with_remedy("name a manifest, or a directory that has one")
    })
}

/// Reads a manifest, up to a byte more than it may have.
fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let text =
        named::read(path).and_then(|file| file.take(MAX_MANIFEST as u64 + 1).read_to_end(&mut bytes)).and_then(|_| {
            String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
        });
    text.map_err(|error| {
        Error::new(ErrorKind::Io, "validate", format!("cannot read the manifest: {error}"))
            .with_context("path", path.display().to_string())
    })
}
