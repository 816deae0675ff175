//! Tests of full and read-only disks.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use cofferdam_audit::*;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::child;
use crate::support::*;

/// Starts a child in a mount namespace of its own, with a small file system at its working directory, which disappears
/// with the child. Returns `None` if the host does not allow it.
fn in_a_namespace(order: &str, options: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(r#"mount -t tmpfs -o {options} none . && cd "$PWD" && exec "$@""#);
    let mut prefix = vec!["unshare", "--mount", "--propagation", "private"];
    if !rustix::process::geteuid().is_root() {
        prefix.extend(["--user", "--map-root-user"]);
    }
    let allowed = std::process::Command::new(prefix[0])
        .args(&prefix[1..])
        .args(["sh", "-c", &script, "sh", "true"])
        .current_dir(directory.path())
        .output();
    if !allowed.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: this machine allows no mount namespace: {allowed:?}");
        return None;
    }
    prefix.extend(["sh", "-c", &script, "sh"]);
    let output = child::run(child::prefixed(&prefix, order, directory.path()));
    // The file system belonged to the namespace and is not visible here.
    assert_eq!(listing(directory.path()), Vec::<String>::new());
    Some(output)
}

/// Promise (Static analysis and audit log): A full disk refuses new executions. A reserve of 64 of the longest lines
/// takes the outcomes of running ones.
#[test]
fn a_full_disk_refuses_new_executions_and_takes_outcomes() {
    if let Some(output) = in_a_namespace("full", "size=4m,mode=700") {
        assert!(output.contains("a full disk was met"), "{output}");
    }
}

/// Promise (Static analysis and audit log): An outcome beyond the reserve is an error that the caller can retry.
#[test]
fn an_outcome_beyond_the_reserve_is_an_error_and_can_be_retried() {
    if let Some(output) = in_a_namespace("beyond", "size=4m,mode=700") {
        assert!(output.contains("the end of the reserve was met"), "{output}");
    }
}

#[test]
fn a_read_only_disk_refuses() {
    if let Some(output) = in_a_namespace("read-only", "size=4m,mode=700") {
        assert!(output.contains("a read-only disk was met"), "{output}");
    }
}

#[test]
fn a_limit_on_file_sizes_refuses_writes_and_kills_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let output = child::run(child::command("file-limit", directory.path()));
    assert!(output.contains("a limit was met"), "{output}");
}

fn fill(directory: &Path) -> u64 {
    let mut file = OpenOptions::new().create(true).append(true).open(directory.join("filler")).unwrap();
    let mut size = 4096;
    while size > 0 {
        if file.write_all(&vec![1; size]).is_err() {
            size /= 2;
        }
    }
    file.metadata().unwrap().len()
}

/// Returns an outcome whose line is shortened because it would be too long.
fn max_outcome() -> Outcome {
    let file = FileTouched {
        name: Text::new("\\".repeat(200)),
        change: Change::Changed,
        bytes: u64::MAX,
        sha256: Some(Digest::ZERO),
    };
    Outcome { files: Some((0..200).map(|_| file.clone()).collect()), ..outcome() }
}

/// Runs in the child. The reserve is 1 MiB of the 4 MiB.
pub fn in_a_small_file_system(directory: &Path) {
    let log = Log::open(config(directory)).unwrap();
    let mut running: Vec<Reservation> = (0..4).map(|n| log.reserve(subject(&format!("run-{n}"))).unwrap()).collect();
    assert!(fill(directory) > 1 << 20);
    // The space allocated beyond the reserve is enough for a few more.
    let refused = loop {
        match log.reserve(subject(&format!("more-{}", running.len()))) {
            Ok(reservation) => running.push(reservation),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace { .. }) && refused.is_transient(), "{refused}");
    assert!(running.len() < 200, "{}", running.len());
    let other = Log::open(Config { mandatory: Mandatory::No, ..config(directory) }).unwrap();
    let mut tolerated = other.reserve(subject("tolerated")).unwrap();
    assert!(matches!(tolerated.problem(), Some(Error::NoSpace { .. })));
    // An execution without a begin record does not use the reserve.
    assert!(matches!(tolerated.commit(outcome()), Err(Error::NoSpace { .. })));

    // Another writer is killed while it writes a line.
    let segment = directory.join("audit/audit-00000001.jsonl");
    OpenOptions::new().append(true).open(&segment).unwrap().write_all(b"half a li").unwrap();
    fill(directory);

    let count = running.len() as u64;
    for (number, mut reservation) in running.into_iter().enumerate() {
        let outcome = if number % 8 == 0 { max_outcome() } else { outcome() };
        reservation.commit(outcome).unwrap_or_else(|error| panic!("{number}: {error}"));
        fill(directory);
    }
    let report = check(directory);
    assert_eq!(report.verdict, Verdict::Incomplete, "{report}");
    assert_eq!((report.executions.ended, report.executions.open, report.losses), (count, 0, 1), "{report}");

    fs::remove_file(directory.join("filler")).unwrap();
    execute(&log, "again");
    tolerated.commit(outcome()).unwrap();
    assert_eq!(check(directory).losses, 1);
    println!("a full disk was met");
}

/// Runs in the child. More of the longest outcomes than the reserve can hold are errors, and can be retried.
pub fn beyond_the_reserve(directory: &Path) {
    let log = Log::open(config(directory)).unwrap();
    let mut running: Vec<Reservation> = (0..130).map(|n| log.reserve(subject(&format!("run-{n}"))).unwrap()).collect();
    fill(directory);
    let failed: Vec<usize> = (0..130).filter(|n| running[*n].commit(max_outcome()).is_err()).collect();
    // At least 64 fit into the reserve.
    assert!(!failed.is_empty() && failed.len() <= 130 - 64, "{failed:?}");
    let report = check(directory);
    let open = failed.len() as u64;
    assert_eq!((report.verdict, report.executions.open), (Verdict::Whole, open), "{report}");
    assert!(matches!(running[failed[0]].commit(max_outcome()), Err(Error::NoSpace { .. })));
    fs::remove_file(directory.join("filler")).unwrap();
    for number in failed {
        running[number].commit(max_outcome()).unwrap();
    }
    let report = check(directory);
    assert_eq!((report.verdict, report.executions.open), (Verdict::Whole, 0), "{report}");
    println!("the end of the reserve was met");
}

/// Runs in the child.
pub fn in_a_read_only_file_system(directory: &Path) {
    execute(&Log::open(config(directory)).unwrap(), "a");
    let mount = std::process::Command::new("mount").args(["-o", "remount,ro,bind", "."]).status().unwrap();
    assert!(mount.success() && File::create("x").is_err());
    let opened = Log::open(config(directory));
    assert!(matches!(opened, Err(Error::ReadOnly { .. })), "{:?}", opened.err());
    assert_eq!(check(directory).verdict, Verdict::Whole);
    println!("a read-only disk was met");
}

/// Runs in the child.
pub fn under_a_limit_on_files(directory: &Path) {
    let log = Log::open(config(directory)).unwrap();
    execute(&log, "a");
    setrlimit(Resource::Fsize, Rlimit { current: Some(20_000), maximum: None }).unwrap();
    // A line and the reserve do not fit.
    let mut met = None;
    for number in 0..100 {
        let Err(error) = log.reserve(subject(&format!("b-{number}"))).map(|mut run| run.commit(outcome()).unwrap())
        else {
            continue;
        };
        met = Some(error);
        break;
    }
    assert!(matches!(met, Some(Error::NoSpace { .. })), "{met:?}");
    assert_eq!(check(directory).verdict, Verdict::Whole);
    println!("a limit was met");
}
