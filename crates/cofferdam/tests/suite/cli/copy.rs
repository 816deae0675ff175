//! `cofferdam run --copy-in` and `--copy-out`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{WEAKER, cofferdam, json, outcome};
use crate::terminal::Terminal;

/// A directory of the host from which runs start.
struct Host(tempfile::TempDir);

impl Host {
    fn new(files: &[(&str, &str)]) -> Self {
        let host = Self(tempfile::tempdir().expect("a directory"));
        for (name, text) in files {
            let path = host.path(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("created");
            fs::write(path, text).expect("written");
        }
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).expect("a file").permissions().mode() & 0o7777
    }

    /// Returns a run of a shell command with these options.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = cofferdam();
        command.args(["run", "--allow-weaker", WEAKER]).args(options).args(["--", "sh", "-c", script]);
        command.current_dir(self.0.path()).env("XDG_STATE_HOME", self.path(".state"));
        command
    }

    /// Returns the names in a directory.
    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// Promise (Files): `--copy-in` and `--copy-out` copy files, directories and what patterns match, with permissions and
/// symlinks (K4).
#[test]
fn files_are_copied_in_and_out() {
    let host = Host::new(&[("src/a.txt", "a"), ("src/sub/b.txt", "b"), ("one.py", "1"), ("two.py", "2"), ("x.c", "c")]);
    symlink("a.txt", host.path("src/link")).expect("a link");
    fs::set_permissions(host.path("src/sub/b.txt"), fs::Permissions::from_mode(0o750)).expect("permissions");
    let options = ["--copy-in", "src", "--copy-in", "*.py:lib/py", "--copy-in", "x.c:/workspace/lib"];
    let out = ["--copy-out", "src/sub:got", "--copy-out", "new*", "--copy-out", "lib/**/one.py:got", "--json"];
    let script = "cat src/link lib/py/one.py lib/py/two.py lib/x.c; stat -c %a src/sub/b.txt; \
                  echo n > new1; echo m > new2; chmod 700 new2; ln -s new1 newlink; exit 3";
    let (status, stdout, stderr) = outcome(&mut host.run(&[&options[..], &out].concat(), script));
    let document = json(&stdout);
    assert_eq!((status, document["stdout"]["text"].as_str()), (3, Some("a12c750\n")), "{stderr}");
    assert_eq!(host.read("got/sub/b.txt").as_deref(), Some("b"));
    assert_eq!(host.read("got/py/one.py").as_deref(), Some("1"));
    assert_eq!((host.read("new1").as_deref(), host.read("newlink").as_deref()), (Some("n\n"), Some("n\n")));
    assert_eq!((host.mode("got/sub/b.txt"), host.mode("new2")), (0o750, 0o700));
    assert_eq!(fs::read_link(host.path("newlink")).expect("a link"), Path::new("new1"));
    let own = |name: &str| fs::metadata(host.path(name)).expect("a file").uid();
    assert_eq!(own("new1"), own("x.c"), "the owner of the directory");
    let copies = &document["copies"];
    assert_eq!(copies["in"][0]["files"], 5, "{copies}");
    assert_eq!(copies["out"][1]["copied"], serde_json::json!(["new1", "new2", "newlink"]), "{copies}");
}

/// Promise (Files): `--copy-out` runs after a failure as well, and fails itself if a file is missing (K4).
#[test]
fn files_are_copied_out_after_any_end() {
    let host = Host::new(&[]);
    for (options, script, expected) in [
        (&["--timeout", "1s"][..], "echo part > t; sleep 60", 124),
        (&[], "echo part > t; kill -9 $$", 137),
        (&["--copy-out", "missing"], "echo part > t; exit 4", 4),
        (&["--copy-out", "missing"], "echo part > t", 125),
    ] {
        let _ = fs::remove_file(host.path("t"));
        let (status, _, stderr) = outcome(&mut host.run(&[options, &["--copy-out", "t"]].concat(), script));
        assert_eq!((status, host.read("t").as_deref()), (expected, Some("part\n")), "{script}: {stderr}");
        assert_eq!(stderr.contains("no file missing"), options.contains(&"missing"), "{stderr}");
    }
}

