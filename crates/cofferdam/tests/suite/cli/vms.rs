//! VMs from the command line: checks that start none, and checks with VMs if the tests may start some.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use super::code::typed;
use super::{cofferdam, json, outcome, run};
use crate::terminal::Terminal;

/// Gives a command a user with empty directories: no image, no configuration, no other cache.
pub(super) fn with_nothing(mut command: Command, directory: &Path) -> Command {
    command.env("HOME", directory).env("COFFERDAM_VM_IMAGES", directory.join("images"));
    command
}

/// Returns the image directory that tests share, because builds take long and give the same result.
pub(crate) fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let named = std::env::var_os("COFFERDAM_TEST_CACHE").map(PathBuf::from);
    let usual =
        || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_else(std::env::temp_dir);
    named.unwrap_or_else(|| usual().join("cofferdam"))
}

/// Gives a command the image directory that tests share.
pub(crate) fn with_cache(mut command: Command) -> Command {
    let cache = cache();
    // Packages are stored next to the images, in a directory with the program's name.
    command.env("XDG_CACHE_HOME", cache.parent().expect("a cache is in something"));
    command.env("COFFERDAM_VM_IMAGES", cache.join("vm")).env("COFFERDAM_VM_IMAGE", "cli-tests");
    command
}

/// Returns the command with a VM image, or prints why there is none.
pub(crate) fn with_vms(command: Command, test: &str) -> Option<Command> {
    static IMAGE: OnceLock<Result<(), String>> = OnceLock::new();
    let built = IMAGE.get_or_init(|| {
        if std::env::var_os("COFFERDAM_TEST_MACHINES").is_none() {
            return Err("tests of emulated VMs take minutes; enable them with COFFERDAM_TEST_MACHINES=1".to_owned());
        }
        let vmm = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
        if !cfg!(target_arch = "x86_64") || vmm.is_err() {
            return Err("no QEMU here (package qemu-system-x86)".to_owned());
        }
        let mut build = with_cache(cofferdam());
        build.args(["vm", "build-image", "--tiny", "--name", "cli-tests", "--json"]);
        let (code, stdout, stderr) = outcome(&mut build);
        assert_eq!(code, 0, "no image could be made: {stdout}{stderr}");
        let image = json(&stdout);
        assert!(image["name"] == "cli-tests" && image["size"].as_u64() > Some(1 << 20), "{image}");
        assert!(image["kernel"].as_str().is_some_and(|kernel| kernel.contains("cloud")), "{image}");
        Ok(())
    });
    match built {
        Ok(()) => Some(with_cache(command)),
        Err(why) => {
            println!("SKIP {test}: {why}");
            None
        }
    }
}

/// Creates a root file system that cannot boot.
pub(super) fn sample_root(directory: &Path) -> PathBuf {
    let root = directory.join("root");
    std::fs::create_dir_all(root.join("etc")).expect("a directory");
    std::fs::write(root.join("etc/hostname"), "sample\n").expect("a file");
    std::fs::write(directory.join("kernel"), "no kernel").expect("a file");
    std::fs::write(directory.join("virtio.ko"), "no module").expect("a file");
    root
}

/// Promise (Virtual machines): A missing image is an error with a remedy, and nothing starts.
#[test]
fn a_missing_image_says_how_to_get_it_and_starts_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    for words in [&["--backend", "vm"][..], &["--level", "vm"], &["--backend", "vm:qemu"], &["--backend", "qemu"]] {
        let (code, stdout, stderr) =
            outcome(&mut with_nothing(run(words.iter().chain(&["--", "true"])), directory.path()));
        assert_eq!((code, stdout.as_str()), (127, ""), "{stderr}");
        assert!(stderr.contains("cofferdam vm build-image"), "{words:?}: {stderr}");
    }
    let mut named = with_nothing(run(["--level", "vm", "--image", "mine", "--", "true"]), directory.path());
    let (code, _, stderr) = outcome(&mut named);
    assert!(code == 127 && stderr.contains("\"mine\"") && stderr.contains("  try: "), "{code} {stderr}");
    let mut by_variable = with_nothing(run(["--", "true"]), directory.path());
    let (code, _, stderr) = outcome(by_variable.env("SANDBOX_TYPE", "vm").env("COFFERDAM_VM_IMAGE", "other"));
    assert!(code == 127 && stderr.contains("\"other\""), "{code} {stderr}");
    assert!(!directory.path().join("images").exists(), "looking made something");
}

