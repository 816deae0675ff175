//! The conformance suite on real engines.

use std::process::Command;
use std::sync::Arc;

use cofferdam_changes::sandbox::CopyOnWriteByCopy;
use cofferdam_conformance::{Options, Outcome, Target, TestImage, UnixPrograms, run};
use cofferdam_contract::{Protection, Spec};

use crate::images;
use crate::support::{self, TestEngine};

/// A case that fails if an engine changes a memory limit more slowly than a program fills it with files. The kernel
/// then kills the program, which is reported as such.
const FILES_FASTER_THAN_LIMITS: (&str, &str) =
    ("limits/disk-beyond-memory", "it changes a memory limit more slowly than the program stores files");

/// Cases that gVisor may fail, with the reason. Its kernel differs, and the posture of the sandbox is correct.
const OF_GVISOR: [(&str, &str); 9] = [
    FILES_FASTER_THAN_LIMITS,
    ("terminal/resize", "older versions do not report the new size of a terminal"),
    ("terminal/control-c-interrupts", "older versions do not convert control-C to a signal"),
    ("workspace/read-only-rejects-writes", "it has no Landlock, so that a private read-only workspace is refused"),
    (
        "workspace/read-only-filled-by-the-file-api",
        "it has no Landlock, so that a private read-only workspace is refused",
    ),
    ("watch/links-are-not-followed", "its kernel follows a link to a directory of the workspace that is watched"),
    ("mounts/copy-on-write", "it creates files as root, so that a copy-on-write mount is refused"),
    ("mounts/disk", "it creates files as root, so that a writable disk is refused"),
    ("posture/agrees-with-the-kernel", "its /proc/self/status does not show no_new_privs, which is set"),
];

async fn suite(engine: &TestEngine, spec: Spec, may_fail: &[(&str, &str)]) {
    let before = engine.census().await;
    let image = images::Small::create(engine).await;
    let backend = CopyOnWriteByCopy::wrap(Arc::new(engine.backend()));
    let target = Target::new(backend, UnixPrograms::default()).with_spec(spec).with_image(TestImage::new(
        &image.name,
        "/of-the-image",
        "by the test",
    ));
    let filter = std::env::var("COFFERDAM_TEST_CASE").ok();
    let whole = filter.is_none();
    let report = run(&target, &Options { parallelism: 2, filter, ..Options::default() }).await;
    images::forget(engine, &image.name).await;
    for case in report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
        println!("{}: {case}", engine.name);
    }
    let excuse = |name: &str| may_fail.iter().find(|(known, _)| *known == name);
    for (name, why) in report.failures().filter_map(|case| excuse(&case.name)) {
        println!("SKIP {}: {name}: {why}", engine.name);
    }
    let failures: Vec<String> =
        report.failures().filter(|case| excuse(&case.name).is_none()).map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}: {}\n{}", engine.name, failures.join("\n"), report.summary());
    let capable = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(capable >= 100 || !whole, "{}: only {capable} cases could be run", engine.name);
    println!("{}: {}", engine.name, report.summary());
    let left = support::left(engine, &before).await;
    assert!(left.is_empty(), "{}: {left:?}", engine.name);
}

/// Promise (Containers): The conformance suite passes on Docker with runc, as root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_on_docker() {
    if let Some(engine) = support::docker("conformance_suite_passes_on_docker") {
        suite(&engine, support::spec().build().unwrap(), &[]).await;
    }
}

/// Promise (Containers): The conformance suite passes on Podman.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_on_podman() {
    if let Some(engine) = support::podman("conformance_suite_passes_on_podman") {
        suite(&engine, support::spec().build().unwrap(), &[FILES_FASTER_THAN_LIMITS]).await;
    }
}

/// Runs the suite with gVisor, which does not count processes, so that a weaker limit is accepted.
///
/// Promise (Containers): The conformance suite passes on Docker with gVisor, except for nine cases that the test names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_on_docker_with_gvisor() {
    if let Some(engine) = support::runsc("conformance_suite_passes_on_docker_with_gvisor").await {
        suite(&engine, support::spec().allow_weaker(Protection::Processes).build().unwrap(), &OF_GVISOR).await;
    }
}

/// Runs the suite as an ordinary user, who can mount its own directories, unlike root.
///
/// Promise (Containers): The conformance suite passes on Docker as an ordinary user.
#[test]
fn conformance_suite_passes_for_an_ordinary_user() {
    use std::os::unix::process::CommandExt;
    let test = "conformance_suite_passes_for_an_ordinary_user";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: this user is already an ordinary one");
        return;
    }
    let Some(engine) = support::docker(test) else { return };
    let Ok(meta) = std::fs::metadata(&engine.socket) else { panic!("no socket at {}", engine.socket.display()) };
    let group = std::os::unix::fs::MetadataExt::gid(&meta);
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(4711), Some(4711)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "conformance::conformance_suite_passes_on_docker", "--nocapture"]);
    command.env("TMPDIR", directory.path()).env("HOME", directory.path()).uid(4711).gid(group);
    let output = command.output().expect("the test program starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}");
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("docker: "), "{stdout}");
}
