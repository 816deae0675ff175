//! Host paths that a guest redirects: it owns a directory above the one that the next sandbox mounts.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cofferdam_contract::{
    Access, Backend, ByteSize, DirectoryId, Error, ErrorKind, ExecRequest, Protection, RootFs, SandboxPath, Spec,
    Workspace,
};
use rustix::fs::{CWD, RenameFlags};

use super::guests::{Guests, open_temporary_directory};
use super::races::Target;
use super::run::{backend, block_on};

/// The unprivileged user that owns the directories in root's test.
const USER: u32 = 65533;
/// The program of a root file system: reports an escape if it can read a file whose path is an argument.
const ROOT_PROGRAM: &str = "host_files";

/// A directory of a guest, with a mounted directory and a symlink to the host next to it.
struct Owned {
    _top: tempfile::TempDir,
    mounted: PathBuf,
    link: PathBuf,
}

impl Owned {
    fn new(target: &Path) -> Self {
        let top = open_temporary_directory(0o777);
        let directory = top.path().canonicalize().expect("it exists");
        let (mounted, link) = (directory.join("mounted"), directory.join("link"));
        fs::create_dir(&mounted).expect("the directory is ours");
        symlink(target, &link).expect("the directory is ours");
        if rustix::process::geteuid().is_root() {
            for directory in [&mounted, target] {
                chown(directory, Some(USER), Some(USER)).expect("root gives it away");
            }
        }
        Self { _top: top, mounted, link }
    }

    fn swap(&self) {
        let swapped = rustix::fs::renameat_with(CWD, &self.mounted, CWD, &self.link, RenameFlags::EXCHANGE);
        swapped.expect("two names are swapped");
    }

    fn spec(&self) -> Spec {
        let workspace = Workspace::HostDir { path: self.mounted.clone(), access: Access::ReadWrite };
        let spec = Spec::builder().workspace(workspace).allow_weaker(Protection::Disk);
        // On cgroup v1 only root can bound a container's socket buffers.
        spec.allow_weaker(Protection::Memory).build().expect("a valid spec")
    }

    /// Returns a spec with the directory as root file system.
    fn root_spec(&self) -> Spec {
        let root = RootFs::Directory { path: self.mounted.clone() };
        Spec::builder().root(root).build().expect("a valid spec")
    }

    /// Returns the spec with the directory that the path leads to now.
    fn record(&self, spec: &Spec) -> Spec {
        let named = fs::metadata(&self.mounted).expect("it exists");
        let id = DirectoryId { device: named.dev(), inode: named.ino() };
        spec.to_builder().directory(&self.mounted, id).build().expect("a valid spec")
    }

    /// Replaces the directory with a new one.
    fn replace(&self) {
        fs::rename(&self.mounted, self.mounted.with_file_name("aside")).expect("the directory is ours");
        fs::create_dir(&self.mounted).expect("the directory is ours");
    }
}

/// The pauses between two swaps, in microseconds. Their number is odd, so that each name has each pause. The longest is
/// longer than a creation on a busy host.
const PAUSES: [u64; 9] = [0, 0, 20, 100, 1_000, 0, 10_000, 0, 400_000];

/// Time for the race to have both outcomes.
const RACE_TIMEOUT: Duration = Duration::from_secs(60);

