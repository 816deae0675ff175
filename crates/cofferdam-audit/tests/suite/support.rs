//! Records and helpers for tests.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_audit::*;

pub const KEY: [u8; 32] = [7; 32];

pub fn config(directory: &Path) -> Config {
    Config { sync: Sync::Never, ..Config::new(directory.join("audit")) }
}

pub fn id(text: impl Into<String>) -> ExecutionId {
    ExecutionId::new(text).unwrap()
}

pub fn subject(name: &str) -> Subject {
    Subject {
        id: id(name),
        tenant: Some("acme".into()),
        start: Timestamp::now(),
        backend: "process".into(),
        level: "2".into(),
        runtime: Some("python".into()),
        version: Some("3.13.1".into()),
        program: Program::code(b"print(1)"),
        limits: Limits { memory_bytes: Some(512 << 20), ..Limits::default() },
    }
}

pub fn outcome() -> Outcome {
    let file = FileTouched {
        name: Text::new(b"out\n\x1b[31m\xff.txt"),
        change: Change::Created,
        bytes: 3,
        sha256: Some(Digest::of("abc")),
    };
    Outcome {
        exit: Exit { code: Some(0), ..Exit::default() },
        duration_us: 21_500,
        usage: Usage { cpu_us: Some(18_000), peak_memory_bytes: Some(9 << 20), output_bytes: Some(2) },
        posture: Some(Digest::of("posture")),
        files: Some([file].into_iter().collect()),
        denials: [Denial { by: "network".into(), what: "example.com:443".into(), times: 2 }].into_iter().collect(),
        artifact: None,
        sandbox: None,
        restored: None,
    }
}

/// Writes one execution from begin to end.
pub fn execute(log: &Log, name: &str) -> Head {
    log.reserve(subject(name)).unwrap().commit(outcome()).unwrap()
}

pub fn key_file(directory: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.join("key");
    fs::write(&path, KEY).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

pub fn with_key() -> Expect {
    Expect { key: Some(Key::new(KEY.to_vec()).unwrap()), ..Expect::default() }
}

pub fn check(directory: &Path) -> Report {
    verify(&directory.join("audit"), &Expect::default()).unwrap()
}

/// Returns the names in a directory, sorted.
pub fn listing(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Returns the ids of the executions that have an end record.
pub fn ended(directory: &Path) -> Vec<String> {
    let entries = query(&directory.join("audit"), Filter::default()).unwrap().map(Result::unwrap);
    let ends = entries.filter(|entry| matches!(entry.record, Record::End(_)));
    ends.map(|entry| entry.record.id().unwrap().as_str().to_owned()).collect()
}
