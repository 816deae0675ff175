//! The driver: its requests to Firecracker and their order, and VMs whose Firecracker fails.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, ErrorKind};
use cofferdam_vm::VmError;
use cofferdam_vm::firecracker::FirecrackerVmm;
use cofferdam_vm::vmm::{Started, VmState, Vmm};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{HISTORY_AT, MEMORY, Stage, description_in, driver_in, reported, requests};

pub(crate) const VERSION: &str = "1.16.2";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// Deadline of drivers that wait in vain.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
/// Far longer than any deadline: anything later is a hang.
const NO_HANG: Duration = Duration::from_secs(120);
pub(crate) const MAX_STATE: ByteSize = ByteSize::from_mebibytes(64);

pub(crate) async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NO_HANG, work).await.expect("no hang")
}

/// Returns true if the isolation can be created here; otherwise prints the reason for skipping.
pub(crate) fn can_be_confined(test: &str) -> bool {
    let abi = cofferdam_linux::landlock::abi();
    if abi == 0 {
        println!("SKIP {test}: no Landlock here");
    }
    abi > 0
}

pub(crate) async fn echoes(started: &mut Started) -> bool {
    let mut back = [0; 4];
    let sent = started.writer.write_all(b"ping").await.is_ok();
    sent && promptly(started.reader.read_exact(&mut back)).await.is_ok() && &back == b"ping"
}

/// Returns the history in the VM's memory.
async fn history(started: &mut Started) -> String {
    started.writer.write_all(b"mark").await.expect("a connection");
    let mut history = [0; 64];
    promptly(started.reader.read_exact(&mut history)).await.expect("an answer");
    String::from_utf8_lossy(&history).trim_end().to_owned()
}

/// Returns the process ID of a VM's VMM.
fn process(started: &Started) -> u32 {
    let processes = processes_of(&name(started));
    let [process] = processes[..] else { panic!("one process, not {processes:?}") };
    process
}

/// Returns the name of a VM.
fn name(started: &Started) -> String {
    reported(&started.vm.console(), "NAME").expect("it says so").to_owned()
}

/// Returns true if a process ends within a time limit.
fn is_gone(process: u32) -> bool {
    let begun = std::time::Instant::now();
    let state = || {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        text.rsplit_once(") ")?.1.chars().next()
    };
    // A zombie counts as gone.
    while !matches!(state(), None | Some('Z' | 'X')) {
        if begun.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns the processes whose command line contains a VM's name.
fn processes_of(name: &str) -> Vec<u32> {
    let numbers =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let names = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == name.as_bytes())
    };
    numbers.filter(names).collect()
}

