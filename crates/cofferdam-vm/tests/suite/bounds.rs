//! Host resources of a VMM, and its refusal without isolation.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{
    Access, Backend, ByteSize, ErrorKind, ExecRequest, FindingState, LimitKind, Limits, Protection, Sandbox, Spec,
};
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::vmm::{Contents, Disk, VmDescription, Vmm};
use cofferdam_vm::{VmConfig, VmError, doctor};

use crate::support::{self, NO_HANG};

/// Marks a test that another one started, because it needs a process of its own.
const PART: &str = "COFFERDAM_TEST_PART";

/// Returns the command for this program with one test alone.
pub(crate) fn again(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", test, "--nocapture"]).env(PART, part);
    command
}

fn is_part(name: &str) -> bool {
    std::env::var_os(PART).is_some_and(|part| part == name)
}

/// Returns the process's control groups of Cofferdam, one in each hierarchy.
pub(crate) fn groups_of(pid: u32) -> BTreeSet<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let top = Path::new("/sys/fs/cgroup");
        let mounted = [top.join(controllers), top.to_owned(), top.join("unified")];
        let found =
            mounted.into_iter().map(|mount| mount.join(path)).find(|path| path.join("cgroup.procs").exists())?;
        path.contains("cofferdam-").then_some(found)
    };
    text.lines().filter_map(group).collect()
}

/// Returns true if this user can create control groups.
async fn has_groups(test: &str) -> bool {
    let temp = tempfile::tempdir().unwrap();
    let found = doctor(&VmConfig::new(temp.path())).await;
    let bounds = found.iter().find(|finding| finding.name == "VMM limits").expect("a finding");
    if bounds.state != FindingState::Ok {
        println!("SKIP {test}: {}", bounds.detail);
        assert!(bounds.detail.contains("bounded only by resource limits") && bounds.remedy.is_some(), "{bounds:?}");
    }
    bounds.state == FindingState::Ok
}

fn vmm_with(memory: &str) -> u32 {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)).unwrap_or_default();
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == std::process::id().to_string() && line.split(|&byte| byte == 0).any(|word| word == memory.as_bytes())
    };
    let found: Vec<u32> = pids.filter(ours).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

/// Promise (Virtual machines): A control group limits the memory, CPU and threads of a VMM where the user can create
/// one, and ends with the VMM.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vmm_is_bounded_by_a_group_that_ends_with_it() {
    let test = "vmm_is_bounded_by_a_group_that_ends_with_it";
    let Some(backend) = support::backend(test) else { return };
    let limits = Limits { memory: Some(ByteSize::from_mebibytes(90)), ..Limits::default() };
    let spec = Spec::builder().limits(limits).build().unwrap();
    let sandbox: Arc<dyn Sandbox> = tokio::time::timeout(NO_HANG, backend.create(spec)).await.unwrap().unwrap();
    let memory = sandbox.posture().get(Protection::Memory).unwrap().mechanism.clone();
    let kernel = sandbox.posture().get(Protection::PidNamespace).unwrap().mechanism.clone();
    println!("{memory}\n{kernel}");
    assert!(kernel.contains("(tcg)") || kernel.contains("(kvm)"), "{kernel}");
    let pid = vmm_with("189M");
    let limit = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limit.lines().find(|line| line.starts_with("Max core")).unwrap();
    let files = limit.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(core.contains(" 0 ") && files.contains(" 128 "), "{limit}");
    if has_groups(test).await {
        let groups = groups_of(pid);
        assert!(!groups.is_empty());
        let read = |name: &str| {
            let found = groups.iter().find_map(|group| std::fs::read_to_string(group.join(name)).ok());
            found.map(|text| text.trim().to_owned())
        };
        // The VM, the VMM's code cache and structures, page tables, and the workspace if it is in memory.
        let bytes: u64 = read("memory.limit_in_bytes").or_else(|| read("memory.max")).unwrap().parse().unwrap();
        let min = (189 + 128 + 192 + 3) << 20;
        assert!(bytes >= min && bytes <= min + (2 << 30), "{bytes}");
        assert_eq!(read("pids.max").as_deref(), Some("97"));
        if let Some(quota) = read("cpu.cfs_quota_us").or_else(|| read("cpu.max")) {
            assert!(quota.starts_with("100000"), "{quota}");
        }
        assert!(memory.contains("the VMM is in a group of cgroup"), "{memory}");
        tokio::time::timeout(NO_HANG, sandbox.close()).await.unwrap().unwrap();
        let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
        assert!(left.is_empty(), "{left:?}");
    } else {
        assert!(memory.contains("bounded only by resource limits"), "{memory}");
        tokio::time::timeout(NO_HANG, sandbox.close()).await.unwrap().unwrap();
    }
}

