//! Result files, named after the benchmark and its start time, and the printed table.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// A result file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    name: String,
    text: String,
}

impl File {
    /// Creates a file with this name.
    pub fn new(name: String, text: String) -> Self {
        Self { name, text }
    }

    /// Creates `<stem>.json`.
    pub fn json(stem: &str, value: &Value) -> Self {
        Self::new(format!("{stem}.json"), format!("{value:#}\n"))
    }
}

/// Writes the files, then prints the table and the paths of the files. The files are complete even if the table's
/// reader stops early.
pub fn publish(out: &Path, files: &[File], table: &str) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut text = format!("{table}\n");
    for file in files {
        let path = out.join(&file.name);
        fs::write(&path, &file.text).with_context(|| format!("cannot write {}", path.display()))?;
        text += &format!("written to {}\n", path.display());
    }
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot print the table"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_below_a_created_directory() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new/results");
        let json = File::json("leak-7", &serde_json::json!({ "benchmark": "leak" }));
        publish(&out, &[json, File::new("leak-7.svg".into(), "<svg/>".into())], "").unwrap();
        let text = fs::read_to_string(out.join("leak-7.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["benchmark"], "leak");
        assert_eq!(fs::read_to_string(out.join("leak-7.svg")).unwrap(), "<svg/>");
    }
}
