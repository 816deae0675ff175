//! Export of images and VMs to a user who shares no files with the first one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::snapshots::{key_file, refused, snapshot};
use super::vms::{sample_root, with_nothing, with_vms};
use super::{WEAKER, cofferdam, json, outcome, start};

/// A user with a separate image store.
struct User(tempfile::TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn vm(&self, words: &[&str]) -> Command {
        let mut command = with_nothing(cofferdam(), self.path());
        command.arg("vm").args(words).current_dir(self.path());
        command
    }

    /// Builds an image that cannot boot. Returns its key, or `None` if disks cannot be created.
    fn build(&self, name: &str, test: &str) -> Option<String> {
        if !["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().any(|path| Path::new(path).exists()) {
            println!("SKIP {test}: no mkfs.ext4 (package e2fsprogs)");
            return None;
        }
        let root = sample_root(self.path());
        let mut build = self.vm(&["build-image", "--name", name, "--json", "--from"]);
        build.arg(&root).args(["--kernel", "kernel", "--module", "virtio.ko"]);
        let (code, stdout, stderr) = outcome(&mut build);
        assert_eq!(code, 0, "{stderr}");
        Some(json(&stdout)["key"].as_str().expect("a key").to_owned())
    }

    /// Returns the names of all files in the store except its lock.
    fn store(&self) -> Vec<String> {
        let all = std::fs::read_dir(self.path().join("images")).into_iter().flatten().flatten();
        let mut names: Vec<_> = all.map(|entry| entry.file_name().into_string().expect("a name")).collect();
        names.retain(|name| name != "lock");
        names.sort();
        names
    }
}

/// Promise (Virtual machines): One user imports the image that another user exported.
#[test]
fn an_image_is_exported_and_imported_by_another_user() {
    let test = "an_image_is_exported_and_imported_by_another_user";
    let (exporter, importer) = (User::new(), User::new());
    let Some(key) = exporter.build("default", test) else { return };
    let file = importer.path().join("image");
    let file = file.to_str().expect("a name");
    let (code, stdout, stderr) = outcome(&mut exporter.vm(&["export-image", "--out", file]));
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("writing the image") && stderr.contains("cofferdam vm import-image"), "{stderr}");
    assert_eq!(std::fs::metadata(file).expect("it exists").permissions().mode() & 0o777, 0o600);
    refused(&mut exporter.vm(&["export-image", "--out", file]), "already exists");
    let (code, stdout, stderr) = outcome(&mut exporter.vm(&["export-image", &key, "--out", file, "--force", "--json"]));
    let document = json(&stdout);
    assert_eq!((code, stderr.as_str(), document["key"].as_str()), (0, "", Some(&*key)), "{stdout}");
    let bytes = std::fs::metadata(file).expect("it exists").len();
    assert_eq!(
        (document["archive"]["bytes"].as_u64(), &document["archive"]["encrypted"]),
        (Some(bytes), &false.into())
    );

    let (code, stdout, stderr) = outcome(&mut importer.vm(&["import-image", file]));
    let name = format!("imported-{}", &key[..12]);
    assert!(code == 0 && stdout.contains(&format!("image {name} (imported: the directory")), "{stdout}{stderr}");
    let (_, stdout, _) = outcome(&mut importer.vm(&["import-image", file, "--name", "mine", "--json"]));
    assert!(json(&stdout)["key"] == *key && json(&stdout)["name"] == "mine", "{stdout}");
    let (_, stdout, _) = outcome(&mut importer.vm(&["images", "--json"]));
    assert_eq!(json(&stdout)["images"].as_array().map(Vec::len), Some(2), "{stdout}");

    // An existing name stays with its image.
    let other = User::new();
    std::fs::write(sample_root(other.path()).join("etc/more"), "more").expect("a file");
    let theirs = other.build("mine", test).expect("it was made before");
    refused(&mut other.vm(&["import-image", file, "--name", "mine"]), "--force");
    assert!(!other.store().iter().any(|name| name.starts_with("imported-")), "{:?}", other.store());
    let (code, stdout, stderr) = outcome(&mut other.vm(&["import-image", file, "--name", "mine", "--force", "--json"]));
    assert!(code == 0 && json(&stdout)["key"] == *key && key != theirs, "{stdout}{stderr}");

    for (words, says) in [
        (&["import-image", "none"][..], "no such file"),
        (&["import-image", "."], "not a regular file"),
        (&["import-image", "/dev/zero"], "not a regular file"),
        (&["import-image", file, "--name", "../x"], "not a valid image name"),
        (&["import-image", file, "--max-size", "64K"], "raise the limit"),
        (&["export-image", "none", "--out", "x"], "no image \"none\""),
        (&["export-image", "--out", "x"], "no image \"default\""),
    ] {
        refused(&mut User::vm(&importer, words), says);
    }
    // `snapshot restore` recognises the archive of an image.
    let (code, _, stderr) = outcome(snapshot(["restore", file], importer.path()).env("HOME", importer.path()));
    assert!(code != 0 && stderr.contains("cofferdam vm import-image"), "{stderr}");
}

