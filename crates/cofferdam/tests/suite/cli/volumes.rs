//! `cofferdam volume`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::vms::with_vms;
use super::{WEAKER, cofferdam, json, outcome};

/// The state of a user.
struct User(tempfile::TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("state"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = cofferdam();
        command.arg("volume").args(words).env("XDG_STATE_HOME", self.0.path()).current_dir(self.0.path());
        command
    }

    fn volume(&self, words: &[&str]) -> (i32, String, String) {
        outcome(&mut self.command(words))
    }

    /// Runs a command that succeeds. Returns its standard output.
    fn good(&self, words: &[&str]) -> String {
        let (status, stdout, stderr) = self.volume(words);
        assert_eq!(status, 0, "{words:?}: {stderr}");
        stdout
    }

    fn names(&self) -> Vec<String> {
        let list = json(&self.good(&["ls", "--json"]));
        let rows = list["volumes"].as_array().expect("a list");
        rows.iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
    }
}

/// Returns the sizes of volumes that this host can create.
fn sizes(test: &str) -> Vec<&'static str> {
    let has_mkfs = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().any(|path| Path::new(path).exists());
    if !has_mkfs {
        println!("SKIP {test}: no mkfs.ext4 (package e2fsprogs): only volumes without a size");
        return vec!["none"];
    }
    vec!["none", "32M"]
}

/// Promise (Files): Volumes move between users and hosts as tars.
#[test]
fn volumes_are_created_listed_exported_imported_and_removed() {
    let user = User::new();
    let tree = user.0.path().join("tree");
    fs::create_dir_all(tree.join("a")).expect("a directory");
    fs::write(tree.join("a/file"), "text").expect("a file");
    let tar = Command::new("tar").arg("-C").arg(&tree).args(["-c", "."]).output().expect("a tar").stdout;
    for size in sizes("volumes_are_created_listed_exported_imported_and_removed") {
        user.good(&["create", "empty", "--size", size]);
        let mut child = user.command(&["import", "v", "-", "--size", size]);
        let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        child.stdin.take().expect("a pipe").write_all(&tar).expect("written");
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && stderr.contains("created the volume v ") && stderr.contains("3 files"));
        assert_eq!(user.names(), ["empty", "v"]);
        let volume = json(&user.good(&["inspect", "v", "--json"]));
        assert_eq!((&volume["in_use_by"], volume["size"].is_null()), (&json("[]"), size == "none"));
        assert!(user.good(&["inspect", "v"]).starts_with("name:      v\nsize:      "));
        assert!(user.good(&["ls"]).lines().all(|line| line.contains(" of ")));
        // By a pipe and by a file, the same.
        let exported = user.command(&["export", "v"]).output().expect("it runs");
        let document = json(&user.good(&["export", "v", "v.tar", "--json"]));
        assert_eq!((&document["files"], &document["bytes"]), (&json("2"), &json("4")));
        assert!(exported.stdout == fs::read(user.0.path().join("v.tar")).expect("a file"));
        let (status, _, stderr) = user.volume(&["export", "v", "v.tar"]);
        assert!(status == 125 && stderr.contains("exists"), "{stderr}");
        user.good(&["export", "v", "v.tar", "--force"]);
        let other = User::new();
        let file = user.0.path().join("v.tar");
        other.good(&["import", "copy", file.to_str().expect("text"), "--size", size]);
        let copied = other.command(&["export", "copy"]).output().expect("it runs");
        assert!(copied.stdout == exported.stdout);
        user.good(&["rm", "empty", "v"]);
        assert_eq!(user.names(), Vec::<String>::new());
        fs::remove_file(file).expect("removed");
    }
}

#[test]
fn failures_name_the_reason_and_the_remedy() {
    let user = User::new();
    user.good(&["create", "v", "--size", "none"]);
    fs::write(user.0.path().join("cut.tar"), "").expect("a file");
    for (words, status, text) in [
        (&["create", "v", "--size", "none"][..], 125, "the volume 'v' exists"),
        (&["create", "x", "--size", "1M"], 125, "the size 1048576 is invalid"),
        (&["create", "../x"], 125, "is not a valid name"),
        (&["rm", "x"], 127, "there is no volume 'x'"),
        (&["inspect", "x"], 127, "`cofferdam volume ls`"),
        (&["export", "x", "x.tar"], 127, "there is no volume 'x'"),
        (&["export", "v", "--force"], 125, "need a file"),
        (&["export", "v", "no/such/x.tar"], 127, "cannot use the directory"),
        (&["import", "x", "missing.tar", "--size", "none"], 125, "cannot open"),
        (&["import", "x", "cut.tar", "--size", "none"], 125, "cannot read the tar"),
    ] {
        let (code, stdout, stderr) = user.volume(words);
        assert!(code == status && stdout.is_empty() && stderr.contains(text), "{words:?}: {code} {stderr}");
    }
    let (code, stdout, _) = user.volume(&["inspect", "x", "--json"]);
    assert_eq!((code, json(&stdout)["error"]["kind"].as_str()), (127, Some("not-found")));
    assert_eq!(user.names(), ["v"]);
    assert!(!user.0.path().join("x.tar").exists());
}

