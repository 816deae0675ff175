//! Tests of copy-on-write directories: overlays for root, and what remains of them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_changes::sandbox::{CopyOnWriteByCopy, received};
use cofferdam_changes::{Bounds, Cause, ChangeSet, conflicts};
use cofferdam_contract::{
    Backend, ByteSize, ErrorKind, ExecRequest, Limits, Mount, MountAccess, MountSource, MountTarget, Protection,
    ProtectionState, Sandbox, Spec, Workspace,
};
use tempfile::TempDir;

use crate::own::OwnEngine;
use crate::support::{self, TestEngine};

/// The mounts of overlays until the engine has bound them.
const MOUNTS: &str = "/run/cofferdam-disks";
/// The owner of the directory, an ordinary user.
const OWNER: u32 = 4711;

/// Returns the engines if this process may mount overlays.
fn engines(test: &str) -> Vec<TestEngine> {
    if rustix::process::geteuid().is_root() {
        return support::engines(test);
    }
    println!("SKIP {test}: only root mounts overlays for containers");
    Vec::new()
}

/// Returns a directory of an ordinary user.
fn project() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("tree/deep")).unwrap();
    for name in ["given", "gone", "private", "tree/one", "tree/deep/two"] {
        fs::write(at(name), "by the host").unwrap();
    }
    fs::set_permissions(at("private"), fs::Permissions::from_mode(0o600)).unwrap();
    for name in ["", "given", "gone", "private", "tree", "tree/one", "tree/deep", "tree/deep/two"] {
        chown(at(name), Some(OWNER), Some(OWNER)).unwrap();
    }
    // A file that changed shortly before the sandbox counts as changed by the host meanwhile.
    std::thread::sleep(Duration::from_millis(60));
    directory
}

/// Returns everything about the files of a directory that a guest could change.
fn state(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![directory.to_owned()];
    while let Some(path) = next.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let contents = if meta.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        found.push(format!("{} {:o} {} {times:?} {contents}", path.display(), meta.mode(), meta.uid()));
        if meta.is_dir() {
            next.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

fn layered(directory: &TempDir) -> Spec {
    let path = directory.path().canonicalize().unwrap();
    support::spec().workspace(Workspace::CopyOnWrite { path }).build().unwrap()
}

async fn succeeds(sandbox: &Arc<dyn Sandbox>, line: &str) -> String {
    let done = sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap();
    assert!(done.exit.success(), "{line}: {:?} {}", done.exit, String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout.to_vec()).unwrap()
}

async fn changes(sandbox: &Arc<dyn Sandbox>) -> Vec<String> {
    let found = sandbox.changes().await.unwrap();
    assert_eq!(found.skipped_count, 0, "{:?}", found.skipped);
    let set = ChangeSet::read(received(found.layer).await.unwrap(), &Bounds::default()).unwrap();
    let listed = set.changes().iter().map(|change| format!("{} {}", change.kind.name(), change.path.display()));
    let mut listed: Vec<String> = listed.collect();
    listed.sort();
    listed
}

/// Returns what is mounted on the host by a process.
fn mounts_of(process: u32) -> Vec<String> {
    let entries = fs::read_dir(MOUNTS).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.split('-').nth(1) == Some(&process.to_string())).collect()
}

/// Promise (Containers): For root, a copy-on-write workspace is an overlay: the guest changes everything that belongs
/// to the owner of the directory, the changes are those of its layer, and the directory stays as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_on_write_workspace_of_root_is_an_overlay() {
    for engine in engines("a_copy_on_write_workspace_of_root_is_an_overlay") {
        let directory = project();
        let before = state(directory.path());
        let sandbox = engine.backend().create(layered(&directory)).await.unwrap();
        let row = sandbox.posture().get(Protection::Workspace).unwrap();
        assert!(row.state == ProtectionState::Enforced && row.mechanism.contains("overlayfs"), "{row:?}");
        let mounted = succeeds(&sandbox, "grep ' /workspace ' /proc/self/mounts").await;
        assert!(mounted.contains(" /workspace overlay rw,"), "{}: {mounted}", engine.name);
        assert!(!mounted.contains(&*directory.path().to_string_lossy()), "it shows a path of the host: {mounted}");
        let uid = succeeds(&sandbox, "id -u").await;
        assert!(uid.trim() != "0" && uid.trim() != OWNER.to_string(), "{uid}");
        succeeds(&sandbox, "cat private && echo new > private && echo x >> given && rm gone && chmod 700 tree/one")
            .await;
        succeeds(&sandbox, "rm -r tree/deep && mkdir tree/deep && echo y > tree/deep/three && ln -s given link").await;
        let expected = [
            "added link",
            "added tree/deep/three",
            "deleted gone",
            "deleted tree/deep/two",
            "modified given",
            "modified private",
            "modified tree/one",
        ];
        assert_eq!(changes(&sandbox).await, expected, "{}", engine.name);
        sandbox.close().await.unwrap();
        assert_eq!(changes(&sandbox).await, expected, "{}: after the end", engine.name);
        assert_eq!(state(directory.path()), before, "{}", engine.name);
    }
}