/// Promise (Virtual machines): An encrypted image can be imported with its key only.
#[test]
fn encrypted_image_imports_with_its_key_only() {
    let test = "encrypted_image_imports_with_its_key_only";
    let (exporter, importer) = (User::new(), User::new());
    if exporter.build("default", test).is_none() {
        return;
    }
    for (name, byte) in [("key", 1), ("other", 2)] {
        key_file(importer.path(), name, &[byte; 32]);
    }
    let at = |name: &str| importer.path().join(name).to_str().expect("a name").to_owned();
    let (code, _, stderr) = outcome(&mut exporter.vm(&["export-image", "--out", &at("m"), "--key-file", &at("key")]));
    assert!(code == 0 && stderr.contains("encrypted"), "{stderr}");
    refused(&mut importer.vm(&["import-image", "m"]), "no key was given");
    refused(&mut importer.vm(&["import-image", "m", "--key-file", "other"]), "key does not match");
    assert!(importer.store().is_empty());
    assert_eq!(outcome(&mut importer.vm(&["import-image", "m", "--key-file", "key"])).0, 0);
    // With a key, unauthenticated archives are refused.
    assert_eq!(outcome(&mut exporter.vm(&["export-image", "--out", &at("open")])).0, 0);
    refused(&mut importer.vm(&["import-image", "open", "--key-file", "key"]), "not encrypted");
}

/// Creates a file whose import takes a while: an image with a disk of random bytes.
fn large(exporter: &User, test: &str) -> Option<(PathBuf, String)> {
    let mut bytes = vec![0; 64 << 20];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    std::fs::write(sample_root(exporter.path()).join("etc/large"), bytes).expect("a file");
    let key = exporter.build("default", test)?;
    let (code, _, stderr) = outcome(&mut exporter.vm(&["export-image", "--out", "large"]));
    assert_eq!(code, 0, "{stderr}");
    Some((exporter.path().join("large"), key))
}