/// Promise (Virtual machines): A feature that VMs do not have is refused with a remedy before any file is inspected.
#[test]
fn features_that_vms_lack_are_refused_before_any_file_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    for (words, says) in [
        (&["--net", "10.0.0.7:80", "--", "true"][..], "names of a network policy only"),
        (&["--workspace", ".:rw", "--", "true"], "does not mount host directories"),
        (&["--memory", "1M", "--", "true"], "at least 8 MiB"),
        (&["--disk", "4K", "--", "true"], "at least 2 MiB"),
    ] {
        let mut command = with_nothing(run(["--backend", "vm"].iter().chain(words)), directory.path());
        let (code, _, stderr) = outcome(&mut command);
        assert!(code == 125 && stderr.contains(says) && stderr.contains("  try: "), "{words:?}: {code} {stderr}");
    }
    for name in ["vm:firecracker", "firecracker"] {
        let mut command = with_nothing(run(["--backend", name, "--", "true"]), directory.path());
        let (code, _, stderr) =
            outcome(command.env("COFFERDAM_VM_FIRECRACKER", directory.path().join("no/firecracker")));
        assert!(code == 125 && stderr.contains("firecracker is not installed"), "{stderr}");
        assert!(stderr.contains("  try: install it from the releases of"), "{stderr}");
        let (code, _, stderr) = outcome(command.env("COFFERDAM_VM_ACCELERATOR", "tcg"));
        assert!(code == 125 && stderr.contains("translates nothing"), "{stderr}");
    }
}

#[test]
fn invalid_vm_settings_are_named() {
    for (name, value) in [
        ("ACCELERATOR", "hvf"),
        ("MEMORY", "lots"),
        ("PROCESSORS", "many"),
        ("BUILD", "always"),
        ("DRIVER", "xen"),
        ("JAILER", "jailer"),
    ] {
        let name = format!("COFFERDAM_VM_{name}");
        let (code, _, stderr) = outcome(run(["--backend", "vm", "--", "true"]).env(&name, value));
        assert!(code == 125 && stderr.contains(&format!("{name} is '{value}'")), "{code} {stderr}");
    }
    let home = tempfile::tempdir().expect("a directory");
    let mut odd = run(["--backend", "vm", "--", "true"]);
    let (code, _, stderr) = outcome(odd.env("COFFERDAM_VM_PROCESSOR", "host").env("HOME", home.path()));
    assert!(code == 125 && stderr.contains("the same on every host"), "{code} {stderr}");
    let (code, _, stderr) = outcome(&mut run(["--backend", "vm", "--", "true"]));
    assert!(code == 125 && stderr.contains("no cache directory") && stderr.contains("HOME"), "{code} {stderr}");
}

