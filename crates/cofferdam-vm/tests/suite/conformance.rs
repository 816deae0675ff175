//! The conformance kit on machines.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_conformance::{Options, Outcome, Target, UnixPrograms, run};
use cofferdam_contract::ByteSize;

use crate::support;

/// Machines are translated: what takes a second elsewhere takes many here.
const DEADLINE: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_passes_on_translated_machines() {
    let test = "the_kit_passes_on_translated_machines";
    if !std::env::var_os("COFFERDAM_TEST_MACHINES").is_some_and(|value| value == "all") {
        println!("SKIP {test}: it takes several minutes; COFFERDAM_TEST_MACHINES=all has it run");
        return;
    }
    let Some(backend) = support::backend(test) else { return };
    let before = support::census();
    let root = tempfile::tempdir().unwrap();
    support::root(root.path()).expect("packages were had before");
    let target = Target::new(Arc::new(backend), UnixPrograms::default()).with_root(root.path());
    let filter = std::env::var("COFFERDAM_TEST_CASE").ok();
    let whole = filter.is_none();
    let progress: cofferdam_conformance::Progress = Arc::new(|case| println!("{case}"));
    let large_file = ByteSize::from_mebibytes(64);
    let options = Options { parallelism: 2, filter, deadline: DEADLINE, large_file, progress: Some(progress) };
    let report = run(&target, &options).await;
    for case in report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
        println!("SKIP {case}");
    }
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}\n{}", failures.join("\n"), report.summary());
    let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(passed >= 90 || !whole, "only {passed} cases could be run");
    println!("{}", report.summary());
    assert_eq!(support::left(&before).await, Default::default());
}
