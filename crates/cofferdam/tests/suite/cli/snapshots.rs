//! Snapshot files on the command line: checks without VMs, and checks with VMs if the tests may start some.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_archive::{Key, Kind, ReadOptions, Reader, WriteOptions, Writer};
use serde_json::Value;

use super::vms::{with_nothing, with_vms};
use super::{WEAKER, cofferdam, json, outcome, start};

/// A program that keeps random data in memory, checks it, and counts in memory and in a file.
const COUNTER: &str = "
import hashlib, os, time
kept = os.urandom(1 << 20)
first = hashlib.sha256(kept).hexdigest()
count = 0
while True:
    count += 1
    now = hashlib.sha256(kept).hexdigest()
    with open('/workspace/new', 'w') as file:
        file.write('%d %s %s' % (count, first, now))
    os.replace('/workspace/new', '/workspace/counter')
    if count == 5:
        print('five', first, flush=True)
    time.sleep(0.05)
";

pub(super) fn snapshot<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>, directory: &Path) -> Command {
    let mut command = cofferdam();
    command.arg("snapshot").args(words).current_dir(directory);
    command
}

/// The contents of an archive.
#[derive(Clone)]
struct Parts {
    machine: Value,
    devices: Vec<u8>,
    memory: Vec<u8>,
    workspace: Option<Vec<u8>>,
}

impl Parts {
    /// Creates the archive of a VM that does not exist.
    fn sample() -> Self {
        let machine = serde_json::json!({
            "manifest": {
                "format": 1,
                "origin": {
                    "monitor": "qemu", "version": "0.9.1", "machine": "microvm x86_64", "accelerator": "tcg",
                    "processor": "Nehalem-v1\u{1b}[2J", "host": null, "ticks_per_millisecond": null
                },
                "image": "0123456789abcdef",
                "plan": {
                    "memory": 1 << 20, "processors": 1,
                    "shares": { "disk": null, "workspace": 4096, "tmp": 4096, "shm": 4096 },
                    "bound": null, "tasks": null, "quota": null
                },
                "access": "read-write",
                "limits": { "wall_time": 9.0 },
                "guest": { "version": 9, "last": 0, "execs": [] }
            },
            "root": "00".repeat(32)
        });
        Self { machine, devices: vec![7; 5000], memory: vec![9; 1 << 20], workspace: None }
    }

    fn write(&self, path: &Path, key: Option<&Key>) {
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(bytes).expect("it is written");
            file
        };
        let document = self.machine.to_string();
        let (devices, memory) = (file(&self.devices), file(&self.memory));
        let workspace = self.workspace.as_deref().map(file);
        let mut writer = Writer::new(WriteOptions { key, ..WriteOptions::default() }).expect("a writer");
        writer.json("machine", document.as_bytes()).expect("a document");
        writer.state("devices", &devices).expect("a state").memory("memory", &memory).expect("a memory");
        if let Some(workspace) = &workspace {
            writer.disk("workspace", workspace, None).expect("a disk");
        }
        let out = File::create(path).expect("a file");
        writer.write(out, &mut |_| std::ops::ControlFlow::Continue(())).expect("it is written");
    }

    fn read(path: &Path) -> Self {
        let reader = Reader::open(File::open(path).expect("it exists"), &ReadOptions::default()).expect("an archive");
        let all = &mut |_| std::ops::ControlFlow::Continue(());
        let restored = reader.restore(&[], &mut |_| tempfile::tempfile(), all).expect("it is whole");
        let machine = serde_json::from_slice(&restored.documents[0].bytes).expect("JSON");
        let bytes = |kind| {
            let found = restored.files.iter().find(|(part, _)| part.kind == kind)?;
            let mut bytes = vec![0; found.1.metadata().ok()?.len() as usize];
            std::os::unix::fs::FileExt::read_exact_at(&found.1, &mut bytes, 0).ok()?;
            Some(bytes)
        };
        let part = |kind| bytes(kind).expect("a part");
        Self { machine, devices: part(Kind::State), memory: part(Kind::Memory), workspace: bytes(Kind::Disk) }
    }
}

/// Creates a key file that only its owner can read.
pub(super) fn key_file(directory: &Path, name: &str, contents: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, contents).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its owner's");
    path
}

