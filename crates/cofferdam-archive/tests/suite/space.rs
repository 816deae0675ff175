//! Full disks: the error is reported, and no partial file is left.

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_archive::{ArchiveError, ReadOptions, Reader, WriteOptions, Writer};

use crate::common::{file_of, on, page, pages, stored};

/// Names the environment variable with the small directory for the child.
const DIRECTORY: &str = "COFFERDAM_TEST_DIRECTORY";
/// More than any of the limits below.
const PAGES: u64 = 400;

fn archive() -> (File, Vec<u8>) {
    let memory = file_of(&pages(&(1..=PAGES).collect::<Vec<_>>()));
    let mut bytes = Vec::new();
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    writer.memory("memory", &memory).unwrap();
    writer.write(&mut bytes, &mut on).unwrap();
    (memory, bytes)
}

fn new_file(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).create_new(true).open(path)
}

/// Runs [`child`] in a shell that first runs a script.
fn run_child(shell: &mut Command, script: &str, directory: &Path) -> (bool, String) {
    let exe = std::env::current_exe().unwrap();
    shell.args(["-c", &format!("{script} exec \"$0\" --exact --ignored --nocapture space::child")]).arg(exe);
    let output = shell.env(DIRECTORY, directory).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.success() && text.contains("NoSpace was reported"), text)
}

#[test]
#[ignore = "runs in a child of other tests, where there is little room"]
fn child() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("not run by its parent"));
    let (memory, bytes) = archive_in_memory();
    let path = directory.join("restored");
    let reader = Reader::open(Cursor::new(&bytes), &ReadOptions::default()).unwrap();
    let restored = reader.restore(&[], &mut |_| new_file(&path), &mut on);
    assert!(matches!(restored, Err(ArchiveError::NoSpace { .. })), "{restored:?}");
    let left = File::open(&path).unwrap();
    assert_eq!((left.metadata().unwrap().len(), stored(&left)), (0, 0));
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    writer.memory("memory", &memory).unwrap();
    let written = writer.write(new_file(&directory.join("saved")).unwrap(), &mut on);
    assert!(matches!(written, Err(ArchiveError::NoSpace { .. })), "{written:?}");
    println!("NoSpace was reported");
}

/// Returns the same without a file that would need space itself: the parent has stored both.
fn archive_in_memory() -> (File, Vec<u8>) {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let above = directory.parent().unwrap();
    (File::open(above.join("memory")).unwrap(), std::fs::read(above.join("archive")).unwrap())
}

/// Creates a directory with a memory, its archive, and a working directory.
fn prepared() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (memory, bytes) = archive();
    std::fs::write(directory.path().join("memory"), crate::common::contents(&memory)).unwrap();
    std::fs::write(directory.path().join("archive"), bytes).unwrap();
    std::fs::create_dir(directory.path().join("work")).unwrap();
    directory
}

#[test]
fn full_disk_is_reported_and_leaves_no_file() {
    let directory = prepared();
    let work = directory.path().join("work");
    // A disk of 1 MiB, in a mount namespace of the child's own.
    let mut shell = Command::new("unshare");
    let is_root = rustix::process::geteuid().is_root();
    shell.arg(if is_root { "-m" } else { "-Urm" }).arg("sh");
    let mount = format!("mount -t tmpfs -o size=1m none \"${DIRECTORY}\" || {{ echo cannot mount; exit 1; }};");
    let (good, text) = run_child(&mut shell, &mount, &work);
    if text.contains("cannot mount") || text.contains("unshare failed") {
        eprintln!("skipped: this user cannot mount a small disk: {text}");
        return;
    }
    assert!(good, "{text}");
}

#[test]
fn file_size_limit_is_reported_and_leaves_no_file() {
    let directory = prepared();
    let (good, text) =
        run_child(&mut Command::new("sh"), "trap '' XFSZ; ulimit -f 100;", &directory.path().join("work"));
    assert!(good, "{text}");
}

#[test]
fn full_output_device_is_reported() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let memory = file_of(&page(1));
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    writer.memory("memory", &memory).unwrap();
    match writer.write(full, &mut on) {
        Err(error @ ArchiveError::NoSpace { .. }) => assert!(error.to_string().contains("free some space"), "{error}"),
        other => panic!("{other:?}"),
    }
}
