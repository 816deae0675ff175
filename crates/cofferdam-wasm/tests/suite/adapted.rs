//! The conformance suite with each of its programs as a component: a module of preview 1 with the adapter that
//! compilers ship, which translates its calls into those of the component interfaces.

use std::sync::Arc;

use cofferdam_conformance::{GuestProgram, Options, Programs, Target, run};
use cofferdam_contract::{Command, ExecRequest, ExecRequestBuilder, Script};
use cofferdam_wasm::{WasmBackend, WasmPrograms};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
};
use wit_component::ComponentEncoder;

use crate::componentize::meant_for;
use crate::support::assemble;

/// Converts a module to a component with the same behaviour.
///
/// The adapter passes on only success or failure, as in older versions of the interface. So the module is changed to
/// report its exit code itself.
pub(crate) fn adapt(module: &[u8]) -> Vec<u8> {
    let text = wasmprinter::print_bytes(module)
        .expect("a module")
        .replace(r#""wasi_snapshot_preview1" "proc_exit""#, r#""wasi:cli/exit@0.2.12" "exit-with-code""#);
    let module = meant_for(assemble(&text), "coded { import wasi:cli/exit@0.2.12; }");
    let encoder = ComponentEncoder::default().module(&module).expect("a module");
    let encoder = encoder.adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER);
    encoder.expect("the adapter").validate(true).encode().expect("a component")
}

#[derive(Debug)]
struct AdaptedPrograms;

impl Programs for AdaptedPrograms {
    fn request(&self, program: &GuestProgram) -> Option<ExecRequestBuilder> {
        // A component cannot raise a signal.
        if matches!(program, GuestProgram::KillSelf(_)) {
            return None;
        }
        let builder = WasmPrograms.request(program)?;
        let request = builder.clone().build().ok()?;
        match request.command() {
            Command::Script(script) => {
                let contents = adapt(&script.contents).into();
                Some(ExecRequest::builder(Command::Script(Script { contents, ..script.clone() })))
            }
            _ => Some(builder),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_with_components() {
    let target = Target::new(Arc::new(WasmBackend::default()), AdaptedPrograms);
    let report = run(&target, &Options { parallelism: 2, ..Options::default() }).await;
    println!("{report}");
    assert!(report.is_success(), "{report}");
}
