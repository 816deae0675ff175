//! Runs the conformance suite on a backend from outside Cofferdam's workspace.
//!
//! Put your own backend in place of the simulated one, and for guests with a shell `UnixPrograms::default()` in place
//! of its programs.
use cofferdam_conformance::{Options, Target, run};
use cofferdam_simulated::{SimulatedBackend, SimulatedPrograms};

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let target = Target::new(std::sync::Arc::new(SimulatedBackend::default()), SimulatedPrograms);
    let report = run(&target, &Options { parallelism: 4, ..Options::default() }).await;
    println!("{report}");
    if report.is_success() { 0.into() } else { 1.into() }
}