/// Promise (Virtual machines): Firecracker runs with the isolation boundaries of QEMU, jailed or not, and leaves
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_starts_confined_step_by_step_and_leaves_nothing() {
    let test = "vm_starts_confined_step_by_step_and_leaves_nothing";
    if !can_be_confined(test) {
        return;
    }
    for stage in Stage::each(test, "", VERSION) {
        let driver = stage.driver(TIMEOUT);
        assert_eq!((driver.name(), &*driver.version().await.unwrap()), ("firecracker", VERSION));
        let (description, work) = stage.description();
        let words = [driver.disk_name(&description.disks[0], 0), driver.disk_name(&description.disks[1], 1)];
        assert_eq!((words, driver.port_name("dev.x")), (["vda".to_owned(), "vdb".to_owned()], "vsock:1024".to_owned()));
        let mut started = promptly(driver.start(description)).await.unwrap();
        assert!(echoes(&mut started).await, "{}", started.vm.console());
        let console = started.vm.console();
        let boot_args = format!("{} cofferdam.x=1", driver.kernel_arguments());
        let drive = |at: usize, read_only| {
            json!({
                "drive_id": format!("disk{at}"), "path_on_host": format!("disk{at}"), "is_root_device": false,
                "is_read_only": read_only, "cache_type": "Unsafe", "io_engine": "Sync",
            })
        };
        let expected = [
            ("GET /version", json!(null)),
            ("GET /", json!(null)),
            ("PUT /machine-config", json!({ "vcpu_count": 2, "mem_size_mib": 8, "smt": false })),
            (
                "PUT /boot-source",
                json!({ "kernel_image_path": "kernel", "initrd_path": "initramfs", "boot_args": boot_args }),
            ),
            ("PUT /drives/disk0", drive(0, true)),
            ("PUT /drives/disk1", drive(1, false)),
            ("PUT /entropy", json!({})),
            ("PUT /vsock", json!({ "guest_cid": 3, "uds_path": "v.sock" })),
            ("PUT /actions", json!({ "action_type": "InstanceStart" })),
        ];
        assert_eq!(requests(&console), expected.map(|(request, body)| (request.to_owned(), body)));
        // The resources that it could access.
        let root = rustix::process::geteuid().is_root();
        let user: u32 = reported(&console, "USER").unwrap().parse().unwrap();
        // In a user namespace without a mapping, the kernel shows every user as this one.
        let overflow: u32 = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap().trim().parse().unwrap();
        assert!(if root { user != 0 } else { user == overflow }, "{console}");
        assert_eq!(reported(&console, "PRIVILEGES"), Some("1"));
        assert_eq!(
            (reported(&console, "PASSWD"), reported(&console, "CONNECTS")),
            (Some("false"), Some("true")),
            "{console}"
        );
        let devices = std::fs::read_to_string(format!("/proc/{}/net/dev", process(&started))).unwrap();
        assert_eq!(devices.lines().filter(|line| line.contains(':')).count(), 1, "{devices}");
        assert!(started.vm.vmm_limits().contains("VMM"), "{}", started.vm.vmm_limits());
        match stage.is_jailed() {
            true => is_in_a_jail(&stage, &started, &driver),
            false => has_a_directory(&stage, &started),
        }
        let mut written = [0; 14];
        work.read_exact_at(&mut written, 0).unwrap();
        assert_eq!(&written, b"written inside");
        // In a jail, the limited number of files bounds them.
        let more = makes_more(&mut started).await;
        assert!(if stage.is_jailed() { more < 64 } else { more == 0 }, "{more} sockets more");
        let name = name(&started);
        assert!(started.vm.is_ended().is_none());
        promptly(started.vm.kill()).await.unwrap();
        promptly(started.vm.kill()).await.expect("again");
        assert_eq!(processes_of(&name), Vec::<u32>::new(), "the process was gone when the kill returned");
        assert!(started.vm.is_ended().is_some_and(|ended| !ended.by_itself));
        assert_eq!(
            std::fs::read_dir(stage.base()).unwrap().count(),
            0,
            "the directory was gone when the kill returned"
        );
        let mut rest = Vec::new();
        promptly(started.reader.read_to_end(&mut rest)).await.unwrap();
        assert!(rest.is_empty());
    }
}

/// Returns the number of sockets that the program created after its VM had started.
async fn makes_more(started: &mut Started) -> u32 {
    started.writer.write_all(b"make").await.expect("a connection");
    let mut count = [0; 4];
    promptly(started.reader.read_exact(&mut count)).await.expect("an answer");
    std::str::from_utf8(&count).unwrap().parse().unwrap()
}

/// Its directory contains no information about the host, and only sockets can be created in it.
fn has_a_directory(stage: &Stage, started: &Started) {
    assert_eq!(reported(&started.vm.console(), "MADE"), Some("false"));
    let [directory] = &std::fs::read_dir(stage.base()).unwrap().flatten().collect::<Vec<_>>()[..] else {
        panic!("one VM, one directory");
    };
    for entry in std::fs::read_dir(directory.path()).unwrap().flatten() {
        if let Ok(target) = std::fs::read_link(entry.path()) {
            assert!(target.starts_with("/proc/self/fd"), "{}", target.display());
        }
    }
}