pub(super) fn refused(command: &mut Command, says: &str) {
    let (code, stdout, stderr) = outcome(command);
    assert!(code != 0 && stdout.is_empty() && stderr.contains(says), "{command:?}: {code} {stdout}{stderr}");
}

/// A modification of test data.
type Change<T> = fn(&mut T);

#[test]
fn archive_is_shown_without_a_vm() {
    let directory = tempfile::tempdir().expect("a directory");
    Parts::sample().write(&directory.path().join("m"), None);
    let (code, text, stderr) = outcome(&mut snapshot(["inspect", "m"], directory.path()));
    assert_eq!((code, stderr.as_str()), (0, ""), "{text}");
    for part in
        ["not encrypted", "qemu 0.9.1", "0123456789abcdef", "1 MiB of memory", "its command has ended", "--verify"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let (code, text, _) = outcome(&mut snapshot(["inspect", "m", "--verify", "--json"], directory.path()));
    let shown = json(&text);
    assert_eq!((code, shown["encrypted"].as_bool(), shown["version"].as_u64()), (0, Some(false), Some(1)));
    assert_eq!(shown["parts"][2]["size"], 1 << 20);
    assert!(shown["verified"].as_str().is_some_and(|digest| digest.len() == 64), "{shown}");
    assert_eq!(shown["machine"]["limits"]["wall_time"], 9.0);
    let mut odd = Parts::sample();
    odd.machine["manifest"]["format"] = 2.into();
    odd.write(&directory.path().join("odd"), None);
    let (code, text, _) = outcome(&mut snapshot(["inspect", "odd"], directory.path()));
    assert!(code == 0 && text.contains("its format is 2"), "{text}");
    let mut old = Parts::sample();
    old.machine["manifest"]["guest"]["version"] = 2.into();
    old.write(&directory.path().join("old"), None);
    let (code, text, _) = outcome(&mut snapshot(["inspect", "old"], directory.path()));
    assert!(code == 0 && text.contains("its agent speaks version 2"), "{text}");
}

/// Promise (Virtual machines): A damaged archive is refused before any VM is created.
#[test]
fn damaged_archives_are_refused_before_a_vm_is_created() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    Parts::sample().write(&at("m"), None);
    let whole = std::fs::read(at("m")).expect("it exists");
    let mut tampered = whole.clone();
    let late = tampered.len() - 40;
    tampered[late] ^= 1;
    std::fs::write(at("tampered"), &tampered).expect("a file");
    std::fs::write(at("cut"), &whole[..whole.len() - 1]).expect("a file");
    std::fs::write(at("more"), [&whole[..], b"x"].concat()).expect("a file");
    std::fs::write(at("text"), "nothing").expect("a file");
    std::fs::write(at("newer"), [&whole[..16], &[2], &whole[17..]].concat()).expect("a file");
    for (name, says) in [
        ("tampered", "damaged or was tampered"),
        ("cut", "truncated"),
        ("more", "after the end of the archive"),
        ("text", "not an archive"),
        ("newer", "format version 2"),
    ] {
        refused(&mut snapshot(["inspect", "--verify", name], directory.path()), says);
    }
    for (name, says) in [
        ("text", "not an archive"),
        ("newer", "format version 2"),
        ("none", "no such file"),
        (".", "not a regular file"),
    ] {
        let mut restore = with_nothing(snapshot(["restore", name, "--", "true"], directory.path()), directory.path());
        refused(&mut restore, says);
    }
    // The parts are compared with the description of the VM, without asking a VMM.
    let lies: [(&str, Change<Parts>); 5] = [
        ("belongs to another format", |parts| parts.machine["manifest"]["format"] = 9.into()),
        ("its agent speaks version 2", |parts| parts.machine["manifest"]["guest"]["version"] = 2.into()),
        ("cannot parse", |parts| parts.machine["more"] = 1.into()),
        ("'memory' has 4096 bytes", |parts| parts.memory = vec![1; 4096]),
        ("has 4 parts", |parts| parts.workspace = Some(vec![1; 4096])),
    ];
    for (says, lie) in lies {
        let mut parts = Parts::sample();
        lie(&mut parts);
        parts.write(&at("lie"), None);
        let says = if says.starts_with("belongs") { "its format is 9" } else { says };
        refused(&mut with_nothing(snapshot(["restore", "lie"], directory.path()), directory.path()), says);
    }
    assert!(!at("images").exists() && !at(".cache").exists(), "a refusal made something");
}

