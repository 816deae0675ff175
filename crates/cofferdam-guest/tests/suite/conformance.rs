//! The conformance suite, with the agent in namespaces.

use std::sync::Arc;

use cofferdam_conformance::{Options, Outcome, Target, UnixPrograms, run};
use cofferdam_contract::{Protection, Spec};

use crate::backend::EnclosureBackend;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_over_the_agent() {
    // These enclosures have no control groups. Only the protections that need them may be weaker.
    let weaker = [Protection::Memory, Protection::Processes, Protection::Cpus, Protection::CgroupNamespace];
    let spec = weaker.into_iter().fold(Spec::builder(), |spec, protection| spec.allow_weaker(protection));
    let target = Target::new(Arc::new(EnclosureBackend::default()), UnixPrograms::default());
    let report = run(&target.with_spec(spec.build().unwrap()), &Options { parallelism: 2, ..Options::default() }).await;
    for case in report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
        println!("{case}");
    }
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    assert!(report.is_success(), "{}\n{}", failures.join("\n"), report.summary());
    let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(passed >= 85, "only {passed} cases could be run");
}