/// Promise (Limits): The layers of a container's copy-on-write workspace and mounts hold no more than the disk limit
/// together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_hold_no_more_than_the_disk_limit_together() {
    for engine in engines("layers_hold_no_more_than_the_disk_limit_together") {
        let (directory, other) = (project(), project());
        let limits = Limits { disk: Some(ByteSize::from_mebibytes(16)), ..Limits::default() };
        let path = other.path().canonicalize().unwrap();
        let source = MountSource::HostPath { path, access: MountAccess::CopyOnWrite };
        let mount = Mount { target: MountTarget::new("/mnt").unwrap(), source };
        let spec = layered(&directory).to_builder().limits(limits).mount(mount).build().unwrap();
        let before = (state(directory.path()), state(other.path()));
        let sandbox = engine.backend().create(spec).await.unwrap();
        let row = sandbox.posture().get(Protection::Disk).unwrap();
        assert_eq!(row.state, ProtectionState::Enforced, "{row:?}");
        let fill = "for at in /workspace/a /mnt/b; do dd if=/dev/zero of=$at bs=1M count=12 2>/dev/null; done; \
                    stat -c %s /workspace/a /mnt/b";
        let sizes = succeeds(&sandbox, fill).await;
        let stored: u64 = sizes.lines().map(|line| line.parse::<u64>().unwrap()).sum();
        assert!((12 << 20..=16 << 20).contains(&stored), "{}: {sizes}", engine.name);
        sandbox.close().await.unwrap();
        assert_eq!((state(directory.path()), state(other.path())), before, "{}", engine.name);
    }
}

/// Promise (Limits): Files in the layer of a container's workspace count as storage, not as memory, as in a private
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_in_a_layer_do_not_count_as_memory() {
    let test = "files_in_a_layer_do_not_count_as_memory";
    // Podman changes a memory limit more slowly than a program stores files.
    for engine in engines(test).into_iter().filter(|engine| engine.name == "docker") {
        let directory = project();
        let (memory, disk) = (Some(ByteSize::from_mebibytes(96)), Some(ByteSize::from_mebibytes(160)));
        let limits = Limits { memory, disk, ..Limits::default() };
        let spec = layered(&directory).to_builder().limits(limits).build().unwrap();
        let sandbox = engine.backend().create(spec).await.unwrap();
        // Slowly enough for the memory limit to follow.
        succeeds(&sandbox, "i=0; while [ $i -lt 150 ]; do head -c 1048576 /dev/zero > f$i || exit 1; i=$((i+1)); done")
            .await;
        sandbox.close().await.unwrap();
    }
}

/// Promise (Files): A fork of a container with an overlay has the changes so far, and then changes of its own (K4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_of_an_overlay_has_changes_of_its_own() {
    for engine in engines("a_fork_of_an_overlay_has_changes_of_its_own") {
        let directory = project();
        let first = engine.backend().create(layered(&directory)).await.unwrap();
        let change = "echo x > before; rm gone; rm -r tree; mkdir -m 500 tree; ln -s before link; chmod 711 before";
        succeeds(&first, change).await;
        let common = changes(&first).await;
        let fork = first.fork().await.unwrap();
        assert_eq!(changes(&fork).await, common, "{}", engine.name);
        let look =
            "cat link; stat -c '%n %a %Y' before; stat -c '%n %a' tree; ls . tree; test -O before && test -O tree";
        assert_eq!(succeeds(&fork, look).await, succeeds(&first, look).await, "{}", engine.name);
        succeeds(&fork, "chmod 755 tree; echo y > tree/fork; rm before").await;
        succeeds(&first, "echo z > first").await;
        assert!(!changes(&first).await.iter().any(|change| change.contains("fork")), "{}", engine.name);
        let of_fork = changes(&fork).await;
        assert!(of_fork.contains(&"added tree/fork".to_owned()), "{}: {of_fork:?}", engine.name);
        assert!(!of_fork.iter().any(|change| change.ends_with("first") || change.ends_with("before")), "{of_fork:?}");
        assert_eq!(first.snapshot().await.map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
        fork.close().await.unwrap();
        first.close().await.unwrap();
    }
}

