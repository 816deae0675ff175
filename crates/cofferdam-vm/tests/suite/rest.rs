//! Sandboxes restored from snapshots: execs resume in every clone, and clones are independent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cofferdam_contract::{
    Backend, ByteSize, ErrorKind, ExecHandle, ExecRequest, Limits, OutputEvent, Sandbox, SandboxPath, Spec,
};
use cofferdam_vm::{VmBackend, VmSnapshot};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{self, NO_HANG};

/// Keeps random data in memory, checks that it is unchanged, and counts.
const COUNTER: &str = "
import hashlib, os, time
kept = os.urandom(4 << 20)
first = hashlib.sha256(kept).hexdigest()
count = 0
while True:
    count += 1
    now = hashlib.sha256(kept).hexdigest()
    with open('/workspace/new', 'w') as file:
        file.write('%d %s %s' % (count, first, now))
    os.replace('/workspace/new', '/workspace/count')
    time.sleep(0.02)
";
/// Files in memory and on the disk.
const FILES: &str = "head -c 3000000 /dev/urandom > /workspace/file; head -c 3000000 /dev/urandom > /tmp/file; sync";
const HASHES: &str = "cat /workspace/file /tmp/file | sha256sum";

async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NO_HANG, work).await.expect("no hang")
}

async fn run(sandbox: &Arc<dyn Sandbox>, line: &str) -> String {
    let done = promptly(sandbox.exec(ExecRequest::shell(line).build().unwrap())).await.unwrap();
    assert!(done.exit.success(), "{line}: {done:?}");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

async fn begin(sandbox: &Arc<dyn Sandbox>, program: &str) -> ExecHandle {
    let request = ExecRequest::argv(["python3", "-c", program]).timeout(Duration::from_secs(3600)).build().unwrap();
    promptly(sandbox.start(request)).await.unwrap()
}

/// Returns the program's count, and the data that it keeps in memory.
async fn counted(sandbox: &Arc<dyn Sandbox>) -> Option<(u64, String)> {
    let path = SandboxPath::new("count").unwrap();
    let text = promptly(sandbox.read_file_to_end(&path, ByteSize::from_bytes(1000))).await.ok()?;
    let text = String::from_utf8(text).unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    assert_eq!(words[1], words[2], "data in memory has changed");
    Some((words[0].parse().unwrap(), words[1].to_owned()))
}

/// Waits until it has counted beyond this.
async fn beyond(sandbox: &Arc<dyn Sandbox>, count: u64) -> (u64, String) {
    let begun = Instant::now();
    loop {
        match counted(sandbox).await {
            Some(found) if found.0 > count => return found,
            found => assert!(begun.elapsed() < NO_HANG, "no progress from {found:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn create(backend: &VmBackend) -> Arc<dyn Sandbox> {
    promptly(backend.create(Spec::default())).await.unwrap()
}

/// Promise (Virtual machines): A program resumes from a snapshot of a restored VM, in memory and in files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_resumes_over_three_generations() {
    let Some(backend) = support::backend("program_resumes_over_three_generations") else { return };
    let before = support::census();
    let source = create(&backend).await;
    run(&source, FILES).await;
    let files = run(&source, HASHES).await;
    let handle = begin(&source, COUNTER).await;
    let (_, random) = beyond(&source, 3).await;
    let mut sandboxes = vec![source];
    for generation in 1..=3 {
        let last = sandboxes.last().unwrap();
        let at_least = counted(last).await.unwrap().0;
        let begun = Instant::now();
        let snapshot = promptly(last.snapshot()).await.unwrap();
        println!("generation {generation}: {:?} in {:?}", VmSnapshot::of(&snapshot).unwrap().sizes(), begun.elapsed());
        // Far enough to detect a program that restarted, or that resumed from a later point.
        let source_at = beyond(last, at_least + 20).await.0;
        let begun = Instant::now();
        let clone = promptly(backend.restore(snapshot, Spec::default())).await.unwrap();
        let restored = counted(&clone).await.unwrap();
        println!("generation {generation}: went on at {restored:?} after {:?}", begun.elapsed());
        assert!(
            (at_least..source_at).contains(&restored.0) && restored.1 == random,
            "{at_least} {restored:?} {source_at}"
        );
        assert_eq!(beyond(&clone, restored.0 + 3).await.1, random);
        assert_eq!(run(&clone, HASHES).await, files);
        // Clones are independent.
        run(&clone, &format!("echo {generation} > /workspace/file; echo {generation} > /tmp/file")).await;
        assert_eq!(run(last, HASHES).await, files, "a clone's change is seen in its source");
        run(&clone, "false || true").await;
        beyond(last, source_at).await;
        promptly(clone.close()).await.unwrap();
        let snapshot = promptly(last.snapshot()).await.unwrap();
        if generation == 2 {
            promptly(last.close()).await.unwrap();
            assert_eq!(last.snapshot().await.unwrap_err().kind(), ErrorKind::Closed);
        }
        let next = promptly(backend.restore(snapshot, Spec::default())).await.unwrap();
        assert_eq!(run(&next, HASHES).await, files);
        sandboxes.push(next);
    }
    promptly(handle.cancel()).await.unwrap();
    for sandbox in sandboxes {
        promptly(sandbox.close()).await.unwrap();
    }
    drop((handle, backend));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// Promise (Virtual machines): VMs from one snapshot differ in random numbers, name, machine id and boot id, and have
/// the correct time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clones_are_eight_vms() {
    let Some(backend) = support::backend("eight_clones_are_eight_vms") else { return };
    let before = support::census();
    let source = create(&backend).await;
    let snapshot = promptly(source.snapshot()).await.unwrap();
    // A clock that was only copied would be late by this.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut identities = vec![identity(&source).await];
    let mut clones = Vec::new();
    for _ in 0..8 {
        let clone = promptly(backend.restore(snapshot.clone(), Spec::default())).await.unwrap();
        identities.push(identity(&clone).await);
        clones.push(clone);
    }
    let fork = promptly(clones[7].fork()).await.unwrap();
    identities.push(identity(&fork).await);
    clones.push(fork);
    for (at, what) in ["urandom", "python", "hostname", "boot id", "machine id"].into_iter().enumerate() {
        let all: BTreeSet<&String> = identities.iter().map(|identity| &identity[at]).collect();
        println!("{what}: {all:?}");
        assert_eq!(all.len(), identities.len(), "{what} repeats: {all:?}");
    }
    for clone in clones.into_iter().chain([source]) {
        promptly(clone.close()).await.unwrap();
    }
    drop((snapshot, backend));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// Returns values that must be unique to each VM, and checks its clock.
async fn identity(sandbox: &Arc<dyn Sandbox>) -> Vec<String> {
    // The small Python of these images lacks some modules, which use the same sources of randomness.
    let python = "
import os, random
print(random.random(), random.SystemRandom().random(), os.urandom(8).hex())
try:
    import uuid, secrets
    print(uuid.uuid4(), secrets.token_hex(8))
except ImportError:
    pass
";
    let line = format!(
        "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo; echo $(python3 -c '{python}'); uname -n; \
         cat /proc/sys/kernel/random/boot_id; echo id $(cat /etc/machine-id); date +%s"
    );
    let seconds = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let begun = seconds();
    let output = run(sandbox, &line).await;
    let lines: Vec<String> = output.lines().map(str::to_owned).collect();
    let (guest, host) = (lines[5].parse::<u64>().unwrap(), seconds());
    assert!((begun - 1..=host + 1).contains(&guest), "its clock says {guest} between {begun} and {host}");
    lines
}

/// Promise (Virtual machines): Twenty pauses lose no byte, and a paused VM can be saved as a snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_pauses_lose_no_byte_and_a_paused_vm_is_saved() {
    let Some(backend) = support::backend("twenty_pauses_lose_no_byte_and_a_paused_vm_is_saved") else {
        return;
    };
    let before = support::census();
    let sandbox = create(&backend).await;
    run(&sandbox, FILES).await;
    let files = run(&sandbox, HASHES).await;
    let _counter = begin(&sandbox, COUNTER).await;
    let line = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done";
    let request = ExecRequest::shell(line)
        .output_buffer(ByteSize::from_mebibytes(8))
        .timeout(Duration::from_secs(3600))
        .build()
        .unwrap();
    let handle = promptly(sandbox.start(request)).await.unwrap();
    let mut output = handle.output();
    let reading = tokio::spawn(async move {
        let mut all = Vec::new();
        while let Some(event) = output.next().await {
            if let OutputEvent::Chunk(chunk) = event {
                all.extend_from_slice(&chunk.data);
            }
        }
        all
    });
    let mut snapshot = None;
    for cycle in 0..20 {
        promptly(sandbox.pause()).await.unwrap();
        let refused = promptly(sandbox.exec(ExecRequest::argv(["true"]).build().unwrap())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        if cycle % 8 == 3 {
            snapshot = Some(promptly(sandbox.snapshot()).await.unwrap());
        }
        promptly(sandbox.resume()).await.unwrap();
        beyond(&sandbox, counted(&sandbox).await.map_or(0, |found| found.0)).await;
    }
    let all = String::from_utf8(promptly(reading).await.unwrap()).unwrap();
    assert!(all.lines().eq((0..20000).map(|at| format!("line {at}"))), "{} lines", all.lines().count());
    assert!(promptly(handle.exit()).await.unwrap().success());
    assert_eq!(run(&sandbox, HASHES).await, files);
    let clone = promptly(backend.restore(snapshot.unwrap(), Spec::default())).await.unwrap();
    assert_eq!(run(&clone, HASHES).await, files);
    beyond(&clone, counted(&clone).await.unwrap().0 + 2).await;
    promptly(clone.close()).await.unwrap();
    promptly(sandbox.close()).await.unwrap();
    drop((handle, _counter, sandbox, clone, backend));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// Promise (Virtual machines): A snapshot that cannot satisfy the spec is refused, and no limit is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_that_cannot_satisfy_the_spec_is_refused() {
    let Some(backend) = support::backend("snapshot_that_cannot_satisfy_the_spec_is_refused") else { return };
    let before = support::census();
    let source = create(&backend).await;
    let snapshot = promptly(source.snapshot()).await.unwrap();
    promptly(source.close()).await.unwrap();
    for limits in [
        Limits { memory: Some(ByteSize::from_mebibytes(64)), ..Limits::default() },
        Limits { pids: Some(3), ..Limits::default() },
        Limits { disk: None, ..Limits::default() },
        Limits { cpus: Some("0.5".parse().unwrap()), ..Limits::default() },
    ] {
        let spec = Spec::builder().limits(limits).build().unwrap();
        let error = promptly(backend.restore(snapshot.clone(), spec)).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.remedy().is_some(), "{error:?}");
    }
    drop((source, snapshot, backend));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// Promise (Virtual machines): A dead or hostile guest cannot delay a snapshot without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_or_hostile_guest_hangs_no_snapshot() {
    let Some(backend) = support::backend("a_dead_or_hostile_guest_hangs_no_snapshot") else { return };
    let before = support::census();
    // A busy one, with short-lived processes and output that is not read.
    let busy = create(&backend).await;
    let line = "while :; do (true) & echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; wait; done & yes & yes > /dev/null & wait";
    let handle = promptly(busy.start(ExecRequest::shell(line).build().unwrap())).await.unwrap();
    for _ in 0..3 {
        promptly(busy.snapshot()).await.unwrap();
    }
    let fork = promptly(busy.fork()).await.unwrap();
    run(&fork, "true").await;
    promptly(fork.close()).await.unwrap();
    promptly(busy.close()).await.unwrap();
    drop((handle, fork, busy));
    // One whose VMM is killed while it is saved.
    for (signal, wait) in [(Signal::KILL, 0), (Signal::KILL, 5), (Signal::KILL, 40)] {
        let limits = Limits { memory: Some(ByteSize::from_mebibytes(91)), ..Limits::default() };
        let spec = Spec::builder().limits(limits).build().unwrap();
        let sandbox = promptly(backend.create(spec)).await.unwrap();
        // 91 MiB for guests, and the kernel's share.
        let pid = Pid::from_raw(support::vmm_with("190M").cast_signed()).unwrap();
        let (taken, ()) = tokio::join!(promptly(sandbox.snapshot()), async {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            kill_process(pid, signal).unwrap();
        });
        println!("{signal:?} after {wait} ms: {:?}", taken.map(drop).map_err(|error| error.to_string()));
        assert!(promptly(sandbox.snapshot()).await.is_err());
        promptly(sandbox.close()).await.unwrap();
    }
    drop(backend);
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// Promise (Virtual machines): Warm VMs come from one snapshot and differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_vms_come_from_one_snapshot_and_differ() {
    let Some(backend) = support::backend("warm_vms_come_from_one_snapshot_and_differ") else { return };
    let before = support::census();
    let mut identities = Vec::new();
    for turn in 0..3 {
        let begun = Instant::now();
        let warm = promptly(backend.prepare(Spec::default())).await.unwrap();
        println!("turn {turn}: warm after {:?}", begun.elapsed());
        let begun = Instant::now();
        let limits = Limits { wall_time: Duration::from_secs(99), ..Limits::default() };
        let spec = Spec::builder().limits(limits).label("turn", turn.to_string()).build().unwrap();
        assert!(warm.is_compatible(&spec));
        let sandbox = promptly(warm.claim(spec.clone())).await.unwrap();
        println!("turn {turn}: claimed after {:?}", begun.elapsed());
        let request = ExecRequest::shell("echo $MINE").env("MINE", turn.to_string()).build().unwrap();
        let done = promptly(sandbox.exec(request)).await.unwrap();
        println!("turn {turn}: answered after {:?}", begun.elapsed());
        assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), turn.to_string());
        assert_eq!(sandbox.spec(), &spec);
        let snapshot = promptly(sandbox.snapshot()).await.unwrap();
        assert_eq!(VmSnapshot::of(&snapshot).unwrap().manifest().limits(), spec.limits());
        drop(snapshot);
        assert!(run(&sandbox, "ls /workspace /tmp").await.lines().all(|line| line.starts_with('/') || line.is_empty()));
        identities.push(identity(&sandbox).await);
        run(&sandbox, "echo x > /workspace/mine").await;
        promptly(sandbox.close()).await.unwrap();
    }
    for at in 0..5 {
        assert_eq!(identities.iter().map(|identity| &identity[at]).collect::<BTreeSet<_>>().len(), 3, "{identities:?}");
    }
    drop(backend);
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// A clone reads and writes memory that its source never touched: then each page exists twice, and the VMM stays within
/// its limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_may_fill_all_of_its_memory() {
    let Some(backend) = support::backend("a_clone_may_fill_all_of_its_memory") else { return };
    let before = support::census();
    let spec = Spec::default();
    let source = create(&backend).await;
    let snapshot = promptly(source.snapshot()).await.unwrap();
    promptly(source.close()).await.unwrap();
    let clone = promptly(backend.restore(snapshot, spec)).await.unwrap();
    let fill = "python3 -c 'x = bytearray(b\"x\") * (440 << 20); print(len(x) >> 20, x[-1])'";
    assert_eq!(run(&clone, fill).await, "440 120");
    promptly(clone.close()).await.unwrap();
    drop((source, clone, backend));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}