/// A sweep as by every start of a VM; not a test of its own.
#[tokio::test]
async fn sweeper() {
    if is_part("sweeper") {
        assert!(has_groups("sweeper").await);
    }
}

/// Checks that the groups of a killed supervisor are removed once another process has created some.
pub(crate) fn are_swept(groups: &BTreeSet<PathBuf>) {
    if groups.is_empty() {
        println!("SKIP sweeping: this user cannot create groups");
        return;
    }
    assert!(groups.iter().all(|group| group.exists()), "{groups:?}");
    let output = again("bounds::sweeper", "sweeper").output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    for group in groups {
        let owner = group.parent().expect("a group is in its owner's");
        assert!(!owner.exists(), "{}", owner.display());
    }
}

/// Returns a VM whose VMM starts, and nothing more.
fn nothing(temp: &Path) -> VmDescription {
    let file = temp.join("kernel");
    std::fs::write(&file, "no kernel").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    VmDescription {
        kernel: file.clone(),
        initramfs: file.clone(),
        command_line: String::new(),
        memory: ByteSize::from_mebibytes(64),
        processors: 1,
        disks: vec![Disk { name: "root", contents: Contents::Shared(file), access: Access::ReadOnly }],
        port: "p",
    }
}

/// The part of [`vmm_without_confinement_is_not_started`] that runs without an isolation mechanism.
#[tokio::test]
async fn confined() {
    let boundary = match std::env::var(PART).as_deref() {
        Ok("no-namespaces") => "namespaces",
        Ok("no-landlock") => {
            forbid_landlock();
            "Landlock"
        }
        _ => return,
    };
    let temp = tempfile::tempdir().unwrap();
    let started = Qemu::new(QemuConfig::default()).unwrap().start(nothing(temp.path())).await;
    let error = started.map(drop).expect_err("a VMM without isolation");
    let named = matches!(&error, VmError::MissingBoundary { boundary: found } if found.starts_with(boundary));
    assert!(named, "{error}");
    let error = error.into_contract("create");
    assert!(error.kind() == ErrorKind::Unavailable && error.remedy().is_some(), "{error:?}");
    let findings = doctor(&VmConfig::new(temp.path())).await;
    let name = if boundary == "Landlock" { "VMM files" } else { "VMM network" };
    let found = findings.iter().find(|finding| finding.name == name).unwrap();
    assert!(found.state == FindingState::Missing && found.remedy.is_some(), "{found:?}");
    println!("refused: {boundary}");
}

/// Makes the kernel appear without Landlock for this thread and its children.
fn forbid_landlock() {
    use cofferdam_linux::seccomp::{Instruction, Program, install};
    const CREATE_RULESET: u32 = 444;
    let step = |code, jf, k| Instruction { code, jt: 0, jf, k };
    let refusal = 0x0005_0000 | rustix::io::Errno::NOSYS.raw_os_error().cast_unsigned();
    // Load the call number; for that call return "not implemented", otherwise allow it.
    let instructions =
        vec![step(0x20, 0, 0), step(0x15, 1, CREATE_RULESET), step(0x06, 0, refusal), step(0x06, 0, 0x7fff_0000)];
    cofferdam_linux::process::set_no_new_privileges().expect("no_new_privs");
    install(&Program { instructions }).expect("a filter");
}

fn was_refused(output: &Output, boundary: &str) {
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains(&format!("refused: {boundary}")), "{printed}");
}

/// Root starts VMMs as another user, which may lack access to the program. That is not a lack of isolation.
///
/// Promise (Virtual machines): A VMM program without permission to execute is an error with that reason.
#[tokio::test]
async fn vmm_without_permission_to_execute_is_reported() {
    let test = "vmm_without_permission_to_execute_is_reported";
    if !support::has_vmm() || !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: it takes QEMU (package qemu-system-x86), and root");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let hidden = temp.path().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::set_permissions(&hidden, Permissions::from_mode(0o700)).unwrap();
    let found = ["/usr/bin", "/usr/local/bin"].map(|temp| Path::new(temp).join("qemu-system-x86_64"));
    let Some(found) = found.into_iter().find(|path| path.exists()) else {
        println!("SKIP {test}: QEMU is in no standard directory");
        return;
    };
    std::os::unix::fs::symlink(found, hidden.join("qemu")).unwrap();
    let qemu = Qemu::new(QemuConfig { program: Some(hidden.join("qemu")), ..QemuConfig::default() }).unwrap();
    let error = qemu.start(nothing(temp.path())).await.map(drop).expect_err("a VMM without execute permission");
    assert!(matches!(error, VmError::NotExecutable { .. }), "{error}");
    let error = error.into_contract("create");
    assert!(error.kind() == ErrorKind::Denied && error.remedy().is_some(), "{error:?}");
}