/// Promise (Virtual machines): A killed import or export leaves no partial image.
#[test]
fn a_killed_import_or_export_leaves_no_half_image() {
    let test = "a_killed_import_or_export_leaves_no_half_image";
    let (exporter, importer) = (User::new(), User::new());
    let Some((file, key)) = large(&exporter, test) else { return };
    let file = file.to_str().expect("a name");
    let mut seen = false;
    for (turn, signal) in (0..6).map(|turn| (turn, if turn % 2 == 0 { "KILL" } else { "INT" })) {
        // A killed one may have left something.
        let before = importer.store();
        let mut child = start(&mut importer.vm(&["import-image", file]));
        let begun = Instant::now();
        // Some runs end before the import starts to write, or after it has ended.
        while importer.store() == before && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(turn * 15));
        seen |= importer.store().iter().any(|name| name.starts_with("work."));
        let pid = rustix::process::Pid::from_child(&child);
        let signal_of = if signal == "KILL" { rustix::process::Signal::KILL } else { rustix::process::Signal::INT };
        rustix::process::kill_process(pid, signal_of).expect("it is not waited for yet");
        let status = child.wait().expect("it ends");
        println!("   {signal} after {:?}: {status}, {:?}", begun.elapsed(), importer.store());
        if signal == "INT" && !status.success() {
            assert_eq!(status.code(), Some(130));
            assert!(!importer.store().iter().any(|name| name.starts_with("work.")), "{:?}", importer.store());
        }
        let (_, stdout, _) = outcome(&mut importer.vm(&["images", "--json"]));
        for image in json(&stdout)["images"].as_array().expect("a list") {
            assert!(image["size"].as_u64() > Some(64 << 20), "{image}");
        }
        if status.success() {
            let name = format!("imported-{}", &key[..12]);
            assert_eq!(outcome(&mut importer.vm(&["prune", "--name", &name, "--unused", "0s"])).0, 0);
        }
    }
    assert!(seen, "nothing was killed while it wrote");
    let (code, stdout, stderr) = outcome(&mut importer.vm(&["import-image", file, "--name", "large", "--json"]));
    assert!(code == 0 && json(&stdout)["size"].as_u64() > Some(64 << 20), "{stdout}{stderr}");
    assert!(!importer.store().iter().any(|name| name.starts_with("work.")), "{:?}", importer.store());
    let mut child = start(&mut exporter.vm(&["export-image", "--out", "half"]));
    std::thread::sleep(Duration::from_millis(100));
    child.kill().and_then(|()| child.wait()).expect("it ends");
    let names = std::fs::read_dir(exporter.path()).expect("a list").map(|entry| entry.expect("one").file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().contains("half")), "a half file is left");
}

/// Promise (Virtual machines): A full disk leaves no partial image.
#[test]
fn a_full_disk_leaves_no_half_image() {
    let test = "a_full_disk_leaves_no_half_image";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root mounts a small file system");
        return;
    }
    let exporter = User::new();
    let Some((file, _)) = large(&exporter, test) else { return };
    // The file system is private to this process and vanishes with it.
    let script = "mount -t tmpfs -o size=8m none . || exit 77; cd \"$PWD\"; \"$@\"; code=$?; find . >&2; exit $code";
    let importer = User::new();
    let mut command = with_nothing(Command::new("unshare"), importer.path());
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_cofferdam"), "vm", "import-image"]);
    let (code, stdout, stderr) = outcome(command.arg(&file).current_dir(importer.path()));
    if code == 77 {
        println!("SKIP {test}: nothing can be mounted here");
        return;
    }
    assert!(code != 0 && stdout.is_empty() && stderr.contains("no space left"), "{code} {stderr}");
    assert!(stderr.contains("./images/lock") && !stderr.contains("work.") && !stderr.contains("imported-"), "{stderr}");
}

/// A program that prints increasing numbers.
const COUNTER: &str = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo count $i; sleep 0.2; done; exit 5";

/// Returns the printed numbers, and checks that they are consecutive.
fn counted(text: &str) -> Vec<u32> {
    let numbers: Vec<u32> =
        text.lines().map(|line| line.strip_prefix("count ").expect(line).parse().expect(line)).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{text}");
    numbers
}

