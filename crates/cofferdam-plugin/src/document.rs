//! A parsed manifest, and the position of each part of it in the text.

use std::collections::HashMap;
use std::path::Path;

use jsonc_parser::ParseOptions;
use jsonc_parser::ast::{ObjectPropName, Value as Json};
use jsonc_parser::common::Ranged;
use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use crate::check::MAX_PROBLEMS;
use crate::problem::{Problem, Severity, plain};

/// The format of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl Format {
    /// Returns the format of a file by its name: JSON if it ends with `.json`, and else TOML.
    pub fn of(path: &Path) -> Self {
        if path.extension().is_some_and(|extension| extension == "json") { Self::Json } else { Self::Toml }
    }
}

/// The positions of a part in the text, in bytes: of its key, if it has one, and of its value.
#[derive(Debug, Clone, Copy)]
struct Position {
    key: usize,
    value: usize,
}

/// A parsed manifest.
#[derive(Debug)]
pub struct Document<'t> {
    text: &'t str,
    pub value: Value,
    positions: HashMap<String, Position>,
    /// Keys that an object has twice.
    repeated: Vec<Problem>,
}

/// The part of a problem's location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Key,
    Value,
}

impl<'t> Document<'t> {
    /// Parses a text. Fails with the problems of its syntax.
    pub fn parse(text: &'t str, format: Format) -> Result<Self, Vec<Problem>> {
        let mut document = Self { text, value: Value::Null, positions: HashMap::new(), repeated: Vec::new() };
        match format {
            Format::Toml => document.read_toml()?,
            Format::Json => document.read_json()?,
        }
        match std::mem::take(&mut document.repeated) {
            repeated if repeated.is_empty() => Ok(document),
            repeated => Err(repeated),
        }
    }

    fn read_toml(&mut self) -> Result<(), Vec<Problem>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if !errors.is_empty() {
            let problem = |error: &toml::de::Error| {
                self.syntax(error.span().map_or(0, |span| span.start), error.message(), "correct the syntax of TOML")
            };
            let mut problems: Vec<Problem> = errors.iter().take(MAX_PROBLEMS).map(problem).collect();
            problems.sort_by_key(|problem| (problem.line, problem.column));
            return Err(problems);
        }
        self.note("", 0, 0);
        self.value = self.toml_table("", table.get_ref());
        Ok(())
    }

    fn toml_table(&mut self, pointer: &str, table: &DeTable<'_>) -> Value {
        let mut object = Map::new();
        for (key, value) in table {
            let name = key.get_ref().to_string();
            let below = below(pointer, &name);
            self.note(&below, key.span().start, value.span().start);
            let value = self.toml_value(&below, value.get_ref());
            object.insert(name, value);
        }
        Value::Object(object)
    }

    fn toml_value(&mut self, pointer: &str, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| Value::String(number.to_string()), Value::from),
            DeValue::Float(number) => number
                .as_str()
                .parse()
                .ok()
                .and_then(Number::from_f64)
                .map_or_else(|| Value::String(number.to_string()), Value::Number),
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Array(list) => {
                let mut values = Vec::new();
                for (index, item) in list.iter().enumerate() {
                    let below = below(pointer, &index.to_string());
                    self.note(&below, item.span().start, item.span().start);
                    values.push(self.toml_value(&below, item.get_ref()));
                }
                Value::Array(values)
            }
            DeValue::Table(table) => self.toml_table(pointer, table),
        }
    }

    fn read_json(&mut self) -> Result<(), Vec<Problem>> {
        let strict = ParseOptions {
            allow_comments: false,
            allow_loose_object_property_names: false,
            allow_trailing_commas: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let text = self.text;
        let parsed = jsonc_parser::parse_to_ast(text, &Default::default(), &strict).map_err(|error| {
            vec![self.syntax(error.range().start, &error.kind().to_string(), "correct the syntax of JSON")]
        })?;
        let Some(value) = parsed.value else {
            return Err(vec![self.syntax(0, "the file is empty", "write a manifest, or start with one of an example")]);
        };
        self.note("", 0, value.start());
        self.value = self.json_value("", &value);
        Ok(())
    }

    fn json_value(&mut self, pointer: &str, value: &Json<'_>) -> Value {
        match value {
            Json::StringLit(text) => Value::String(text.value.to_string()),
            Json::NumberLit(number) => {
                number.value.parse().map_or_else(|_| Value::String(number.value.to_owned()), Value::Number)
            }
            Json::BooleanLit(value) => Value::Bool(value.value),
            Json::NullKeyword(_) => Value::Null,
            Json::Array(list) => {
                let mut values = Vec::new();
                for (index, item) in list.elements.iter().enumerate() {
                    let below = below(pointer, &index.to_string());
                    self.note(&below, item.start(), item.start());
                    values.push(self.json_value(&below, item));
                }
                Value::Array(values)
            }
            Json::Object(object) => {
                let mut values = Map::new();
                for property in &object.properties {
                    let (name, start) = match &property.name {
                        ObjectPropName::String(text) => (text.value.to_string(), text.range.start),
                        ObjectPropName::Word(word) => (word.value.to_owned(), word.range.start),
                    };
                    let below = below(pointer, &name);
                    if values.contains_key(&name) && self.repeated.len() < MAX_PROBLEMS {
                        let message = format!("the key '{}' is there twice", plain(&name));
                        let (line, column) = self.line_and_column(start);
                        self.repeated.push(Problem {
                            severity: Severity::Error,
                            line,
                            column,
                            pointer: below.clone(),
                            rule: "duplicate-key",
                            message,
                            remedy: "keep one of both".to_owned(),
                        });
                    }
                    self.note(&below, start, property.value.start());
                    let value = self.json_value(&below, &property.value);
                    values.insert(name, value);
                }
                Value::Object(values)
            }
        }
    }

    fn note(&mut self, pointer: &str, key: usize, value: usize) {
        self.positions.insert(pointer.to_owned(), Position { key, value });
    }

    fn syntax(&self, start: usize, message: &str, remedy: &str) -> Problem {
        let (line, column) = self.line_and_column(start);
        let (message, remedy) = (plain(message), remedy.to_owned());
        Problem { severity: Severity::Error, line, column, pointer: String::new(), rule: "syntax", message, remedy }
    }

    /// Returns a problem at a part of the document, or at the nearest part around it.
    pub fn problem(
        &self,
        severity: Severity,
        (pointer, at): (&str, At),
        rule: &'static str,
        message: String,
        remedy: impl Into<String>,
    ) -> Problem {
        let mut around = pointer;
        let position = loop {
            match (self.positions.get(around), around.rfind('/')) {
                (Some(position), _) => break *position,
                (None, Some(slash)) => around = &around[..slash],
                (None, None) => break Position { key: 0, value: 0 },
            }
        };
        let (line, column) = self.line_and_column(if at == At::Key { position.key } else { position.value });
        Problem { severity, line, column, pointer: pointer.to_owned(), rule, message, remedy: remedy.into() }
    }

    fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }
}

/// Returns the JSON Pointer of a part of a part.
pub fn below(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}
