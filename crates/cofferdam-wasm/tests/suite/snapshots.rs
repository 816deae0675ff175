//! Snapshots of sessions: restores elsewhere, and files that were changed.

use std::collections::BTreeSet;
use std::time::Duration;

use cofferdam_contract::{Access, ByteSize, ErrorKind, Result, SandboxPath, Spec, TenantId};
use cofferdam_wasm::{Session, SessionSnapshot, WasmBackend};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::sessions::{counter, named, open, output_of};
use crate::support::{PROMPT, assemble, library, limited, text};

const MAX_SIZE: ByteSize = ByteSize::from_mebibytes(64);
const PREFIX: usize = 28;
const HASH: usize = 32;

fn hashed(mut bytes: Vec<u8>) -> Vec<u8> {
    let hash = Sha256::digest(&bytes);
    bytes.extend(hash);
    bytes
}

/// Returns the uncompressed content of a file.
pub(crate) fn unpacked(file: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[20..28].try_into().unwrap());
    lz4_flex::block::decompress(&file[PREFIX..file.len() - HASH], length as usize).unwrap()
}

/// Returns a file with other content and a matching hash.
pub(crate) fn packed(file: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut bytes = file[..20].to_vec();
    bytes.extend((plain.len() as u64).to_le_bytes());
    bytes.extend(lz4_flex::block::compress(plain));
    hashed(bytes)
}

/// A library with mutable tables, globals of all types, grown memory, files, and an open descriptor.
fn stateful_module() -> Vec<u8> {
    library(
        r#"(type $text (func (result i64)))
          (table $t 2 50 funcref) (elem (table $t) (i32.const 0) func $one)
          (global $double (mut f64) (f64.const 0)) (global $vector (mut v128) (v128.const i64x2 0 0))
          (global $file (mut i32) (i32.const 0))
          (data (i32.const 3000) "kept.txt")
          (elem declare func $two)
          (func $one (result i64) (i64.const 1)) (func $two (result i64) (i64.const 22))
          (func (export "change")
            (global.set $double (f64.const 2.5)) (global.set $vector (v128.const i64x2 5 7))
            (table.set $t (i32.const 1) (ref.func $two))
            (drop (table.grow $t (ref.func $one) (i32.const 3)))
            (drop (memory.grow (i32.const 2)))
            (i64.store (i32.const 4200000) (i64.const 9))
            (global.set $file (call $create (i32.const 3) (i32.const 3000) (i32.const 8)))
            (call $write (global.get $file) (i32.const 3000) (i32.const 4)))
          (func (export "tell")
            (call $print_number (i64.trunc_f64_u (f64.mul (global.get $double) (f64.const 2))))
            (call $print_number (i64x2.extract_lane 1 (global.get $vector)))
            (call $print_number (call_indirect (type $text) (i32.const 1)))
            (call $print_number (call_indirect (type $text) (i32.const 4)))
            (call $print_number (i64.extend_i32_u (table.size $t)))
            (call $print_number (i64.load (i32.const 4200000)))
            (call $write (global.get $file) (i32.const 3004) (i32.const 4)))"#,
    )
}

const EXPECTED: &str = "5722159";

async fn changed(backend: &WasmBackend, spec: Spec) -> Session {
    let session = open(backend, stateful_module(), spec).await;
    assert_eq!(output_of(&session, "change").await, "");
    session
}

async fn saved_text(session: &Session) -> String {
    let path = SandboxPath::new("kept.txt").unwrap();
    text(&session.sandbox().read_file_to_end(&path, MAX_SIZE).await.unwrap())
}

/// Promise (WebAssembly): A snapshot resumes with the memory, globals, tables and files of its module.
#[tokio::test]
async fn module_resumes_with_memory_globals_tables_and_files() {
    let backend = WasmBackend::default();
    let session = changed(&backend, Spec::default()).await;
    let file = session.snapshot().unwrap().to_bytes().unwrap();
    session.close().await.unwrap();
    for backend in [backend, WasmBackend::default()] {
        let snapshot = SessionSnapshot::from_bytes(&file, MAX_SIZE).unwrap();
        assert_eq!(snapshot.to_bytes().unwrap(), file, "what is read and written again is the same");
        let session = backend.restore_session(&snapshot, Spec::default()).await.unwrap();
        assert_eq!(output_of(&session, "tell").await, EXPECTED);
        assert_eq!(saved_text(&session).await, "kept.txt");
    }
}