/// Promise (Virtual machines): Images are built from directories, named, listed and pruned.
#[test]
fn images_are_made_of_directories_named_listed_and_pruned() {
    if !["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().any(|path| Path::new(path).exists()) {
        println!("SKIP images_are_made_of_directories_named_listed_and_pruned: no mkfs.ext4 (package e2fsprogs)");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let root = sample_root(directory.path());
    let vm = |words: &[&str]| {
        let mut command = with_nothing(cofferdam(), directory.path());
        command.arg("vm").args(words);
        outcome(&mut command)
    };
    let build = |name: &str| {
        let mut command = with_nothing(cofferdam(), directory.path());
        command.args(["vm", "build-image", "--name", name, "--json", "--from"]).arg(&root);
        command
            .arg("--kernel")
            .arg(directory.path().join("kernel"))
            .arg("--module")
            .arg(directory.path().join("virtio.ko"));
        outcome(&mut command)
    };
    let (_, stdout, _) = vm(&["images"]);
    assert!(stdout.contains("build-image"), "{stdout}");
    let (code, first, stderr) = build("one");
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("writing the disk"), "{stderr}");
    let (_, again, stderr) = build("two");
    assert!(json(&first)["key"] == json(&again)["key"] && !stderr.contains("writing the disk"), "{stderr}");
    std::fs::write(root.join("etc/hostname"), "changed\n").expect("a file");
    let (_, changed, _) = build("two");
    assert_ne!(json(&first)["key"], json(&changed)["key"]);
    let (_, stdout, _) = vm(&["images", "--json"]);
    let all = json(&stdout);
    let names: Vec<_> = all["images"].as_array().expect("a list").iter().map(|image| image["name"].clone()).collect();
    assert_eq!(names, ["one", "two"]);
    assert!(all["images"][0]["about"].as_str().is_some_and(|about| about.contains("the directory")), "{all}");
    assert_eq!(all["unnamed"].as_array().map(Vec::len), Some(0), "{all}");
    // An image that lost its name is listed with the key that archives use.
    std::fs::write(root.join("etc/hostname"), "and again\n").expect("a file");
    build("two");
    let (_, stdout, _) = vm(&["images", "--json"]);
    assert_eq!(json(&stdout)["unnamed"][0]["key"], json(&changed)["key"], "{stdout}");
    let (_, stdout, _) = vm(&["images"]);
    let key = json(&changed)["key"].as_str().expect("a text")[..12].to_owned();
    assert!(stdout.contains("(no name)") && stdout.contains(&key), "{stdout}");
    vm(&["prune", "--unused", "0s"]);
    // A named image is kept, however long it is unused.
    let (code, stdout, _) = vm(&["prune", "--unused", "0s", "--json"]);
    assert_eq!((code, json(&stdout)["freed"].as_u64()), (0, Some(0)));
    let (code, stdout, _) = vm(&["prune", "--name", "two", "--unused", "0s", "--json"]);
    assert!(code == 0 && json(&stdout)["freed"].as_u64() > Some(0), "{stdout}");
    let (_, stdout, _) = vm(&["images", "--json"]);
    assert!(
        json(&stdout)["images"].as_array().is_some_and(|all| all.len() == 1 && all[0]["name"] == "one"),
        "{stdout}"
    );
    let (code, _, stderr) = vm(&["prune", "--name", "two"]);
    assert!(code == 127 && stderr.contains("\"two\""), "{code} {stderr}");
    for (words, says) in [
        (&["build-image", "--from", "/no/such"][..], "/no/such"),
        (&["build-image", "--name", "../x", "--from", "."], "not a valid image name"),
        (&["build-image", "--from", "/etc/hostname"], "cannot be read"),
    ] {
        let (code, _, stderr) = vm(words);
        assert!(code != 0 && stderr.contains(says), "{words:?}: {stderr}");
    }
    let (code, _, stderr) = vm(&["build-image", "--from", ".", "--tiny"]);
    assert!(code == 125 && stderr.contains("--tiny"), "{code} {stderr}");
}

/// Promise (Virtual machines): `doctor` reports the requirements of VMs and starts none.
#[test]
fn doctor_reports_requirements_of_vms() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut doctor = with_nothing(cofferdam(), directory.path());
    let (code, stdout, _) = outcome(doctor.args(["doctor", "--backend", "vm", "--json"]));
    // No image exists.
    assert_eq!(code, 1, "{stdout}");
    let report = json(&stdout)["backends"][0].clone();
    assert_eq!((report["tried"].as_bool(), report["level"].as_str()), (Some(false), Some("vm")));
    let find = |name: &str| {
        let items = report["items"].as_array().expect("items").iter();
        items
            .clone()
            .find(|item| item["name"] == name)
            .unwrap_or_else(|| panic!("nothing about {name}: {report}"))
            .clone()
    };
    for name in ["qemu", "accelerator", "disks", "VMM files", "VMM network", "VMM limits", "firecracker"] {
        let item = find(name);
        assert!(item["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{item}");
        assert!(item["state"] == "ok" || item["remedy"].is_string(), "{item}");
    }
    assert!(find("image")["state"] == "missing" && find("image")["remedy"] == "cofferdam vm build-image", "{report}");
    assert!(!directory.path().join("images").exists(), "looking made something");
    let mut odd = with_nothing(cofferdam(), directory.path());
    odd.env("COFFERDAM_VM_QEMU", "/no/such/qemu").env("COFFERDAM_VM_ACCELERATOR", "tcg");
    let (code, stdout, _) = outcome(odd.args(["doctor", "--backend", "vm"]));
    assert!(code == 1 && stdout.contains("missing  qemu") && stdout.contains("apt-get install"), "{stdout}");
    assert!(stdout.contains("as configured"), "{stdout}");
}