/// Its root is its own, and no other process sees anything of it: no file, no mount.
fn is_in_a_jail(stage: &Stage, started: &Started, driver: &FirecrackerVmm) {
    assert_eq!(std::fs::read_dir(stage.base()).unwrap().count(), 0, "it has a path on the host");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(stage.path().to_str().unwrap()), "{mounts}");
    assert!(driver.runs_with().contains("by its own jailer"), "{}", driver.runs_with());
    let console = started.vm.console();
    // Files that the program in place of Firecracker needs for itself are ignored.
    let libraries = ["bin", "lib", "lib64", "usr", "tmp"];
    let root: Vec<_> =
        reported(&console, "ROOT").unwrap().split(' ').filter(|name| !libraries.contains(name)).collect();
    let expected = "dev disk0 disk1 files firecracker firecracker.pid initramfs kernel memory.out run state.out";
    assert_eq!(root, expected.split(' ').collect::<Vec<_>>());
    assert_eq!(reported(&console, "GROUPS"), Some("0"));
    let process = process(started);
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let value = |key: &str| status.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned())).unwrap();
    // The supervisor's, the jail's and the program's own.
    assert_eq!(value("NSpid:").split_whitespace().count(), 3, "{status}");
    assert_eq!((value("CapEff:"), value("CapPrm:")), ("0".repeat(16), "0".repeat(16)));
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max open files") && line.contains(" 128 ")), "{limits}");
    // The process that has its files open has a user of its own as well, no privileges, and none of this process's
    // memory.
    let user: u32 = reported(&console, "USER").unwrap().parse().unwrap();
    let init = init_of(process);
    let status = std::fs::read_to_string(format!("/proc/{init}/status")).unwrap();
    let value = |key: &str| status.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned())).unwrap();
    assert_eq!((value("Uid:"), value("CapEff:")), (vec![user.to_string(); 4].join("\t"), "0".repeat(16)));
    assert!(value("VmSize:").split(' ').next().unwrap().parse::<u64>().unwrap() < 1024, "{status}");
    assert_eq!(std::fs::read_dir(format!("/proc/{init}/fd")).unwrap().count(), 6, "kernel, initramfs, disks, states");
}