/// Promise (Virtual machines): The command line refuses a key file with a wrong size or wrong permissions, and shows no
/// key in an error.
#[test]
fn keys_are_exact_and_their_owners_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    Parts::sample().write(&at("locked"), Some(&Key::new(&[0xab; 32]).expect("a key")));
    Parts::sample().write(&at("open"), None);
    key_file(directory.path(), "key", &[0xab; 32]);
    key_file(directory.path(), "digits", format!("{}\n", "ab".repeat(32)).as_bytes());
    key_file(directory.path(), "other", &[0xac; 32]);
    key_file(directory.path(), "short", b"secretsecret");
    std::fs::copy(at("key"), at("loose")).expect("a copy");
    std::fs::set_permissions(at("loose"), std::fs::Permissions::from_mode(0o640)).expect("others' too");
    for key in ["key", "digits"] {
        let words = ["inspect", "locked", "--verify", "--json", "--key-file", key];
        let (code, text, stderr) = outcome(&mut snapshot(words, directory.path()));
        assert!(code == 0 && json(&text)["machine"]["image"] == "0123456789abcdef", "{text}{stderr}");
    }
    let (code, text, _) = outcome(&mut snapshot(["inspect", "locked"], directory.path()));
    assert!(code == 0 && text.contains("encrypted") && text.contains("--key-file") && !text.contains("qemu"), "{text}");
    for (words, says) in [
        (&["inspect", "locked", "--key-file", "other"][..], "key does not match"),
        (&["inspect", "open", "--key-file", "key"], "not encrypted"),
        (&["inspect", "locked", "--key-file", "short"], "exactly 32 bytes"),
        (&["inspect", "locked", "--key-file", "loose"], "chmod 600"),
        (&["inspect", "locked", "--key-file", "none"], "no such file"),
        (&["restore", "locked"], "no key was given"),
        (&["restore", "locked", "--key-file", "other"], "key does not match"),
        (&["restore", "open", "--key-file", "key"], "not encrypted"),
    ] {
        let mut command = with_nothing(snapshot(words, directory.path()), directory.path());
        let (code, _, stderr) = outcome(&mut command);
        assert!(code != 0 && stderr.contains(says) && !stderr.contains("secret"), "{words:?}: {code} {stderr}");
    }
}

#[test]
fn invalid_save_is_refused_before_a_vm_is_created() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("there"), "others").expect("a file");
    let cases = [
        (&["--out", "there"][..], "already exists"),
        (&["--out", "no/such/m"], "directory that exists"),
        (&["--out", "."], "names no file"),
        (&["--out", "m", "--when-prints", ""], "text of --when-prints is empty"),
        (&["--out", "m", "--key-file", "there"], "key"),
        (&["--out", "m", "--after", "1s", "--when-done"], "cannot be used with"),
        (&["--out", "m", "--compression", "20"], "1..=19"),
        (&["--out", "m", "--net", "example.org"], "needs a port"),
        (&["--out", "m", "--backend", "process"], "only VMs can be saved"),
        (&["--out", "m", "--backend", "no-such"], "no-such"),
        // No image exists.
        (&["--out", "m"], "cofferdam vm build-image"),
        (&["--out", "m", "--backend", "vm"], "cofferdam vm build-image"),
        (&["--out", "m", "--backend", "vm:qemu"], "cofferdam vm build-image"),
    ];
    for (words, says) in cases {
        let words = ["save"].iter().chain(words).chain(&["--", "true"]);
        refused(&mut with_nothing(snapshot(words, directory.path()), directory.path()), says);
    }
    refused(&mut snapshot(["save", "--", "true"], directory.path()), "--out");
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).expect("a list").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(names, ["there"]);
    assert_eq!(std::fs::read(directory.path().join("there")).expect("it stays"), b"others");
}

