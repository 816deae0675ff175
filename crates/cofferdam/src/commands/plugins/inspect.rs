//! `cofferdam plugins inspect`: what a plugin is and may do.

use std::fmt::Write as _;

use cofferdam::Result;
use cofferdam_plugin::package::{grants, limits, strategy};
use cofferdam_plugin::{Format, Manifest, Problem};
use serde_json::json;

use super::{answer, host, manifest_at, read};
use crate::args::InspectPluginArgs;
use crate::terminal::one_line;

/// Describes a plugin.
pub fn inspect(args: &InspectPluginArgs) -> Result<u8> {
    let manifest = manifest(&args.plugin)?;
    let (directory, _) = host::find(&args.plugin)?;
    let value = json!({
        "manifest": manifest,
        "directory": directory,
        "strategy": strategy(&manifest),
        "grants": grants(&manifest),
    });
    Ok(answer(args.json, &value, &text(&manifest)))
}

/// Returns the manifest of an installed plugin, or of a directory.
pub fn manifest(plugin: &str) -> Result<Manifest> {
    let path = manifest_at(&host::find(plugin)?.0)?;
    cofferdam_plugin::check(&read(&path)?, Format::of(&path)).map(|(manifest, _)| manifest).map_err(|problems| {
        let first = problems.first().map(Problem::to_string).unwrap_or_default();
        cofferdam::Error::invalid("inspect plugin", format!("the manifest is invalid: {first}"))
            .with_remedy("run `cofferdam plugins validate` on it")
    })
}

fn text(manifest: &Manifest) -> String {
    let mut text = format!("{} {}, {}\n", manifest.name, manifest.version, strategy(manifest));
    if let Some(description) = &manifest.description {
        let _ = writeln!(text, "{}", one_line(description));
    }
    text.push_str("may:\n");
    for grant in grants(manifest) {
        let _ = writeln!(text, "  {:<12} {}", grant.name, one_line(&grant.values.join(", ")));
    }
    let limits = limits(manifest);
    let limits = if limits.is_empty() { "those of the host".to_owned() } else { limits.join(", ") };
    let _ = writeln!(text, "limits: {}", one_line(&limits));
    text.push_str("methods:\n");
    for (name, method) in &manifest.methods {
        let description = method.description.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {name}  {}", one_line(description));
    }
    text
}
