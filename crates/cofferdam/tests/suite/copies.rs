//! Copy-on-write workspaces: by copy, on every backend of this host without an overlay, and owners of files in overlays.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use cofferdam::engine::PoolConfig;
use cofferdam::{
    Access, Backend, ByteSize, ErrorKind, ExecRequest, Limits, NewEntry, Protection, Sandbox, SandboxPath, Spec,
    Workspace, registry,
};
use cofferdam_changes::sandbox::received;
use cofferdam_changes::{ApplyOptions, Bounds, ChangeSet, apply};
use cofferdam_linux::named::Directory;

/// Backends whose copy-on-write workspaces are copies.
const BACKENDS: [&str; 2] = ["simulated", "wasm"];

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test);
}

fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).expect("a path")
}

fn spec(directory: &Path) -> Spec {
    let workspace = Workspace::CopyOnWrite { path: directory.to_owned() };
    Spec::builder().workspace(workspace).allow_weaker(Protection::Disk).build().expect("valid")
}

/// Returns a directory with files of every kind.
fn project() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("tree/deep")).expect("created");
    for (name, text) in [("same", "s"), ("changed", "old"), ("tree/one", "1"), ("tree/deep/two", "2"), ("script", "#!")]
    {
        fs::write(at(name), text).expect("written");
    }
    fs::create_dir(at("kind")).expect("created");
    fs::write(at("kind/below"), "b").expect("written");
    fs::set_permissions(at("script"), fs::Permissions::from_mode(0o755)).expect("permissions");
    symlink("same", at("link")).expect("a link");
    symlink("/etc/passwd", at("outside")).expect("a link");
    fs::write(at(".wh.reserved"), "r").expect("written");
    // A file that changed shortly before the sandbox counts as changed by the host meanwhile.
    std::thread::sleep(std::time::Duration::from_millis(60));
    directory
}

async fn changes(sandbox: &Arc<dyn Sandbox>) -> (ChangeSet, usize) {
    let changes = sandbox.changes().await.expect("changes");
    let file = received(changes.layer).await.expect("received");
    (ChangeSet::read(file, &Bounds::default()).expect("a change set"), changes.skipped_count)
}

fn listed(set: &ChangeSet) -> Vec<String> {
    set.changes().iter().map(|change| format!("{} {}", change.kind.name(), change.path.display())).collect()
}

async fn put(sandbox: &Arc<dyn Sandbox>, name: &str, mode: u32, text: &'static str) {
    let entry = NewEntry::File { mode, modified: 7, contents: Box::new(text.as_bytes()) };
    sandbox.put(&path(name), entry).await.expect("put");
}

/// Promise (Files): The changes of a copied workspace are what differs from the directory at the start, and can be
/// applied to it (K4).
#[test]
fn changes_of_a_copy_are_found_and_applied() {
    block_on(async {
        for name in BACKENDS {
            let directory = project();
            let backend = registry::backend(name).expect("built in");
            let sandbox = backend.create(spec(directory.path())).await.expect("a sandbox");
            let posture = sandbox.posture().get(Protection::Workspace).expect("a row").mechanism.clone();
            assert!(posture.starts_with("a copy of the host directory"), "{posture}");
            let (set, _) = changes(&sandbox).await;
            assert_eq!(listed(&set), Vec::<String>::new(), "{name}: nothing changed yet");
            put(&sandbox, "changed", 0o644, "new").await;
            // The same size and time, other contents.
            put(&sandbox, "tree/one", 0o644, "9").await;
            put(&sandbox, "script", 0o644, "#!").await;
            put(&sandbox, "made/on/the/way", 0o600, "w").await;
            sandbox.remove(&path("tree/deep")).await.expect("removed");
            sandbox.remove(&path("link")).await.expect("removed");
            sandbox.remove(&path("kind")).await.expect("removed");
            put(&sandbox, "kind", 0o644, "a file now").await;
            let (set, _) = changes(&sandbox).await;
            let expected = [
                "modified changed",
                "type_changed kind",
                "deleted link",
                "added made",
                "added made/on",
                "added made/on/the",
                "added made/on/the/way",
                "modified script",
                "deleted tree/deep",
                "modified tree/one",
            ];
            assert_eq!(listed(&set), expected, "{name}");
            assert_eq!(fs::read_to_string(directory.path().join("changed")).expect("a file"), "old");
            let opened = Directory::open(directory.path()).expect("a directory");
            let applied = apply(&set, opened.as_fd(), &ApplyOptions::default()).expect("applied");
            assert!(
                applied.conflicts.is_empty() && applied.refused.is_empty() && applied.failed.is_none(),
                "{applied:?}"
            );
            let read = |name: &str| fs::read_to_string(directory.path().join(name)).ok();
            assert_eq!((read("changed").as_deref(), read("kind").as_deref()), (Some("new"), Some("a file now")));
            assert_eq!((read("tree/one").as_deref(), read("made/on/the/way").as_deref()), (Some("9"), Some("w")));
            assert!(!directory.path().join("tree/deep").exists() && read("same").as_deref() == Some("s"));
            sandbox.close().await.expect("closed");
        }
    });
}

