//! Tests of the conformance suite: each violation of the contract fails the case that covers it.
#![forbid(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_conformance::{Options, Outcome, Target, TestImage, run};
use cofferdam_contract::{Protection, ProtectionState};
use cofferdam_simulated::{SimulatedBackend, SimulatedConfig, SimulatedPrograms};
use support::{Defect, broken, failed};

/// Returns the host on which a defect is visible.
fn config(defect: Defect) -> SimulatedConfig {
    match defect {
        Defect::WarmAcceptsWeaker => SimulatedConfig {
            shortfalls: [(Protection::Cpus, ProtectionState::Absent)].into(),
            fixed_when_warm: [].into(),
            ..SimulatedConfig::default()
        },
        _ => SimulatedConfig::default(),
    }
}

/// Runs the suite on a defective backend, and checks that the case fails.
async fn caught(defect: Defect, case: &str) -> Result<(), String> {
    let backend = broken(SimulatedBackend::new(config(defect)), defect);
    let group = case.split('/').next().unwrap_or_default();
    let options =
        Options { filter: Some(format!("{group}/")), large_file: "1M".parse().unwrap(), ..Options::default() };
    // Only the wrapper has images: each is the workspace with this file.
    let image = TestImage::new("test:latest", support::IMAGE_FILE, "of the image");
    let report = run(&Target::new(Arc::new(backend), SimulatedPrograms).with_image(image), &options).await;
    match failed(&report).contains(case) {
        true => Ok(()),
        false => Err(format!("{defect:?} was not caught by {case}, but by {:?}", failed(&report))),
    }
}