/// Promise (Virtual machines): A snapshot resumes on a host that receives the image of the VM as a file. Without the
/// image, the error names the commands.
#[test]
fn vm_resumes_on_another_host_with_its_exported_image() {
    let test = "vm_resumes_on_another_host_with_its_exported_image";
    let (directory, importer) = (tempfile::tempdir().expect("a directory"), User::new());
    let words = ["save", "--allow-weaker", WEAKER, "--memory", "96M", "--out", "m", "--when-prints", "count 5\n", "--"];
    let save = snapshot(words.iter().chain(&["sh", "-c", COUNTER]), directory.path());
    let Some(mut save) = with_vms(save, test) else { return };
    let (code, stdout, stderr) = outcome(&mut save);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let before = counted(&stdout);
    assert!(before[0] == 1 && before.last() >= Some(&5), "{before:?}");
    std::fs::copy(directory.path().join("m"), importer.path().join("m")).expect("a copy");

    let restore = |words: &[&str]| {
        let mut command = with_vms(snapshot(["restore", "m", "--allow-weaker", WEAKER], importer.path()), test)
            .expect("VMs are available");
        command.args(words).env("COFFERDAM_VM_IMAGES", importer.path().join("images")).env_remove("COFFERDAM_VM_IMAGE");
        outcome(&mut command)
    };
    let (code, _, stderr) = restore(&["--attach"]);
    let key = stderr.split("vm export-image ").nth(1).expect(&stderr).split(' ').next().expect("a key").to_owned();
    assert!(code == 127 && key.len() == 64 && stderr.contains("cofferdam vm import-image"), "{code} {stderr}");

    // Follows the remedy of the error.
    let file = importer.path().join("image");
    let mut export = with_vms(cofferdam(), test).expect("VMs are available");
    let (code, stdout, stderr) = outcome(export.args(["vm", "export-image", &key, "--out"]).arg(&file));
    assert_eq!(code, 0, "{stdout}{stderr}");
    let (code, stdout, stderr) = outcome(&mut importer.vm(&["import-image", "image", "--json"]));
    assert!(code == 0 && json(&stdout)["key"] == *key, "{stdout}{stderr}");

    // The program resumes from the same state in each restore, and ends normally.
    for _ in 0..2 {
        let (code, stdout, stderr) = restore(&["--attach", "--timeout", "2m"]);
        let after = counted(&stdout);
        println!("{} numbers before, {}.. after: {stderr}", before.len(), after[0]);
        assert_eq!((code, after.last()), (5, Some(&60)), "{stdout}{stderr}");
        assert!(after[0] > *before.last().expect("five") && after[0] < 30, "{before:?} {after:?}");
    }
    let (code, stdout, stderr) = restore(&["--", "sh", "-c", "echo $(( 6 * 7 )); cat /etc/debian_version"]);
    assert!(code == 0 && stdout.starts_with("42\n"), "{stdout}{stderr}");
    // New VMs start from the imported image too.
    let name = format!("imported-{}", &key[..12]);
    let run = super::run(["--level", "vm", "--image", &name, "--memory", "96M", "--", "echo", "works"]);
    let mut run = with_vms(run, test).expect("VMs are available");
    let (code, stdout, stderr) = outcome(run.env("COFFERDAM_VM_IMAGES", importer.path().join("images")));
    assert_eq!((code, stdout.as_str()), (0, "works\n"), "{stderr}");
}

/// Size of an encrypted chunk of an archive.
const SEALED: usize = (64 << 10) + 16;

/// Returns the size of an archive's header with this number of parts.
fn head(parts: usize) -> usize {
    96 + 80 * parts + 32
}

fn occurrences(bytes: &[u8], of: &[u8]) -> usize {
    // Comparing every window takes a minute in unoptimised builds.
    bytes.iter().enumerate().filter(|(at, byte)| **byte == of[0] && bytes[*at..].starts_with(of)).count()
}