/// Promise (Files): A file of the directory that the host changes while a sandbox with a copy runs is no change of the
/// sandbox, and a conflict if the sandbox changed it as well (K4).
#[test]
fn changes_of_the_host_are_not_those_of_the_copy() {
    block_on(async {
        let directory = project();
        let sandbox =
            registry::backend("simulated").expect("built in").create(spec(directory.path())).await.expect("made");
        fs::write(directory.path().join("same"), "by the host").expect("written");
        fs::write(directory.path().join("changed"), "by the host").expect("written");
        put(&sandbox, "changed", 0o644, "by the guest").await;
        let (set, _) = changes(&sandbox).await;
        assert_eq!(listed(&set), ["modified changed"]);
        let opened = Directory::open(directory.path()).expect("a directory");
        let applied = apply(&set, opened.as_fd(), &ApplyOptions::default()).expect("applied");
        assert_eq!(applied.conflicts.len(), 1, "{applied:?}");
        assert_eq!(fs::read_to_string(directory.path().join("changed")).expect("a file"), "by the host");
    });
}

/// Promise (Files): Files that cannot be copied are missing in a copied workspace, listed with its changes, and not
/// deleted by them (K4).
#[test]
fn files_that_cannot_be_copied_are_no_deletions() {
    block_on(async {
        for name in BACKENDS {
            let directory = project();
            let at = |name: &[u8]| directory.path().join(OsStr::from_bytes(name));
            fs::write(at(b"not text \xff"), "x").expect("written");
            symlink(OsStr::from_bytes(b"\xff"), at(b"target")).expect("a link");
            rustix::fs::mknodat(rustix::fs::CWD, at(b"fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
                .expect("made");
            fs::write(at(b"private"), "x").expect("written");
            fs::set_permissions(at(b"private"), fs::Permissions::from_mode(0o000)).expect("permissions");
            let sandbox =
                registry::backend(name).expect("built in").create(spec(directory.path())).await.expect("made");
            let (set, skipped) = changes(&sandbox).await;
            assert_eq!(listed(&set), Vec::<String>::new(), "{name}");
            // The reserved name exists inside, and is skipped when the changes are captured.
            let unreadable = usize::from(!rustix::process::geteuid().is_root());
            assert_eq!(skipped, 4 + unreadable, "{name}");
        }
    });
}

/// Promise (Limits): A directory that does not fit into the disk limit is refused when it has to be copied (E4).
#[test]
fn a_directory_that_does_not_fit_is_refused() {
    block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("big"), vec![7; 3 << 20]).expect("written");
        let limits = Limits { disk: Some(ByteSize::from_mebibytes(1)), ..Limits::default() };
        for name in BACKENDS {
            let spec = spec(directory.path()).to_builder().limits(limits.clone()).build().expect("valid");
            let error = registry::backend(name).expect("built in").create(spec).await.expect_err("too large");
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{name}: {error}");
            assert!(error.message().contains("does not fit") && error.remedy().is_some(), "{name}: {error}");
        }
    });
}