/// Promise (Files): A guest's names reach the terminal without control characters.
#[test]
fn names_of_a_hostile_tar_are_escaped() {
    let user = User::new();
    let mut header = tar_header(b"../\x1b[2J");
    header.extend([0; 1024]);
    fs::write(user.0.path().join("x.tar"), header).expect("a file");
    let (status, _, stderr) = user.volume(&["import", "x", "x.tar", "--size", "none"]);
    assert!(status == 125 && stderr.contains("the path has '..'") && !stderr.contains('\u{1b}'), "{stderr:?}");
}

/// Returns the header of an empty file.
fn tar_header(name: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(b"00000000000\0");
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar  \0");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

impl User {
    /// Returns a run of a shell command with a volume `v` at `/v`.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = cofferdam();
        command.args(["run", "--allow-weaker", WEAKER]).args(options).args(["--", "sh", "-c", script]);
        command.env("XDG_STATE_HOME", self.0.path()).current_dir(self.0.path());
        command
    }
}

/// Promise (Files): A sandbox writes to a volume without a size, and the next one reads it.
#[test]
fn a_directory_volume_survives_its_sandbox() {
    let user = User::new();
    user.good(&["create", "v", "--size", "none"]);
    let (status, _, stderr) = outcome(&mut user.run(&["--volume", "v:/v", "--disk", "none"], "echo text > /v/file"));
    assert_eq!(status, 0, "{stderr}");
    let (status, stdout, stderr) = outcome(&mut user.run(&["--volume", "v:/v:ro"], "cat /v/file; echo x > /v/new"));
    assert!(status != 0 && stdout == "text\n" && stderr.contains("Read-only file system"), "{stdout} {stderr}");
    for (options, text) in [
        (&["--volume", "v:/v", "--volume", "missing:/m"][..], "there is no volume 'missing'"),
        (&["--volume", "v:/v", "--volume", "v:/w"], "is in use by process"),
        (&["--volume", "v:/v", "--use-server", "require"], "no mounts"),
        (&["--volume", "v:/proc"], "nothing can be mounted"),
        (&["--volume", "v"], "names no path inside"),
    ] {
        let (status, _, stderr) = outcome(&mut user.run(options, "true"));
        assert!(matches!(status, 125 | 127) && stderr.contains(text), "{options:?}: {status} {stderr}");
    }
    assert_eq!(json(&user.good(&["inspect", "v", "--json"]))["in_use_by"], json("[]"));
}

