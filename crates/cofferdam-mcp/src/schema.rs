//! Schemas of what tools take and give, as clients get them.

use std::sync::Arc;

use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde_json::Value;

/// The schema of arguments.
pub fn input<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    // Every type of arguments is a structure, and so an object; a test holds that.
    schema_for_input::<T>().map(plain).unwrap_or_default()
}

/// The schema of a structured result.
pub fn output<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    plain(schema_for_output::<T>())
}

/// Takes out the formats of Rust's numbers, which no validator knows and some complain about.
fn plain(schema: Arc<JsonObject>) -> Arc<JsonObject> {
    let mut object = Arc::unwrap_or_clone(schema);
    object.remove("$schema");
    object.values_mut().for_each(strip);
    Arc::new(object)
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let numeric = |format: &str| ["uint", "int", "float", "double"].iter().any(|word| format.starts_with(word));
            if object.get("format").and_then(Value::as_str).is_some_and(numeric) {
                object.remove("format");
            }
            object.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}