/// A thread that swaps the directory and the symlink until it is dropped.
struct Swapping {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapping {
    fn begin(owned: &Arc<Owned>) -> Self {
        let (owned, done) = (Arc::clone(owned), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            // Long and short pauses, so that some creations see one name throughout, and others see both.
            for pause in PAUSES.into_iter().cycle() {
                if seen.load(Ordering::Relaxed) {
                    break;
                }
                owned.swap();
                thread::sleep(Duration::from_micros(pause));
            }
        });
        Self { done, thread: Some(thread) }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Checks a guest that swaps the mounted directory for a symlink to the host, once and continuously, while sandboxes
/// are created.
pub fn swapped_directory(backend: &dyn Backend, rounds: usize) {
    let target = Target::new();
    let owned = Arc::new(Owned::new(target.path()));
    block_on(async {
        owned.swap();
        let refused = backend.create(owned.spec()).await.expect_err("a link is refused");
        assert_eq!(refused.kind(), ErrorKind::PathEscape, "{refused}");
        owned.swap();
        race(&owned, rounds, async || attempt(backend, &owned).await).await;
    });
    target.assert_untouched();
}

/// Checks the same for a directory that is the root file system. Each attempt has its own backend, because a launcher
/// opens its root only once.
pub fn swapped_root(rounds: usize) {
    let guests = Guests::compile(&BTreeSet::from([ROOT_PROGRAM]));
    let target = Target::new();
    let owned = Arc::new(Owned::new(target.path()));
    fs::copy(guests.path(ROOT_PROGRAM), owned.mounted.join(ROOT_PROGRAM)).expect("the directory is ours");
    block_on(async {
        owned.swap();
        let refused = backend().create(owned.root_spec()).await.expect_err("a link is refused");
        assert_eq!(refused.kind(), ErrorKind::PathEscape, "{refused}");
        owned.swap();
        race(&owned, rounds, async || attempt_root(&owned).await).await;
    });
    target.assert_untouched();
}

/// Attempts while the two names are swapped, until some attempts were refused and others were not. An attempt returns
/// the error of a refusal.
async fn race(owned: &Arc<Owned>, rounds: usize, attempt: impl AsyncFn() -> Option<Error>) {
    let _swapping = Swapping::begin(owned);
    let (mut succeeded, mut refused, mut last) = (0, 0, None);
    // On a busy host, one of the two may be late. Refusals take a millisecond each.
    let begun = Instant::now();
    while succeeded + refused < rounds || (succeeded == 0 || refused == 0) && begun.elapsed() < RACE_TIMEOUT {
        match attempt().await {
            None => succeeded += 1,
            Some(error) => {
                refused += 1;
                last = Some(error);
            }
        }
    }
    assert!(succeeded > 0 && refused > 0, "the race was not run: {succeeded} succeeded, {refused} refused, {last:?}");
}

/// Creates a sandbox and tries both paths to the host. Returns the error if the sandbox was refused.
async fn attempt(backend: &dyn Backend, owned: &Owned) -> Option<Error> {
    let sandbox = match backend.create(owned.spec()).await {
        Ok(sandbox) => sandbox,
        Err(error) => return Some(error),
    };
    let path = |name: &str| SandboxPath::new(name).expect("a plain path");
    let read = sandbox.read_file_to_end(&path("secret"), ByteSize::from_mebibytes(1)).await;
    assert!(read.is_err(), "the file API reads the host's file");
    // The write goes into the mounted directory or nowhere. The end of the test checks the host's directory.
    let _ = sandbox.write_bytes(&path("by-the-file-api"), "written").await;
    let script = "test ! -e secret && echo written > by-the-guest";
    let done = sandbox.exec(ExecRequest::shell(script).build().expect("valid")).await.expect("the shell runs");
    assert!(done.exit.success(), "the guest sees the host's file: {done:?}");
    sandbox.close().await.expect("it closes");
    None
}

/// Creates a sandbox with the directory as root, and tries to read the host's file. Returns the error if the sandbox was
/// refused.
async fn attempt_root(owned: &Owned) -> Option<Error> {
    let sandbox = match backend().create(owned.root_spec()).await {
        Ok(sandbox) => sandbox,
        Err(error) => return Some(error),
    };
    // The program exists only in the directory, and the secret only on the host.
    let request = ExecRequest::argv([&format!("/{ROOT_PROGRAM}"), "--image", "/secret"]).build().expect("valid");
    let done = sandbox.exec(request).await.expect("the program of this root starts");
    assert!(done.exit.success(), "the guest sees the host's file: {done:?}");
    sandbox.close().await.expect("it closes");
    None
}

/// Checks that only the directory recorded in the spec is mounted, even without a symlink in the path.
pub fn replaced_directory(backend: &dyn Backend) {
    let target = Target::new();
    let owned = Owned::new(target.path());
    is_refused_once_replaced(backend, &owned, &owned.spec());
}

/// Checks the same for a directory that is the root file system.
pub fn replaced_root() {
    let target = Target::new();
    let owned = Owned::new(target.path());
    is_refused_once_replaced(backend().as_ref(), &owned, &owned.root_spec());
}

fn is_refused_once_replaced(backend: &dyn Backend, owned: &Owned, spec: &Spec) {
    let spec = owned.record(spec);
    block_on(async {
        backend.create(spec.clone()).await.expect("it is the one that was named").close().await.expect("it closes");
        owned.replace();
        let error = backend.create(spec).await.expect_err("it is another one");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("not the one that was named"), "{error}");
    });
}

/// Checks that later mounts of the host below a mounted directory stay outside. Runs in a separate mount namespace with
/// shared propagation, as on hosts with systemd, as root and as an unprivileged user.
pub fn later_mounts() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP later mounts: only root mounts on the host; its run tries an ordinary user's sandbox as well");
        return;
    }
    // The guest reports when it runs, and is notified of the mount.
    const SCRIPT: &str = r#"
        set -e
        mount -t tmpfs -o mode=0777 outer "$DIR"
        mount --make-shared "$DIR"
        mkdir -m 777 "$DIR/sub"
        $AS "$PROGRAM" run --use-server never --workspace "$DIR:rw" --allow-weaker disk -- sh -c '
            echo > here
            while [ ! -e go ]; do sleep 0.05; done
            test ! -e sub/late' &
        guest=$!
        while [ ! -e "$DIR/here" ] && kill -0 $guest; do sleep 0.05; done
        mount -t tmpfs late "$DIR/sub"
        echo > "$DIR/sub/late"
        echo > "$DIR/go"
        wait $guest
    "#;
    for user in ["", "setpriv --reuid 65533 --regid 65533 --clear-groups"] {
        let directory = open_temporary_directory(0o777);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SCRIPT]);
        command.env("DIR", directory.path()).env("AS", user).env("HOME", directory.path());
        let output = command.env("PROGRAM", env!("CARGO_BIN_EXE_cofferdam")).output().expect("unshare runs");
        assert!(output.status.success(), "as '{user}', what is mounted later is seen: {output:?}");
    }
}
