//! `cofferdam schema`: the JSON Schema of the contract's types.

use cofferdam::{ExecRequest, Exit, Posture, Spec};
use schemars::schema_for;
use serde_json::{Value, json};

use crate::args::{SchemaArgs, SchemaName};
use crate::report::{document, printed};

/// Prints one schema, or an object with all schemas.
pub fn main(args: &SchemaArgs) -> u8 {
    let value = args.name.map_or_else(all, schema);
    printed(document(&value), 0)
}

fn all() -> Value {
    json!({
        "spec": schema(SchemaName::Spec),
        "exec": schema(SchemaName::Exec),
        "exit": schema(SchemaName::Exit),
        "posture": schema(SchemaName::Posture),
    })
}

fn schema(name: SchemaName) -> Value {
    match name {
        SchemaName::Spec => schema_for!(Spec),
        SchemaName::Exec => schema_for!(ExecRequest),
        SchemaName::Exit => schema_for!(Exit),
        SchemaName::Posture => schema_for!(Posture),
    }
    .to_value()
}