/// Promise (WebAssembly): A session snapshot of one tenant is refused to another tenant.
#[tokio::test]
async fn a_session_snapshot_of_one_tenant_is_refused_to_another() {
    let backend = WasmBackend::default();
    let [mine, other] = ["mine", "other"].map(|name| TenantId::new(name).unwrap());
    let of = |tenant: &TenantId| Spec::builder().tenant(tenant.clone()).build().unwrap();
    let session = changed(&backend, of(&mine)).await;
    let snapshot = session.snapshot().unwrap();
    let error = backend.restore_session(&snapshot, of(&other)).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!error.to_string().contains("mine"), "{error}");
    for session in [backend.restore_session(&snapshot, of(&mine)).await.unwrap(), session.fork().await.unwrap()] {
        assert_eq!(output_of(&session, "tell").await, EXPECTED);
    }
    // A file has no tenant until its reader sets one.
    let loaded = SessionSnapshot::from_bytes(&snapshot.to_bytes().unwrap(), MAX_SIZE).unwrap();
    assert_eq!(loaded.tenant(), None);
    backend.restore_session(&loaded, of(&other)).await.unwrap();
    let error = backend.restore_session(&loaded.with_tenant(mine), of(&other)).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

/// Promise (WebAssembly): Forks of a session do not affect each other.
#[tokio::test]
async fn session_forks_are_independent() {
    let backend = WasmBackend::default();
    let first = open(&backend, counter(), Spec::default()).await;
    assert_eq!(output_of(&first, "count").await, "111");
    let (second, third) = (first.fork().await.unwrap(), first.fork().await.unwrap());
    assert_eq!(output_of(&first, "count").await, "122");
    assert_eq!(output_of(&first, "count").await, "133");
    assert_eq!(output_of(&second, "count").await, "122");
    first.close().await.unwrap();
    assert_eq!(output_of(&third, "count").await, "122");
    assert_eq!(output_of(&third, "save").await, "");
    let path = SandboxPath::new("kept.txt").unwrap();
    assert!(second.sandbox().read_file_to_end(&path, MAX_SIZE).await.is_err(), "a file of a sibling");
}

#[tokio::test]
async fn a_session_that_nothing_was_called_of_can_be_frozen() {
    let backend = WasmBackend::default();
    let session = open(&backend, counter(), Spec::default()).await;
    assert_eq!(output_of(&session.fork().await.unwrap(), "count").await, "111");
}

