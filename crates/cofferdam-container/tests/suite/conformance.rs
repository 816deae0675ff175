//! The conformance kit on real engines.

use std::process::Command;
use std::sync::Arc;

use cofferdam_conformance::{Options, Outcome, Target, UnixPrograms, run};
use cofferdam_contract::{Protection, Spec};

use crate::support::{self, TestEngine};

/// A case that fails where an engine takes longer to move a container's memory limit than a program takes to store what the
/// limit allows: the program is killed for memory, and reported so.
const FILES_FASTER_THAN_LIMITS: (&str, &str) =
    ("limits/disk-beyond-memory", "it moves a memory limit more slowly than the program stores files");

/// Cases that a gVisor may fail, and why: it is its kernel that differs, and what is said of the sandbox is true.
const OF_GVISOR: [(&str, &str); 6] = [
    FILES_FASTER_THAN_LIMITS,
    ("terminal/resize", "older ones tell no program that its terminal has another size"),
    ("terminal/control-c-interrupts", "older ones make no signal of a terminal's control-C"),
    (
        "workspace/read-only-rejects-writes",
        "it has no Landlock, so that a private workspace that is read-only is refused",
    ),
    (
        "workspace/read-only-filled-by-the-file-api",
        "it has no Landlock, so that a private workspace that is read-only is refused",
    ),
    ("posture/agrees-with-the-kernel", "its /proc/self/status does not tell of no_new_privs, which is set"),
];

async fn kit(engine: &TestEngine, spec: Spec, may_fail: &[(&str, &str)]) {
    let before = engine.census().await;
    let target = Target::new(Arc::new(engine.backend()), UnixPrograms::default()).with_spec(spec);
    let filter = std::env::var("COFFERDAM_TEST_CASE").ok();
    let whole = filter.is_none();
    let report = run(&target, &Options { parallelism: 2, filter, ..Options::default() }).await;
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
async fn the_kit_passes_on_docker() {
    if let Some(engine) = support::docker("the_kit_passes_on_docker") {
        kit(&engine, support::spec().build().unwrap(), &[]).await;
    }
}

/// Promise (Containers): The conformance suite passes on Podman.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_passes_on_podman() {
    if let Some(engine) = support::podman("the_kit_passes_on_podman") {
        kit(&engine, support::spec().build().unwrap(), &[FILES_FASTER_THAN_LIMITS]).await;
    }
}

/// gVisor counts no processes: what it is asked for there is accepted as weaker.
///
/// Promise (Containers): The conformance suite passes on Docker with gVisor, except for five cases that the test names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_passes_on_docker_with_gvisor() {
    if let Some(engine) = support::runsc("the_kit_passes_on_docker_with_gvisor").await {
        kit(&engine, support::spec().allow_weaker(Protection::Processes).build().unwrap(), &OF_GVISOR).await;
    }
}

/// Root lends none of its own directories; an ordinary user does.
///
/// Promise (Containers): The conformance suite passes on Docker as an ordinary user.
#[test]
fn the_kit_passes_for_an_ordinary_user() {
    use std::os::unix::process::CommandExt;
    let test = "the_kit_passes_for_an_ordinary_user";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: this is one already");
        return;
    }
    let Some(engine) = support::docker(test) else { return };
    let Ok(meta) = std::fs::metadata(&engine.socket) else { panic!("no socket at {}", engine.socket.display()) };
    let group = std::os::unix::fs::MetadataExt::gid(&meta);
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(4711), Some(4711)).unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "conformance::the_kit_passes_on_docker", "--nocapture"]);
    again.env("TMPDIR", directory.path()).env("HOME", directory.path()).uid(4711).gid(group);
    let output = again.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("docker: "), "{said}");
}