/// Promise (Files): What cannot be copied is refused before the command starts (K4).
#[test]
fn invalid_copies_are_refused_before_the_command() {
    let host = Host::new(&[("file", "x"), ("big", &"x".repeat(3 << 20))]);
    symlink("file", host.path("link")).expect("a link");
    let missing = "missing/below/dir";
    for (options, part) in [
        (&["--copy-in", "none"][..], "none"),
        (&["--copy-in", "n*ne"], "matches no file"),
        (&["--copy-in", "link"], "symbolic link"),
        (&["--copy-in", "file:/etc"], "outside the workspace"),
        (&["--copy-out", "/etc/passwd"], "outside the workspace"),
        (&["--copy-out", "../x"], "'..'"),
        (&["--copy-out", &format!("x:{missing}")], missing),
        (&["--copy-out", "x:file"], "file"),
        (&["--copy-out", "x", "--use-server", "require"], "server"),
        (&["--copy-in", "file", "--workspace", ".:ro"], "read-only"),
    ] {
        let (status, stdout, stderr) = outcome(&mut host.run(options, "echo started"));
        assert!(status == 125 || status == 127 || status == 2, "{options:?}: {status} {stderr}");
        assert!(stderr.contains(part) && stdout.is_empty(), "{options:?}: {stdout} {stderr}");
    }
    if rustix::process::geteuid().is_root() {
        let (status, stdout, stderr) = outcome(&mut host.run(&["--copy-in", "big", "--disk", "1M"], "echo started"));
        assert_eq!((status, stdout.as_str()), (125, ""), "{stderr}");
        assert!(stderr.contains("disk limit"), "{stderr}");
    }
}

/// Promise (Files): `--copy-out` replaces files of the destination and follows no symlink there (K4).
#[test]
fn files_of_the_host_are_replaced_beneath_the_destination_only() {
    let host = Host::new(&[("out/file", "old"), ("out/directory/kept", "k"), ("outside/file", "outside")]);
    symlink("../outside/file", host.path("out/link")).expect("a link");
    symlink("../outside", host.path("out/way")).expect("a link");
    let script =
        "mkdir -p o/way o/sub; echo new > o/file; echo new > o/link; echo new > o/way/file; echo x > o/directory";
    let (status, _, stderr) = outcome(&mut host.run(&["--copy-out", "o/*:out"], script));
    assert_eq!(status, 125, "{stderr}");
    assert_eq!((host.read("out/file").as_deref(), host.read("out/link").as_deref()), (Some("new\n"), Some("new\n")));
    assert!(fs::symlink_metadata(host.path("out/link")).expect("a file").is_file(), "a link was replaced");
    assert_eq!(host.read("outside/file").as_deref(), Some("outside"));
    assert_eq!(host.names("outside"), ["file"]);
    assert_eq!(host.read("out/directory/kept").as_deref(), Some("k"));
    assert_eq!(host.names("out"), ["directory", "file", "link", "sub", "way"]);
    for refused in ["way", "directory"] {
        assert!(stderr.contains(refused), "{refused}: {stderr}");
    }
}

/// Promise (Files): `--copy-out` creates no symlink that leads out of its destination, no device, pipe or set-user-ID
/// file, and prints no control characters (E2).
#[test]
fn hostile_files_are_refused_or_skipped() {
    let host = Host::new(&[("secret", "s")]);
    let script = "mkdir o; cd o; ln -s /etc absolute; ln -s ../../secret up; ln -s . here; ln -s here/../.. through; \
                  ln -s nothing dangling; mkfifo \"$(printf 'pipe\\033[2J\\nx')\"; \
                  printf x > \"$(printf 'line\\nfeed\\033')\"; printf s > setuid; chmod 6755 setuid 2> /dev/null || chmod 755 setuid; \
                  printf w > .wh.secret; mkdir -p .git/hooks .vscode; echo e > .git/hooks/pre-commit; \
                  echo e > .vscode/tasks.json; echo e > .envrc; echo ok > ok";
    let (status, _, stderr) = outcome(&mut host.run(&["--copy-out", "o"], script));
    assert_eq!(status, 125, "{stderr}");
    let names = host.names("o");
    assert_eq!(names, [".git", "dangling", "here", "line\nfeed\u{1b}", "ok", "setuid"], "{stderr}");
    assert_eq!((host.names("o/.git"), host.mode("o/setuid")), (Vec::new(), 0o755));
    assert!(host.path("secret").exists());
    assert!(!stderr.contains('\u{1b}') && stderr.lines().all(|line| line.starts_with("cofferdam: ")), "{stderr}");
    // A guarded file that is named itself is wanted.
    // Naming a directory allows no guarded file in it.
    let script = "mkdir -p .git/hooks; echo e > .git/config; echo e > .git/hooks/post-checkout";
    let (status, _, stderr) = outcome(&mut host.run(&["--copy-out", ".git"], script));
    let written = [".git/config", ".git/hooks/post-checkout"].map(|path| host.read(path));
    assert!(status != 0 && written == [None, None], "{status} {written:?} {stderr}");
    let (status, _, stderr) = outcome(&mut host.run(&["--copy-out", ".envrc"], "echo e > .envrc"));
    assert_eq!((status, host.read(".envrc").as_deref()), (0, Some("e\n")), "{stderr}");
}

