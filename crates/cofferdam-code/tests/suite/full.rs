//! Tests of code on a full disk.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cofferdam_code::{CodeConfig, CodeRequest, CodeResult, Sessions, Touched};
use cofferdam_contract::{Access, ByteSize, ExecRequest, Limits, SpecBuilder, Workspace};

use crate::support::{World, spec};

/// Fills the workspace to its last byte.
const FILL: &str = "f = open('fill', 'wb', 0)\ntry:\n    while True: f.write(b'x' * 512)\nexcept OSError as error: print(error.errno)\n'a value'";

/// A small file system that is mounted until this value is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = "size=1m,mode=777";
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "small"]).arg(directory.path()).status();
        assert!(status.expect("mount starts").success());
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("--lazy").arg(self.path()).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking(), "it is still mounted");
    }
}

/// Runs code with room for its own file and not one page more. If there is none, the file that fills the disk is
/// shortened page by page, and an attempt must not use up the room.
async fn run_in_the_least_room(world: &World, language: &str, code: &str) -> CodeResult {
    let shell = async |line: &str| {
        let done = world.sandbox.exec(ExecRequest::shell(line).build().expect("valid")).await.expect("it runs");
        assert!(done.exit.success(), "{line}: {done:?}");
    };
    shell("cat /dev/zero >> fill 2>/dev/null || true").await;
    for _ in 0..16 {
        match world.try_run(CodeRequest::new(language, code)).await {
            Ok(result) => return result,
            Err(_) => shell("truncate -s -4096 fill").await,
        }
    }
    panic!("{language}: 16 pages are not enough for {code}");
}

/// Code runs on a full disk, its output is complete, missing results are counted, and no internal file is left.
async fn runs_on_a_full_disk(spec: SpecBuilder) {
    let world = World::with(CodeConfig::default(), spec).await;
    let filled = world.run("python", FILL).await;
    assert_eq!((filled.stdout.text().as_ref(), filled.exit_code), ("28\n", 0), "{}", filled.stderr.text());
    assert_eq!((filled.results.len(), filled.results_dropped), (0, 1), "there was no room for the value");
    let [file] = &filled.files.changes[..] else { panic!("{:?}", filled.files) };
    assert_eq!((file.name.as_str(), file.change), ("fill", Touched::Created));
    for (language, code) in [
        ("python", "print('whole' * 1000)\n5"),
        ("javascript", "console.log('whole'.repeat(1000)); 5"),
        ("javascript", "import 'fs'; console.log('whole'.repeat(1000))"),
        (
            "sh",
            "for i in 1 2 3 4 5 6 7 8 9 10; do for j in 1 2 3 4 5 6 7 8 9 10; do for k in 1 2 3 4 5 6 7 8 9 10; do printf whole; done; done; done; echo",
        ),
    ] {
        let result = run_in_the_least_room(&world, language, code).await;
        assert_eq!((result.stdout.bytes().len(), result.exit_code), (5001, 0), "{code}: {}", result.stderr.text());
        assert!(
            result.results.is_empty() && result.results_dropped == u64::from(language != "sh"),
            "{code}: {result:?}"
        );
        assert!(result.files.changes.is_empty(), "{code}: {:?}", result.files);
    }
    let failed =
        run_in_the_least_room(&world, "python", "with open('more', 'w') as more: more.write('x' * 5000)").await;
    assert!(
        failed.exit_code == 1 && failed.stderr.text().contains("No space left on device"),
        "{}",
        failed.stderr.text()
    );
    let sessions = Sessions::new(world.executor.clone());
    let session = sessions.open(&world.profile, &world.sandbox, "python").await.expect("a session");
    let call = async |code: &str| {
        let request = CodeRequest::new("", code).timeout(Duration::from_secs(20));
        session.call(request).await.expect("a result")
    };
    let called = call("x = 5\nprint('said')\nx").await;
    assert_eq!((called.stdout.text().as_ref(), called.results_dropped), ("said\n", 1));
    assert_eq!(call("import os; os.remove('fill')").await.exit_code, 0);
    let room = call("x").await;
    assert_eq!(room.results[0].data["text/plain"], "5", "there is room again, and nothing was lost");
    sessions.shutdown().await;
    assert_eq!(world.run("python", "7").await.results[0].data["text/plain"], "7");
    let left = world.sandbox.list_dir(&Default::default()).await.expect("a listing");
    assert!(left.iter().all(|entry| entry.name == "more"), "no internal file is left: {left:?}");
    world.sandbox.close().await.expect("it closes");
}

#[tokio::test]
async fn code_runs_where_its_own_workspace_is_full() {
    let limits = Limits {
        pids: Some(32),
        memory: Some(ByteSize::from_mebibytes(1024)),
        disk: Some(ByteSize::from_mebibytes(1)),
        ..Limits::default()
    };
    runs_on_a_full_disk(spec().limits(limits)).await;
}

#[tokio::test]
async fn code_runs_where_the_hosts_disk_is_full() {
    if !is_root() {
        println!(
            "SKIP as an ordinary user: no file system can be mounted on the host, a private one is filled instead"
        );
        return;
    }
    let small = Small::mount();
    let limits =
        Limits { pids: Some(32), memory: Some(ByteSize::from_mebibytes(1024)), disk: None, ..Limits::default() };
    let workspace = Workspace::HostDir { path: small.path().to_owned(), access: Access::ReadWrite };
    runs_on_a_full_disk(spec().limits(limits).workspace(workspace)).await;
    let left: Vec<_> =
        small.path().read_dir().expect("a listing").map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(left.iter().all(|name| name == "more"), "{left:?}");
}

#[tokio::test]
async fn code_of_many_calls_does_not_fill_its_directory() {
    let world = World::new().await;
    let code = format!("print(1)\n# {}", "x".repeat(1_000_000));
    for _ in 0..40 {
        let result = world.run("python", &code).await;
        assert_eq!((result.stdout.text().as_ref(), result.exit_code), ("1\n", 0), "{}", result.stderr.text());
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}
