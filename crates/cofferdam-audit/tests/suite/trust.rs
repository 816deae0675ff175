//! Tests of ownership, permissions and keys of a log.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use cofferdam_audit::*;

use crate::support::*;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_are_private_under_any_umask() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { artifact_bytes: Some(1000), ..config(directory.path()) };
    let log = Log::open(config).unwrap();
    let mut reservation = log.reserve(subject("a")).unwrap();
    let artifact = reservation.artifact(&Redactor::none()).unwrap().unwrap().finish().unwrap();
    reservation.commit(Outcome { artifact: Some(artifact), ..outcome() }).unwrap();
    let audit = directory.path().join("audit");
    for (name, expected) in [
        ("", 0o700),
        ("audit-00000001.jsonl", 0o600),
        ("head", 0o600),
        ("artifacts", 0o700),
        ("artifacts/a.jsonl", 0o600),
    ] {
        assert_eq!(fs::metadata(audit.join(name)).unwrap().permissions().mode() & 0o7777, expected, "{name}");
    }
}

#[test]
fn log_that_other_users_can_write_is_refused() {
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil); 8] = [
        ("a directory that others can write to", |audit| mode(audit, 0o770)),
        ("a segment that others can write to", |audit| mode(&audit.join("audit-00000001.jsonl"), 0o606)),
        ("a segment that is a link", |audit| {
            let segment = audit.join("audit-00000001.jsonl");
            fs::rename(&segment, audit.join("elsewhere")).unwrap();
            symlink("elsewhere", &segment).unwrap();
        }),
        ("a segment with a second name", |audit| {
            fs::hard_link(audit.join("audit-00000001.jsonl"), audit.join("elsewhere")).unwrap();
        }),
        ("a segment that is a directory", |audit| fs::create_dir(audit.join("audit-00000002.jsonl")).unwrap()),
        ("a segment that is a pipe", |audit| {
            let pipe = audit.join("audit-00000002.jsonl");
            assert!(std::process::Command::new("mkfifo").arg("-m600").arg(pipe).status().unwrap().success());
        }),
        ("a head that is a link", |audit| {
            fs::rename(audit.join("head"), audit.join("elsewhere")).unwrap();
            symlink("elsewhere", audit.join("head")).unwrap();
        }),
        ("a directory that is a link", |audit| {
            fs::rename(audit, audit.with_extension("elsewhere")).unwrap();
            symlink(audit.with_extension("elsewhere"), audit).unwrap();
        }),
    ];
    for (name, spoil) in cases {
        let directory = tempfile::tempdir().unwrap();
        execute(&Log::open(config(directory.path())).unwrap(), "a");
        spoil(&directory.path().join("audit"));
        assert!(Log::open(config(directory.path())).is_err(), "{name}");
    }
}

#[test]
fn files_of_others_are_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a file away");
        return;
    }
    for name in ["", "audit-00000001.jsonl", "head"] {
        let directory = tempfile::tempdir().unwrap();
        execute(&Log::open(config(directory.path())).unwrap(), "a");
        std::os::unix::fs::chown(directory.path().join("audit").join(name), Some(65534), None).unwrap();
        let opened = Log::open(config(directory.path()));
        assert!(matches!(opened, Err(Error::Untrusted { .. })), "{name}");
    }
}

#[test]
fn a_log_has_one_key_or_none_from_its_first_line() {
    let directory = tempfile::tempdir().unwrap();
    let key = key_file(directory.path());
    let keyed = || Config { key: Some(key.clone()), ..config(directory.path()) };
    execute(&Log::open(keyed()).unwrap(), "a");
    assert!(matches!(Log::open(config(directory.path())), Err(Error::Key { .. })), "without the key");
    execute(&Log::open(keyed()).unwrap(), "b");
    let audit = directory.path().join("audit");
    assert_eq!(verify(&audit, &with_key()).unwrap().verdict, Verdict::Whole);
    let without = check(directory.path());
    assert_eq!((without.verdict, without.keyed, without.key_checked, without.notes), (Verdict::Whole, true, false, 1));

    fs::write(&key, [8; 32]).unwrap();
    assert!(matches!(Log::open(keyed()), Err(Error::Key { .. })), "with another key");
    let other = Expect { key: Some(Key::new(vec![8; 32]).unwrap()), ..Expect::default() };
    assert_eq!(verify(&audit, &other).unwrap().verdict, Verdict::Broken);

    mode(&key, 0o644);
    assert!(matches!(Log::open(keyed()), Err(Error::Key { .. })), "with a key that others can read");

    let directory = tempfile::tempdir().unwrap();
    execute(&Log::open(config(directory.path())).unwrap(), "a");
    let key = key_file(directory.path());
    let opened = Log::open(Config { key: Some(key), ..config(directory.path()) });
    assert!(matches!(opened, Err(Error::Key { .. })), "a key for a log that has none");
    assert_eq!(verify(&directory.path().join("audit"), &with_key()).unwrap().verdict, Verdict::Broken);
}

#[test]
fn a_stopped_writer_blocks_no_other_writer_forever() {
    let directory = tempfile::tempdir().unwrap();
    let log =
        Log::open(Config { lock_wait: std::time::Duration::from_millis(50), ..config(directory.path()) }).unwrap();
    let lock = fs::File::open(directory.path().join("audit")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(log.reserve(subject("a")), Err(Error::Busy { .. })));
    drop(lock);
    execute(&log, "b");
}

#[test]
fn a_problem_is_reported_if_logging_is_not_mandatory() {
    let directory = tempfile::tempdir().unwrap();
    let limited = Config { artifact_bytes: Some(1000), ..config(directory.path()) };
    let log = Log::open(Config { mandatory: Mandatory::No, ..limited }).unwrap();
    execute(&log, "a");
    let segment = directory.path().join("audit/audit-00000001.jsonl");
    let contents = fs::read(&segment).unwrap();
    fs::write(&segment, [&contents[..], b"not a line\n"].concat()).unwrap();
    let mut reservation = log.reserve(subject("b")).unwrap();
    assert!(matches!(reservation.problem(), Some(Error::Damaged { .. })));
    assert!(reservation.commit(outcome()).is_err());
    // After the repair, the end of the execution is written, and records that its begin is missing.
    fs::write(&segment, contents).unwrap();
    // There is also no artifact that no line would explain if the end could not be written.
    assert!(reservation.artifact(&Redactor::none()).is_err());
    reservation.commit(outcome()).unwrap();
    let report = check(directory.path());
    assert_eq!(report.executions, Counts { begun: 1, ended: 2, cancelled: 0, open: 0 });
    assert_eq!(report.verdict, Verdict::Whole, "{report}");
}
