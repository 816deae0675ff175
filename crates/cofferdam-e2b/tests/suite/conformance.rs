//! The conformance suite over the local server.

use cofferdam_conformance::{Options, Outcome, Target, UnixPrograms, run};

use crate::server::LocalE2b;
use crate::support::{backend, weaker_spec};

/// Promise (Conformance suite): The e2b backend passes the conformance suite against a server of E2B's protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2b_backend_passes_the_conformance_suite() {
    let server = LocalE2b::start().await;
    let target = Target::new(backend(&server), UnixPrograms::default()).with_spec(weaker_spec());
    let filter = std::env::var("COFFERDAM_CASES").ok();
    let is_whole = filter.is_none();
    let report = run(&target, &Options { filter, ..Options::default() }).await;
    for case in report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
        println!("{case}");
    }
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    assert!(report.is_success(), "{}\n{}", failures.join("\n"), report.summary());
    let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    println!("{}", report.summary());
    assert!(!is_whole || passed >= 70, "only {passed} cases could be run");
    server.stop().await;
}