/// Promise (Virtual machines): The posture of a VM names the VMM and its bounds.
#[test]
fn script_runs_in_a_vm_and_posture_names_the_vmm() {
    let code = "import os, sys; print(6 * 7, os.getuid(), open('/proc/version').read()[:5], sys.argv[1:])";
    let words = ["--json", "--level", "vm", "--lang", "python", "--code", code, "a", "b"];
    let Some(mut command) = with_vms(run(words), "a_script_runs_in_a_machine") else { return };
    let (status, stdout, stderr) = outcome(&mut command);
    assert_eq!((status, stderr.as_str()), (0, ""), "{stdout}");
    let answer = json(&stdout);
    assert_eq!((answer["backend"].as_str(), answer["level"].as_str()), (Some("vm"), Some("vm")));
    assert_eq!(answer["stdout"]["text"], "42 1000 Linux ['a', 'b']\n");
    let rows = answer["posture"].as_array().expect("rows");
    let row = |name: &str| rows.iter().find(|row| row["protection"] == name).expect(name)["mechanism"].to_string();
    assert!(row("pid-namespace").contains("a kernel of its own"), "{}", row("pid-namespace"));
    assert!(row("pid-namespace").contains("(tcg)") || row("pid-namespace").contains("(kvm)"));
    assert!(row("memory").contains("the VMM"), "{}", row("memory"));
    assert!(rows.iter().all(|row| !row["remedy"].is_string()), "{rows:?}");
}

#[test]
fn session_in_a_vm_keeps_its_variables() {
    let mut repl = cofferdam();
    repl.args(["repl", "--no-history", "--level", "vm", "--lang", "python", "--timeout", "5s"]);
    let Some(mut repl) = with_vms(repl, "a_session_in_a_machine") else { return };
    let lines = "x = 6\nx * 7\nimport os; os.uname().sysname\nwhile True: pass\n'x' in globals()\n";
    let (status, stdout, stderr) = typed(&mut repl, lines);
    assert_eq!((status, stdout.as_str()), (0, "42\n'Linux'\nFalse\n"), "{stderr}");
    assert!(stderr.contains("did not end within 5."), "{stderr}");
}

/// Promise (Virtual machines): Exit statuses and limits in a VM are reported as at other isolation levels.
#[test]
fn exit_statuses_in_a_vm_match_other_levels() {
    for (words, status) in [
        (&["--timeout", "2s", "--", "sleep", "100"][..], 124),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["--", "no-such-program"], 127),
        (&["--", "/etc/passwd"], 126),
        (&["--memory", "48M", "--", "python3", "-c", "x = [b'x' * (8 << 20) for i in range(64)]"], 137),
        (&["--disk", "8M", "--", "sh", "-c", "head -c 20000000 /dev/zero > f"], 1),
    ] {
        let Some(mut command) = with_vms(run(["--backend", "vm"]), "ends_in_a_machine") else { return };
        let (code, _, stderr) = outcome(command.args(words));
        assert_eq!(code, status, "{words:?}: {stderr}");
    }
}

/// Promise (Virtual machines): The command line refuses a required KVM that does not work.
#[test]
fn input_reaches_a_vm_and_invalid_kvm_device_is_refused() {
    let test = "input_reaches_a_machine";
    let Some(mut command) = with_vms(run(["--backend", "vm", "--stdin", "--", "wc", "-c"]), test) else { return };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("its input");
    std::io::Write::write_all(&mut input, &vec![b'x'; 1_000_000]).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1000000", "{output:?}");
    let Some(mut doctor) = with_vms(cofferdam(), test) else { return };
    let (code, stdout, _) = outcome(doctor.env("COFFERDAM_VM_ACCELERATOR", "kvm").args(["doctor", "--backend", "vm"]));
    if code == 0 {
        println!("SKIP {test}: this host's KVM works");
        return;
    }
    assert!(stdout.contains("missing  accelerator") && stdout.contains("kvm is required"), "{stdout}");
    let Some(mut command) = with_vms(run(["--backend", "vm", "--", "true"]), test) else { return };
    let (code, _, stderr) = outcome(command.env("COFFERDAM_VM_ACCELERATOR", "kvm"));
    assert!(code == 125 && stderr.contains("kvm is required") && stderr.contains("  try: "), "{code} {stderr}");
}