/// Promise (Code execution): `snapshot save` analyses and logs code before it creates a VM.
#[test]
fn code_is_analyzed_and_logged_before_a_vm_is_created() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let config = format!("[audit]\ndirectory = {log:?}\nsync = \"never\"\n[screening]\nmode = \"block\"\n");
    std::fs::write(directory.path().join("config.toml"), config).expect("written");
    let save = |words: &[&str]| {
        let fixed = ["save", "--config", "config.toml", "--allow-weaker", WEAKER, "--out", "m"];
        with_nothing(snapshot(fixed.iter().chain(words), directory.path()), directory.path())
    };
    refused(&mut save(&["--lang", "python", "--code", "import socket"]), "screening rejected the code");
    refused(&mut save(&["--", "true"]), "cofferdam vm build-image");
    let query = ["audit", "query", "--config", "config.toml"];
    let (_, stdout, stderr) = outcome(cofferdam().args(query).current_dir(directory.path()));
    let ends: Vec<_> =
        stdout.lines().filter_map(|line| Some(json(line)["record"]["reason"].as_str()?.to_owned())).collect();
    assert_eq!(ends, ["screening: import:socket at 1:8", "not started: not-found"], "{stdout}{stderr}");
    // No VM is created if logging fails.
    std::fs::rename(&log, directory.path().join("old")).expect("moved");
    std::fs::write(&log, "in the way").expect("written");
    refused(&mut save(&["--", "true"]), "the audit log cannot be written");
    assert!(!directory.path().join("m").exists());
}

/// Runs `snapshot save` of the counter, with these additional arguments.
fn save_counter(directory: &Path, words: &[&str], test: &str) -> Option<Value> {
    let fixed =
        ["save", "--json", "--allow-weaker", WEAKER, "--timeout", "1h", "--when-prints", "five", "--memory", "96M"];
    let words = fixed.iter().chain(words).chain(&["--", "python3", "-c", COUNTER]);
    let (code, stdout, stderr) = outcome(&mut with_vms(snapshot(words, directory), test)?);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    Some(json(&stdout))
}

/// Runs `snapshot restore` in another directory. Returns the counter and the kept data of the counter's file.
fn restored(file: &Path, words: &[&str], test: &str) -> Option<(u64, String)> {
    let elsewhere = tempfile::tempdir().expect("a directory");
    let file = file.to_str().expect("a name");
    let fixed = ["restore", file, "--json", "--allow-weaker", WEAKER];
    let words = fixed.iter().chain(words).chain(&["--", "cat", "counter"]);
    let (code, stdout, stderr) = outcome(&mut with_vms(snapshot(words, elsewhere.path()), test)?);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let answer = json(&stdout);
    assert_eq!(answer["restored"]["running"].as_array().map(Vec::len), Some(1), "{answer}");
    assert!(answer["posture"].as_array().is_some_and(|rows| !rows.is_empty()), "{answer}");
    let text = answer["stdout"]["text"].as_str().expect("text").to_owned();
    let words: Vec<&str> = text.split(' ').collect();
    assert_eq!(words[1], words[2], "what was kept in memory has changed");
    Some((words[0].parse().expect("a number"), words[1].to_owned()))
}

/// Promise (Virtual machines): A program resumes from a snapshot file in another process and directory.
#[test]
fn program_resumes_in_another_process_and_directory() {
    let test = "program_resumes_in_another_process_and_directory";
    let directory = tempfile::tempdir().expect("a directory");
    let key = key_file(directory.path(), "key", &[3; 32]);
    let key = key.to_str().expect("a name");
    for (name, locked) in [("open", &[][..]), ("locked", &["--key-file", key])] {
        let Some(saved) = save_counter(directory.path(), &[&["--out", name], locked].concat(), test) else { return };
        let printed = saved["stdout"]["text"].as_str().expect("text").trim().to_owned();
        let expected = printed.strip_prefix("five ").expect("what it printed");
        let file = directory.path().join(name);
        let meta = std::fs::metadata(&file).expect("it exists");
        assert_eq!((saved["archive"]["bytes"].as_u64(), meta.permissions().mode() & 0o777), (Some(meta.len()), 0o600));
        assert_eq!(saved["archive"]["encrypted"].as_bool(), Some(!locked.is_empty()));
        let moved = tempfile::tempdir().expect("a directory");
        let destination = moved.path().join("moved");
        std::fs::rename(&file, &destination)
            .or_else(|_| std::fs::copy(&file, &destination).map(drop))
            .expect("it is moved");
        let (first, same) = restored(&destination, locked, test).expect("VMs are available");
        assert!(same == expected && first >= 5, "{first} {same} {expected}");
        // Restores the same state again, with time to count.
        let (later, same) =
            restored(&destination, &[locked, &["--for", "5s"]].concat(), test).expect("VMs are available");
        assert!(same == expected && later > first, "{first} {later}");
        assert_eq!(std::fs::read_dir(moved.path()).expect("a list").count(), 1);
        if locked.is_empty() {
            hostile_copies(&destination, moved.path(), test);
        }
    }
}

