//! Checks of a manifest: its syntax, then its schema and the rules together.

use std::sync::LazyLock;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use schemars::schema_for;
use serde_json::Value;

use crate::document::{At, Document, below};
use crate::problem::plain;
use crate::{Format, Manifest, Problem, Severity, rules};

/// The maximum size of a manifest in bytes.
pub const MAX_MANIFEST: usize = 1 << 20;
/// The maximum number of reported problems.
pub(crate) const MAX_PROBLEMS: usize = 100;

/// The compiled schema.
static VALIDATOR: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::validator_for(&schema()).expect("the schema of manifests is valid"));

/// Returns the JSON Schema of manifests.
pub fn schema() -> Value {
    schema_for!(Manifest).to_value()
}

/// Checks a manifest. Returns it with its warnings.
///
/// # Errors
/// All problems, in the order of the text. If the syntax is wrong, those of the syntax.
pub fn check(text: &str, format: Format) -> Result<(Manifest, Vec<Problem>), Vec<Problem>> {
    if text.len() > MAX_MANIFEST {
        let document = Document::parse("", Format::Toml)?;
        let remedy = "move large parts, such as schemas, into files of their own";
        let message = "the manifest is larger than 1 MiB".to_owned();
        return Err(vec![document.problem(Severity::Error, ("", At::Value), "too-large", message, remedy)]);
    }
    let document = Document::parse(text, format)?;
    let mut problems: Vec<Problem> = VALIDATOR
        .iter_errors(&document.value)
        .take(MAX_PROBLEMS)
        .flat_map(|error| of_schema(&document, &error))
        .collect();
    rules::check(&document, &mut problems);
    problems.sort_by_key(|problem| (problem.line, problem.column, problem.severity));
    problems.dedup();
    problems.truncate(MAX_PROBLEMS);
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(problems);
    }
    match serde_json::from_value(document.value.clone()) {
        Ok(manifest) => Ok((manifest, problems)),
        Err(error) => {
            let message = plain(&error.to_string());
            let problem =
                document.problem(Severity::Error, ("", At::Value), "invalid", message, "see the schema of manifests");
            Err([vec![problem], problems].concat())
        }
    }
}

/// Returns the problems of an error of the schema.
fn of_schema(document: &Document<'_>, error: &ValidationError<'_>) -> Vec<Problem> {
    let pointer = error.instance_path().as_str().to_owned();
    let problem = |pointer: &str, at, rule, message: String, remedy: String| {
        document.problem(Severity::Error, (pointer, at), rule, message, remedy)
    };
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let known = known_keys(&pointer);
            let problem_of = |name: &String| {
                let remedy = match nearest(name, &known) {
                    Some(nearest) => format!("write '{nearest}', or remove the key"),
                    None => format!("remove the key; the known keys are {}", known.join(", ")),
                };
                let message = format!("the key '{}' is unknown", plain(name));
                problem(&below(&pointer, name), At::Key, "unknown-key", message, remedy)
            };
            unexpected.iter().take(MAX_PROBLEMS).map(problem_of).collect()
        }
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            let example = example(name);
            vec![problem(
                &pointer,
                At::Key,
                "missing-key",
                format!("the key '{name}' is missing"),
                format!("add {example}"),
            )]
        }
        ValidationErrorKind::Type { kind } => {
            let wanted = match kind {
                TypeKind::Single(kind) => kind.to_string(),
                TypeKind::Multiple(kinds) => kinds.iter().map(|kind| kind.to_string()).collect::<Vec<_>>().join(" or "),
            };
            let found = name_of(error.instance());
            let message = format!("the value must be of type {wanted}, and is of type {found}");
            vec![problem(&pointer, At::Value, "wrong-type", message, format!("write a value of type {wanted}"))]
        }
        ValidationErrorKind::Enum { options } => {
            let options: Vec<&str> = options.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            vec![unknown_value(document, &pointer, error.instance(), &options)]
        }
        // Enums whose variants have descriptions, and values with several forms.
        ValidationErrorKind::OneOfNotValid { .. } | ValidationErrorKind::AnyOf { .. } => {
            let options = options_at(&pointer);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            vec![match options.is_empty() {
                false => unknown_value(document, &pointer, error.instance(), &options),
                true => {
                    let message = format!("the value {} is invalid", shown(error.instance()));
                    problem(&pointer, At::Value, "invalid-value", message, hint(&pointer).to_owned())
                }
            }]
        }
        ValidationErrorKind::Pattern { .. } => {
            let message = format!("the value {} is invalid", shown(error.instance()));
            vec![problem(&pointer, At::Value, "invalid-value", message, hint(&pointer).to_owned())]
        }
        ValidationErrorKind::PropertyNames { error } => {
            let message = format!("the name {} is invalid", shown(error.instance()));
            let pointer = below(&pointer, error.instance().as_str().unwrap_or_default());
            vec![problem(&pointer, At::Key, "invalid-name", message, hint("/name").to_owned())]
        }
        ValidationErrorKind::UniqueItems => {
            vec![problem(
                &pointer,
                At::Value,
                "duplicate-item",
                "an item is there twice".to_owned(),
                "remove one of both".to_owned(),
            )]
        }
        _ => {
            let message = plain(&error.to_string());
            vec![problem(&pointer, At::Value, "invalid-value", message, hint(&pointer).to_owned())]
        }
    }
}