/// Promise (Limits): `--copy-out` is bounded, and writes nothing beyond its bound (E4).
#[test]
fn copies_out_are_bounded() {
    let host = Host::new(&[]);
    for (options, script) in [
        (&["--copy-out", "o", "--max-copy", "1M"][..], "mkdir o; echo a > o/a; truncate -s 900M o/sparse"),
        (&["--copy-out", "o", "--max-copy", "10k"], "mkdir o; for i in 1 2 3; do head -c 4096 /dev/zero > o/$i; done"),
        (&["--copy-out", "**/x"], "d=.; for i in $(seq 300); do mkdir $d/d; cd $d/d; done; echo x > x"),
    ] {
        let (status, _, stderr) = outcome(&mut host.run(options, script));
        assert!(status == 125 && stderr.lines().count() <= 3, "{script}: {status} {stderr}");
        assert_eq!(host.names("."), Vec::<String>::new(), "{script}");
    }
}

/// The number of files of [`LARGE`], and the size of each.
const LARGE_COUNT: usize = 40;
const LARGE_SIZE: usize = 500_000;
/// A script that creates files which take a while to copy, and prints `made`.
const LARGE: &str = "mkdir -p o/d; for i in $(seq 40); do head -c 500000 /dev/zero > o/f$i; \
                     ln -s f$i o/l$i; echo $i > o/d/f$i; done; echo made";

/// Returns the sizes of regular files, by name.
fn sizes(directory: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry"));
    let files = entries.filter(|entry| entry.file_type().expect("a type").is_file());
    files
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.metadata().expect("a file").len()))
        .collect()
}

/// Promise (Files): If `--copy-out` is killed, each file is as before or as after, and the next copy completes it and leaves
/// nothing else (K4).
#[test]
fn a_killed_copy_out_leaves_whole_files() {
    let host = Host::new(&[("out/f1", "old"), ("out/f40", "old"), ("out/other", "host")]);
    let mut killed = 0;
    for delay in [0, 5, 10, 20, 40, 60, 80, 120, 160, 240, 320, 480] {
        let mut command = host.run(&["--copy-out", "o/*:out"], LARGE);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut output = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut output).expect("the script ends");
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().expect("killed");
        killed += usize::from(child.wait().expect("ended").code().is_none());
        for (name, size) in sizes(&host.path("out")) {
            let is_whole = match name.as_str() {
                "other" => size == 4,
                "f1" | "f40" => size == 3 || size == LARGE_SIZE as u64,
                // A file that has not its name yet. The next copy removes it.
                temporary if temporary.starts_with(".cofferdam-tmp-") => true,
                _ => size == LARGE_SIZE as u64,
            };
            assert!(is_whole, "{delay} ms: {name} has {size} bytes");
        }
        let _ = fs::remove_dir_all(host.path("out/d"));
        for number in 1..=LARGE_COUNT {
            let _ = fs::remove_file(host.path(&format!("out/l{number}")));
            let file = host.path(&format!("out/f{number}"));
            let _ = if [1, 40].contains(&number) { fs::write(file, "old") } else { fs::remove_file(file) };
        }
    }
    assert!(killed > 0, "each copy ended before its kill");
    let (status, _, stderr) = outcome(&mut host.run(&["--copy-out", "o/*:out"], LARGE));
    assert_eq!(status, 0, "{stderr}");
    // A link of a killed copy is removed by a copy a minute later.
    let is_old_link = |name: &String| {
        let kind = fs::symlink_metadata(host.path("out").join(name)).expect("a file").file_type();
        name.starts_with(".cofferdam-tmp-") && kind.is_symlink()
    };
    let names: Vec<String> = host.names("out").into_iter().filter(|name| !is_old_link(name)).collect();
    assert_eq!(names.len(), 2 * LARGE_COUNT + 2, "{names:?}");
    assert_eq!(host.names("out/d").len(), LARGE_COUNT);
    assert_eq!(host.read("out/other").as_deref(), Some("host"));
}