/// Promise (Files): A fork of a sandbox with a copied workspace has changes of its own, and such a sandbox is not saved
/// as a snapshot (K4).
#[test]
fn a_fork_of_a_copy_has_changes_of_its_own() {
    block_on(async {
        for name in BACKENDS {
            let directory = project();
            let backend = registry::backend(name).expect("built in");
            let first = backend.create(spec(directory.path())).await.expect("a sandbox");
            put(&first, "before", 0o644, "x").await;
            let fork = first.fork().await.expect("a fork");
            put(&fork, "of the fork", 0o644, "x").await;
            put(&first, "of the first", 0o644, "x").await;
            assert_eq!(listed(&changes(&first).await.0), ["added before", "added of the first"], "{name}");
            assert_eq!(listed(&changes(&fork).await.0), ["added before", "added of the fork"], "{name}");
            assert_eq!(fork.spec().workspace(), first.spec().workspace());
            let refused = first.snapshot().await.map(drop).expect_err("no snapshot");
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{name}");
            let private =
                backend.create(Spec::default()).await.expect("a sandbox").snapshot().await.expect("a snapshot");
            let refused = backend.restore(private, spec(directory.path())).await.map(drop).expect_err("no base");
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{name}");
        }
    });
}

/// Promise (Warm sandboxes and pools): A sandbox with a copied workspace is created on request, and not taken from the
/// prepared ones (K4).
#[test]
fn a_copy_is_not_taken_from_a_pool() {
    block_on(async {
        let directory = project();
        let refused = registry::backend("simulated").expect("built in").prepare(spec(directory.path())).await;
        assert_eq!(refused.map(drop).expect_err("not prepared").kind(), ErrorKind::InvalidInput);
        let pooled = registry::pooled("simulated", Spec::default(), PoolConfig::default()).expect("a pool");
        while pooled.pool().metrics().warm == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let sandbox = pooled.create(spec(directory.path())).await.expect("a sandbox");
        put(&sandbox, "made", 0o644, "x").await;
        assert_eq!(listed(&changes(&sandbox).await.0), ["added made"]);
        let claims = pooled.pool().metrics().claims;
        assert_eq!((claims.warm, claims.cold_unfit), (0, 1), "{claims:?}");
        sandbox.close().await.expect("closed");
        pooled.pool().shutdown(std::time::Duration::from_secs(10)).await.expect("shut down");
    });
}

/// Promise (Files): As root, the owner of each mounted host directory appears as the sandbox's user, and new files belong
/// to that owner, also in sandboxes whose namespaces were prepared (K4).
#[test]
fn owners_appear_as_the_user_of_the_sandbox() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP owners_appear_as_the_user_of_the_sandbox: only root creates files of other users");
        return;
    }
    block_on(async {
        let backend = registry::backend("process").expect("built in");
        let directories = [0, 4321].map(|owner| {
            let directory = project();
            for entry in [".", "same", "tree"] {
                std::os::unix::fs::chown(directory.path().join(entry), Some(owner), Some(owner)).expect("owned");
            }
            (owner, directory)
        });
        // More than the prepared namespaces, so that those are used that were prepared after the first one.
        for round in 0..12 {
            let (owner, directory) = &directories[round % 2];
            let path = directory.path().to_owned();
            let is_copy = round % 3 == 0;
            let workspace = match is_copy {
                true => Workspace::CopyOnWrite { path },
                false => Workspace::HostDir { path, access: Access::ReadWrite },
            };
            let limits = Limits { disk: None, ..Limits::default() };
            let spec = Spec::builder().workspace(workspace).limits(limits).allow_weaker(Protection::Disk);
            let sandbox = backend.create(spec.build().expect("valid")).await.expect("a sandbox");
            let script = "stat -c %u . same tree; id -u; touch new; stat -c %u new";
            let request = ExecRequest::argv(["sh", "-c", script]).build().expect("valid");
            let completed = sandbox.exec(request).await.expect("it runs");
            let output = String::from_utf8_lossy(&completed.stdout);
            let users: Vec<&str> = output.lines().collect();
            assert!(users.len() == 5 && users.iter().all(|user| user == &users[0]), "{round}: {completed:?}");
            let new = fs::metadata(directory.path().join("new"));
            assert_eq!(new.ok().map(|new| new.uid()), (!is_copy).then_some(*owner), "{round}");
            let _ = fs::remove_file(directory.path().join("new"));
            sandbox.close().await.expect("closed");
        }
    });
}
