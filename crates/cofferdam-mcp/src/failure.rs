//! Errors of calls as results that a model can read and act on. Protocol errors are only for requests that are not tool
//! calls.

use cofferdam_contract::Error;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::Value;

/// The key of the error's parts in the result's `_meta`.
pub const ERROR: &str = "cofferdam/error";

/// Maximum length of a text in an error, in bytes.
const MAX_TEXT: usize = 2000;

/// Returns the result of a failed call: the failure, its reason and its remedy. There is no structured content, because
/// it would have to match the tool's output schema. The parts of the error are in `_meta`.
pub fn result(error: &Error) -> CallToolResult {
    let mut text = clipped(&error.to_string());
    if let Some(remedy) = error.remedy() {
        text += "\ntry: ";
        text += &clipped(remedy);
    }
    let mut meta = MetaObject::new();
    meta.0.insert(ERROR.to_owned(), parts(error));
    CallToolResult::error(vec![ContentBlock::text(text)]).with_meta(Some(meta))
}

/// Returns the parts of an error, with long texts truncated.
pub fn parts(error: &Error) -> Value {
    let mut parts = error.to_json();
    clip(&mut parts);
    parts
}

/// Truncates the text of an error, which may contain client data as long as a message.
pub fn clipped(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_TEXT);
    format!("{}… ({} bytes more)", &text[..end], text.len() - end)
}

fn clip(value: &mut Value) {
    match value {
        Value::String(text) => *text = clipped(text),
        Value::Array(all) => all.iter_mut().for_each(clip),
        Value::Object(all) => all.values_mut().for_each(clip),
        _ => {}
    }
}

/// Returns the error for arguments that do not match the tool's schema.
pub fn arguments(tool: &str, error: &serde_json::Error) -> Error {
    Error::invalid("call", format!("the arguments of {tool} are invalid: {error}"))
        .with_remedy("use only the fields of the tool's input schema in tools/list")
}
