//! JSON schemas of arguments and results of tools, simplified for clients.

use std::sync::Arc;

use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde_json::Value;

/// Returns the schema of arguments.
pub fn input<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    // Every type of arguments is a struct, so its schema is an object. A test checks this.
    let schema = schema_for_input::<T>().map(plain).unwrap_or_default();
    let mut object = Arc::unwrap_or_clone(schema);
    object.values_mut().for_each(simple);
    Arc::new(object)
}

/// Returns the schema of a structured result.
pub fn output<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    plain(schema_for_output::<T>())
}

/// Removes the formats of Rust's numbers, which validators do not know and some reject.
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

/// Removes `null` from the types of optional fields, because some clients cannot read unions with null.
fn simple(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    object.insert("type".to_owned(), only);
                }
            }
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            if let Some(Value::Array(mut forms)) = object.remove("anyOf") {
                forms.retain(|form| form["type"] != "null");
                match (forms.len(), forms.pop()) {
                    (1, Some(Value::Object(only))) => object.extend(only),
                    (_, last) => {
                        forms.extend(last);
                        object.insert("anyOf".to_owned(), Value::Array(forms));
                    }
                }
            }
            object.values_mut().for_each(simple);
        }
        Value::Array(items) => items.iter_mut().for_each(simple),
        _ => {}
    }
}