/// Promise (Virtual machines): `--attach` shows the output of a restored program and returns its exit status.
#[test]
fn a_restored_program_is_attached_to_with_its_output_and_status() {
    let test = "a_restored_program_is_attached_to";
    let directory = tempfile::tempdir().expect("a directory");
    let run = |words: &[&str]| with_vms(snapshot(words, directory.path()), test);
    let script =
        "(sleep 900 &) ; echo before; while [ $((n += 1)) -le 5 ]; do sleep 1; done; echo out; echo err >&2; exit 7";
    let fixed = ["save", "--allow-weaker", WEAKER, "--memory", "96M", "--out", "m", "--when-prints", "before", "--"];
    let Some(mut save) = run(&[&fixed[..], &["sh", "-c", script]].concat()) else { return };
    let (code, stdout, stderr) = outcome(&mut save);
    assert!(code == 0 && stdout == "before\n" && stderr.contains("1 command is running"), "{code} {stdout}{stderr}");
    let restore = ["restore", "m", "--allow-weaker", WEAKER];
    let attach =
        |words: &[&str]| outcome(&mut run(&[&restore[..], words, &["--attach"]].concat()).expect("VMs are available"));
    let (code, stdout, stderr) = attach(&[]);
    assert!(code == 7 && stdout == "out\n" && stderr.contains("err\n"), "{code} {stdout}{stderr}");
    assert!(stderr.contains("1 command is running (exec "), "{stderr}");
    let (code, stdout, stderr) = attach(&["--json"]);
    let document = json(&stdout);
    assert_eq!(
        (code, &document["stdout"]["text"], &document["exit"]["code"]),
        (7, &"out\n".into(), &7.into()),
        "{stderr}"
    );
    // The tighter of both wall time limits applies.
    let (code, stdout, stderr) = attach(&["--timeout", "1s"]);
    assert!(code == 124 && stdout.is_empty(), "{code} {stdout}{stderr}");
}

/// Restores damaged and hostile copies of a valid archive.
fn hostile_copies(good: &Path, directory: &Path, test: &str) {
    let whole = std::fs::read(good).expect("it exists");
    let mut tampered = whole.clone();
    tampered[whole.len() / 2] ^= 1;
    let bad = directory.join("bad");
    let restore = |says: &str, words: &[&str]| {
        let fixed = ["restore", "bad", "--allow-weaker", WEAKER, "--quiet"];
        let words = fixed.iter().chain(words).chain(&["--", "cat", "counter"]);
        refused(&mut with_vms(snapshot(words, directory), test).expect("VMs are available"), says);
    };
    std::fs::write(&bad, &tampered).expect("a file");
    restore("damaged or was tampered", &[]);
    std::fs::write(&bad, &whole[..whole.len() * 2 / 3]).expect("a file");
    restore("truncated", &[]);
    std::fs::write(&bad, [&whole[..], b"x"].concat()).expect("a file");
    restore("after the end of the archive", &[]);
    std::fs::write(&bad, &whole).expect("a file");
    restore("raise the limit", &["--max-disk", "1M"]);
    let parts = Parts::read(&bad);
    let changes: [(&str, Change<Value>); 9] = [
        ("the image with the key", |machine| machine["manifest"]["image"] = "ab".repeat(32).into()),
        ("the image's disk", |machine| machine["root"] = "ab".repeat(32).into()),
        ("version 0.9", |machine| machine["manifest"]["origin"]["version"] = "0.9.1".into()),
        ("the VMM firecracker", |machine| machine["manifest"]["origin"]["monitor"] = "firecracker".into()),
        ("the VM type q35", |machine| machine["manifest"]["origin"]["machine"] = "q35 x86_64".into()),
        ("the accelerator kvm", |machine| machine["manifest"]["origin"]["accelerator"] = "kvm".into()),
        ("the processor EPYC-v9", |machine| machine["manifest"]["origin"]["processor"] = "EPYC-v9".into()),
        ("the archive's limit on pids is 9999", |machine| machine["manifest"]["limits"]["pids"] = 9999.into()),
        ("a process limit of", |machine| machine["manifest"]["limits"]["pids"] = 9.into()),
    ];
    for (says, change) in changes {
        let mut parts = parts.clone();
        change(&mut parts.machine);
        parts.write(&bad, None);
        restore(says, &[]);
    }
    // The archive is consistent, but the VMM cannot load the state.
    Parts { devices: vec![0x5a; parts.devices.len()], ..parts }.write(&bad, None);
    let fixed = ["restore", "bad", "--allow-weaker", WEAKER, "--", "true"];
    let (code, stdout, stderr) = outcome(&mut with_vms(snapshot(fixed, directory), test).expect("VMs are available"));
    assert!(code == 125 && stdout.is_empty() && stderr.contains("cofferdam: "), "{code} {stdout}{stderr}");
    std::fs::remove_file(&bad).expect("it is removed");
}