/// Promise (Files): The file system of a volume limits what a sandbox stores in it, and survives a supervisor that is
/// killed. Without root, such a volume is refused at level process.
#[test]
fn a_volume_with_a_size_survives_and_limits_its_sandboxes() {
    let test = "a_volume_with_a_size_survives_and_limits_its_sandboxes";
    if sizes(test).len() < 2 {
        return;
    }
    let user = User::new();
    user.good(&["create", "v", "--size", "32M"]);
    let options = ["--volume", "v:/v"];
    let script = "echo text > /v/file; dd if=/dev/zero of=/v/large bs=1M count=64 2>&1 | grep -o 'No space left'; \
                  rm /v/large; touch /v/done";
    let (status, stdout, stderr) = outcome(&mut user.run(&options, script));
    if cofferdam_linux::loop_device::probe().is_err() {
        println!("SKIP {test}: this user cannot mount file systems: only the refusal is tested");
        assert!(
            status == 125 && stderr.contains("cannot mount the disk") && stderr.contains("run as root"),
            "{stderr}"
        );
        return;
    }
    assert_eq!((status, stdout.as_str()), (0, "No space left\n"), "{stderr}");
    let (_, stdout, stderr) =
        outcome(&mut user.run(&["--volume", "v:/v:ro"], "cat /v/file; id -u; stat -c %u /v/file"));
    assert_eq!(stdout, "text\n1000\n1000\n", "{stderr}");
    let killed = user.run(&options, "echo before > /v/before; sync; while :; do echo x >> /v/log; done").spawn();
    let mut killed = killed.expect("it starts");
    let begun = Instant::now();
    while json(&user.good(&["inspect", "v", "--json"]))["in_use_by"] == json("[]") {
        assert!(begun.elapsed() < Duration::from_secs(60), "the volume is not used");
    }
    std::thread::sleep(Duration::from_millis(700));
    let (status, _, stderr) = outcome(&mut user.run(&["--volume", "v:/v:ro"], "true"));
    let holder = format!("is in use by process {} (cofferdam run), which writes to it", killed.id());
    assert!(status == 125 && stderr.contains(&holder), "{stderr}");
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    let (status, stdout, stderr) = outcome(&mut user.run(&options, "cat /v/file /v/before; test -s /v/log"));
    assert_eq!((status, stdout.as_str()), (0, "text\nbefore\n"), "{stderr}");
    let disk = user.0.path().join("cofferdam/volumes/v/disk.ext4").canonicalize().expect("a path");
    let begun = Instant::now();
    while has_loop(&disk) {
        assert!(begun.elapsed() < Duration::from_secs(20), "a loop device is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Promise (Files): A volume with a size is the same in a VM and at level process. What a VM stores is written when its
/// sandbox ends, and a volume that no VM has written is not marked as one.
#[test]
fn a_volume_moves_between_levels() {
    let test = "a_volume_moves_between_levels";
    if sizes(test).len() < 2 {
        return;
    }
    let user = User::new();
    user.good(&["create", "v", "--size", "32M"]);
    let written_by_guest = || json(&user.good(&["inspect", "v", "--json"]))["was_disk"].clone();
    let vm = |options: &[&str], script: &str| {
        let words = [&["--level", "vm", "--memory", "128M"], options].concat();
        with_vms(user.run(&words, script), test).map(|mut command| outcome(&mut command))
    };
    let script = "echo text > /v/file; id -u; stat -c %u /v; dd if=/dev/zero of=/v/large bs=1M count=64 2>/dev/null || \
                  echo full; rm /v/large; touch /new 2>/dev/null || echo read-only";
    let Some((status, stdout, stderr)) = vm(&["--volume", "v:/v"], script) else { return };
    assert_eq!((status, stdout.as_str()), (0, "1000\n1000\nfull\nread-only\n"), "{stderr}");
    assert_eq!(written_by_guest(), true);
    if cofferdam_linux::loop_device::probe().is_ok() {
        let (status, stdout, stderr) =
            outcome(&mut user.run(&["--volume", "v:/v"], "cat /v/file; echo more >> /v/file"));
        assert_eq!((status, stdout.as_str()), (0, "text\n"), "{stderr}");
        assert_eq!(written_by_guest(), false, "it was recreated");
        let (status, _, stderr) = vm(&["--volume", "v:/v", "--image", "missing"], "true").expect("VMs");
        assert!(status == 127 && written_by_guest() == false, "{status} {stderr}");
    } else {
        let (status, _, stderr) = vm(&["--volume", "v:/v"], "echo more >> /v/file").expect("VMs");
        assert_eq!(status, 0, "{stderr}");
    }
    // Below the workspace, and read-only: the file system is clean.
    let read = vm(&["--volume", "v:/workspace/a/b:ro"], "cat /workspace/a/b/file; touch /workspace/a/b/new");
    let (status, stdout, stderr) = read.expect("VMs");
    assert!(status != 0 && stdout == "text\nmore\n" && stderr.contains("Read-only file system"), "{stdout} {stderr}");
    user.good(&["create", "d", "--size", "none"]);
    let (status, _, stderr) = vm(&["--volume", "d:/d", "--disk", "none"], "true").expect("VMs");
    assert!(status == 125 && stderr.contains("use a volume with a size"), "{stderr}");
}

/// Returns true if a loop device has this file behind it.
fn has_loop(disk: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut behind = devices.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    behind.any(|text| text.trim() == disk.to_string_lossy())
}

/// Runs a command with this input. Returns its exit status, standard output and standard error.
fn fed(command: &mut Command, input: &str) -> (Option<i32>, String, String) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a start");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("an end");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Promise (Files): Sandboxes of `repl` and `mcp` have volumes too. One sandbox at a time writes to a volume, and what
/// it wrote is there when it is closed.
#[test]
fn interpreters_and_agents_use_volumes() {
    let user = User::new();
    user.good(&["create", "v", "--size", "none"]);
    let command = |name: &str| {
        let mut command = cofferdam();
        command.args([name, "--allow-weaker", WEAKER, "--disk", "none", "--volume", "v:/v"]);
        command.env("XDG_STATE_HOME", user.0.path()).current_dir(user.0.path());
        command
    };
    let mut other = cofferdam();
    other.args(["mcp", "--volume", "missing:/v"]).env("XDG_STATE_HOME", user.0.path());
    let (status, _, stderr) = fed(&mut other, "");
    assert!(status == Some(127) && stderr.contains("there is no volume 'missing'"), "{status:?} {stderr}");
    let code = "open('/v/file', 'w').write('by repl')\n";
    let (status, _, stderr) = fed(&mut command("repl"), code);
    assert_eq!(status, Some(0), "{stderr}");
    let call = |id: u32, tool: &str, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
        )
    };
    let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let list = r#"{"jsonrpc":"2.0","id":9,"method":"tools/list"}"#;
    let mut server = command("mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a start");
    let mut input = server.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let mut ask = |message: &str| {
        writeln!(input, "{message}").expect("written");
        let mut messages = lines.by_ref().map(|line| json(&line.expect("text")));
        messages.find(|message| message.get("id").is_some()).expect("an answer")
    };
    ask(initialize);
    assert!(ask(&format!("{initialized}\n{list}")).to_string().contains("create_sandbox"));
    let first = ask(&call(1, "create_sandbox", "{}"));
    assert_ne!(first["result"]["isError"], true, "{first}");
    let sandbox = &first["result"]["structuredContent"]["sandbox"];
    let shell = format!(r#"{{"sandbox": {sandbox}, "command": "cat /v/file; echo by agent > /v/file"}}"#);
    let read = ask(&call(2, "run_command", &shell));
    assert!(read.to_string().contains("by repl"), "{read}");
    let second = ask(&call(3, "create_sandbox", "{}")).to_string();
    assert!(second.contains("the volume 'v' is in use by process") && second.contains("cofferdam mcp"), "{second}");
    let closed = ask(&call(4, "close_sandbox", &format!(r#"{{"sandbox": {sandbox}}}"#)));
    assert_ne!(closed["result"]["isError"], true, "{closed}");
    let again = ask(&call(5, "run_command", r#"{"command": "cat /v/file"}"#));
    assert!(again.to_string().contains("by agent"), "{again}");
    drop(input);
    assert_eq!(server.wait().expect("an end").code(), Some(0));
    assert_eq!(json(&user.good(&["inspect", "v", "--json"]))["in_use_by"], json("[]"));
}

/// Promise (Files): A volume with a size is the same in a container and at level process. The next use of a volume
/// removes what a supervisor that was killed left mounted for its engine.
#[test]
fn containers_have_volumes_with_a_size() {
    let test = "containers_have_volumes_with_a_size";
    let Some(socket) = std::env::var_os("COFFERDAM_TEST_DOCKER").filter(|socket| !socket.is_empty()) else {
        println!("SKIP {test}: COFFERDAM_TEST_DOCKER names no engine");
        return;
    };
    if sizes(test).len() < 2 {
        return;
    }
    let user = User::new();
    user.good(&["create", "v", "--size", "32M"]);
    let container = |options: &[&str], script: &str| {
        let mut command = user.run(&[&["--backend", "docker"], options].concat(), script);
        command.env("DOCKER_HOST", format!("unix://{}", socket.display()));
        command
    };
    let script = "echo text > /v/file; stat -c %u /v/file | grep -qx $(id -u) && echo own; \
                  dd if=/dev/zero of=/v/large bs=1M count=64 2>&1 | grep -o 'No space left'; rm /v/large";
    let (status, stdout, stderr) = outcome(&mut container(&["--volume", "v:/v"], script));
    if cofferdam_linux::loop_device::probe().is_err() {
        println!("SKIP {test}: this user cannot mount file systems: only the refusal is tested");
        assert!(status == 125 && stderr.contains("run as root"), "{stderr}");
        return;
    }
    assert_eq!((status, stdout.as_str()), (0, "own\nNo space left\n"), "{stderr}");
    let (status, stdout, stderr) = outcome(&mut user.run(&["--volume", "v:/v"], "cat /v/file; echo more >> /v/file"));
    assert_eq!((status, stdout.as_str()), (0, "text\n"), "{stderr}");
    let (status, stdout, stderr) =
        outcome(&mut container(&["--volume", "v:/workspace/v:ro"], "cat v/file; echo x > v/new"));
    assert!(status != 0 && stdout == "text\nmore\n" && stderr.contains("Read-only file system"), "{stdout} {stderr}");
    for time in [0, 100, 200, 400, 800, 1600] {
        let mut killed =
            container(&["--volume", "v:/v"], "while :; do echo x >> /v/log; done").spawn().expect("a start");
        std::thread::sleep(Duration::from_millis(time));
        killed.kill().expect("killed");
        killed.wait().expect("ended");
    }
    user.good(&["export", "v", "v.tar"]);
    assert_eq!(fs::read_dir("/run/cofferdam-disks").map_or(0, Iterator::count), 0, "an export is a use");
    let (status, stdout, stderr) = outcome(&mut container(&["--volume", "v:/v"], "cat /v/file"));
    assert_eq!((status, stdout.as_str()), (0, "text\nmore\n"), "{stderr}");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains("/run/cofferdam-disks/"), "{mounts}");
    let disk = user.0.path().join("cofferdam/volumes/v/disk.ext4").canonicalize().expect("a path");
    let begun = Instant::now();
    while has_loop(&disk) {
        assert!(begun.elapsed() < Duration::from_secs(20), "a loop device is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}
