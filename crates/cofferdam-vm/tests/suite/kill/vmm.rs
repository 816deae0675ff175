//! VMMs that are killed by SIGKILL during operations of their supervisor. The supervisor continues, reports the reason,
//! has no resources of them left, and creates the next VM.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{
    Backend, ByteSize, ErrorKind, ExecRequest, FileReader, Limits, Result, Sandbox, SandboxPath, Snapshot, Spec, Stdin,
};
use cofferdam_vm::VmBackend;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;

use super::{DIRECTORY, Fixture, PART, census, config, directory_of, millis, moments};
use crate::support::{self, NO_HANG};

/// Marks this program as the supervisor.
const SUPERVISOR: &str = "supervisor";
/// Far shorter than any deadline, and far longer than any step.
const PROMPT: Duration = Duration::from_secs(60);

fn spec() -> Spec {
    let limits = Limits { memory: Some(ByteSize::from_mebibytes(64)), cpu_time: None, ..Limits::default() };
    Spec::builder().limits(limits).build().unwrap()
}

fn vmms() -> BTreeSet<u32> {
    census::vmms_of(std::process::id())
}

fn kill(pid: u32) {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
}

/// The VMM to kill.
enum Target<'a> {
    /// An existing one.
    Known(u32),
    /// The first one besides these.
    New(&'a BTreeSet<u32>),
}

/// Kills a VMM during an operation, and returns the outcome. An operation that takes too long is a hang.
async fn killed<T>(target: Target<'_>, after: Duration, work: impl Future<Output = T>) -> T {
    let mut done = false;
    let mut work = std::pin::pin!(work);
    let killer = async {
        let pid = match target {
            Target::Known(pid) => pid,
            Target::New(known) => loop {
                if let Some(pid) = vmms().difference(known).next() {
                    break *pid;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            },
        };
        tokio::time::sleep(after).await;
        kill(pid);
        std::future::pending::<()>().await;
    };
    let begun = Instant::now();
    let outcome = tokio::select! {
        outcome = &mut work => { done = true; Some(outcome) }
        () = killer => None,
        () = tokio::time::sleep(PROMPT) => None,
    };
    assert!(done, "still running after {:?}", begun.elapsed());
    outcome.unwrap()
}

/// Checks the error of an operation on a killed VM.
fn is_reported<T>(step: &str, outcome: Result<T>) -> bool {
    let Err(error) = outcome else {
        println!("{step}: done before it was killed");
        return false;
    };
    let text = error.to_string();
    println!("{step}: {error}");
    let has_reason =
        text.contains("its VMM ended (signal: 9 (SIGKILL))") || text.contains("died before it was claimed");
    let is_its_own = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Unavailable);
    assert!(has_reason && is_its_own && !text.contains("within") && !text.contains("in time"), "{step}: {error:?}");
    true
}

struct Supervisor {
    backend: VmBackend,
    good: Snapshot,
    random: fastrand::Rng,
}

impl Supervisor {
    /// Returns a working VM, and the process ID of its VMM.
    async fn sandbox(&self) -> (Arc<dyn Sandbox>, u32) {
        let before = vmms();
        let sandbox = prompt(self.backend.restore(self.good.clone(), spec())).await.unwrap();
        let done = prompt(sandbox.exec(ExecRequest::shell("echo works").build().unwrap())).await.unwrap();
        assert_eq!(&*done.stdout, b"works\n");
        let new: Vec<u32> = vmms().difference(&before).copied().collect();
        assert_eq!(new.len(), 1, "{new:?}");
        (sandbox, new[0])
    }

    /// Returns moments in a step: at once, and two random ones.
    fn moments(&mut self, max: u64) -> [Duration; 3] {
        [Duration::ZERO, millis(&mut self.random, max / 4 + 1), millis(&mut self.random, max)]
    }

    /// Checks a sandbox of a dead VMM: all operations report that, and closing it is no error.
    async fn is_over(&self, sandbox: Arc<dyn Sandbox>) {
        assert!(is_reported("exec after it", prompt(sandbox.start(forever())).await.map(drop)));
        assert!(is_reported("list after it", prompt(sandbox.list_dir(&SandboxPath::default())).await));
        assert!(is_reported("snapshot after it", prompt(sandbox.snapshot()).await));
        assert!(is_reported("fork after it", prompt(sandbox.fork()).await.map(drop)));
        prompt(sandbox.close()).await.expect("what is gone is closed");
    }