/// Promise (Containers): What the host changed before a fork of a container with an overlay, but after its source began,
/// is a conflict in the changes of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_the_host_before_a_fork_is_a_conflict() {
    for engine in engines("a_change_of_the_host_before_a_fork_is_a_conflict") {
        let directory = project();
        let first = engine.backend().create(layered(&directory)).await.unwrap();
        succeeds(&first, "echo guest > given; echo guest > private").await;
        fs::write(directory.path().join("given"), "changed by the host").unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
        let fork = first.fork().await.unwrap();
        let host = fs::File::open(directory.path()).unwrap();
        for (name, sandbox) in [("source", &first), ("fork", &fork)] {
            let found = sandbox.changes().await.unwrap();
            let set = ChangeSet::read(received(found.layer).await.unwrap(), &Bounds::default()).unwrap();
            let conflicts = conflicts(&set, host.as_fd()).unwrap();
            let found: Vec<_> = conflicts.iter().map(|conflict| (conflict.path.as_path(), conflict.cause)).collect();
            assert_eq!(found, [(Path::new("given"), Cause::ChangedDuringRun)], "{}: {name}", engine.name);
        }
        fork.close().await.unwrap();
        first.close().await.unwrap();
    }
}

/// Promise (Containers): A fork of a container with an overlay stops its programs while the layer is copied, and not
/// while the container of the fork is created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_of_an_overlay_stops_its_source_for_the_copy_only() {
    for engine in engines("a_fork_of_an_overlay_stops_its_source_for_the_copy_only") {
        let directory = project();
        let first = engine.backend().create(layered(&directory)).await.unwrap();
        let ticks = "i=0; while [ $i -lt 100000 ]; do date +%s%N; sleep 0.01; i=$((i+1)); done >> /tmp/ticks";
        let ticking = first.start(ExecRequest::shell(ticks).build().unwrap()).await.unwrap();
        let mut seen = Vec::new();
        // Other programs of this host can delay the ticks, too.
        let is_short = |(pause, fork): &(u64, u64)| pause * 2 < *fork;
        while seen.len() < 5 && !seen.iter().any(is_short) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let begun = Instant::now();
            let fork = first.fork().await.unwrap();
            let took = u64::try_from(begun.elapsed().as_nanos()).unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            let ticks = succeeds(&first, "cat /tmp/ticks; : > /tmp/ticks").await;
            let times: Vec<u64> = ticks.lines().filter_map(|line| line.parse().ok()).collect();
            let pause = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
            seen.push((pause, took));
            fork.close().await.unwrap();
        }
        assert!(
            seen.iter().any(is_short),
            "{}: the source paused almost as long as its fork took: {seen:?}",
            engine.name
        );
        ticking.cancel_within(Duration::ZERO).await.unwrap();
        first.close().await.unwrap();
    }
}

