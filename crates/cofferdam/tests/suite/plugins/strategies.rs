//! One list of checks for all strategies: a plugin behaves the same at each isolation level.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cli::{WEAKER, containers, vms};

/// The methods of the plugin of the SDKs' conformance suite.
const METHODS: &str = "
[methods.echo]
[methods.add]
input = { type = \"object\", required = [\"a\", \"b\"] }
[methods.fail]
[methods.count]
[methods.kv]
[methods.denied]
[methods.correlate]
[methods.busy]
timeout = \"1s\"
";

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk")
}

/// Writes the Python plugin of the conformance suite.
fn python(package: &Path) {
    let head = "manifest = 1\nname = \"same\"\nversion = \"1.0.0\"\nruntime = \"python\"\nentry = \"main:activate\"\n";
    write(package, head);
    fs::copy(sdk().join("conformance/python/main.py"), package.join("main.py")).expect("the plugin");
}

fn write(package: &Path, head: &str) {
    fs::create_dir_all(package).expect("a directory");
    let rest = "permissions = [\"fs.read\"]\n[sandbox]\nfsAccess = { read = [\"data\"] }\n[sandbox.timeouts]\ngrace = \"500ms\"\n";
    fs::write(package.join("plugin.toml"), format!("{head}{rest}{METHODS}")).expect("the manifest");
}

/// Runs all checks in one host, by calls on its standard input.
fn check(package: &Path, options: &[&str], prepare: impl Fn(Command) -> Option<Command>) {
    let state = tempfile::tempdir().expect("a directory");
    let mut run = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    run.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    run.args(["plugins", "run"]).arg(package).arg("--state").arg(state.path());
    run.args(["--allow-weaker", WEAKER]).args(options);
    let Some(mut run) = prepare(run) else { return };
    let long = "x".repeat(300_000);
    let calls = [
        ("echo", json!({"a": [1, "ü", null], "long": long}), Ok(json!({"a": [1, "ü", null], "long": long}))),
        ("add", json!({"a": 2, "b": 40}), Ok(json!(42))),
        ("add", json!({"a": 2}), Err("invalid-params")),
        ("fail", json!({"message": "on purpose"}), Err("plugin-failed")),
        ("kv", json!({"key": "k", "value": {"b": 1}}), Ok(json!({"b": 1}))),
        ("denied", json!({}), Ok(json!("permission-denied"))),
        ("count", json!({"n": 300}), Ok(json!(300))),
        ("busy", json!({"seconds": 60}), Err("timeout")),
        // The process was ended, so this call finds another one.
        ("echo", json!("again"), Ok(json!("again"))),
    ];
    let mut answers = Answers::start(&mut run);
    for (method, input, expected) in calls {
        let (answer, items) = answers.call(method, &input);
        match expected {
            Ok(value) => assert_eq!(answer["result"], value, "{options:?} {method}: {answer}"),
            Err(kind) => assert_eq!(answer["error"]["data"]["kind"], kind, "{options:?} {method}: {answer}"),
        }
        if method == "count" {
            assert_eq!(items, (0..300).map(|item| json!(item)).collect::<Vec<_>>(), "{options:?}");
        }
    }
    answers.end();
}

/// A running host that answers calls.
struct Answers {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Answers {
    fn start(run: &mut Command) -> Self {
        use std::io::BufRead;
        use std::process::Stdio;
        let run = run.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = run.spawn().expect("it starts");
        let lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    fn call(&mut self, method: &str, input: &Value) -> (Value, Vec<Value>) {
        use std::io::Write;
        let line = json!({"id": 1, "plugin": "same", "method": method, "input": input, "stream": true});
        writeln!(self.child.stdin.as_mut().expect("piped"), "{line}").expect("the host reads");
        let mut items = Vec::new();
        loop {
            let line = self.lines.next().expect("an answer").expect("text");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            match answer.get("item") {
                Some(item) => items.push(item.clone()),
                None if answer.get("progress").is_some() => {}
                None => return (answer, items),
            }
        }
    }

    /// Ends the host by SIGTERM.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(143), "{status}");
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // A failed check leaves no host.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Promise (Plugins): The same plugin behaves the same in each strategy: process sandbox, child process, WebAssembly,
/// container and VM.
#[test]
fn a_plugin_behaves_the_same_in_processes() {
    let package = tempfile::tempdir().expect("a directory");
    python(package.path());
    readable(package.path());
    check(package.path(), &[], Some);
    check(package.path(), &["--development", "--strategy", "thread"], Some);
    check(package.path(), &["--development", "--strategy", "inline"], Some);
}

#[test]
fn a_plugin_behaves_the_same_in_webassembly() {
    let test = "a_plugin_behaves_the_same_in_webassembly";
    let package = tempfile::tempdir().expect("a directory");
    let target = std::env::temp_dir().join(format!("plugin-wasm-{}", std::process::id()));
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--locked", "--release", "--target", "wasm32-wasip1", "--example", "conformance"]);
    build.current_dir(sdk().join("rust-plugin")).env("CARGO_TARGET_DIR", &target);
    let Ok(built) = build.output() else {
        println!("SKIP {test}: this user has no cargo, which builds the module");
        return;
    };
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr).into_owned();
        let _ = fs::remove_dir_all(&target);
        assert!(why.contains("wasm32-wasip1") || !rustix::process::geteuid().is_root(), "{why}");
        println!("SKIP {test}: the module cannot be built; `rustup target add wasm32-wasip1` may be missing: {why}");
        return;
    }
    let module = target.join("wasm32-wasip1/release/examples/conformance.wasm");
    write(
        package.path(),
        "manifest = 1\nname = \"same\"\nversion = \"1.0.0\"\nruntime = \"wasm\"\nentry = \"plugin.wasm\"\n",
    );
    fs::copy(module, package.path().join("plugin.wasm")).expect("the module");
    fs::remove_dir_all(&target).expect("the build directory is removed");
    check(package.path(), &[], Some);
}

#[test]
fn a_plugin_behaves_the_same_in_containers() {
    let package = tempfile::tempdir().expect("a directory");
    python(package.path());
    readable(package.path());
    check(package.path(), &["--strategy", "container"], containers::with_engine);
}

#[test]
fn a_plugin_behaves_the_same_in_vms() {
    let package = tempfile::tempdir().expect("a directory");
    python(package.path());
    readable(package.path());
    let test = "a_plugin_behaves_the_same_in_vms";
    let build = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    let Some(mut build) = vms::with_vms(build, test) else { return };
    // The image of other tests has the smallest Python, which lacks modules of the SDK.
    let built = build.args(["vm", "build-image", "--name", "plugin-tests"]).output().expect("it runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    check(package.path(), &["--strategy", "vm"], |run| {
        let mut run = vms::with_vms(run, test)?;
        run.env("COFFERDAM_VM_IMAGE", "plugin-tests");
        Some(run)
    });
}

fn readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode changes");
}
