//! Modules written as text, and sandboxes to run them in.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Backend, Command, Completed, ExecRequest, ExecRequestBuilder, Limits, Result, Sandbox, Script, Spec,
};
use cofferdam_wasm::{INTERPRETER, WasmBackend};

/// The functions that the conformance suite's programs can call.
pub(crate) const PRELUDE: &str = include_str!("../../src/programs.wat");
/// The timeout of operations that should end promptly.
pub(crate) const PROMPT: Duration = Duration::from_secs(60);

pub(crate) fn assemble(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns a module with this code as `_start`, with the conformance suite's helpers; `imports` come first.
pub(crate) fn program(imports: &str, code: &str) -> Vec<u8> {
    let start = format!("(func (export \"_start\") (local $i i32) (local $n i64)\n{code})");
    assemble(&format!("(module {imports}\n{PRELUDE}\n{start})"))
}

/// Returns a module with these functions, and the conformance suite's helpers.
pub(crate) fn library(code: &str) -> Vec<u8> {
    assemble(&format!("(module {PRELUDE}\n{code})"))
}

pub(crate) fn script(module: impl Into<Vec<u8>>) -> ExecRequestBuilder {
    ExecRequest::builder(Command::Script(Script {
        interpreter: vec![INTERPRETER.to_owned()],
        name: "test.wasm".to_owned(),
        contents: module.into().into(),
        args: Vec::new(),
    }))
}

pub(crate) fn limited(change: impl FnOnce(&mut Limits)) -> Spec {
    let mut limits = Limits { wall_time: PROMPT, ..Limits::default() };
    change(&mut limits);
    Spec::builder().limits(limits).build().unwrap()
}

pub(crate) async fn sandbox(spec: Spec) -> Arc<dyn Sandbox> {
    WasmBackend::default().create(spec).await.unwrap()
}

/// Runs a module in its own sandbox until it ends.
pub(crate) async fn run(module: Vec<u8>, spec: Spec) -> Result<Completed> {
    let request = script(module).build()?;
    WasmBackend::default().run(spec, request).await.map(|(done, _)| done)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