    async fn boots(&mut self) {
        for after in self.moments(900) {
            let before = vmms();
            let created = killed(Target::New(&before), after, self.backend.create(spec())).await;
            assert!(is_reported(&format!("create, {after:?}"), created.map(drop)));
            assert_eq!(vmms(), before);
        }
    }

    async fn execs(&mut self) {
        for after in self.moments(100) {
            let (sandbox, pid) = self.sandbox().await;
            let flood = ExecRequest::shell("while :; do echo a line; done").timeout(NO_HANG).build().unwrap();
            let flood = prompt(sandbox.start(flood)).await.unwrap();
            let reads = ExecRequest::shell("cat > /dev/null").stdin(Stdin::Stream).timeout(NO_HANG).build().unwrap();
            let reads = prompt(sandbox.start(reads)).await.unwrap();
            let output = async {
                let mut output = flood.output();
                while output.next().await.is_some() {}
                flood.exit().await
            };
            assert!(is_reported("exec with output", killed(Target::Known(pid), after, output).await));
            assert!(is_reported("exec with input", prompt(reads.exit()).await));
            let mut stdin = reads.stdin().unwrap();
            prompt(stdin.write_all(&vec![7; 4 << 20])).await.expect_err("the reader is gone");
            self.is_over(sandbox).await;
            let (sandbox, pid) = self.sandbox().await;
            let path = SandboxPath::new("file").unwrap();
            let contents: FileReader = Box::new(tokio::io::AsyncReadExt::take(tokio::io::repeat(7), 24 << 20));
            let written = killed(Target::Known(pid), after, sandbox.write_file(&path, contents)).await;
            is_reported("write", written);
            self.is_over(sandbox).await;
        }
    }

    async fn snapshots(&mut self) {
        let mut cut_off = 0;
        for after in self.moments(60) {
            let (sandbox, pid) = self.sandbox().await;
            let handle = prompt(sandbox.start(forever())).await.unwrap();
            let taken = killed(Target::Known(pid), after, sandbox.snapshot()).await;
            cut_off += u32::from(is_reported(&format!("snapshot, {after:?}"), taken));
            kill(pid);
            assert!(is_reported("its exec", prompt(handle.exit()).await));
            self.is_over(sandbox).await;
            let (sandbox, pid) = self.sandbox().await;
            let before = vmms();
            let forked = killed(Target::Known(pid), after, sandbox.fork()).await;
            if let Ok(fork) = &forked {
                prompt(fork.close()).await.unwrap();
            }
            cut_off += u32::from(is_reported(&format!("fork, {after:?}"), forked));
            kill(pid);
            self.is_over(sandbox).await;
            assert!(vmms().is_subset(&before));
        }
        assert!(cut_off > 0, "no kill interrupted an operation");
    }

    async fn pauses(&mut self) {
        for paused in [false, true] {
            let (sandbox, pid) = self.sandbox().await;
            let handle = prompt(sandbox.start(forever())).await.unwrap();
            if paused {
                prompt(sandbox.pause()).await.unwrap();
                kill(pid);
                assert!(is_reported("resume", prompt(sandbox.resume()).await));
            } else {
                kill(pid);
                assert!(is_reported("pause", prompt(sandbox.pause()).await));
            }
            assert!(is_reported("its exec", prompt(handle.exit()).await));
            self.is_over(sandbox).await;
        }
        // Killed while it is paused, and never resumed.
        let (sandbox, pid) = self.sandbox().await;
        prompt(sandbox.pause()).await.unwrap();
        kill(pid);
        assert!(is_reported("snapshot of a paused one", prompt(sandbox.snapshot()).await));
        prompt(sandbox.close()).await.unwrap();
    }

    async fn restores(&mut self) {
        let mut cut_off = 0;
        for after in self.moments(200).into_iter().chain([5, 20, 50].map(Duration::from_millis)) {
            let before = vmms();
            let restored = killed(Target::New(&before), after, self.backend.restore(self.good.clone(), spec())).await;
            if let Ok(sandbox) = &restored {
                prompt(sandbox.close()).await.unwrap();
            }
            cut_off += u32::from(is_reported(&format!("restore, {after:?}"), restored));
            assert_eq!(vmms(), before);
        }
        assert!(cut_off > 0, "no kill interrupted an operation");
    }