/// Returns the first process of the namespace around a jailed process.
fn init_of(process: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Promise (Virtual machines): Firecracker VMs pause, and their snapshots resume again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vms_pause_are_saved_and_resume() {
    if !can_be_confined("vms_pause_are_saved_and_resume") {
        return;
    }
    for stage in Stage::each("vms_pause_are_saved_and_resume", "", VERSION) {
        let driver = stage.driver(TIMEOUT);
        let mut first = promptly(driver.start(stage.description().0)).await.unwrap();
        assert_eq!(history(&mut first).await, "booted");
        for _ in 0..3 {
            first.vm.pause().await.unwrap();
            first.vm.pause().await.unwrap();
            first.vm.resume().await.unwrap();
            first.vm.resume().await.unwrap();
            assert!(echoes(&mut first).await, "the connection is still open");
        }
        assert!(first.vm.snapshot(MAX_STATE).await.unwrap_err().to_string().contains("a running VM"));
        let mut states: Vec<VmState> = Vec::new();
        for _ in 0..2 {
            first.vm.pause().await.unwrap();
            let none = first.vm.snapshot(ByteSize::from_bytes(100)).await.unwrap_err();
            assert!(matches!(none, VmError::SnapshotMemoryExhausted { left: 100 }), "{none}");
            states.push(promptly(first.vm.snapshot(MAX_STATE)).await.unwrap());
            first.vm.resume().await.unwrap();
            assert!(echoes(&mut first).await, "another connection");
            first.writer.write_all(b"note").await.unwrap();
            assert!(echoes(&mut first).await);
        }
        let memory = states[0].memory();
        assert_eq!(memory.metadata().unwrap().len(), MEMORY.as_bytes());
        assert!(memory.metadata().unwrap().blocks() * 512 <= 4096, "pages of zeros take space");
        assert!(memory.write_at(b"x", 0).is_err(), "the state can be changed");
        let mut text = [0; 6];
        memory.read_exact_at(&mut text, HISTORY_AT).unwrap();
        assert_eq!(&text, b"booted");
        promptly(first.vm.kill()).await.unwrap();
        // Several at once, of one state and of a state of a restored VM.
        let mut clones = Vec::new();
        for (state, expected) in [(0, "booted, restored"), (0, "booted, restored"), (1, "booted!, restored")] {
            let mut clone = promptly(driver.restore(stage.hardware(), &states[state])).await.unwrap();
            assert!(requests(&clone.vm.console()).iter().all(|(request, _)| request != "PATCH /vm"), "it is paused");
            clone.vm.resume().await.unwrap();
            assert!(stage.is_jailed() || makes_more(&mut clone).await == 0, "it created sockets");
            assert_eq!(history(&mut clone).await, expected);
            clones.push(clone);
        }
        let load = json!({
            "snapshot_path": "state.in", "mem_backend": { "backend_type": "File", "backend_path": "memory.in" },
            "resume_vm": false, "vsock_override": { "uds_path": "v.sock" },
        });
        let seen = requests(&clones[0].vm.console());
        assert_eq!(
            seen[2..4],
            [("PUT /snapshot/load".to_owned(), load), ("PATCH /vm".to_owned(), json!({ "state": "Resumed" }))]
        );
        clones[2].vm.pause().await.unwrap();
        let of_a_state = promptly(clones[2].vm.snapshot(MAX_STATE)).await.unwrap();
        let mut again = promptly(driver.restore(stage.hardware(), &of_a_state)).await.unwrap();
        again.vm.resume().await.unwrap();
        assert_eq!(history(&mut again).await, "booted!, restored, restored");
        assert_eq!(history(&mut clones[0]).await, "booted, restored");
        drop((clones, again));
        assert_eq!(stage.left(), Vec::<PathBuf>::new());
    }
}

/// Promise (Virtual machines): A Firecracker snapshot resumes with and without the jailer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_resumes_with_and_without_a_jailer() {
    let test = "snapshot_resumes_with_and_without_a_jailer";
    if !can_be_confined(test) {
        return;
    }
    let stages = Stage::each(test, "", VERSION);
    let [confined, jailed] = &stages[..] else { return };
    for (from, to) in [(confined, jailed), (jailed, confined)] {
        let source = promptly(from.driver(TIMEOUT).start(from.description().0)).await.unwrap();
        source.vm.pause().await.unwrap();
        let state = promptly(source.vm.snapshot(MAX_STATE)).await.unwrap();
        // Concurrently, from one file.
        for stage in [to, from] {
            let mut clone = promptly(stage.driver(TIMEOUT).restore(stage.hardware(), &state)).await.unwrap();
            clone.vm.resume().await.unwrap();
            assert_eq!(history(&mut clone).await, "booted, restored");
            promptly(clone.vm.kill()).await.unwrap();
        }
        promptly(source.vm.kill()).await.unwrap();
        assert_eq!((from.left(), to.left()), (Vec::new(), Vec::new()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_none_is_refused_and_leaves_nothing() {
    if !can_be_confined("a_state_that_is_none_is_refused_and_leaves_nothing") {
        return;
    }
    for stage in Stage::each("a_state_that_is_none_is_refused_and_leaves_nothing", "", VERSION) {
        let driver = stage.driver(TIMEOUT);
        let file = |contents: &[u8], length: u64| {
            let file = cofferdam_vm::sparse::blank(length).unwrap();
            file.write_all_at(contents, 0).unwrap();
            file
        };
        let state = |devices: &[u8], length| VmState::new(file(b"", length), file(devices, 0)).unwrap();
        let error = promptly(driver.restore(stage.hardware(), &state(b"x", MEMORY.as_bytes()))).await.unwrap_err();
        let error = error.into_contract("restore");
        assert!(error.message().contains("is no state") && error.remedy().is_some(), "{error}");
        let short = driver.restore(stage.hardware(), &state(b"x", 4096)).await.unwrap_err();
        assert!(matches!(short, VmError::Invalid { .. }), "{short}");
        assert_eq!(stage.left(), Vec::<PathBuf>::new());
    }
}

/// Returns the error, and checks that nothing of the VM is left.
async fn failure(fault: &str, step: &str) -> Error {
    failure_on(Stage::new(fault, VERSION), fault, step).await
}

async fn failure_on(stage: Stage, fault: &str, step: &str) -> Error {
    let driver = stage.driver(SHORT);
    let start = promptly(driver.start(stage.description().0)).await;
    let error = match (step, start) {
        ("start", Err(error)) => error,
        ("start", Ok(_)) => panic!("{fault}: it started"),
        (step, started) => {
            let started = started.unwrap_or_else(|error| panic!("{fault}: {error}"));
            let process = process(&started);
            let failed = match step {
                "pause" => promptly(started.vm.pause()).await.unwrap_err(),
                "resume" => {
                    started.vm.pause().await.unwrap();
                    promptly(started.vm.resume()).await.unwrap_err()
                }
                "snapshot" => {
                    started.vm.pause().await.unwrap();
                    promptly(started.vm.snapshot(MAX_STATE)).await.unwrap_err()
                }
                other => panic!("{other}"),
            };
            promptly(started.vm.kill()).await.unwrap_or_else(|error| panic!("{fault}: {error}"));
            assert!(is_gone(process), "{fault}");
            failed
        }
    };
    assert_eq!(stage.left(), Vec::<PathBuf>::new(), "{fault}");
    error.into_contract("create")
}

/// Promise (Virtual machines): A Firecracker that dies, hangs, refuses or sends garbage at any step is an error, not a
/// hang, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vmm_that_fails_at_any_step_is_reported_and_leaves_nothing() {
    if !can_be_confined("vmm_that_fails_at_any_step_is_reported_and_leaves_nothing") {
        return;
    }
    for (request, step) in [
        ("GET /version", "start"),
        ("GET /", "start"),
        ("PUT /machine-config", "start"),
        ("PUT /boot-source", "start"),
        ("PUT /drives/disk0", "start"),
        ("PUT /drives/disk1", "start"),
        ("PUT /entropy", "start"),
        ("PUT /vsock", "start"),
        ("PUT /actions", "start"),
        ("PATCH /vm", "pause"),
        ("PUT /snapshot/create", "snapshot"),
    ] {
        for (kind, expected, says) in [
            ("die", ErrorKind::Unavailable, ""),
            ("hang", ErrorKind::Unavailable, "no answer within"),
            ("refuse", ErrorKind::ResourceExhausted, "No space left"),
            ("rubbish", ErrorKind::Unavailable, "broke"),
        ] {
            let fault = format!("{kind} {request}");
            let error = failure(&fault, step).await;
            assert_eq!(error.kind(), expected, "{fault}: {error}");
            assert!(error.to_string().contains(says), "{fault}: {error}");
            assert!(
                error.remedy().is_some() || error.retry() != cofferdam_contract::Retry::Never,
                "{fault}: {error:?}"
            );
        }
    }
    // The same in a jail, where the parent processes must be gone as well.
    let test = "vmm_that_fails_at_any_step_is_reported_and_leaves_nothing";
    for (fault, step) in [
        ("die GET /version", "start"),
        ("die PUT /drives/disk1", "start"),
        ("hang PUT /vsock", "start"),
        ("refuse PUT /actions", "start"),
        ("rubbish PATCH /vm", "pause"),
        ("die PUT /snapshot/create", "snapshot"),
    ] {
        let Some(stage) = Stage::jailed(test, fault, VERSION) else { break };
        let error = failure_on(stage, fault, step).await;
        let known = [ErrorKind::Unavailable, ErrorKind::ResourceExhausted];
        assert!(known.contains(&error.kind()), "{fault}: {error}");
    }
    // Firecracker claims that it paused, or wrote a state, and did not.
    for (fault, step, says) in [
        ("lie PATCH /vm", "pause", "reports the state Running"),
        ("lie PUT /snapshot/create", "snapshot", "an invalid size of 0 bytes"),
    ] {
        let error = failure(fault, step).await;
        assert!(error.message().contains(says), "{fault}: {error}");
    }
}

/// Promise (Virtual machines): A failed restore of a Firecracker VM leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_restore_leaves_nothing() {
    if !can_be_confined("failed_restore_leaves_nothing") {
        return;
    }
    let good = Stage::new("", VERSION);
    let started = good.driver(TIMEOUT).start(good.description().0).await.unwrap();
    started.vm.pause().await.unwrap();
    let state = started.vm.snapshot(MAX_STATE).await.unwrap();
    for kind in ["die", "hang", "refuse", "rubbish"] {
        let stage = Stage::new(&format!("{kind} PUT /snapshot/load"), VERSION);
        promptly(stage.driver(SHORT).restore(stage.hardware(), &state)).await.expect_err(kind);
        assert_eq!(stage.left(), Vec::<PathBuf>::new(), "{kind}");
    }
    promptly(started.vm.kill()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_the_vmm_is_reported_with_its_reason() {
    if !can_be_confined("end_of_the_vmm_is_reported_with_its_reason") {
        return;
    }
    for stage in Stage::each("end_of_the_vmm_is_reported_with_its_reason", "", VERSION) {
        let driver = stage.driver(TIMEOUT);
        for (word, by_itself, says) in [(b"exit", true, "restarted"), (b"fail", false, "exit status: 3")] {
            let mut started = promptly(driver.start(stage.description().0)).await.unwrap();
            assert!(echoes(&mut started).await);
            started.writer.write_all(word).await.unwrap();
            let ended = promptly(started.vm.ended()).await;
            assert!(ended.by_itself == by_itself && ended.why.contains(says), "{ended:?}");
            let mut rest = Vec::new();
            promptly(started.reader.read_to_end(&mut rest)).await.unwrap();
            promptly(started.vm.kill()).await.unwrap();
        }
        assert_eq!(stage.left(), Vec::<PathBuf>::new());
    }
}

/// Promise (Virtual machines): A cancelled start of a Firecracker VM leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_that_are_given_up_leave_nothing() {
    if !can_be_confined("starts_that_are_given_up_leave_nothing") {
        return;
    }
    let test = "starts_that_are_given_up_leave_nothing";
    let each = |fault| Stage::each(test, fault, VERSION);
    for stage in [each("mute"), each("hang PUT /actions")].into_iter().flatten() {
        for after in [0, 5, 20, 100, 400] {
            let driver = stage.driver(TIMEOUT);
            let start = tokio::time::timeout(Duration::from_millis(after), driver.start(stage.description().0)).await;
            assert!(start.is_err(), "it never starts");
            assert_eq!(stage.left(), Vec::<PathBuf>::new(), "after {after} ms");
            // In a jail there are only processes, and these have the stage's program.
            let (begun, program) = (std::time::Instant::now(), stage.path().join("lib/fake"));
            while !processes_of(program.to_str().unwrap()).is_empty() {
                assert!(begun.elapsed() < NO_HANG, "after {after} ms a process is left");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// The process that is killed in the next test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_starts_a_vm_and_waits() {
    let Some(temp) = std::env::var_os("COFFERDAM_TEST_DRIVER_KILLED").map(PathBuf::from) else { return };
    let started = driver_in(&temp, TIMEOUT).start(description_in(&temp).0).await.unwrap();
    println!("STARTED {}", process(&started));
    std::future::pending::<()>().await;
}

/// Promise (Virtual machines): A killed supervisor leaves no Firecracker process, and the next start removes its
/// directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_supervisor_leaves_no_process_and_a_directory_that_is_swept() {
    if !can_be_confined("a_killed_supervisor_leaves_no_process_and_a_directory_that_is_swept") {
        return;
    }
    let stage = Stage::new("", VERSION);
    let mut supervisor = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "driver::child_starts_a_vm_and_waits", "--nocapture"])
        .env("COFFERDAM_TEST_DRIVER_KILLED", stage.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines().map_while(Result::ok);
    let vmm: u32 = lines.find_map(|line| line.split_once("STARTED ")?.1.parse().ok()).expect("it starts one");
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    assert!(is_gone(vmm));
    assert_eq!(std::fs::read_dir(stage.base()).unwrap().count(), 1);
    let foreign = stage.base().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let started = stage.driver(TIMEOUT).start(stage.description().0).await.unwrap();
    std::fs::remove_dir(&foreign).expect("foreign directories are not touched");
    assert_eq!(std::fs::read_dir(stage.base()).unwrap().count(), 1, "the dead supervisor's directory is gone");
    promptly(started.vm.kill()).await.unwrap();
    assert_eq!(stage.left(), Vec::<PathBuf>::new());
}