/// Promise (Virtual machines): Without Landlock or namespaces no VMM starts, and `doctor` reports the reason.
#[test]
fn vmm_without_confinement_is_not_started() {
    let test = "vmm_without_confinement_is_not_started";
    if !support::has_vmm() {
        println!("SKIP {test}: no QEMU here (package qemu-system-x86)");
        return;
    }
    was_refused(&again("bounds::confined", "no-landlock").output().expect("it starts"), "Landlock");
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root can take user namespaces from an ordinary user");
        return;
    }
    // A user namespace that permits no further ones, and an ordinary user in it.
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), Permissions::from_mode(0o777)).unwrap();
    let program = temp.path().join("suite");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut holder = Command::new("unshare").args(["--user", "sleep", "1000"]).spawn().expect("unshare starts");
    let of_holder = |name: &str| PathBuf::from(format!("/proc/{}/{name}", holder.id()));
    let begun = Instant::now();
    let namespace = |path: &Path| std::fs::read_link(path).ok();
    while namespace(&of_holder("ns/user")) == namespace(Path::new("/proc/self/ns/user")) {
        assert!(begun.elapsed() < NO_HANG, "it has no namespace of its own");
        std::thread::sleep(Duration::from_millis(10));
    }
    for map in ["uid_map", "gid_map"] {
        std::fs::write(of_holder(map), "0 0 65536").expect("a map");
    }
    let line = "echo 0 > /proc/sys/user/max_user_namespaces \
                && exec setpriv --reuid 4711 --regid 4711 --clear-groups -- \"$0\" \"$@\"";
    let mut command = Command::new("nsenter");
    command.arg(format!("--user={}", of_holder("ns/user").display())).args([
        "--setuid=0",
        "--setgid=0",
        "sh",
        "-c",
        line,
    ]);
    command.arg(&program).args(["--exact", "bounds::confined", "--nocapture"]);
    command.env(PART, "no-namespaces").env("TMPDIR", temp.path()).current_dir("/");
    let output = command.output();
    holder.kill().and_then(|()| holder.wait()).expect("it ends");
    was_refused(&output.expect("it starts"), "namespaces");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_in_memory_are_full_before_the_memory_is() {
    let Some(backend) = support::backend("directories_in_memory_are_full_before_the_memory_is") else { return };
    for disk in [Limits::default().disk, None] {
        let limits = Limits { memory: Some(ByteSize::from_mebibytes(64)), disk, ..Limits::default() };
        let sandbox = backend.create(Spec::builder().limits(limits).build().unwrap()).await.unwrap();
        let line = "for at in /tmp /dev/shm; do head -c 100000000 /dev/zero > $at/x || echo full; done; ls / > /dev/null && echo after";
        let done = sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), "full\nfull\nafter\n", "{done:?}");
        sandbox.close().await.unwrap();
    }
}

/// Eight programs that open nearly four thousand files each, more than the kernel of such a small VM allows in total.
const EVERY_FILE: &str = r"
: > /tmp/x; names=$(yes /tmp/x | head -n 3900)
for each in 1 2 3 4 5 6 7 8; do tail -q -n 0 -f $names > /dev/null 2>&1 & done
while (: < /tmp/x) 2> /dev/null; do :; done
echo full; while :; do :; done
";

/// Promise (Limits): A guest that exhausts the open files of a VM's kernel keeps its CPU limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_that_exhausts_kernel_files_keeps_its_cpu_limit() {
    let test = "guest_that_exhausts_kernel_files_keeps_its_cpu_limit";
    let Some(backend) = support::backend(test) else { return };
    let limits = Limits {
        memory: Some(ByteSize::from_mebibytes(64)),
        cpu_time: Some(Duration::from_secs(15)),
        ..Limits::default()
    };
    let spec = Spec::builder().limits(limits).build().unwrap();
    let sandbox = tokio::time::timeout(NO_HANG, backend.create(spec)).await.unwrap().unwrap();
    let request = ExecRequest::argv(["sh", "-c", EVERY_FILE]).timeout(NO_HANG).build().unwrap();
    let done = tokio::time::timeout(NO_HANG * 2, sandbox.exec(request)).await.unwrap().unwrap();
    assert!(done.stdout.ends_with(b"full\n"), "{done:?}");
    assert_eq!(done.exit.killed_by, Some(LimitKind::Cpu), "{done:?}");
    // The rest of the programs end with their exec, and the VM is usable as before.
    let done = sandbox.exec(ExecRequest::argv(["cat", "/tmp/x"]).build().unwrap()).await.unwrap();
    assert!(done.exit.success(), "{done:?}");
    sandbox.close().await.unwrap();
}