/// Promise (WebAssembly): A snapshot resumes in another process where the session stopped.
#[tokio::test]
async fn snapshot_resumes_in_another_process() {
    const FILE: &str = "COFFERDAM_TEST_SNAPSHOT";
    let backend = WasmBackend::default();
    if let Some(path) = std::env::var_os(FILE) {
        let snapshot = SessionSnapshot::read(std::fs::File::open(path).unwrap(), MAX_SIZE).unwrap();
        let session = backend.restore_session(&snapshot, Spec::default()).await.unwrap();
        assert_eq!(output_of(&session, "tell").await, EXPECTED);
        assert_eq!(saved_text(&session).await, "kept.txt");
        return;
    }
    let session = changed(&backend, Spec::default()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("session");
    session.snapshot().unwrap().write(std::fs::File::create(&path).unwrap()).unwrap();
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let again = again.args(["snapshots::snapshot_resumes_in_another_process", "--exact"]).env(FILE, &path);
    let output = again.output().unwrap();
    let stdout = text(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{}", text(&output.stderr));
}

/// A library that draws eight bytes, and prints them as a number.
fn drawing() -> Vec<u8> {
    assemble(
        &r#"(module
          (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
          PRELUDE
          (func (export "draw") (drop (call $random (i32.const 64) (i32.const 8)))
            (call $print_number (i64.load (i32.const 64)))))"#
            .replace("PRELUDE", include_str!("../../src/programs.wat")),
    )
}

#[tokio::test]
async fn randomness_follows_the_spec_not_the_snapshot() {
    let backend = WasmBackend::default();
    let with = |name: &str, value: u64| Spec::builder().attribute(name, value).build().unwrap();
    let (made_up, counted) = (with("wasm.deterministic", 1), with("wasm.fuel", 1_000_000));
    let mut drawn = Vec::new();
    for (from, to) in [(&made_up, &made_up), (&made_up, &counted), (&counted, &made_up), (&counted, &counted)] {
        let session = open(&backend, drawing(), from.clone()).await;
        output_of(&session, "draw").await;
        let snapshot = session.snapshot().unwrap();
        let mut both = Vec::new();
        for _ in 0..2 {
            let restored = backend.restore_session(&snapshot, to.clone()).await.unwrap();
            both.push(output_of(&restored, "draw").await);
        }
        assert_eq!(both[0] == both[1], to == &made_up, "{both:?}");
        drawn.extend(both);
    }
    // A deterministic session resumes at the same state.
    let session = open(&backend, drawing(), made_up).await;
    output_of(&session, "draw").await;
    assert_eq!(output_of(&session, "draw").await, drawn[0]);
    let plain = backend.restore_session(&session.snapshot().unwrap(), Spec::default()).await.unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_deterministic_session_has_the_same_bytes_each_time() {
    let mut files = BTreeSet::new();
    for _ in 0..2 {
        let spec = Spec::builder().attribute("wasm.deterministic", 1).build().unwrap();
        let session = changed(&WasmBackend::default(), spec).await;
        files.insert(session.snapshot().unwrap().to_bytes().unwrap());
    }
    assert_eq!(files.len(), 1);
}

fn refused(bytes: &[u8]) -> ErrorKind {
    SessionSnapshot::from_bytes(bytes, MAX_SIZE).expect_err("refused").kind()
}

/// Promise (WebAssembly): A changed or truncated snapshot is refused.
#[tokio::test]
async fn a_file_that_was_changed_or_cut_off_is_refused() {
    let file = changed(&WasmBackend::default(), Spec::default()).await.snapshot().unwrap().to_bytes().unwrap();
    let offsets = (0..PREFIX + 200).chain((PREFIX..file.len()).step_by(97)).chain(file.len() - HASH..file.len());
    for at in offsets {
        let mut changed = file.clone();
        changed[at] ^= 0x41;
        assert_eq!(refused(&changed), ErrorKind::InvalidInput, "byte {at}");
    }
    for length in (0..200).chain((0..file.len()).step_by(61)) {
        assert_eq!(refused(&file[..length]), ErrorKind::InvalidInput, "the first {length} bytes");
        // Also with a matching hash.
        let kind = refused(&hashed(file[..length].to_vec()));
        assert!(matches!(kind, ErrorKind::InvalidInput | ErrorKind::Unsupported), "{length} bytes: {kind:?}");
    }
    assert_eq!(refused(&[&file[..], b"x"].concat()), ErrorKind::InvalidInput);
    let body = &file[..file.len() - HASH];
    for (version, kind) in
        [(0u32, ErrorKind::Unsupported), (1, ErrorKind::Unsupported), (u32::MAX, ErrorKind::Unsupported)]
    {
        let other = [&body[..16], &version.to_le_bytes(), &body[20..]].concat();
        assert_eq!(refused(&hashed(other)), kind);
    }
    for (length, kind) in [
        (0u64, ErrorKind::InvalidInput),
        (1, ErrorKind::InvalidInput),
        (MAX_SIZE.as_bytes(), ErrorKind::InvalidInput),
        (MAX_SIZE.as_bytes() + 1, ErrorKind::ResourceExhausted),
        (u64::MAX, ErrorKind::ResourceExhausted),
    ] {
        let other = [&body[..20], &length.to_le_bytes(), &body[28..]].concat();
        assert_eq!(refused(&hashed(other)), kind, "{length} bytes");
    }
    let small = SessionSnapshot::from_bytes(&file, ByteSize::from_bytes(1000)).unwrap_err();
    assert_eq!(small.kind(), ErrorKind::ResourceExhausted);
    let small = SessionSnapshot::read(&file[..], ByteSize::from_bytes(1)).unwrap_err();
    assert_eq!(small.kind(), ErrorKind::ResourceExhausted);
}

/// Restores a changed file and calls the session. Both must end in time, with any result.
async fn tried(backend: &WasmBackend, file: &[u8], spec: Spec) -> Result<()> {
    let snapshot = SessionSnapshot::from_bytes(file, MAX_SIZE)?;
    let restored = timeout(PROMPT, backend.restore_session(&snapshot, spec)).await.expect("an answer");
    let session = restored?;
    let request = named("tell").timeout(Duration::from_millis(500)).build()?;
    let exit = timeout(PROMPT, session.exec(&request)).await.expect("an end");
    let usage = session.sandbox().usage().await?;
    assert!(usage.memory_bytes.unwrap_or_default() <= 16 << 20, "{usage:?}");
    session.close().await?;
    exit.map(drop)
}

/// Promise (WebAssembly): A changed snapshot with a matching hash is refused or harmless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_whose_hash_fits_is_refused_or_harmless() {
    let backend = WasmBackend::default();
    let file = changed(&backend, Spec::default()).await.snapshot().unwrap().to_bytes().unwrap();
    let plain = unpacked(&file);
    let spec = || limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(16)));
    tried(&backend, &packed(&file, &plain), spec()).await.unwrap();
    // The module is at the start, and its compilation is slow, so it has few samples. The rest of the header follows.
    let module = stateful_module().len();
    let offsets = (0..40).chain((40..module).step_by(module / 25)).chain(module..module + 600).chain([plain.len() - 1]);
    let (mut went_on, mut stopped) = (0, 0);
    for at in offsets {
        for change in [1, 0x80, 0xff] {
            let mut changed = plain.clone();
            changed[at] ^= change;
            match tried(&backend, &packed(&file, &changed), spec()).await {
                Ok(()) => went_on += 1,
                Err(error) => {
                    stopped += 1;
                    let kind = error.kind();
                    assert!(!matches!(kind, ErrorKind::Internal), "byte {at} ^ {change}: {error}");
                }
            }
        }
    }
    assert!(went_on > 0 && stopped > 0, "{went_on} went on, {stopped} stopped");
    for length in (0..plain.len()).step_by(331) {
        assert!(tried(&backend, &packed(&file, &plain[..length]), spec()).await.is_err(), "{length} bytes");
    }
}