/// Promise (Virtual machines): A terminal in a VM has the size of the caller's terminal.
#[test]
fn terminal_in_a_vm_has_the_callers_size() {
    let words = ["--backend", "vm", "--tty", "--", "sh", "-c", "stty size; test -t 0 && echo terminal"];
    let Some(mut command) = with_vms(run(words), "a_terminal_in_a_machine") else { return };
    let mut terminal = Terminal::new();
    terminal.resize(33, 77);
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
    let mut child = command.spawn().expect("it starts");
    drop(command);
    let printed = terminal.read_until("terminal");
    assert!(printed.contains("33 77"), "{printed}");
    assert!(child.wait().expect("it ends").success());
    assert!(terminal.is_cooked());
}

/// Promise (Images): A VM runs an image of the image store, without a container engine.
#[test]
fn stored_image_runs_in_a_vm() {
    let test = "stored_image_runs_in_a_vm";
    let state = tempfile::tempdir().expect("a directory");
    let Some(mut build) = with_vms(cofferdam(), test) else { return };
    build.args(["image", "build", "--tiny", "--name", "stored/tiny:1"]).env("XDG_STATE_HOME", state.path());
    let (code, _, stderr) = outcome(&mut build);
    assert_eq!(code, 0, "{stderr}");
    let words = ["--level", "vm", "--image", "stored/tiny:1", "--", "sh", "-c", "echo $((6 * 7)); ls /usr/bin/python3"];
    let Some(mut command) = with_vms(run(words), test) else { return };
    let (code, stdout, stderr) = outcome(command.env("XDG_STATE_HOME", state.path()));
    assert_eq!((code, stdout.as_str()), (0, "42\n/usr/bin/python3\n"), "{stderr}");
    let Some(mut other) = with_vms(run(words), test) else { return };
    let (code, _, stderr) = outcome(other.env("XDG_STATE_HOME", state.path().join("empty")));
    assert!(code == 127 && stderr.contains("there is no image \"stored/tiny:1\""), "{code} {stderr}");
}

/// Promise (Server): The snapshot of a VM on a server has its files, and survives its sandbox.
#[cfg(feature = "server")]
#[test]
fn vm_snapshot_on_a_server_survives_its_sandbox() {
    let test = "vm_snapshot_on_a_server_survives_its_sandbox";
    let Some(mut serve) = with_vms(cofferdam(), test) else { return };
    serve.args(["serve", "--backend", "vm", "--memory", "128M"]);
    check_snapshot_on_a_server(serve);
}

/// Takes a snapshot on a server that `serve` starts, and creates sandboxes from it after its sandbox has ended.
#[cfg(feature = "server")]
pub fn check_snapshot_on_a_server(mut serve: Command) {
    let state = tempfile::tempdir().expect("a directory");
    let socket = state.path().join("server.sock");
    let here = |command: &mut Command| {
        command.env("XDG_STATE_HOME", state.path()).env("COFFERDAM_SERVER", format!("unix:{}", socket.display()));
    };
    here(&mut serve);
    serve.args(["--allow-weaker", super::WEAKER, "--socket"]);
    let server = serve.arg(&socket).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut server = Stopped(server);
    let begun = std::time::Instant::now();
    while !socket.exists() {
        assert!(begun.elapsed().as_secs() < 60, "the server does not listen");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ask = |words: &[&str]| {
        let mut command = cofferdam();
        here(&mut command);
        let (code, stdout, stderr) = outcome(command.args(words));
        assert_eq!(code, 0, "{words:?}: {stdout}{stderr}");
        stdout
    };
    ask(&["create", "--name", "box"]);
    ask(&["exec", "box", "--", "sh", "-c", "echo text > file"]);
    let id = ask(&["snapshot", "take", "--name", "base", "box"]);
    ask(&["rm", "box"]);
    for name in ["one", "two"] {
        ask(&["create", "--name", name, "--snapshot", "base"]);
        assert_eq!(ask(&["exec", name, "--", "cat", "file"]), "text\n", "{id}");
        ask(&["rm", name]);
    }
    assert!(server.stop().success());
}

/// A server that is stopped, also by a failed test.
#[cfg(feature = "server")]
struct Stopped(Child);

#[cfg(feature = "server")]
impl Stopped {
    fn stop(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        self.0.wait().expect("it stops")
    }
}

#[cfg(feature = "server")]
impl Drop for Stopped {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.stop();
        }
    }
}
