//! The simulated backend passes the conformance suite.
#![forbid(unsafe_code)]

use std::sync::Arc;

use cofferdam_conformance::{Options, Outcome, Report, Target, run};
use cofferdam_contract::{Capability, Protection, ProtectionState};
use cofferdam_simulated::{SimulatedBackend, SimulatedConfig, SimulatedPrograms};

async fn run_suite(config: SimulatedConfig, options: Options) -> Report {
    let backend = Arc::new(SimulatedBackend::new(config));
    let census = {
        let backend = Arc::clone(&backend);
        move || backend.living().iter().map(|id| format!("sandbox {id}")).collect()
    };
    let report = run(&Target::new(backend, SimulatedPrograms).with_census(census), &options).await;
    println!("{report}");
    report
}

/// Promise (Conformance suite): The simulated backend passes the conformance suite.
#[tokio::test(start_paused = true)]
async fn the_simulated_backend_passes() {
    let report = run_suite(SimulatedConfig::default(), Options::default()).await;
    assert!(report.is_success(), "{report}");
    // The skipped cases are listed, so that no case can be skipped unnoticed.
    let skipped: Vec<&str> = report
        .cases
        .iter()
        .filter(|case| matches!(case.outcome, Outcome::Skipped(_)))
        .map(|case| case.name.as_str())
        .collect();
    assert_eq!(
        skipped,
        [
            "environment/shell-and-script",
            "isolation/no-network",
            "sandbox/root-directory",
            "sandbox/root-directory-missing",
            "image/runs-its-program",
            "image/root-is-private",
            "image/missing-is-named",
            "workspace/host-directory",
            "workspace/host-directory-read-only",
            "workspace/host-directory-read-only-for-the-file-api",
            "workspace/host-directory-outlives-the-sandbox",
            "workspace/copy-on-write",
            "workspace/copy-on-write-for-the-file-api",
            "workspace/copy-on-write-starts-anew",
            "limits/disk-of-copy-on-write",
            "mounts/read-only",
            "mounts/read-write",
            "mounts/writable-has-no-size",
            "mounts/copy-on-write",
            "mounts/file",
            "mounts/tmpfs",
            "mounts/nested",
            "mounts/in-the-workspace",
            "mounts/disk",
            "mounts/disk-missing-or-special",
            "mounts/missing-or-special",
            "limits/cpu-of-grandchildren",
            "limits/disk-over-directories",
            "limits/disk-in-a-host-directory",
            "posture/agrees-with-the-kernel",
            "posture/agrees-on-processes",
            "posture/agrees-on-the-root",
            "connect/echo-with-half-close",
            "connect/several-at-once",
            "connect/unused-port-is-unavailable",
            "connect/ends-with-the-sandbox",
            "watch/changes-are-reported",
            "watch/new-directories-are-included",
            "watch/single-directory",
            "watch/file-api-is-reported",
            "watch/writes-are-coalesced",
            "watch/overflow-is-reported-once",
            "watch/copy-on-write",
            "watch/host-directory",
            "watch/ends-with-the-sandbox",
            "watch/dropped-watches-are-free",
            "watch/invalid-paths-are-refused",
            "watch/links-are-not-followed",
            "watch/swapped-directory-is-not-followed",
            "network/names-of-the-policy-alone",
            "network/connections-of-the-policy-alone",
            "network/no-interface-but-loopback",
            "network/denials-name-the-look-up",
            "network/policy-of-a-live-sandbox",
            "network/refused-hosts-have-a-remedy",
            "warm/weaker-claims-are-refused",
            "undeclared/multiple-execs",
            "undeclared/streaming-stdin",
            "undeclared/terminal",
            "undeclared/files",
            "undeclared/pause",
            "undeclared/snapshot",
            "undeclared/fork",
            "undeclared/warm",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_declares_nothing_passes_by_refusing() {
    let report =
        run_suite(SimulatedConfig { capabilities: [].into(), ..SimulatedConfig::default() }, Options::default()).await;
    assert!(report.is_success(), "{report}");
    for capability in
        ["multiple-execs", "streaming-stdin", "terminal", "files", "image", "pause", "snapshot", "fork", "warm"]
    {
        assert_eq!(report.get(&format!("undeclared/{capability}")).unwrap().outcome, Outcome::Passed, "{capability}");
    }
    assert!(matches!(report.get("files/round-trip").unwrap().outcome, Outcome::Skipped(_)));
}

/// Promise (Contract): A backend can leave out any single capability and still pass the conformance suite.
#[tokio::test(start_paused = true)]
async fn every_single_capability_can_be_left_out() {
    for left_out in SimulatedConfig::default().capabilities {
        let capabilities =
            SimulatedConfig::default().capabilities.into_iter().filter(|known| *known != left_out).collect();
        let options = Options { filter: Some("undeclared".into()), ..Options::default() };
        let report = run_suite(SimulatedConfig { capabilities, ..SimulatedConfig::default() }, options).await;
        assert!(report.is_success(), "without {left_out:?}: {report}");
    }
    assert!(SimulatedConfig::default().capabilities.contains(&Capability::Files));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_would_be_weaker_is_refused() {
    let config = SimulatedConfig {
        shortfalls: [(Protection::Cpus, ProtectionState::Absent)].into(),
        fixed_when_warm: [].into(),
        ..SimulatedConfig::default()
    };
    let options = Options { filter: Some("warm/".into()), ..Options::default() };
    let report = run_suite(config, options).await;
    assert!(report.is_success(), "{report}");
    assert_eq!(report.get("warm/weaker-claims-are-refused").unwrap().outcome, Outcome::Passed);
}

/// Promise (Warm sandboxes and pools): A claim with a setting that cannot be applied to a warm sandbox is refused.
#[tokio::test(start_paused = true)]
async fn claim_with_a_setting_fixed_when_warm_is_refused() {
    let fixed_when_warm = Protection::ALL.iter().copied().collect();
    let options = Options { filter: Some("warm/".into()), ..Options::default() };
    let report = run_suite(SimulatedConfig { fixed_when_warm, ..SimulatedConfig::default() }, options).await;
    assert!(report.is_success(), "{report}");
    for case in ["warm/access-is-the-claims", "warm/disk-is-the-claims", "warm/processes-are-the-claims"] {
        assert!(matches!(report.get(case).unwrap().outcome, Outcome::Skipped(_)), "{case}");
    }
    assert_eq!(report.get("warm/spec-is-the-claims").unwrap().outcome, Outcome::Passed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_run_at_once_on_threads_and_a_running_clock() {
    let options = Options { parallelism: 8, large_file: "4M".parse().unwrap(), ..Options::default() };
    let report = run_suite(SimulatedConfig::default(), options).await;
    assert!(report.is_success(), "{report}");
}
