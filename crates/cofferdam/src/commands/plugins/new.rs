//! `cofferdam plugins new`: scaffolds of plugins.

use std::path::PathBuf;

use cofferdam::Result;
use cofferdam_plugin::scaffold;
use serde_json::json;

use super::answer;
use crate::args::NewArgs;
use crate::terminal::one_line;

/// Creates a plugin. Overwrites no file.
pub fn create(args: &NewArgs) -> Result<u8> {
    let directory = args.dir.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let files = scaffold::create(&directory, &args.name, args.runtime.into())
        .map_err(|error| error.into_error("create plugin"))?;
    let shown = one_line(&directory.display().to_string());
    let text = format!("created the plugin {} in {shown}; read {shown}/README.md\n", args.name);
    Ok(answer(args.json, &json!({"name": args.name, "directory": directory, "files": files}), &text))
}