fn unknown_value(document: &Document<'_>, pointer: &str, value: &Value, options: &[&str]) -> Problem {
    let message = format!("the value {} is unknown", shown(value));
    let known: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    let remedy = match value.as_str().and_then(|text| nearest(text, &known)) {
        Some(nearest) => format!("write \"{nearest}\""),
        None => format!("write one of {}", known.join(", ")),
    };
    document.problem(Severity::Error, (pointer, At::Value), "unknown-value", message, remedy)
}

fn shown(value: &Value) -> String {
    plain(&value.to_string()).replace("\\\"", "\"")
}

fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the line that adds a required key.
fn example(name: &str) -> &'static str {
    match name {
        "manifest" => "manifest = 1",
        "name" => "a name, such as name = \"weather\"",
        "version" => "a version, such as version = \"0.1.0\"",
        "runtime" => "a runtime, such as runtime = \"python\"",
        "entry" => "an entry, such as entry = \"weather.main:activate\"",
        _ => "it",
    }
}

/// Returns the remedy for an invalid value.
fn hint(pointer: &str) -> &'static str {
    match pointer.rsplit('/').next().unwrap_or_default() {
        "manifest" => "write 1, the only version of the format",
        "name" => "use small letters, digits, and '.', '_' or '-' between them",
        "version" => "write a semantic version, such as 1.2.0",
        "memory" | "disk" => "write a size, such as \"256M\"",
        "cpuTime" | "call" | "start" | "idle" | "grace" | "within" | "minBackoff" | "maxBackoff" | "timeout" => {
            "write a time, such as \"30s\", \"500ms\" or \"5m\""
        }
        _ if pointer.starts_with("/secrets/") => "use letters, digits and '_'",
        _ => "see the schema of manifests (cofferdam plugins schema)",
    }
}

/// Returns the part of the schema for the value at a pointer, if it is a table of known keys or a list of values.
fn schema_at(pointer: &str) -> Option<Value> {
    let root = schema();
    let resolve = |part: &Value| -> Option<Value> {
        let of = |part: &Value| part["$ref"].as_str()?.strip_prefix('#').map(str::to_owned);
        let options = part["anyOf"].as_array().into_iter().flatten();
        let reference = of(part).or_else(|| options.filter_map(of).next());
        match reference {
            Some(reference) => root.pointer(&reference).cloned(),
            None => Some(part.clone()),
        }
    };
    let mut part = root.clone();
    for name in pointer.split('/').skip(1) {
        let next = match (&part["properties"][name], &part["items"], &part["additionalProperties"]) {
            (Value::Null, Value::Null, more) => more.clone(),
            (Value::Null, items, _) => items.clone(),
            (property, ..) => property.clone(),
        };
        part = resolve(&next)?;
    }
    Some(part)
}

fn known_keys(pointer: &str) -> Vec<String> {
    let keys = |part: Value| part["properties"].as_object().map(|keys| keys.keys().cloned().collect());
    schema_at(pointer).and_then(keys).unwrap_or_default()
}

/// Returns the texts that the schema allows at a pointer.
fn options_at(pointer: &str) -> Vec<String> {
    let Some(part) = schema_at(pointer) else { return Vec::new() };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let all = part["oneOf"].as_array().into_iter().flatten();
    let of_variant = |variant: &Value| {
        let list = variant["enum"].as_array().into_iter().flatten().filter_map(text).collect::<Vec<_>>();
        text(&variant["const"]).into_iter().chain(list).collect::<Vec<_>>()
    };
    all.flat_map(of_variant).chain(part["enum"].as_array().into_iter().flatten().filter_map(text)).collect()
}

/// Returns the known name that is most like another one, if any is.
fn nearest(name: &str, known: &[String]) -> Option<String> {
    let folded = |text: &str| text.to_lowercase().replace(['_', '-'], "");
    // The comparison takes time for each pair of characters.
    let name: String = folded(name).chars().take(64).collect();
    let distance = |other: &str| strsim::damerau_levenshtein(&name, &folded(other));
    let best = known.iter().min_by_key(|other| distance(other))?;
    (distance(best) <= 1 + name.chars().count() / 5).then(|| best.clone())
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