#[tokio::test]
async fn a_snapshot_that_does_not_fit_under_the_limits_is_refused() {
    let backend = WasmBackend::default();
    let snapshot = changed(&backend, Spec::default()).await.snapshot().unwrap();
    let little = limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(2)));
    let refused = backend.restore_session(&snapshot, little).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted, "{refused}");
    assert!(refused.to_string().contains("memory limit"), "{refused}");
    let session = changed(&backend, Spec::default()).await;
    session.sandbox().write_file(&SandboxPath::new("large").unwrap(), Box::new(&[1; 100_000][..])).await.unwrap();
    let snapshot = session.snapshot().unwrap();
    let no_disk = limited(|limits| limits.disk = Some(ByteSize::from_bytes(50_000)));
    let refused = backend.restore_session(&snapshot, no_disk).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted, "{refused}");
}

#[tokio::test]
async fn a_descriptor_that_could_write_cannot_where_the_workspace_is_read_only_now() {
    let backend = WasmBackend::default();
    let snapshot = changed(&backend, Spec::default()).await.snapshot().unwrap();
    let workspace = cofferdam_contract::Workspace::Private { access: Access::ReadOnly };
    let spec = Spec::builder().workspace(workspace).build().unwrap();
    let session = backend.restore_session(&snapshot, spec).await.unwrap();
    // The write fails, and the helper exits.
    assert_eq!(session.call("tell", "").await.unwrap().exit.code, 1);
    assert_eq!(saved_text(&session).await, "kept");
}

#[tokio::test]
async fn refused_snapshot_has_a_reason() {
    let backend = WasmBackend::default();
    for (code, reason) in [
        (r#"(data $d "x") (func (export "f") (data.drop $d))"#, "passive data"),
        (r#"(global (mut funcref) (ref.null func)) (func (export "f"))"#, "references"),
    ] {
        let session = open(&backend, library(code), Spec::default()).await;
        let refused = session.snapshot().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains(reason), "{refused}");
        assert_eq!(output_of(&session, "f").await, "", "the session continues");
    }
}
