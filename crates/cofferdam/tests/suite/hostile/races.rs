//! Attacks with concurrent actions of guest and supervisor, which rows cannot express.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_changes::sandbox::copy_out;
use cofferdam_contract::archive::{TarEntry, TarKind, TarWriter};
use cofferdam_contract::{
    Access, ByteSize, CopyOut, ExecHandle, ExecRequest, NewEntry, OutputEvent, Protection, Sandbox, SandboxPath, Spec,
    TerminalSize, Workspace,
};
use cofferdam_linux::named::Directory;
use tempfile::TempDir;

use super::guests::{Guests, open_temporary_directory};
use super::run::{backend, block_on, install};
use crate::census::numbered_entries;

/// Guest programs that only this module uses.
pub const GUESTS: [&str; 4] = ["symlink_swap", "daemonize", "idle", "user_counts"];

const SECRET: &str = "the host's secret";
const SECRET_FILE: &str = "secret";
const HOST_ONLY: &str = "only-on-the-host";
const WRITTEN: &str = "written by the file API";

/// A host directory that is the target of the guest's symlinks.
pub struct Target(TempDir);

impl Target {
    pub fn new() -> Self {
        let directory = open_temporary_directory(0o777);
        for (name, text) in [(SECRET_FILE, SECRET), (HOST_ONLY, HOST_ONLY)] {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("the directory is ours");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("the file is ours");
        }
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn assert_untouched(&self) {
        let names: BTreeSet<String> = fs::read_dir(self.0.path())
            .expect("the directory is still there")
            .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(
            names,
            BTreeSet::from([SECRET_FILE.to_owned(), HOST_ONLY.to_owned()]),
            "the host's directory changed"
        );
        let text = fs::read_to_string(self.0.path().join(SECRET_FILE)).expect("the file is still there");
        assert_eq!(text, SECRET, "the host's file changed");
    }
}

/// Tests the file API for two seconds against a guest that swaps files and directories for symlinks to the host.
pub fn symlink_race(workspace: Workspace) {
    block_on(async {
        let target = Target::new();
        let guests = Guests::compile(&BTreeSet::from(["symlink_swap"]));
        let naive = match &workspace {
            Workspace::HostDir { path, .. } => Some(path.clone()),
            Workspace::Private { .. } | Workspace::CopyOnWrite { .. } => None,
        };
        let spec = Spec::builder().workspace(workspace).allow_weaker(Protection::Disk).build().expect("a valid spec");
        let sandbox = backend().create(spec).await.expect("a sandbox");
        install(&sandbox, &guests, "symlink_swap").await.expect("the guest is installed");

        let directory = target.0.path().display().to_string();
        let arguments = ["/workspace/symlink_swap", "/workspace", &directory, SECRET_FILE, "3"];
        let handle = sandbox
            .start(ExecRequest::argv(arguments).build().expect("a valid request"))
            .await
            .expect("the guest starts");
        wait_for_output(&handle).await;

        let copies = open_temporary_directory(0o755);
        let (mut calls, mut caught) = (0u32, naive.is_none());
        while handle.try_exit().is_none() {
            calls += call_file_api(&sandbox, calls).await;
            calls += copy(&sandbox, copies.path()).await;
            caught |= naive.as_deref().is_some_and(naive_read_is_caught);
            // Lets the guest's exit be noticed.
            tokio::task::yield_now().await;
        }
        let exit = handle.exit().await.expect("it ended");
        assert!(exit.success(), "the race was not run: {exit:?}");
        assert!(calls > 20, "only {calls} calls of the file API met the race");
        assert!(caught, "the control, a naive read of the same path, was never caught: the race is not tight enough");
        sandbox.close().await.expect("it closes");
        target.assert_untouched();
    });
}

/// Calls each operation once. Any may fail, none may reach the host. Returns the number of calls.
async fn call_file_api(sandbox: &Arc<dyn Sandbox>, round: u32) -> u32 {
    let path = |text: &str| SandboxPath::new(text).expect("a plain path");
    let limit = ByteSize::from_mebibytes(1);
    for file in ["file", "dir/secret"] {
        if let Ok(data) = sandbox.read_file_to_end(&path(file), limit).await {
            assert_ne!(data, SECRET.as_bytes(), "the file API read the host's file through {file}");
        }
    }
    if let Ok(entries) = sandbox.list_dir(&path("dir")).await {
        assert!(entries.iter().all(|entry| entry.name != HOST_ONLY), "the file API listed the host's directory");
    }
    for file in ["file", "dir/secret", "dir/new"] {
        // The operation is refused or stays inside. The end of the test checks the host's directory.
        let _ = sandbox.write_bytes(&path(file), WRITTEN).await;
    }
    let mut calls = 6;
    if round.is_multiple_of(4) {
        for name in ["file", "dir/secret", "dir"] {
            let _ = sandbox.remove(&path(name)).await;
            calls += 1;
        }
    }
    calls
}

/// Copies into and out of the workspace once. Each copy may fail, none may reach the host. Returns the number of calls.
async fn copy(sandbox: &Arc<dyn Sandbox>, to: &Path) -> u32 {
    let path = |text: &str| SandboxPath::new(text).expect("a plain path");
    let mut tar = TarWriter::new(Vec::new(), "test");
    let size = WRITTEN.len() as u64;
    let entry = TarEntry { kind: TarKind::File(size), path: b"copied".to_vec(), mode: 0o644, modified: 0 };
    tar.entry(&entry).await.expect("in memory");
    tar.contents(WRITTEN.as_bytes()).await.expect("in memory");
    tar.pad(size).await.expect("in memory");
    let tar = tar.finish().await.expect("in memory");
    let _ = sandbox.copy_in(&path("dir"), Box::new(std::io::Cursor::new(tar))).await;
    let _ = sandbox.put(&path("dir/made"), NewEntry::Directory { mode: 0o777 }).await;
    for from in ["", "dir"] {
        let directory = Directory::open(to).expect("a directory");
        // The end of the test checks the directories of the host.
        let _ = copy_out(&**sandbox, &CopyOut::all(path(from)), &directory, &|_| {}).await;
    }
    assert_holds_nothing_of_the_host(to);
    4
}

/// Checks that a directory to which a guest's files were copied has no file and no link that leads out of it.
fn assert_holds_nothing_of_the_host(directory: &Path) {
    let mut pending = vec![directory.to_owned()];
    while let Some(pending_directory) = pending.pop() {
        for entry in fs::read_dir(pending_directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let kind = fs::symlink_metadata(&path).expect("an entry").file_type();
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_symlink() {
                let inside = path.canonicalize().map_or(true, |target| target.starts_with(directory));
                assert!(inside, "a copied link leads out: {path:?}");
            } else {
                assert_ne!(fs::read(&path).expect("a file"), SECRET.as_bytes(), "a copy has the host's file: {path:?}");
            }
        }
    }
}

/// Simulates a supervisor that checks first and then opens, as a control.
fn naive_read_is_caught(workspace: &Path) -> bool {
    (0..200).any(|_| {
        let path = workspace.join("file");
        fs::symlink_metadata(&path).is_ok_and(|info| info.is_file())
            && fs::read(&path).is_ok_and(|data| data == SECRET.as_bytes())
    }) || (0..3000)
        .any(|_| fs::read(workspace.join("dir").join(SECRET_FILE)).is_ok_and(|data| data == SECRET.as_bytes()))
}

/// Tests symlinks that exist before the call: CVE-2019-11246 and similar ones need no race.
pub fn resting_links(workspace: Workspace) {
    block_on(async {
        let target = Target::new();
        let spec = Spec::builder().workspace(workspace).allow_weaker(Protection::Disk).build().expect("a valid spec");
        let sandbox = backend().create(spec).await.expect("a sandbox");
        let host = target.0.path().display();
        let up = "../".repeat(24);
        let script = format!(
            "ln -s {host} absolute; ln -s {up}{host} relative; ln -s absolute chain; ln -s {host}/{SECRET_FILE} file; \
             ln -s /proc/self/root{host} proc; ln -s /proc/1/root{host} init; ln -s /proc/self/cwd cwd; ln -s loop loop; \
             mkfifo fifo; ln -s {host}/made dangling; ln -s /etc/shadow shadow; mkdir -p deep/er; ln -s {up}{host} deep/er/up"
        );
        let done = sandbox.exec(ExecRequest::shell(script).build().expect("valid")).await.expect("the shell runs");
        assert!(done.exit.success(), "{done:?}");
        let directories = ["absolute", "relative", "chain", "proc", "init", "deep/er/up"];
        let mut paths: Vec<String> = directories.iter().map(|name| format!("{name}/{SECRET_FILE}")).collect();
        paths.extend(directories.iter().map(|name| format!("{name}/made")));
        paths.extend(["file", "loop", "fifo", "dangling", "shadow"].map(str::to_owned));
        let copies = open_temporary_directory(0o755);
        copy(&sandbox, copies.path()).await;
        for from in directories {
            let directory = Directory::open(copies.path()).expect("a directory");
            let wanted = CopyOut::all(SandboxPath::new(from).expect("a plain path"));
            let copied = copy_out(&*sandbox, &wanted, &directory, &|_| {}).await;
            assert!(copied.is_err(), "{from} was copied");
        }
        assert_holds_nothing_of_the_host(copies.path());
        for text in &paths {
            let path = SandboxPath::new(text).expect("a plain path");
            let read = sandbox.read_file_to_end(&path, ByteSize::from_mebibytes(1)).await;
            assert!(read.is_err(), "the file API read {text}");
            let _ = sandbox.write_bytes(&path, WRITTEN).await;
        }
        for name in directories {
            let path = SandboxPath::new(name).expect("a plain path");
            assert!(sandbox.list_dir(&path).await.is_err(), "the file API listed {name}");
            let _ = sandbox.remove(&SandboxPath::new(format!("{name}/{SECRET_FILE}")).expect("a plain path")).await;
            let _ = sandbox.remove(&path).await;
        }
        sandbox.close().await.expect("it closes");
        target.assert_untouched();
    });
}

/// Tests CVE-2019-5736: scripts with the interpreter `/proc/self/exe` make the init execute its own program as the
/// guest, while a guest waits for that program to appear under `/proc`.
pub fn runtime_is_not_executed_as_the_guest() {
    block_on(async {
        let guests = Guests::compile(&BTreeSet::from(["exe_overwrite"]));
        let sandbox = backend().create(Spec::builder().build().expect("defaults are valid")).await.expect("a sandbox");
        install(&sandbox, &guests, "exe_overwrite").await.expect("the guest is installed");
        let script = "printf '#!/proc/self/exe\\n' >self; printf '#!/proc/1/exe\\n' >init; chmod 755 self init";
        sandbox.exec(ExecRequest::shell(script).build().expect("valid")).await.expect("the shell runs");
        let watcher = sandbox
            .start(ExecRequest::argv(["/workspace/exe_overwrite", "3"]).build().expect("valid"))
            .await
            .expect("the guest starts");
        let mut output = watcher.output();
        for trap in ["/workspace/self", "/workspace/init"].iter().cycle().take(20) {
            let request = ExecRequest::argv([*trap]).timeout(Duration::from_secs(2)).build().expect("valid");
            // The exec is refused, or runs a program. The watcher reports whether that was the runtime.
            let _ = sandbox.exec(request).await;
        }
        let exit = watcher.exit().await.expect("it ended");
        let text = drain(&mut output).await;
        sandbox.close().await.expect("it closes");
        assert!(exit.success(), "{exit:?}\n{text}");
    });
}

/// Tests that sandboxes of the same user are created, start programs and have resources left while one guest uses up
/// everything that the kernel counts per user.
pub fn counts_of_a_user() {
    block_on(async {
        let guests = Guests::compile(&BTreeSet::from(["user_counts"]));
        let mounted = || {
            let workspace = Workspace::HostDir { path: guests.directory().to_owned(), access: Access::ReadOnly };
            Spec::builder().workspace(workspace).build().expect("a valid spec")
        };
        let request = |word: &str| ExecRequest::argv(["/workspace/user_counts", word]).build().expect("valid");
        let backend = backend();
        let taker = backend.create(mounted()).await.expect("a sandbox");
        let before = backend.create(mounted()).await.expect("a sandbox");
        let taking = taker.start(request("take")).await.expect("the guest starts");
        wait_for_output(&taking).await;
        let after = backend.create(mounted()).await.expect("another sandbox can be created");
        let other_launcher = super::run::backend().create(mounted()).await.expect("another backend can create one");
        for sandbox in [&taker, &before, &after, &other_launcher] {
            let terminal = TerminalSize { rows: 25, columns: 80 };
            let echo = ExecRequest::shell("echo alive").terminal(terminal).build().expect("valid");
            let done = sandbox.exec(echo).await.expect("a program starts in a terminal");
            assert!(done.exit.success(), "{:?}", done.exit);
        }
        for sandbox in [&before, &after, &other_launcher] {
            let done = sandbox.exec(request("use")).await.expect("a program starts");
            assert!(done.exit.success(), "{:?} {}", done.exit, String::from_utf8_lossy(&done.stdout));
        }
        taking.close().await.expect("it closes");
        for sandbox in [taker, before, after, other_launcher] {
            sandbox.close().await.expect("it closes");
        }
    });
}

/// Tests that reading a file of a read-only mounted host directory does not change its access time.
pub fn reading_leaves_no_trace() {
    block_on(async {
        let shared = open_temporary_directory(0o755);
        let path = shared.path().join("read");
        fs::write(&path, "text").expect("the directory is ours");
        let file = fs::File::options().write(true).open(&path).expect("the file is ours");
        // An access time before the last change, so that the next read would update it.
        let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_times(fs::FileTimes::new().set_accessed(long_ago)).expect("the file is ours");
        let workspace = Workspace::HostDir { path: shared.path().to_owned(), access: Access::ReadOnly };
        let spec = Spec::builder().workspace(workspace).build().expect("a valid spec");
        let (done, _) =
            backend().run(spec, ExecRequest::shell("cat read").build().expect("valid")).await.expect("it runs");
        assert_eq!(done.stdout, "text");
        let accessed = fs::metadata(&path).and_then(|meta| meta.accessed()).expect("the file system notes it");
        assert_eq!(accessed, long_ago);
    });
}

/// Tests the host's view of a guest: not root, no capabilities, filtered, in its own namespaces.
pub fn identity_on_the_host() {
    block_on(async {
        let guests = Guests::compile(&BTreeSet::from(["idle"]));
        let spec = Spec::builder()
            .workspace(Workspace::HostDir { path: guests.directory().to_owned(), access: Access::ReadOnly })
            .build()
            .expect("a valid spec");
        let sandbox = backend().create(spec).await.expect("a sandbox");
        let token = token("idle");
        let handle = sandbox
            .start(ExecRequest::argv(["/workspace/idle", "20", &token]).build().expect("valid"))
            .await
            .expect("the guest starts");
        wait_for_output(&handle).await;
        let pid = find(&token).expect("the host sees the guest's process");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it is alive");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {status}")).split_whitespace().collect::<Vec<_>>()
        };
        assert!(field("Uid:").iter().all(|id| *id != "0"), "the guest is the host's root: {status}");
        assert!(field("Gid:").iter().all(|id| *id != "0"), "the guest has the host's root group: {status}");
        assert!(!field("Groups:").contains(&"0"), "the guest has the host's root group: {status}");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert!(field(set).iter().all(|mask| mask.chars().all(|digit| digit == '0')), "{set} {status}");
        }
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        assert_eq!(field("Seccomp:"), ["2"]);
        assert!(field("NSpid:").len() > 1, "the guest is in the host's process-id namespace: {status}");
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            // Only root may inspect it. The tests of an unprivileged user check it from inside.
            let Ok(inside) = fs::read_link(format!("/proc/{pid}/ns/{kind}")) else { continue };
            assert_ne!(
                Some(inside),
                fs::read_link(format!("/proc/self/ns/{kind}")).ok(),
                "the guest shares the {kind} namespace"
            );
        }
        handle.close().await.expect("it closes");
        sandbox.close().await.expect("it closes");
    });
}

