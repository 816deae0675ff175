//! Failures: a clear error, no hang, nothing left.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{Backend, ByteSize, Error, ErrorKind, ExecRequest, Limits, OutputEvent, Sandbox, Spec};
use cofferdam_image::{KernelSource, RootSource};
use cofferdam_vm::qemu::QemuConfig;
use cofferdam_vm::{Deadlines, MakePolicy, VmBackend, VmConfig};
use rustix::process::{Pid, Signal, kill_process};

use crate::bounds;
use crate::support::{self, NO_HANG};

/// Marks the process that keeps a VM until it is killed.
const HOLDER: &str = "COFFERDAM_TEST_HOLDER";
const HOLDS: &str = "it holds a VM";
/// The number of busy processes in that VM.
const SPINNERS: u32 = 500;

async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NO_HANG, work).await.expect("no hang")
}

/// Returns a spec whose VM has a unique amount of memory.
fn spec(mebibytes: u64) -> Spec {
    let limits = Limits { memory: Some(ByteSize::from_mebibytes(mebibytes)), ..Limits::default() };
    Spec::builder().limits(limits).build().unwrap()
}

/// Returns the VMMs whose parent is this process.
fn vmms_of(parent: u32) -> BTreeSet<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
        name.contains("qemu-system") && rest.split(' ').nth(1) == Some(&*parent.to_string())
    })
    .collect()
}

/// Returns a request for many busy processes, which print a line before they begin.
fn spinners() -> ExecRequest {
    // All begin at once, since a running one would delay the start of the next.
    let one = "(: </tmp/begin; while :; do :; done) &";
    let start = format!("mkfifo /tmp/begin; i=0; while [ $i -lt {SPINNERS} ]; do {one} i=$((i+1)); done");
    let line = format!("{start}; echo ready; : >/tmp/begin; wait");
    ExecRequest::shell(line).timeout(Duration::from_secs(3600)).build().unwrap()
}

fn forever() -> ExecRequest {
    ExecRequest::argv(["sleep", "1000000"]).timeout(Duration::from_secs(3600)).build().unwrap()
}

/// Promise (Virtual machines): The execs of a killed VM end with that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_vm_ends_its_execs_with_the_reason() {
    let test = "killed_vm_ends_its_execs_with_the_reason";
    let Some(backend) = support::backend(test) else { return };
    let before = support::census();
    let sandbox: Arc<dyn Sandbox> = promptly(backend.create(spec(77))).await.unwrap();
    let handle = promptly(sandbox.start(forever())).await.unwrap();
    // 77 MiB for guests, and the kernel's share.
    let pid = support::vmm_with("176M");
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let error = promptly(handle.exit()).await.expect_err("the program did not end by itself");
    assert!(error.to_string().contains("its VMM ended") && error.remedy().is_some(), "{error:?}");
    let error = promptly(sandbox.start(forever())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    promptly(sandbox.close()).await.expect("what is gone is closed");
    drop((handle, sandbox, backend));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// Promise (Virtual machines): A VMM has no capability, no network and no path of the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vmm_has_no_capability_no_network_and_no_path() {
    let test = "vmm_has_no_capability_no_network_and_no_path";
    let Some(backend) = support::backend(test) else { return };
    // A descriptor that a shell left open for this process.
    let inherited = tempfile::NamedTempFile::new().unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let sandbox = promptly(backend.create(spec(80))).await.unwrap();
    let pid = support::vmm_with("179M");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect();
    assert!(open.len() > 10 && !open.iter().any(|file| file == inherited.path()), "{open:?}");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|rest| rest.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap_or_default()
    };
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), (vec!["1".to_owned()], vec!["2".to_owned()]), "{status}");
    // Cofferdam's filter, and QEMU's own.
    assert_eq!(field("Seccomp_filters"), ["2"], "{status}");
    assert!(field("Uid").iter().chain(&field("Gid")).all(|id| id != "0"), "{status}");
    if rustix::process::geteuid().is_root() {
        for kind in ["net", "ipc", "uts"] {
            let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
            assert_ne!(namespace(&pid.to_string()), namespace("self"), "{kind}");
        }
    }
    // QEMU's environment contains no variable of this process.
    let variables = String::from_utf8(std::fs::read(format!("/proc/{pid}/environ")).unwrap()).unwrap();
    // The C library splits its settings in place when it has read them.
    let is_allocators = |variable: &&str| variable.trim_start_matches("GLIBC_TUNABLES=").starts_with("glibc.malloc.");
    let rest: Vec<&str> = variables.split_terminator('\0').filter(|word| !is_allocators(word)).collect();
    assert_eq!(rest, ["LC_ALL=C"], "{variables:?}");
    let line = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap()).into_owned();
    assert!(!line.contains(&*support::cache().to_string_lossy()), "{line}");
    // Listening sockets have names; connected socket pairs have none.
    let listening = std::fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap();
    if rustix::process::geteuid().is_root() {
        assert!(listening.lines().skip(1).all(|line| line.split_whitespace().count() < 8), "{listening}");
    }
    promptly(sandbox.close()).await.unwrap();
}

