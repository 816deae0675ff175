//! How failures reach a client: as results that a model can read and act on. Protocol errors are for what is no call of
//! a tool at all.

use cofferdam_contract::Error;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::Value;

/// The key under which the error's parts stand in the result's `_meta`.
pub const ERROR: &str = "cofferdam/error";

/// Bytes of a text in an error.
const MOST: usize = 2000;

/// A failed call: what failed and why, and what to do about it. There is no structured content, which would have to be
/// what the tool gives when it works; the parts stand in `_meta`.
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

/// The parts of an error, cut.
pub fn parts(error: &Error) -> Value {
    let mut parts = error.to_json();
    clip(&mut parts);
    parts
}

/// What an error says, cut: it may name what a client sent, which may be as long as a message.
pub fn clipped(text: &str) -> String {
    if text.len() <= MOST {
        return text.to_owned();
    }
    format!("{}… ({} bytes more)", &text[..text.floor_char_boundary(MOST)], text.len() - text.floor_char_boundary(MOST))
}

fn clip(value: &mut Value) {
    match value {
        Value::String(text) => *text = clipped(text),
        Value::Array(all) => all.iter_mut().for_each(clip),
        Value::Object(all) => all.values_mut().for_each(clip),
        _ => {}
    }
}

/// Arguments that do not fit the tool's schema.
pub fn arguments(tool: &str, error: &serde_json::Error) -> Error {
    Error::invalid("call", format!("the arguments of {tool} do not fit: {error}"))
        .with_remedy("see the tool's input schema in tools/list; a field that is not in it is refused")
}
