//! E2B's own SDKs against the local server: they are the judges of it.

use std::path::PathBuf;
use std::process::Output;

use crate::server::{KEY, LocalE2b};

/// The directory of the SDKs.
const SDK: &str = "COFFERDAM_TEST_E2B_SDK";

const PYTHON: &str = r#"
from e2b import CommandExitException, NotFoundException, Sandbox

sandbox = Sandbox.create(metadata={"job": "7"}, timeout=120, allow_internet_access=False)
done = sandbox.commands.run("echo out; echo err >&2; echo $WORD", envs={"WORD": "x y"})
assert (done.stdout, done.stderr, done.exit_code) == ("out\nx y\n", "err\n", 0), done
try:
    sandbox.commands.run("exit 7")
    assert False
except CommandExitException as failed:
    assert failed.exit_code == 7, failed

seen = []
sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", on_stdout=seen.append)
assert "".join(seen) == "1\n2\n3\n" and len(seen) > 1, seen

command = sandbox.commands.run("cat", background=True, stdin=True)
sandbox.commands.send_stdin(command.pid, "to cat")
assert [one.pid for one in sandbox.commands.list()] == [command.pid]
sandbox.commands.close_stdin(command.pid)
assert command.wait().stdout == "to cat"

command = sandbox.commands.run("sleep 1000", background=True)
assert sandbox.commands.connect(command.pid).pid == command.pid
assert sandbox.commands.kill(command.pid) and not sandbox.commands.kill(123456)

sandbox.files.write("a/file.txt", "contents")
sandbox.files.write("bytes", bytes(range(256)))
assert sandbox.files.read("a/file.txt") == "contents"
assert sandbox.files.read("bytes", format="bytes") == bytes(range(256))
assert sandbox.files.exists("a") and not sandbox.files.exists("b")
assert sandbox.files.make_dir("d") and not sandbox.files.make_dir("d")
assert sorted(one.name for one in sandbox.files.list(".")) == ["a", "bytes", "d"]
sandbox.files.rename("bytes", "d/bytes")
assert sandbox.files.get_info("d/bytes").size == 256
sandbox.files.remove("d")
try:
    sandbox.files.read("d/bytes")
    assert False
except NotFoundException:
    pass

assert sandbox.is_running() and sandbox.get_info().metadata == {"job": "7"}
sandbox.set_timeout(300)
assert sandbox.get_metrics()[0].mem_total == 512 << 20
assert sandbox.pause()
sandbox = Sandbox.connect(sandbox.sandbox_id)
assert sandbox.commands.run("cat a/file.txt").stdout == "contents"
assert sandbox.kill() and not sandbox.is_running()
print("passed")
"#;

const JAVASCRIPT: &str = r#"
import assert from "node:assert";
import { Sandbox } from "e2b";

const sandbox = await Sandbox.create({ timeoutMs: 120_000 });
const done = await sandbox.commands.run("echo out; echo err >&2");
assert.deepStrictEqual([done.stdout, done.stderr, done.exitCode], ["out\n", "err\n", 0]);
await assert.rejects(sandbox.commands.run("exit 7"), (failed) => failed.exitCode === 7);
let seen = "";
await sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", { onStdout: (data) => { seen += data; } });
assert.strictEqual(seen, "1\n2\n3\n");
let screen = "";
const pty = await sandbox.pty.create({ cols: 90, rows: 30, onData: (data) => { screen += Buffer.from(data); } });
await sandbox.pty.sendInput(pty.pid, Buffer.from("stty size; exit 3\n"));
await assert.rejects(pty.wait(), (failed) => failed.exitCode === 3);
assert.ok(screen.includes("30 90"), screen);
await sandbox.files.write("a/file.txt", "contents");
assert.strictEqual(await sandbox.files.read("a/file.txt"), "contents");
assert.deepStrictEqual((await sandbox.files.list("a")).map((one) => one.name), ["file.txt"]);
assert.ok(await sandbox.pause());
const again = await Sandbox.connect(sandbox.sandboxId);
assert.strictEqual((await again.commands.run("cat a/file.txt")).stdout, "contents");
assert.ok(await again.kill());
console.log("passed");
"#;

fn sdk(test: &str) -> Option<PathBuf> {
    let directory = std::env::var_os(SDK).map(PathBuf::from);
    if directory.is_none() {
        println!("SKIP {test}: {SDK} names no SDKs; cargo xtask clients installs them");
    }
    directory
}

/// Runs a program with the addresses and the key of the server.
async fn passed(server: &LocalE2b, command: &mut tokio::process::Command) {
    command.env("E2B_API_KEY", KEY).env("E2B_API_URL", &server.url).env("E2B_SANDBOX_URL", &server.url);
    let Output { status, stdout, stderr } = command.kill_on_drop(true).output().await.expect("it runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stdout.contains("passed"), "{stdout}\n{stderr}");
}

/// Promise (E2B): E2B's own SDK for Python works with the server that the backend is tested against.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sdk_for_python_accepts_the_local_server() {
    let Some(sdk) = sdk("sdk_for_python_accepts_the_local_server") else { return };
    let server = LocalE2b::start().await;
    passed(&server, tokio::process::Command::new(sdk.join("python/bin/python3")).args(["-c", PYTHON])).await;
    server.stop().await;
}

/// Promise (E2B): E2B's own SDK for JavaScript works with the server that the backend is tested against.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sdk_for_javascript_accepts_the_local_server() {
    let Some(sdk) = sdk("sdk_for_javascript_accepts_the_local_server") else { return };
    let server = LocalE2b::start().await;
    let mut node = tokio::process::Command::new("node");
    // Modules are looked up from the working directory.
    node.args(["--input-type=module", "--eval", JAVASCRIPT]).current_dir(sdk);
    passed(&server, &mut node).await;
    server.stop().await;
}
