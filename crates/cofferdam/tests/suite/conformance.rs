//! The conformance kit on the process backend, with a census of the host.

use cofferdam::registry;
use cofferdam_conformance::{Options, Outcome, run};

use crate::census;

#[test]
fn process_backend_passes_the_conformance_kit() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Other tests run at the same time: what stays in every look is what counts.
        let target = registry::conformance_target("process").expect("the backend is built in").with_root("/");
        let report = run(&target, &Options::default()).await;
        for case in report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
            println!("{case}");
        }
        let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
        assert!(report.is_success(), "{}\n{}", failures.join("\n"), report.summary());
        let capable = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
        assert!(capable >= 100, "only {capable} cases could be run");
    });
}

#[test]
fn whole_life_of_a_backend_leaves_nothing_behind() {
    let before = census::census();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let target = registry::conformance_target("process").expect("the backend is built in");
        let options = Options { filter: Some("cancel/".to_owned()), ..Options::default() };
        assert!(run(&target, &options).await.is_success());
    });
    let left = census::left_behind(&before, std::time::Duration::from_secs(60));
    assert!(left.is_empty(), "{left:?}");
}