/// Tests that a daemon in its own session does not outlive the sandbox.
pub fn daemons_die() {
    block_on(async {
        let guests = Guests::compile(&BTreeSet::from(["daemonize"]));
        let spec = Spec::builder()
            .workspace(Workspace::HostDir { path: guests.directory().to_owned(), access: Access::ReadOnly })
            .build()
            .expect("a valid spec");
        let sandbox = backend().create(spec).await.expect("a sandbox");
        let token = token("daemon");
        let request = ExecRequest::argv(["/workspace/daemonize", &token]).build().expect("valid");
        let done = sandbox.exec(request).await.expect("the guest runs");
        assert!(done.exit.success(), "{done:?}");
        sandbox.close().await.expect("it closes");
        let deadline = Instant::now() + Duration::from_secs(10);
        while find(&token).is_some() {
            assert!(Instant::now() < deadline, "the daemon outlived its sandbox");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// Returns a token that identifies a guest's process on the host.
fn token(what: &str) -> String {
    format!("hostile-{what}-{}", std::process::id())
}

/// Returns the host's pid of the process with `token` as its last argument.
fn find(token: &str) -> Option<u32> {
    let end = format!("\0{token}\0");
    numbered_entries()
        .find(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(end.as_bytes())))
}

/// Waits for the guest's first output.
async fn wait_for_output(handle: &ExecHandle) {
    let mut output = handle.output();
    let first = tokio::time::timeout(Duration::from_secs(10), output.next()).await;
    assert!(matches!(first, Ok(Some(_))), "the guest says nothing");
}

async fn drain(output: &mut cofferdam_contract::OutputSubscription) -> String {
    let mut text = Vec::new();
    while let Some(event) = output.next().await {
        if let OutputEvent::Chunk(chunk) = event {
            text.extend_from_slice(&chunk.data);
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
