//! A supervisor with VMs, killed by SIGKILL at each of its steps, and at random moments of the longer ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, ByteSize, ExecRequest, Limits, OutputEvent, Sandbox, Spec};
use cofferdam_vm::{SaveOptions, VmBackend, VmSnapshot};

use super::{Fixture, Supervisor, at, census, config, directory_of, millis, moments, start_next, stays_at};
use crate::support;

const PART: &str = "supervisor";
const TEST: &str = "kill::supervisor::supervisor";
/// Number of random moments in each step that takes long.
const RANDOM: usize = 2;

fn spec() -> Spec {
    let limits = Limits { memory: Some(ByteSize::from_mebibytes(64)), cpu_time: None, ..Limits::default() };
    Spec::builder().limits(limits).build().unwrap()
}

/// Starts a program that never ends, and waits for its output.
async fn begin(sandbox: &Arc<dyn Sandbox>) -> cofferdam_contract::ExecHandle {
    let line = "i=0; while :; do i=$((i+1)); echo $i; echo $i > /workspace/count; done";
    let request = ExecRequest::shell(line).timeout(Duration::from_secs(3600)).build().unwrap();
    let handle = sandbox.start(request).await.unwrap();
    let mut output = handle.output();
    while !matches!(output.next().await, Some(OutputEvent::Chunk(_))) {}
    handle
}

/// The process that [`a_supervisor_killed_at_any_step_leaves_nothing`] kills; not a test of its own. It goes through
/// all steps, and repeats the one that it is to stay at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supervisor() {
    let Some(temp) = directory_of(PART) else { return };
    at("create");
    let backend = VmBackend::new(config(&temp)).unwrap();
    let sandbox = backend.create(spec()).await.unwrap();
    at("exec");
    let handle = begin(&sandbox).await;
    at("execs");
    while stays_at("execs") {
        let done = sandbox.exec(ExecRequest::shell("echo hello; cat > file").build().unwrap()).await.unwrap();
        assert!(done.exit.success());
    }
    at("pause");
    while stays_at("pause") {
        sandbox.pause().await.unwrap();
        sandbox.resume().await.unwrap();
    }
    at("snapshot");
    let mut snapshot = sandbox.snapshot().await.unwrap();
    while stays_at("snapshot") {
        snapshot = sandbox.snapshot().await.unwrap();
    }
    at("restore");
    loop {
        let restored = backend.restore(snapshot.clone(), spec()).await.unwrap();
        restored.close().await.unwrap();
        if !stays_at("restore") {
            break;
        }
    }
    at("fork");
    let mut forks = vec![sandbox.fork().await.unwrap()];
    while stays_at("fork") {
        forks = vec![sandbox.fork().await.unwrap(), sandbox.fork().await.unwrap()];
    }
    at("save");
    let out = || tempfile::tempfile_in(temp.join("tmp")).unwrap();
    while stays_at("save") {
        let snapshot = VmSnapshot::of(&snapshot).unwrap();
        snapshot.save(out(), SaveOptions::default(), |_| std::ops::ControlFlow::Continue(())).await.unwrap();
    }
    if stays_at("warm") {
        at("warm");
        // The first call boots the template's VM, saves and closes it; later ones restore its snapshot.
        let warm = backend.prepare(Spec::default()).await.unwrap();
        at("warmed");
        loop {
            let another = backend.prepare(Spec::default()).await.unwrap();
            let claimed = another.claim(Spec::default()).await.unwrap();
            claimed.close().await.unwrap();
            assert!(warm.is_alive());
        }
    }
    at("destroy");
    for sandbox in forks.iter().chain([&sandbox]) {
        sandbox.close().await.unwrap();
    }
    at("end");
    drop((handle, snapshot, backend));
    std::future::pending::<()>().await;
}

/// A moment of a kill: the step to stay at, the step to wait for, and the maximum delay.
struct Moment {
    stay: &'static str,
    step: &'static str,
    wait: For,
    within: u64,
}

enum For {
    Step,
    /// The step, without cached findings about the host, which is then probed again.
    Finding,
    Vmm,
    /// The step, without reaping the process before the next start, as in a container whose first process reaps
    /// nothing.
    Unreaped,
}

fn steps() -> Vec<(Moment, usize)> {
    let moment = |stay, step, within| Moment { stay, step, wait: For::Step, within };
    let finding = |within| Moment { stay: "", step: "create", wait: For::Finding, within };
    let boot = |within| Moment { stay: "", step: "create", wait: For::Vmm, within };
    vec![
        (moment("", "create", 1), 1),
        // During the probes of the host and the check of the image; then during the boot of the VM.
        (finding(500), RANDOM),
        (boot(1), 1),
        (boot(700), RANDOM),
        (moment("", "exec", 20), 1),
        (moment("execs", "execs", 100), 1),
        (moment("pause", "pause", 100), 1),
        (moment("snapshot", "snapshot", 300), RANDOM),
        (moment("restore", "restore", 400), RANDOM),
        (moment("fork", "fork", 400), 1),
        (moment("save", "save", 400), 1),
        (moment("warm", "warm", 1600), RANDOM),
        (moment("warm", "warmed", 400), 1),
        (moment("", "destroy", 40), RANDOM),
        (moment("", "end", 1), 1),
        (Moment { stay: "snapshot", step: "snapshot", wait: For::Unreaped, within: 300 }, 1),
    ]
}

/// Checks that nothing is left but the cached findings about this host.
fn is_clean(temp: &Fixture, pid: u32, before: &BTreeSet<String>) {
    start_next(temp.path());
    assert_eq!(census::groups_of(pid), BTreeSet::new());
    let directories = ["disks", "probes", "tmp"].map(PathBuf::from);
    let expected: BTreeSet<_> = directories.into_iter().chain([Path::new("probes").join("kvm.json")]).collect();
    let found = census::files(temp.path());
    assert!(found.is_subset(&expected), "{found:?}");
    assert_eq!(census::host_left(before), BTreeSet::new());
}

/// Promise (Virtual machines): A supervisor killed with SIGKILL at any step leaves no process, and nothing else remains
/// after the next start.
#[test]
fn a_supervisor_killed_at_any_step_leaves_nothing() {
    let test = "a_supervisor_killed_at_any_step_leaves_nothing";
    if support::image(test).is_none() {
        return;
    }
    let mut random = moments(test);
    let before = census::host();
    let temp = Fixture::new();
    for (moment, times) in steps() {
        for _ in 0..times {
            if let For::Finding = moment.wait {
                temp.forget();
            }
            let mut supervisor = Supervisor::start(TEST, PART, temp.path(), moment.stay);
            supervisor.reach(moment.step);
            if let For::Vmm = moment.wait {
                supervisor.has_vmm();
            }
            let after = millis(&mut random, moment.within);
            println!("at {}{}, after {after:?}", moment.step, if moment.stay.is_empty() { "" } else { " and again" });
            let killed = supervisor.kill_unreaped(after);
            if let For::Unreaped = moment.wait {
                is_clean(&temp, killed.pid(), &before);
                killed.reap();
                continue;
            }
            is_clean(&temp, killed.reap(), &before);
        }
    }
}