/// Promise (Virtual machines): An encrypted archive shows nothing of the VM's memory and refuses every change.
#[test]
fn encrypted_vm_archive_hides_its_contents_and_detects_changes() {
    let test = "encrypted_vm_archive_hides_its_contents_and_detects_changes";
    let directory = tempfile::tempdir().expect("a directory");
    for (name, byte) in [("key", 3), ("other", 4)] {
        key_file(directory.path(), name, &[byte; 32]);
    }
    // Random bytes appear unchanged in an archive, compressed or not.
    let code = "import os, time\nkept = os.urandom(1 << 20)\nprint('kept ' + kept[300000:300016].hex() + ' end', flush=True)\n\
                time.sleep(1000)";
    let save = |words: &[&str]| {
        let fixed = ["save", "--allow-weaker", WEAKER, "--memory", "96M", "--quiet", "--timeout", "1h"];
        let rest = ["--when-prints", " end", "--lang", "python", "--code", code];
        let mut command = with_vms(snapshot(fixed.iter().chain(words).chain(&rest), directory.path()), test)?;
        let (code, stdout, stderr) = outcome(&mut command);
        assert_eq!(code, 0, "{stdout}{stderr}");
        let digits = stdout.trim().strip_prefix("kept ").expect("its word").trim_end_matches(" end").to_owned();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
        Some((0..32).step_by(2).map(byte).collect::<Vec<u8>>())
    };
    let Some(in_open) = save(&["--out", "open"]) else { return };
    let in_locked = save(&["--out", "locked", "--key-file", "key"]).expect("VMs are available");
    let read = |name: &str| std::fs::read(directory.path().join(name)).expect("it exists");
    let (open, locked) = (read("open"), read("locked"));
    // Checks that the search finds existing data.
    assert_eq!(occurrences(&open, &in_open), 1);
    assert_eq!(occurrences(&locked, &in_locked), 0);
    // The magic number of Zstandard frames.
    let frame = [0x28, 0xb5, 0x2f, 0xfd];
    assert!(occurrences(&open, &frame) > 20 && occurrences(&locked, &frame) < 3);
    for word in ["accelerator", "Nehalem-v1", "/workspace"] {
        assert_eq!(occurrences(&locked, word.as_bytes()), 0, "{word}");
    }

    let restore = |bytes: &[u8], words: &[&str]| {
        std::fs::write(directory.path().join("bad"), bytes).expect("a file");
        let fixed = ["restore", "bad", "--allow-weaker", WEAKER, "--quiet"];
        with_vms(snapshot(fixed.iter().chain(words).chain(&["--", "echo", "works"]), directory.path()), test)
            .expect("VMs are available")
    };
    let key = &["--key-file", "key"][..];
    assert_eq!(outcome(&mut restore(&locked, key)), (0, "works\n".to_owned(), String::new()));
    refused(&mut restore(&locked, &["--key-file", "other"]), "key does not match");
    refused(&mut restore(&locked, &[]), "no key was given");
    refused(&mut restore(&open, key), "not encrypted");
    let begin = head(4);
    assert!((locked.len() - begin) / SEALED > 20);
    for at in [100, begin, begin + SEALED + 7, locked.len() / 2, locked.len() - 1] {
        let mut flipped = locked.clone();
        flipped[at] ^= 1;
        refused(&mut restore(&flipped, key), "damaged or was tampered");
    }
    let chunk = |at: usize| &locked[begin + at * SEALED..begin + (at + 1) * SEALED];
    let swapped = [&locked[..begin], chunk(0), chunk(2), chunk(1), &locked[begin + 3 * SEALED..]].concat();
    refused(&mut restore(&swapped, key), "damaged or was tampered");
    let twice = [&locked[..begin], chunk(0), chunk(1), &locked[begin + SEALED..]].concat();
    refused(&mut restore(&twice, key), "damaged or was tampered");
    refused(&mut restore(&locked[..begin + 9 * SEALED], key), "truncated");
    refused(&mut restore(&locked[..locked.len() - 1], key), "damaged or was tampered");
    refused(&mut restore(&[&locked[..], b"x"].concat(), key), "damaged or was tampered");
    // Chunks of one archive are invalid in another with the same key.
    save(&["--out", "again", "--key-file", "key"]).expect("VMs are available");
    let again = read("again");
    let mixed = [&locked[..begin], &again[begin..begin + SEALED], &locked[begin + SEALED..]].concat();
    refused(&mut restore(&mixed, key), "damaged or was tampered");
}

/// Promise (Virtual machines): A build with other packages does not replace the default image.
#[test]
fn default_image_is_not_replaced_by_a_smaller_one() {
    let test = "default_image_is_not_replaced_by_a_smaller_one";
    let user = User::new();
    let Some(key) = user.build("default", test) else { return };
    let before = user.store();
    // The command looks up no packages.
    refused(&mut user.vm(&["build-image", "--tiny", "--package", "jq"]), "give the new one another name with --name");
    assert_eq!(user.store(), before);
    let (_, stdout, _) = outcome(&mut user.vm(&["images", "--json"]));
    assert_eq!(json(&stdout)["images"][0]["key"], *key, "{stdout}");
}