/// Promise (Virtual machines): `snapshot save --when-done` saves a VM when its command ends, and never writes a partial
/// archive.
#[test]
fn vm_is_saved_after_its_command_and_never_partially() {
    let test = "a_machine_is_frozen_when_its_command_has_ended";
    let directory = tempfile::tempdir().expect("a directory");
    let save = |words: &[&str]| {
        let fixed = ["save", "--allow-weaker", WEAKER, "--memory", "96M", "--out", "m"];
        with_vms(snapshot(fixed.iter().chain(words), directory.path()), test)
    };
    let Some(mut early) = save(&["--after", "10m", "--", "sh", "-c", "exit 3"]) else { return };
    refused(&mut early, "ended with status 3");
    let (_, _, stderr) = outcome(&mut save(&["--", "sh", "-c", "exit 3"]).expect("VMs are available"));
    assert!(stderr.contains("nothing was saved") && stderr.contains("--when-done"), "{stderr}");
    assert!(!directory.path().join("m").exists());
    let script = "echo kept > /workspace/file; echo made";
    let mut done = save(&["--when-done", "--", "sh", "-c", script]).expect("VMs are available");
    let (code, stdout, stderr) = outcome(&mut done);
    assert!(code == 0 && stdout == "made\n" && stderr.contains("wrote m ("), "{code} {stdout}{stderr}");
    refused(&mut save(&["--", "true"]).expect("VMs are available"), "already exists");
    let first = std::fs::read(directory.path().join("m")).expect("it exists");
    let mut again = save(&["--when-done", "--force", "--quiet", "--", "sh", "-c", script]).expect("VMs are available");
    assert_eq!(outcome(&mut again), (0, "made\n".to_owned(), String::new()));
    assert!(std::fs::read(directory.path().join("m")).expect("it exists") != first);
    let words = ["restore", "m", "--allow-weaker", WEAKER, "--", "sh", "-c", "cat file; exit 9"];
    let (code, stdout, stderr) =
        outcome(&mut with_vms(snapshot(words, directory.path()), test).expect("VMs are available"));
    assert!(code == 9 && stdout == "kept\n" && stderr.contains("its command has ended"), "{code} {stdout}{stderr}");
    // Interrupts the command while it runs.
    let mut child = start(&mut save(&["--force", "--after", "10m", "--", "sleep", "600"]).expect("VMs are available"));
    let begun = Instant::now();
    while vmms_of(child.id()).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no VMM is started");
        std::thread::sleep(Duration::from_millis(100));
    }
    let vmms = vmms_of(child.id());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .expect("it exists");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    // The kernel kills a booting VM with its supervisor, which takes a moment.
    let begun = Instant::now();
    for pid in vmms {
        while Path::new(&format!("/proc/{pid}")).exists() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the VMM {pid} is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("a list").count(), 1);
}

/// Promise (Virtual machines): A full disk leaves no partial archive.
#[test]
fn a_full_disk_leaves_no_half_archive() {
    let test = "a_full_disk_leaves_no_half_archive";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root mounts a small file system");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    // The file system is private to this process and vanishes with it.
    let script = "mount -t tmpfs -o size=256k none . || exit 77; cd \"$PWD\"; \"$@\"; code=$?; ls -A >&2; exit $code";
    let program = env!("CARGO_BIN_EXE_cofferdam");
    let mut command = Command::new("unshare");
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).current_dir(directory.path());
    command.args([
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        program,
        "snapshot",
        "save",
        "--allow-weaker",
        WEAKER,
        "--memory",
        "96M",
    ]);
    command.args(["--out", "half", "--when-done", "--quiet", "--", "true"]);
    let Some(mut command) = with_vms(command, test) else { return };
    let (code, _, stderr) = outcome(&mut command);
    if code == 77 {
        println!("SKIP {test}: nothing can be mounted here");
        return;
    }
    assert!(code != 0 && stderr.contains("no space left") && !stderr.contains("half"), "{code} {stderr}");
}

