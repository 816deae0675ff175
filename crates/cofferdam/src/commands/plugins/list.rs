//! `cofferdam plugins list`: the installed plugins.

use cofferdam::Result;
use cofferdam_plugin::package::{Installed, PackageError, installed, strategy};
use serde_json::{Value, json};

use super::{answer, data};
use crate::args::ListArgs;
use crate::terminal::one_line;

/// The digits of a digest in the table.
const SHORT_DIGEST: usize = 12;

/// A plugin by its name. A damaged one has an error.
type Row = (String, Result<Installed, PackageError>);

/// Lists the installed plugins.
pub fn list(args: &ListArgs) -> Result<u8> {
    #[cfg(feature = "server")]
    if let Some(done) = crate::commands::server::plugins::list(args) {
        return done;
    }
    let all = installed(&data::directory()?).map_err(|error| error.into_error("list plugins"))?;
    let values: Vec<Value> = all.iter().map(value).collect();
    let lines: String = all.iter().map(line).collect();
    let text = if all.is_empty() { "no plugin is installed\n" } else { &lines };
    Ok(answer(args.json, &json!({"plugins": values}), text))
}

fn value((name, found): &Row) -> Value {
    match found {
        Err(error) => json!({"name": name, "error": error.to_string()}),
        Ok(Installed { record, directory, manifest, .. }) => json!({
            "name": name,
            "version": record.version,
            "runtime": manifest.runtime,
            "strategy": strategy(manifest),
            "permissions": manifest.permissions,
            "digest": record.digest,
            "key": record.key,
            "time": record.time,
            "directory": directory,
        }),
    }
}

fn line((name, found): &Row) -> String {
    match found {
        Err(error) => format!("{name:<24} {}\n", one_line(&error.to_string())),
        Ok(Installed { record, manifest, .. }) => {
            let runtime = json!(manifest.runtime);
            let permissions: Vec<&str> = manifest.permissions.iter().map(|permission| permission.as_str()).collect();
            format!(
                "{name:<24} {:<10} {:<8} {:<10} {} {}\n",
                record.version,
                runtime.as_str().unwrap_or_default(),
                strategy(manifest),
                record.digest.get(..SHORT_DIGEST).unwrap_or_default(),
                if permissions.is_empty() { "(no permissions)".to_owned() } else { permissions.join(",") }
            )
        }
    }
}