/// Promise (Files): If the disk is full during `--copy-out`, each file is as before or as after, the error says so, and
/// nothing else stays (K4).
#[test]
fn a_copy_out_to_a_full_disk_leaves_whole_files() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP a_copy_out_to_a_full_disk_leaves_whole_files: only root can mount a small file system");
        return;
    }
    let host = Host::new(&[]);
    let program = env!("CARGO_BIN_EXE_cofferdam");
    let run = |options: &str| {
        format!(
            "{program} run --allow-weaker {WEAKER} {options} -- \
             sh -c 'mkdir o; for name in a b c d e f; do head -c 300000 /dev/zero > o/$name; done'"
        )
    };
    let mounted = |script: &str| {
        let small = host.path("small").display().to_string();
        let prepared =
            format!("set -e; mkdir -p {small}; mount -t tmpfs -o size=1m tmpfs {small}; cd {small}; {script}");
        let mut command = Command::new("unshare");
        outcome(command.args(["--mount", "sh", "-c", &prepared]).env("XDG_STATE_HOME", host.path(".state")))
    };
    // The destination is full.
    let script = format!(
        "for name in a b e f; do printf old > $name; done; status=0; {} || status=$?; wc -c * | head -n -1; ls -A | wc -l; exit $status",
        run("--copy-out 'o/*:.'")
    );
    let (status, stdout, stderr) = mounted(&script);
    assert!(status == 125 && stderr.contains("no space left"), "{status} {stderr}");
    assert!(!stderr.contains("panicked") && stderr.lines().count() <= 3, "{stderr}");
    let (files, count) = stdout.trim_end().rsplit_once('\n').expect("files and their number");
    let sizes: Vec<&str> = files.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(count.trim(), sizes.len().to_string(), "a hidden file is left: {stdout}");
    assert!(sizes.contains(&"300000") && sizes.contains(&"3"), "{stdout}");
    assert!(sizes.iter().all(|size| ["3", "300000"].contains(size)), "{stdout}");
    // The directory for temporary files is full: nothing is written.
    let out = host.path("out");
    fs::create_dir(&out).expect("created");
    let script = format!("export TMPDIR=$PWD; {}; ls -A", run(&format!("--copy-out o:{}", out.display())));
    let (status, stdout, stderr) = mounted(&script);
    assert!(status == 125 && stderr.contains("cannot copy o out"), "{status} {stdout} {stderr}");
    assert_eq!((stdout.as_str(), host.names("out")), ("", Vec::new()), "{stderr}");
}

/// Promise (Files): `--copy-out` copies thousands of files, and those of patterns only (K4).
#[test]
fn many_files_are_copied_out() {
    let host = Host::new(&[]);
    let script = "for d in 1 2 3 4 5 6 7 8; do mkdir -p o/$d/deep; cd o/$d; \
                  for f in $(seq 250); do echo $d > $f.txt; echo x > deep/$f.log; done; cd ../..; done";
    let options =
        ["--copy-out", "o:all", "--copy-out", "o/{1,2}/**/1?.{txt,log}:some", "--copy-out", "o/[3-4]/7.txt:few"];
    let (status, stdout, stderr) = outcome(&mut host.run(&[&options[..], &["--json"]].concat(), script));
    assert_eq!(status, 0, "{stderr}");
    let copies = &json(&stdout)["copies"]["out"];
    let counts: Vec<_> = (0..3).map(|index| copies[index]["copied_count"].as_u64()).collect();
    // Files, and their directories.
    assert_eq!(counts, [Some(4000 + 17), Some(40 + 4), Some(2 + 2)], "{stdout}");
    assert!(copies[0]["copied"].as_array().is_some_and(|listed| listed.len() == 1000), "the list is bounded");
    for directory in 1..=8 {
        assert_eq!(host.names(&format!("all/o/{directory}")).len(), 251);
        assert_eq!(host.names(&format!("all/o/{directory}/deep")).len(), 250);
    }
    assert_eq!(host.read("all/o/7/250.txt").as_deref(), Some("7\n"));
    assert_eq!(host.names("some"), ["1", "2"]);
    assert_eq!((host.names("some/1").len(), host.names("some/1/deep").len()), (11, 10));
    assert_eq!(host.names("few"), ["3", "4"]);
    assert_eq!(host.names("few/3"), ["7.txt"]);
}