    async fn prepared(&mut self) {
        let before = vmms();
        let boot = millis(&mut self.random, 600);
        let warmed = killed(Target::New(&before), boot, self.backend.prepare(spec())).await;
        assert!(is_reported("the first warm one", warmed));
        // The next call creates the template that could not be created.
        let mut warm = prompt(self.backend.prepare(spec())).await.unwrap();
        for after in self.moments(150) {
            let running = vmms();
            let warmed = killed(Target::New(&running), after, self.backend.prepare(spec())).await;
            if !is_reported("another warm one", warmed.as_ref().map(drop).map_err(Clone::clone)) {
                prompt(warmed.unwrap().close()).await.unwrap();
            }
            assert_eq!(vmms(), running);
        }
        let pid = *vmms().difference(&before).next().unwrap();
        kill(pid);
        prompt(async {
            while warm.is_alive() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        assert!(is_reported("claim", prompt(warm.claim(spec())).await.map(drop)));
        warm = prompt(self.backend.prepare(spec())).await.unwrap();
        let pid = *vmms().difference(&before).next().unwrap();
        // The claim may not detect the death; then the first exec does.
        kill(pid);
        if let Ok(sandbox) = prompt(warm.claim(spec())).await {
            self.is_over(sandbox).await;
        }
        let claimed = prompt(prompt(self.backend.prepare(spec())).await.unwrap().claim(spec())).await.unwrap();
        let done = prompt(claimed.exec(ExecRequest::shell("echo works").build().unwrap())).await.unwrap();
        assert_eq!(&*done.stdout, b"works\n");
        prompt(claimed.close()).await.unwrap();
        assert_eq!(vmms(), before);
    }

    async fn closes(&mut self) {
        for after in self.moments(20) {
            let (sandbox, pid) = self.sandbox().await;
            killed(Target::Known(pid), after, sandbox.close()).await.expect("what is gone is closed");
            prompt(sandbox.close()).await.unwrap();
            assert!(!vmms().contains(&pid));
        }
    }
}

fn forever() -> ExecRequest {
    ExecRequest::argv(["sleep", "1000000"]).timeout(NO_HANG).build().unwrap()
}

async fn prompt<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PROMPT, work).await.expect("no hang")
}

/// The supervisor of [`supervisor_continues_whenever_its_vmm_is_killed`], in a process with no other VMs; not a
/// test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supervisor() {
    let Some(temp) = directory_of(SUPERVISOR) else { return };
    let backend = VmBackend::new(config(&temp)).unwrap();
    let before = support::census();
    let first = prompt(backend.create(spec())).await.unwrap();
    let good = prompt(first.snapshot()).await.unwrap();
    let mut supervisor = Supervisor { backend, good, random: moments("supervisor") };
    supervisor.boots().await;
    supervisor.execs().await;
    supervisor.snapshots().await;
    supervisor.pauses().await;
    supervisor.restores().await;
    supervisor.prepared().await;
    supervisor.closes().await;
    // The first sandbox, and a new one, work.
    for sandbox in [first, prompt(supervisor.backend.create(spec())).await.unwrap()] {
        let done = prompt(sandbox.exec(ExecRequest::shell("echo works").build().unwrap())).await.unwrap();
        assert_eq!(&*done.stdout, b"works\n");
        prompt(sandbox.close()).await.unwrap();
    }
    drop(supervisor);
    assert_eq!(support::left(&before).await, BTreeSet::new());
    assert_eq!(census::groups_of(std::process::id()), BTreeSet::new());
    assert_eq!(census::files(&temp.join("disks")), BTreeSet::new());
    assert_eq!(census::files(&temp.join("tmp")), BTreeSet::new());
}

/// Promise (Virtual machines): A VMM killed at any step leaves nothing, and its supervisor creates the next VM.
#[test]
fn supervisor_continues_whenever_its_vmm_is_killed() {
    let test = "supervisor_continues_whenever_its_vmm_is_killed";
    if support::image(test).is_none() {
        return;
    }
    let temp = Fixture::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kill::vmm::supervisor", "--nocapture"]).env(PART, SUPERVISOR).env(DIRECTORY, temp.path());
    let output = command.env("TMPDIR", temp.path().join("tmp")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
}
