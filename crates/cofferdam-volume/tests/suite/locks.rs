//! Users of a volume at the same time.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_volume::{Access, Request, Store, Through, VolumeError};

use crate::common::{Fixture, name, request};

/// Promise (Files): A volume has one writer or any number of readers, and the refusal of another user names its holder.
#[test]
fn volume_has_a_single_writer_or_many_readers() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    store.create(&name("v"), None).unwrap();
    let (read, write) = (request(Access::ReadOnly, Through::Mount), request(Access::ReadWrite, Through::Mount));
    let writer = store.open_volume(&name("v"), &Request { purpose: "sandbox abc", ..write }).unwrap();
    for other in [read, write] {
        let error = store.open_volume(&name("v"), &other).unwrap_err();
        assert!(matches!(error, VolumeError::InUse { .. }));
        let expected = format!("process {} (sandbox abc), which writes to it", std::process::id());
        assert!(error.to_string().contains(&expected), "{error}");
    }
    assert!(matches!(fixture.export("v"), Err(VolumeError::InUse { .. })));
    assert!(matches!(store.remove(&name("v")), Err(VolumeError::InUse { .. })));
    let holders = store.inspect(&name("v")).unwrap().holders;
    assert_eq!(holders.iter().map(|holder| &*holder.purpose).collect::<Vec<_>>(), ["sandbox abc"]);
    writer.close().unwrap();
    let readers: Vec<_> = (0..3).map(|_| store.open_volume(&name("v"), &read).unwrap()).collect();
    fixture.export("v").unwrap();
    assert_eq!(store.inspect(&name("v")).unwrap().holders.len(), 3);
    let error = store.open_volume(&name("v"), &write).unwrap_err();
    assert!(error.to_string().contains("which reads it"), "{error}");
    assert!(matches!(store.remove(&name("v")), Err(VolumeError::InUse { .. })));
    drop(readers);
    assert_eq!(store.inspect(&name("v")).unwrap().holders, []);
    drop(store.open_volume(&name("v"), &write).unwrap());
    store.remove(&name("v")).unwrap();
}

const VICTIM: &str = "COFFERDAM_VOLUME_HOLDER";

/// Starts this test program as another process that has the volume open for writing.
fn start_holder(fixture: &Fixture, test: &str) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact"])
        .env(VICTIM, fixture.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ready = fixture.temp.path().join("ready");
    let begun = Instant::now();
    while !ready.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the other process does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(ready).unwrap();
    child
}

/// Promise (Files): The lock of a volume ends with its holder, also if that is killed.
#[test]
fn a_killed_holder_has_no_lock() {
    let write = request(Access::ReadWrite, Through::Mount);
    if let Some(path) = std::env::var_os(VICTIM).map(PathBuf::from) {
        let volume = Store::open(&path).unwrap().open_volume(&name("v"), &write).unwrap();
        std::fs::write(path.with_file_name("ready"), "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        drop(volume);
        return;
    }
    let fixture = Fixture::new();
    fixture.store.create(&name("v"), None).unwrap();
    let mut holder = start_holder(&fixture, "locks::a_killed_holder_has_no_lock");
    let error = fixture.store.open_volume(&name("v"), &write).unwrap_err();
    assert!(error.to_string().contains(&format!("process {} (a test)", holder.id())), "{error}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(fixture.store.inspect(&name("v")).unwrap().holders, []);
    fixture.store.open_volume(&name("v"), &write).unwrap().close().unwrap();
}

#[test]
fn two_threads_never_write_at_once() {
    let fixture = Fixture::new();
    fixture.store.create(&name("v"), None).unwrap();
    let busy = std::sync::atomic::AtomicUsize::new(0);
    let opened = std::sync::atomic::AtomicUsize::new(0);
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let write = request(Access::ReadWrite, Through::Mount);
                    if let Ok(volume) = fixture.store.open_volume(&name("v"), &write) {
                        assert_eq!(busy.fetch_add(1, order), 0);
                        opened.fetch_add(1, order);
                        busy.fetch_sub(1, order);
                        drop(volume);
                    }
                }
            });
        }
    });
    assert!(opened.into_inner() > 0);
}
