//! How failures reach a client: as results that a model can read and act on. Protocol errors are for what is no call of a
//! tool at all.

use cofferdam_contract::Error;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};

/// The key under which the error's parts stand in the result's `_meta`.
pub const ERROR: &str = "cofferdam/error";

/// A failed call: what failed and why, and what to do about it. There is no structured content, which would have to be
/// what the tool gives when it works; the parts stand in `_meta`.
pub fn result(error: &Error) -> CallToolResult {
    let mut text = error.to_string();
    if let Some(remedy) = error.remedy() {
        text += "\ntry: ";
        text += remedy;
    }
    let mut meta = MetaObject::new();
    meta.0.insert(ERROR.to_owned(), error.to_json());
    CallToolResult::error(vec![ContentBlock::text(text)]).with_meta(Some(meta))
}

/// Arguments that do not fit the tool's schema.
pub fn arguments(tool: &str, error: &serde_json::Error) -> Error {
    Error::invalid("call", format!("the arguments of {tool} do not fit: {error}"))
        .with_remedy("see the tool's input schema in tools/list; a field that is not in it is refused")
}