/// Returns the process ids of VMMs that a process started.
fn vmms_of(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
        name.contains("qemu-system") && rest.split(' ').nth(1) == Some(&*parent.to_string())
    })
    .collect()
}

/// Promise (MCP server): A saved VM and the runs in a restored VM have lines in the audit log.
#[test]
fn saves_and_runs_of_restored_vms_are_logged() {
    let test = "saves_and_runs_of_restored_vms_are_logged";
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let config = directory.path().join("config.toml");
    std::fs::write(&config, format!("[audit]\ndirectory = {log:?}\nsync = \"never\"\n[screening]\nmode = \"block\"\n"))
        .expect("written");
    let config = config.to_str().expect("a name");
    let machine = |command: &str, words: &[&str]| {
        let fixed = [command, "--config", config, "--allow-weaker", WEAKER, "--quiet"];
        with_vms(snapshot(fixed.iter().chain(words), directory.path()), test)
    };
    let save = ["--memory", "96M", "--out", "m", "--when-prints", "up", "--", "sh", "-c", "echo up; sleep 600"];
    let Some(mut save) = machine("save", &save) else { return };
    assert_eq!(outcome(&mut save), (0, "up\n".to_owned(), String::new()));
    let mut restore = machine("restore", &["m", "--", "sh", "-c", "exit 4"]).expect("VMs are available");
    assert_eq!(outcome(&mut restore).0, 4);
    // A restore without a command is logged too, because the saved programs resume.
    let mut restore = machine("restore", &["m", "--for", "100ms"]).expect("VMs are available");
    assert_eq!(outcome(&mut restore).0, 0);
    // Code is screened before the VM resumes, and runs in the VM.
    let code = |code| machine("restore", &["m", "--lang", "python", "--code", code]).expect("VMs are available");
    let (status, stdout, stderr) = outcome(&mut code("import socket"));
    assert!(status == 125 && stderr.contains("screening rejected the code"), "{status} {stdout}{stderr}");
    let (status, stdout, stderr) = outcome(&mut code("print(6 * 7)"));
    assert_eq!((status, stdout.as_str()), (0, "42\n"), "{stderr}");
    let (_, verified, _) = outcome(&mut snapshot(["inspect", "m", "--verify", "--json"], directory.path()));
    let query = || outcome(cofferdam().args(["audit", "query", "--config", config]));
    let (_, stdout, stderr) = query();
    let ends: Vec<Value> =
        stdout.lines().map(|line| json(line)["record"].clone()).filter(|record| record["kind"] == "end").collect();
    // A refused archive was not restored.
    assert_eq!(ends.len(), 6, "{stdout}{stderr}");
    assert!(ends[5]["runtime"] == "python" && ends[5]["sandbox"] == ends[4]["sandbox"], "{}", ends[5]);
    assert!(ends[0]["exit"]["cancelled"] == true || ends[0]["exit"]["failed"] == "closed", "{}", ends[0]);
    for restored in [&ends[1], &ends[3], &ends[4]] {
        assert_eq!(restored["program"]["of"], "snapshot", "{restored}");
        assert_eq!(restored["program"]["sha256"], json(&verified)["verified"], "{restored}");
        assert_eq!(restored["restored"], serde_json::json!({"from": null, "programs": true}), "{restored}");
        assert!(restored["posture"].is_string() && restored["backend"] == "vm", "{restored}");
    }
    assert_eq!(ends[2]["exit"]["code"], 4, "{}", ends[2]);
    assert_eq!(ends[2]["sandbox"], ends[1]["sandbox"], "the command names the VM that it ran in");
    // No VM resumes if logging fails.
    std::fs::rename(&log, directory.path().join("old")).expect("moved");
    std::fs::write(&log, "in the way").expect("written");
    for words in [&["m", "--for", "100ms"][..], &["m", "--", "true"]] {
        refused(&mut machine("restore", words).expect("VMs are available"), "the audit log cannot be written");
    }
}
