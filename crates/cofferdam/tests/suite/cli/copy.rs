//! `cofferdam run --copy-in` and `--copy-out`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{WEAKER, cofferdam, json, outcome};

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
    let place = host.path("place").display().to_string();
    // An overlay over an overlay: no owners can be mapped on it, and no third one mounted over it.
    let script = format!(
        "set -e; mkdir {place}; mount -t tmpfs tmpfs {place}; cd {place}; mkdir l u1 w1 m1 u2 w2 m2; echo old > l/file; \
         mount -t overlay one -o lowerdir=l,upperdir=u1,workdir=w1 m1; \
         mount -t overlay two -o lowerdir=m1,upperdir=u2,workdir=w2 m2; \
         {program} run --allow-weaker {WEAKER} --json --workspace {place}/m2 -- sh -c 'cat file; echo new > file; rm -f x'; \
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
