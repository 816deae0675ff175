//! Disks that are full or read-only.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use cofferdam_audit::*;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::child;
use crate::made::*;

/// Starts a child in a mount namespace of its own, with a small file system at its working directory. It goes away with
/// the child. `None` where nobody may do that.
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
    let said = child::run(child::prefixed(&prefix, order, directory.path()));
    // It was the namespace's, and none of it is here.
    assert_eq!(listing(directory.path()), Vec::<String>::new());
    Some(said)
}

#[test]
fn a_full_disk_refuses_what_would_begin_and_takes_what_has_begun() {
    if let Some(said) = in_a_namespace("full", "size=1m,mode=700") {
        assert!(said.contains("a full disk was met"), "{said}");
    }
}

#[test]
fn a_read_only_disk_refuses() {
    if let Some(said) = in_a_namespace("read-only", "size=1m,mode=700") {
        assert!(said.contains("a read-only disk was met"), "{said}");
    }
}

#[test]
fn a_limit_on_file_sizes_refuses_and_kills_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let said = child::run(child::command("file-limit", directory.path()));
    assert!(said.contains("a limit was met"), "{said}");
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

/// In the child.
pub fn in_a_small_file_system(directory: &Path) {
    let log = Log::open(config(directory)).unwrap();
    let mut running: Vec<Reservation> = (0..4).map(|n| log.reserve(subject(&format!("run-{n}"))).unwrap()).collect();
    assert!(fill(directory) > 100_000);
    // What was taken ahead serves some more, but not for ever.
    let mut refused = None;
    for number in 0..100 {
        match log.reserve(subject(&format!("more-{number}"))) {
            Ok(reservation) => running.push(reservation),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let refused = refused.unwrap();
    assert!(matches!(refused, Error::NoSpace { .. }) && refused.may_pass(), "{refused}");

    let other = Log::open(Config { mandatory: Mandatory::No, ..config(directory) });
    let mut tolerated = match other {
        Ok(other) => Some(other.reserve(subject("tolerated")).unwrap()),
        // Its own small file may have found no place.
        Err(Error::NoSpace { .. }) => None,
        Err(error) => panic!("{error}"),
    };
    if let Some(tolerated) = &tolerated {
        assert!(matches!(tolerated.problem(), Some(Error::NoSpace { .. })));
    }

    // Another writer is killed in the middle of a line.
    let segment = directory.join("audit/audit-00000001.jsonl");
    let torn = OpenOptions::new().append(true).open(&segment).unwrap().write_all(b"half a li");
    assert!(torn.is_ok());
    fill(directory);

    let count = running.len();
    for (number, mut reservation) in running.into_iter().enumerate() {
        // As long as a line can be.
        let mut outcome = outcome();
        let files = (0..200)
            .map(|_| FileTouched {
                name: Text::new("\\".repeat(200)),
                change: Change::Changed,
                bytes: u64::MAX,
                sha256: Some(Digest::ZERO),
            })
            .collect();
        outcome.files = Some(files);
        reservation.commit(outcome).unwrap_or_else(|error| panic!("{number}: {error}"));
        fill(directory);
    }
    let report = check(directory);
    assert_eq!(report.verdict, Verdict::Incomplete, "{report}");
    assert_eq!((report.executions.ended, report.losses), (count as u64, 1), "{report}");
    assert_eq!(report.executions.open, 0);

    fs::remove_file(directory.join("filler")).unwrap();
    execute(&log, "again");
    if let Some(tolerated) = &mut tolerated {
        tolerated.commit(outcome()).unwrap();
    }
    assert_eq!(check(directory).losses, 1);
    println!("a full disk was met");
}

/// In the child.
pub fn in_a_read_only_file_system(directory: &Path) {
    execute(&Log::open(config(directory)).unwrap(), "a");
    let mount = std::process::Command::new("mount").args(["-o", "remount,ro,bind", "."]).status().unwrap();
    assert!(mount.success() && File::create("x").is_err());
    let opened = Log::open(config(directory));
    assert!(matches!(opened, Err(Error::ReadOnly { .. })), "{:?}", opened.err());
    assert_eq!(check(directory).verdict, Verdict::Whole);
    println!("a read-only disk was met");
}

/// In the child.
pub fn under_a_limit_on_files(directory: &Path) {
    let log = Log::open(config(directory)).unwrap();
    execute(&log, "a");
    setrlimit(Resource::Fsize, Rlimit { current: Some(20_000), maximum: None }).unwrap();
    // A line and the room for its end do not fit any more.
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
