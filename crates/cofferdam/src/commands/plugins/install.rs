//! `cofferdam plugins install` and `uninstall`.
//!
//! The command shows what the plugin may do before it asks. Nothing is asked without a terminal.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_plugin::package::{Grant, KeyChange, Package, PackageError, PublicKey, Review, Store, grants, limits};
use serde_json::json;

use super::{answer, data};
use crate::args::{InstallArgs, UninstallArgs};
use crate::prompt;
use crate::report;
use crate::style::Tone;
use crate::terminal::one_line;

const OPERATION: &str = "install plugin";
/// Exit status if the user declined.
const DECLINED: u8 = 1;

fn failed(error: PackageError) -> Error {
    error.into_error(OPERATION)
}

/// Verifies a package, shows what the plugin may do, asks, and installs it.
pub fn install(args: &InstallArgs) -> Result<u8> {
    let package = Package::open(&args.file).map_err(failed)?;
    let store = Store::new(&data::directory()?);
    let review = store.review(&package).map_err(failed)?;
    let change = if args.replace_key { KeyChange::Accept } else { KeyChange::Refuse };
    review.check_key(&package, change).map_err(failed)?;
    // If standard error is closed, the user cannot be asked either.
    let _ = io::stderr().write_all(summary(&package, &review).as_bytes());
    if !is_trusted(args, &package, &review)? || !is_approved(args, &package)? {
        report::remark("nothing was installed", Tone::Warning);
        return Ok(DECLINED);
    }
    if !review.is_known_key {
        store.trust(&package.signer()).map_err(failed)?;
    }
    let installed = store.install(&package, &review, change).map_err(failed)?;
    let record = &installed.record;
    let value = json!({
        "plugin": record,
        "directory": installed.directory,
        "previous": review.previous.as_ref().map(|previous| &previous.version),
        "grants": grants(package.manifest()),
        "added": review.added,
    });
    Ok(answer(args.json, &value, &format!("installed {} {}\n", record.name, record.version)))
}

/// Uninstalls a plugin.
pub fn uninstall(args: &UninstallArgs) -> Result<u8> {
    Store::new(&data::directory()?).uninstall(&args.name).map_err(|error| error.into_error("uninstall plugin"))?;
    Ok(answer(args.json, &json!({"name": args.name}), &format!("uninstalled {}\n", args.name)))
}

/// Returns true if the key of the package is trusted, or becomes trusted now.
fn is_trusted(args: &InstallArgs, package: &Package, review: &Review) -> Result<bool> {
    if let Some(path) = &args.trust {
        return check_trust(path, package).map(|()| true);
    }
    if review.is_known_key {
        return Ok(true);
    }
    let fingerprint = package.signer().fingerprint();
    match prompt::is_interactive() {
        true => prompt::ask(OPERATION, &format!("Trust the key {fingerprint}?")),
        false => Err(failed(PackageError::UnknownKey { fingerprint })),
    }
}

/// Refuses a package that is signed with another key than that of a file.
fn check_trust(path: &Path, package: &Package) -> Result<()> {
    let (trusted, signer) = (PublicKey::read(path).map_err(failed)?, package.signer());
    if trusted == signer {
        return Ok(());
    }
    let (trusted, signer) = (trusted.fingerprint(), signer.fingerprint());
    let message = format!("the package is signed with the key {signer}, and the trusted key is {trusted}");
    Err(Error::new(ErrorKind::Denied, OPERATION, message)
        .with_context("path", path.display().to_string())
        .with_remedy("get the package and the public key again from the author"))
}

fn is_approved(args: &InstallArgs, package: &Package) -> Result<bool> {
    let manifest = package.manifest();
    match args.yes {
        true => Ok(true),
        false if prompt::is_interactive() => {
            prompt::ask(OPERATION, &format!("Install {} {}?", manifest.name, manifest.version))
        }
        false => Err(Error::invalid(OPERATION, "there is no terminal to ask on")
            .with_remedy("pass --yes if the plugin may do what is shown")),
    }
}

/// Describes a package: what the plugin may do, its signer, and what changes.
fn summary(package: &Package, review: &Review) -> String {
    let manifest = package.manifest();
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<12} {}", one_line(value));
    };
    let known = if review.is_known_key { "trusted" } else { "not trusted yet" };
    add("signed by", &format!("{} ({known})", package.signer().fingerprint()));
    add("digest", package.digest());
    add("runtime", json!(manifest.runtime).as_str().unwrap_or_default());
    for Grant { name, values } in grants(manifest) {
        add(name, &values.join(", "));
    }
    let limits = limits(manifest);
    add("limits", &if limits.is_empty() { "those of the host".to_owned() } else { limits.join(", ") });
    if let Some(previous) = &review.previous {
        add("replaces", &previous.version);
    }
    for Grant { name, values } in &review.added {
        add("new", &format!("{name}: {}", values.join(", ")));
    }
    let description = manifest.description.as_deref().unwrap_or_default();
    format!("{} {} {}\n{text}", manifest.name, manifest.version, one_line(description))
}
