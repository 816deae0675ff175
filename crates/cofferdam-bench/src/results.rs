//! Files with results, named after the benchmark and the time of its start.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// Writes `<benchmark>-<time>.json` and says so.
pub fn write_json(out: &Path, stem: &str, value: &Value) -> Result<()> {
    write(out, &format!("{stem}.json"), &format!("{value:#}\n"))
}

/// Writes a file of this name and says so.
pub fn write(out: &Path, name: &str, text: &str) -> Result<()> {
    let file: PathBuf = out.join(name);
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("written to {}", file.display());
    Ok(())
}
