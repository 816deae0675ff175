//! The specification of a test, from the file NAME.json beside it.

use std::path::Path;

use serde_json::{Map, Value};

/// The input of a test and its expected results. The default has no input and exit code 0.
#[derive(Default)]
pub struct Specification {
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The test's names of its directories, with their paths relative to the test.
    pub directories: Vec<(String, String)>,
    /// The expected exit code.
    pub exit_code: i64,
    /// The expected standard output, if specified.
    pub stdout: Option<String>,
    /// The expected standard error, if specified.
    pub stderr: Option<String>,
}

impl Specification {
    /// Reads the specification. An unknown field is an error, so that no requirement is ignored.
    pub fn read(module: &Path) -> Result<Self, String> {
        let path = module.with_extension("json");
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read its specification: {error}"))?;
        match serde_json::from_str(&text) {
            Ok(Value::Object(fields)) => Self::parse(fields),
            Ok(_) => Err("its specification is not an object".to_owned()),
            Err(error) => Err(format!("cannot parse its specification: {error}")),
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
            done.ok_or_else(|| format!("its specification has the unknown or invalid field '{field}'"))?;
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