/// Starts a copy out that takes longer than the time without progress, however fast the host is.
fn start_long_copy(host: &Host, options: &[&str], stderr: impl Into<Stdio>) -> Child {
    let options = [&["--copy-out", "o:out", "--max-copy", "400M"], options].concat();
    let mut command = host.run(&options, "mkdir o; truncate -s 300M o/large; echo made");
    let mut child = command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(stderr).spawn().expect("it starts");
    let mut output = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut output).expect("the script ends");
    let pid = Pid::from_child(&child);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(15));
        kill_process(pid, Signal::STOP).expect("stopped");
        std::thread::sleep(Duration::from_millis(300));
        kill_process(pid, Signal::CONT).expect("continued");
    }
    child
}

/// Promise (Files): A copy that takes long shows its progress on a terminal, and only there, and not with `--quiet`.
#[test]
fn a_long_copy_out_shows_its_progress() {
    let host = Host::new(&[]);
    let mut terminal = Terminal::new();
    let mut child = start_long_copy(&host, &[], terminal.stdio());
    let seen = terminal.read_until("copying o out of the sandbox: ");
    assert!(child.wait().expect("ended").success(), "{seen}");
    assert_eq!(fs::metadata(host.path("out/o/large")).expect("a file").len(), 300 << 20);

    let child = start_long_copy(&host, &[], Stdio::piped());
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut terminal = Terminal::new();
    let mut child = start_long_copy(&host, &["--quiet"], terminal.stdio());
    assert!(child.wait().expect("ended").success());
    // Nothing came before what the test itself writes.
    std::io::Write::write_all(&mut terminal.inside, b"end").unwrap();
    assert_eq!(terminal.read_until("end"), "end");
}

/// Promise (Files): Where the kernel refuses an overlay, a copy-on-write workspace is a copy, and the posture says so
/// (K4).
#[test]
fn a_refused_overlay_becomes_a_copy() {
    if !rustix::process::geteuid().is_root() {
        // Only root can mount the file system that refuses.
        return;
    }
    let host = Host::new(&[]);
    let program = env!("CARGO_BIN_EXE_cofferdam");
    let disk = host.path("disk").display().to_string();
    // An overlay over an overlay: no owners can be mapped on it, and no third one mounted over it.
    let script = format!(
        "set -e; mkdir {disk}; mount -t tmpfs tmpfs {disk}; cd {disk}; mkdir l u1 w1 m1 u2 w2 m2; echo old > l/file; \
         mount -t overlay one -o lowerdir=l,upperdir=u1,workdir=w1 m1; \
         mount -t overlay two -o lowerdir=m1,upperdir=u2,workdir=w2 m2; \
         {program} run --allow-weaker {WEAKER} --json --workspace {disk}/m2 -- sh -c 'cat file; echo new > file; rm -f x'; \
         cat m2/file"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).env("XDG_STATE_HOME", host.path(".state"));
    let (status, stdout, stderr) = outcome(&mut command);
    let (document, after) = stdout.trim_end().rsplit_once('\n').expect("a document and the file");
    let document = json(document);
    assert_eq!((status, document["stdout"]["text"].as_str(), after), (0, Some("old\n"), "old"), "{stderr}");
    assert_eq!(document["changes"]["changes"][0]["path"], "file", "{document}");
    let posture = document["posture"].to_string();
    assert!(posture.contains("a copy of the host directory, since an overlay was refused"), "{posture}");
}