/// The process that [`killed_supervisor_leaves_no_vm`] kills; not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder() {
    if std::env::var_os(HOLDER).is_none() {
        return;
    }
    let backend = support::backend("holder").expect("an image");
    let limits = Limits {
        memory: Some(ByteSize::from_mebibytes(256)),
        cpu_time: None,
        wall_time: Duration::from_secs(3600),
        pids: Some(SPINNERS + 50),
        ..Limits::default()
    };
    let sandbox = promptly(backend.create(Spec::builder().limits(limits).build().unwrap())).await.unwrap();
    let handle = promptly(sandbox.start(spinners())).await.unwrap();
    let mut output = handle.output();
    let first = promptly(output.next()).await;
    assert!(matches!(&first, Some(OutputEvent::Chunk(chunk)) if chunk.data == "ready\n"), "{first:?}");
    // The processes now share the processors of the VM.
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("\n{HOLDS}");
    std::future::pending::<()>().await;
}

/// Promise (Virtual machines): A killed supervisor leaves no VM, also if 500 processes in it are busy.
#[test]
fn killed_supervisor_leaves_no_vm() {
    if support::image("killed_supervisor_leaves_no_vm").is_none() {
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "life::holder", "--nocapture"]).env(HOLDER, "1").stdout(Stdio::piped());
    let mut child = again.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let holds = lines.map_while(Result::ok).any(|line| line == HOLDS);
    assert!(holds, "it created no VM");
    let vmms = vmms_of(child.id());
    assert_eq!(vmms.len(), 1, "{vmms:?}");
    let groups = vmms.iter().flat_map(|pid| bounds::groups_of(*pid)).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    let runs = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("qemu-system") && !stat.contains(") Z ")
    };
    while vmms.iter().any(runs) {
        assert!(begun.elapsed() < NO_HANG, "the VM still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
    bounds::are_swept(&groups);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_vms_leave_nothing() {
    let Some(backend) = support::backend("abandoned_vms_leave_nothing") else { return };
    let before = support::census();
    // Cancelled during the boot.
    let given_up = tokio::time::timeout(Duration::from_millis(700), backend.create(spec(81))).await;
    assert!(given_up.is_err(), "no VM boots that fast");
    // Dropped without a close, with a running program.
    let sandbox = promptly(backend.create(spec(82))).await.unwrap();
    let handle = promptly(sandbox.start(forever())).await.unwrap();
    drop((handle, sandbox));
    // Not booted in time.
    let deadlines = Deadlines { boot: Duration::from_millis(300), answer: NO_HANG };
    let hasty = VmBackend::new(VmConfig { deadlines, ..support::config() }).unwrap();
    let error = promptly(hasty.create(spec(83))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("not ready in time"), "{error}");
    drop((backend, hasty));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_kernel_is_reported_with_the_vmms_output() {
    let test = "invalid_kernel_is_reported_with_the_vmms_output";
    if support::image(test).is_none() {
        return;
    }
    let before = support::census();
    let temp = tempfile::tempdir().unwrap();
    let (image, root) = (temp.path().join("kernel"), temp.path().join("root"));
    std::fs::write(&image, "this is no kernel").unwrap();
    std::fs::create_dir(&root).unwrap();
    let error = without(|config| {
        config.source.kernel = KernelSource::Files { image, modules: Vec::new() };
        config.source.root = RootSource::Directory(root);
        config.images = temp.path().join("images");
    });
    let error = error.await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().to_lowercase().contains("kernel"), "{error}");
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

async fn without(change: impl FnOnce(&mut VmConfig)) -> Error {
    let mut config = support::config();
    change(&mut config);
    promptly(VmBackend::new(config).unwrap().create(Spec::default())).await.unwrap_err()
}

/// Returns a program that prints this as its version.
fn says(directory: &Path, text: &str) -> QemuConfig {
    let program = directory.join("monitor");
    std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    QemuConfig { program: Some(program), ..QemuConfig::default() }
}

#[tokio::test]
async fn unusable_vmm_is_named_with_a_remedy() {
    if support::image("unusable_vmm_is_named_with_a_remedy").is_none() {
        return;
    }
    let missing = QemuConfig { program: Some("/no/such/monitor".into()), ..QemuConfig::default() };
    let error = without(|config| config.qemu = missing).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("qemu-system-x86")), "{error:?}");
    let temp = tempfile::tempdir().unwrap();
    let old = says(temp.path(), "echo QEMU emulator version 6.2.0");
    let error = without(|config| config.qemu = old).await;
    assert!(error.to_string().contains("6.2.0 is too old: 7.2 or newer"), "{error}");
    let odd = says(temp.path(), "echo hello");
    let error = without(|config| config.qemu = odd).await;
    assert!(error.to_string().contains("prints no version"), "{error}");
    // A program that exits immediately, with a reason.
    let ends = "case $1 in --version) echo QEMU emulator version 9.9.9;; *) echo no such machine >&2; exit 1;; esac";
    let ends = says(temp.path(), ends);
    let error = without(|config| config.qemu = ends).await;
    assert!(error.to_string().contains("no such machine"), "{error}");
}

#[tokio::test]
async fn a_missing_image_is_an_error_that_says_how_to_get_it() {
    let temp = tempfile::tempdir().unwrap();
    let error = without(|config| {
        config.images = temp.path().join("none");
        config.make = MakePolicy::Never;
    });
    let error = error.await;
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.remedy().is_some(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fills_up_ends_nothing_but_the_write() {
    let Some(backend) = support::backend("a_disk_that_fills_up_ends_nothing_but_the_write") else { return };
    let before = support::census();
    let limits = Limits { disk: Some(ByteSize::from_mebibytes(16)), ..Limits::default() };
    let sandbox = promptly(backend.create(Spec::builder().limits(limits).build().unwrap())).await.unwrap();
    let fill = "dd if=/dev/zero of=/workspace/big bs=65536 2>/dev/null; echo $?; rm /workspace/big; echo x > /workspace/f; cat /workspace/f";
    let done = promptly(sandbox.exec(ExecRequest::shell(fill).build().unwrap())).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "1\nx\n", "{done:?}");
    let usage = promptly(sandbox.usage()).await.unwrap();
    assert!(usage.disk_bytes.is_some_and(|bytes| bytes < 16 << 20) && usage.memory_bytes.is_some(), "{usage:?}");
    promptly(sandbox.close()).await.unwrap();
    drop((sandbox, backend));
    assert_eq!(support::left(&before).await, BTreeSet::new());
}

/// Waits until a stopped VMM is gone.
async fn is_gone(pid: Pid) {
    promptly(async {
        while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_that_cannot_resume_is_killed() {
    let test = "vm_that_cannot_resume_is_killed";
    if support::image(test).is_none() {
        return;
    }
    let qemu = QemuConfig { timeout: Duration::from_secs(8), ..QemuConfig::default() };
    let backend = VmBackend::new(VmConfig { qemu, ..support::config() }).unwrap();
    let sandbox = promptly(backend.create(spec(83))).await.unwrap();
    let handle = promptly(sandbox.start(forever())).await.unwrap();
    // 83 MiB for guests, and the kernel's share.
    let pid = Pid::from_raw(support::vmm_with("182M").cast_signed()).unwrap();
    promptly(sandbox.pause()).await.unwrap();
    // It receives a request to resume, and does not answer.
    kill_process(pid, Signal::STOP).unwrap();
    promptly(sandbox.resume()).await.expect_err("the VMM is stopped");
    is_gone(pid).await;
    let error = promptly(handle.exit()).await.expect_err("the program did not end by itself");
    assert!(error.to_string().contains("its VMM ended"), "{error:?}");
    promptly(sandbox.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_ends_with_its_connection() {
    let test = "vm_ends_with_its_connection";
    if support::image(test).is_none() {
        return;
    }
    let deadlines = Deadlines { boot: Duration::from_secs(20), answer: Duration::from_secs(1) };
    let backend = VmBackend::new(VmConfig { deadlines, ..support::config() }).unwrap();
    let sandbox = promptly(backend.create(spec(86))).await.unwrap();
    let handle = promptly(sandbox.start(forever())).await.unwrap();
    // 86 MiB for guests, and the kernel's share.
    let pid = Pid::from_raw(support::vmm_with("185M").cast_signed()).unwrap();
    // Its agent no longer answers, and the connection is closed. The client does not close the sandbox.
    kill_process(pid, Signal::STOP).unwrap();
    promptly(handle.exit()).await.expect_err("the program did not end by itself");
    is_gone(pid).await;
    drop(sandbox);
}

/// Each copy of a VM repeats the background work of its kernel, and uses memory for the code translated for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_of_an_idle_vm_polls_nothing() {
    let Some(backend) = support::backend("kernel_of_an_idle_vm_polls_nothing") else { return };
    let before = support::census();
    let sandbox = promptly(backend.create(Spec::default())).await.unwrap();
    let read = async |line: &str| {
        let done = promptly(sandbox.exec(ExecRequest::shell(line).build().unwrap())).await.unwrap();
        assert!(done.exit.success() && done.stderr.is_empty(), "{line}: {done:?}");
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    let mounts = read("cat /proc/mounts").await;
    let mount = mounts.lines().find(|line| line.contains(" /workspace ")).unwrap_or_default();
    for word in ["ext4", "noinit_itable", "no_prefetch_block_bitmaps"] {
        assert!(mount.contains(word), "{mounts}");
    }
    assert_eq!(read("cat /proc/sys/vm/compaction_proactiveness /proc/sys/kernel/watchdog").await, "0\n0");
    let memory = read("cat /proc/meminfo").await;
    let dirty = memory.lines().find(|line| line.starts_with("Dirty:")).unwrap_or_default();
    let dirty: u64 = dirty.split_whitespace().nth(1).and_then(|kibibytes| kibibytes.parse().ok()).unwrap_or(u64::MAX);
    assert!(dirty <= 64, "{memory}");
    assert_eq!(read("ls /sys/bus/virtio/devices | wc -l").await, "4");
    assert!(read("cat /proc/cmdline").await.contains(" deferred_probe_timeout=0 "));
    promptly(sandbox.close()).await.unwrap();
    drop((sandbox, backend));
    assert_eq!(support::left(&before).await, Default::default());
}