/// Promise (Conformance suite): Each known defect of a backend fails its conformance case.
#[tokio::test(start_paused = true)]
async fn each_defect_fails_its_case() {
    use Defect as D;
    let mut missed = Vec::new();
    for (defect, case) in [
        (D::IgnoresReadOnly, "workspace/read-only-rejects-writes"),
        (D::DoesNotTruncate, "output/truncated-exactly"),
        (D::SaysNothingOfTruncation, "output/truncated-exactly"),
        (D::ForgetsTimedOut, "exit/timeout"),
        (D::TimesOutWithCodeZero, "exit/timeout-although-term-ignored"),
        (D::ExitCodeIsAlwaysZero, "exit/code-verbatim"),
        (D::ForgetsCancelled, "cancel/idempotent-and-surfaces-as-a-signal"),
        (D::CancelIsTermOnly, "cancel/kills-after-the-grace"),
        (D::CancelIsKillAtOnce, "cancel/sends-term-first"),
        (D::KillsNothing, "cancel/close-is-idempotent"),
        (D::KillsNothing, "cancel/dropping-the-handle-kills"),
        (D::SwapsStreams, "exit/success-with-full-output"),
        (D::LosesTheLastByte, "output/binary"),
        (D::OutputOnlyAtTheEnd, "output/live"),
        (D::ReplaysToLateSubscribers, "output/late-subscriber"),
        (D::InheritsAVariable, "environment/is-a-delta"),
        (D::IgnoresWorkingDir, "environment/working-dir"),
        (D::SharesStdin, "isolation/concurrent-execs"),
        (D::FollowsLinksOutside, "hostile/read-through-a-link-outside"),
        (D::FollowsLinksOutside, "hostile/link-swapped-during-the-call"),
        (D::ReadsFifosForEver, "hostile/fifo"),
        (D::WritesPiecemeal, "files/replaced-whole-or-not-at-all"),
        (D::ListsUnsorted, "files/list"),
        (D::RemovesNothing, "files/remove"),
        (D::StartsAfterClose, "sandbox/closed-answers-closed"),
        (D::CloseFailsTheSecondTime, "sandbox/close-is-idempotent"),
        (D::LiesAboutTerminals, "terminal/is-one-of-the-size-asked"),
        (D::DoesMoreThanDeclared, "undeclared/fork"),
        (D::LosesLabels, "sandbox/spec-is-kept"),
        (D::AcceptsUnknownAttributes, "sandbox/unknown-attribute"),
        (D::SkipsValidation, "sandbox/invalid-spec"),
        (D::ImagesAreEmpty, "image/runs-its-program"),
        (D::ImagesShareARoot, "image/root-is-private"),
        (D::ImagesAreEmpty, "image/missing-is-named"),
        (D::HasNoMemoryLimit, "limits/memory"),
        (D::HasNoCpuLimit, "limits/cpu"),
        (D::HasNoProcessLimit, "limits/processes"),
        (D::HasNoDiskLimit, "limits/disk"),
        (D::HasNoDiskLimit, "files/disk-limit-holds"),
        (D::HasAWeakPosture, "posture/no-shortfall-unless-allowed"),
        (D::LeavesRowsOut, "posture/has-every-row"),
        (D::ForksShareFiles, "snapshot/forks-are-independent"),
        (D::RestoresAnything, "snapshot/of-another-backend"),
        (D::RestoresAnything, "snapshot/of-another-tenant"),
        (D::PausesNothing, "pause/stops-and-goes-on"),
        (D::PausesNothing, "pause/time-stands-still"),
        (D::PausesNothing, "pause/calls-are-refused-meanwhile"),
        (D::WarmForgetsLimits, "warm/claimed-as-created"),
        (D::WarmForgetsLimits, "warm/processes-are-the-claims"),
        (D::WarmForgetsLimits, "warm/disk-is-the-claims"),
        (D::WarmForgetsAccess, "warm/claimed-as-created"),
        (D::WarmForgetsAccess, "warm/access-is-the-claims"),
        (D::WarmKeepsItsTemplate, "warm/spec-is-the-claims"),
        (D::WarmInheritsAVariable, "warm/environment-is-a-delta"),
        (D::WarmFitsEverything, "warm/claimed-as-created"),
        (D::WarmAcceptsWeaker, "warm/weaker-claims-are-refused"),
        (D::WarmDoesMoreThanDeclared, "undeclared/warm"),
        (D::ClaimsShareASandbox, "warm/claims-share-nothing"),
        (D::Panics, "exit/success-with-full-output"),
        (D::Hangs, "exit/success-with-full-output"),
    ] {
        missed.extend(caught(defect, case).await.err());
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn the_wrapper_alone_fails_nothing() {
    let backend = broken(SimulatedBackend::default(), Defect::Sound);
    let options = Options { large_file: "1M".parse().unwrap(), ..Options::default() };
    let report = run(&Target::new(Arc::new(backend), SimulatedPrograms), &options).await;
    assert!(report.is_success(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_backend_with_sound_images_passes() {
    let backend = broken(SimulatedBackend::default(), Defect::SoundImages);
    let mut image = TestImage::new("test:latest", support::IMAGE_FILE, "of the image");
    image.working_dir = Some("/workspace".to_owned());
    let options = Options { filter: Some("image/".into()), ..Options::default() };
    let report = run(&Target::new(Arc::new(backend), SimulatedPrograms).with_image(image.clone()), &options).await;
    assert!(report.is_success() && report.cases.iter().all(|case| case.outcome == Outcome::Passed), "{report}");
    // Settings that the image does not have are missed.
    let variable = TestImage { env: vec![("GREETING".to_owned(), "hello".to_owned())], ..image.clone() };
    let directory = TestImage { working_dir: Some("/app".to_owned()), ..image };
    for image in [variable, directory] {
        let backend = broken(SimulatedBackend::default(), Defect::SoundImages);
        let report = run(&Target::new(Arc::new(backend), SimulatedPrograms).with_image(image), &options).await;
        assert_eq!(failed(&report), BTreeSet::from(["image/runs-its-program"]), "{report}");
    }
}

/// Promise (Warm sandboxes and pools): The conformance suite finds a warm sandbox that a backend leaves.
#[tokio::test(start_paused = true)]
async fn a_warm_sandbox_that_is_left_behind_is_found() {
    for (defect, sound) in [(Defect::WarmLeaksWhenClosed, false), (Defect::Sound, true)] {
        let backend = Arc::new(broken(SimulatedBackend::default(), defect));
        let watched = Arc::clone(&backend);
        let census = move || watched.inner.living().iter().map(|id| format!("sandbox {id}")).collect();
        let target = Target::new(backend, SimulatedPrograms).with_census(census);
        let report = run(&target, &Options::default()).await;
        assert_eq!(failed(&report).contains("host/nothing-left-behind"), !sound, "{defect:?}: {report}");
    }
}

/// Promise (Conformance suite): The conformance suite finds leftovers of a backend.
#[tokio::test(start_paused = true)]
async fn leftovers_of_a_backend_are_found() {
    let leaks = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&leaks);
    let census = move || (0..count.fetch_add(1, Ordering::Relaxed)).map(|n| format!("process {n}")).collect();
    let target = Target::new(Arc::new(SimulatedBackend::default()), SimulatedPrograms);
    let options = Options { filter: Some("host/".into()), ..Options::default() };
    let report = run(&target.clone().with_census(census), &options).await;
    assert!(!report.is_success(), "{report}");
    let report = run(&target.with_census(|| BTreeSet::from(["init".to_owned()])), &options).await;
    assert!(report.is_success(), "{report}");
}
