//! The conformance suite against the backend.

use std::sync::Arc;

use cofferdam_conformance::{Options, Target, run};
use cofferdam_wasm::{WasmBackend, WasmPrograms};

/// Promise (WebAssembly): The WebAssembly backend passes the conformance suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes() {
    let target = Target::new(Arc::new(WasmBackend::default()), WasmPrograms);
    let report = run(&target, &Options { parallelism: 2, ..Options::default() }).await;
    println!("{report}");
    assert!(report.is_success(), "{report}");
}
