//! What the file NAME.json beside a test says about it.

use std::path::Path;

use serde_json::{Map, Value};

/// What a test is given and what it must do. Without a file, nothing is given and the code is 0.
#[derive(Default)]
pub struct Specification {
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// What the test calls its directories, and where they lie from the test's own.
    pub directories: Vec<(String, String)>,
    /// The code to exit with.
    pub exit_code: i64,
    /// What must be printed, where that is said.
    pub stdout: Option<String>,
    /// The same for errors.
    pub stderr: Option<String>,
}

impl Specification {
    /// Reads it. What is not understood is an error: a test must not pass by half.
    pub fn read(module: &Path) -> Result<Self, String> {
        let path = module.with_extension("json");
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("its specification: {error}"))?;
        match serde_json::from_str(&text) {
            Ok(Value::Object(fields)) => Self::parse(fields),
            Ok(_) => Err("its specification is no object".to_owned()),
            Err(error) => Err(format!("its specification: {error}")),
        }
    }

    fn parse(fields: Map<String, Value>) -> Result<Self, String> {
        let mut all = Self::default();
        for (field, value) in fields {
            let done = match field.as_str() {
                "args" => texts(&value).map(|args| all.args = args),
                "dirs" => {
                    texts(&value).map(|dirs| all.directories.extend(dirs.into_iter().map(|dir| (dir.clone(), dir))))
                }
                "root" => text(&value).map(|dir| all.directories.push(("/".to_owned(), dir))),
                "env" => pairs(&value).map(|env| all.env = env),
                "exit_code" => value.as_i64().map(|code| all.exit_code = code),
                "stdout" => text(&value).map(|text| all.stdout = Some(text)),
                "stderr" => text(&value).map(|text| all.stderr = Some(text)),
                _ => None,
            };
            done.ok_or_else(|| format!("its specification has a field '{field}' that is not understood"))?;
        }
        Ok(all)
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(text).collect()
}

fn pairs(value: &Value) -> Option<Vec<(String, String)>> {
    value.as_object()?.iter().map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}
