//! Results: files named after the benchmark and the time of its start, and what people read.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// A file with results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    name: String,
    text: String,
}

impl File {
    /// A file of this name.
    pub fn new(name: String, text: String) -> Self {
        Self { name, text }
    }

    /// `<stem>.json`.
    pub fn json(stem: &str, value: &Value) -> Self {
        Self::new(format!("{stem}.json"), format!("{value:#}\n"))
    }
}

/// Writes the files, and then prints the table and where the files are. Whoever reads only a part of the table loses no
/// file.
pub fn publish(out: &Path, files: &[File], table: &str) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
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
    fn files_are_written_below_a_directory_that_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new/results");
        let json = File::json("churn-7", &serde_json::json!({ "benchmark": "churn" }));
        publish(&out, &[json, File::new("churn-7.svg".into(), "<svg/>".into())], "").unwrap();
        let text = fs::read_to_string(out.join("churn-7.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["benchmark"], "churn");
        assert_eq!(fs::read_to_string(out.join("churn-7.svg")).unwrap(), "<svg/>");
    }
}