/// Promise (Containers): Where an overlay is refused, a copy-on-write workspace is a copy, and the posture has the
/// reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_overlay_becomes_a_copy() {
    let test = "a_refused_overlay_becomes_a_copy";
    // The owner of an overlay's files cannot be mapped.
    let directory = project();
    for name in ["lower", "upper", "merged"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    let tmpfs = |path: &Path| Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(path).status();
    for engine in engines(test) {
        let upper = directory.path().join("upper");
        assert!(tmpfs(&upper).unwrap().success());
        fs::create_dir(upper.join("upper")).unwrap();
        fs::create_dir(upper.join("work")).unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let layers = format!("lowerdir={},upperdir={}/upper,workdir={}/work", at("lower"), at("upper"), at("upper"));
        let mounted = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &layers, &at("merged")]).status();
        assert!(mounted.unwrap().success());
        let path = directory.path().join("merged").canonicalize().unwrap();
        fs::write(path.join("given"), "by the host").unwrap();
        std::thread::sleep(Duration::from_millis(60));
        let spec = support::spec().workspace(Workspace::CopyOnWrite { path }).build().unwrap();
        let created = copied(&engine, spec).await;
        for name in ["merged", "upper"] {
            assert!(Command::new("umount").arg(at(name)).status().unwrap().success());
        }
        assert_eq!(created, ["modified given"], "{}", engine.name);
    }
    // It has its own mounts, so it does not see those of this process.
    if let Some(own) = OwnEngine::start(test, "2g").await {
        let directory = project();
        assert_eq!(copied(&own.engine, layered(&directory)).await, ["modified given"]);
    }
    if let Some(engine) = support::runsc(test).await {
        let directory = project();
        let spec = layered(&directory).to_builder().allow_weaker(Protection::Processes).build().unwrap();
        assert_eq!(copied(&engine, spec).await, ["modified given"]);
    }
}

/// Creates a sandbox whose overlay is refused, changes a file, and returns the changes.
async fn copied(engine: &TestEngine, spec: Spec) -> Vec<String> {
    let sandbox = CopyOnWriteByCopy::wrap(Arc::new(engine.backend())).create(spec).await.unwrap();
    let row = sandbox.posture().get(Protection::Workspace).unwrap();
    let expected = "a copy of the host directory, since an overlay was refused";
    assert!(row.mechanism.contains(expected), "{}: {row:?}", engine.name);
    succeeds(&sandbox, "echo x >> given").await;
    let changes = changes(&sandbox).await;
    sandbox.close().await.unwrap();
    changes
}

/// The supervisor process of the next test. Creates a sandbox, prints its id, and waits for a kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_an_overlay_and_waits() {
    let Some(socket) = std::env::var_os("COFFERDAM_TEST_KILLED_OVERLAY") else { return };
    let engine = TestEngine { name: "killed", socket: socket.into(), runtime: None };
    let directory = std::env::var_os("COFFERDAM_TEST_KILLED_DIRECTORY").unwrap();
    let spec = support::spec().workspace(Workspace::CopyOnWrite { path: directory.into() }).build().unwrap();
    let sandbox = engine.backend().create(spec).await.unwrap();
    println!("CREATED {}", sandbox.id());
    tokio::time::sleep(Duration::from_secs(3600)).await;
}

/// Promise (Containers): A killed supervisor leaves no overlay: neither its container nor a mount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_supervisor_leaves_no_overlay() {
    for engine in engines("a_killed_supervisor_leaves_no_overlay") {
        let directory = project();
        let before = state(directory.path());
        // Once after the create, and several times at any moment of it.
        for pause in [None, Some(100), Some(200), Some(300), Some(400)] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "overlay::creates_an_overlay_and_waits", "--nocapture"])
                .env("COFFERDAM_TEST_KILLED_OVERLAY", &engine.socket)
                .env("COFFERDAM_TEST_KILLED_DIRECTORY", directory.path().canonicalize().unwrap())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            match pause {
                None => assert!(lines.any(|line| line.contains("CREATED")), "{}: nothing created", engine.name),
                Some(pause) => tokio::time::sleep(Duration::from_millis(pause)).await,
            }
            child.kill().unwrap();
            child.wait().unwrap();
            // The next use of the engine sweeps.
            let next = engine.backend().create(support::spec().build().unwrap()).await.unwrap();
            next.close().await.unwrap();
            assert_eq!(mounts_of(child.id()), Vec::<String>::new(), "{}", engine.name);
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let own = format!("-{}-", child.id());
            assert!(!mounts.lines().any(|line| line.contains(MOUNTS) && line.contains(&own)), "{mounts}");
            let label = format!("dev.cofferdam.owner.process={}", child.id());
            let begun = Instant::now();
            while engine.census_of(&label).await > 0 {
                assert!(begun.elapsed() < Duration::from_secs(30), "{}: a container is still there", engine.name);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        assert_eq!(state(directory.path()), before, "{}", engine.name);
    }
}
