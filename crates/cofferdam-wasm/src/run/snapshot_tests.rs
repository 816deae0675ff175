//! Snapshots with false content and a matching hash.

use cofferdam_contract::{Access, ByteSize, Command, ErrorKind, ExecRequest, Result, Spec, Workspace};

use super::snapshot::{Header, Kind, SessionSnapshot};
use crate::fs::Ino;
use crate::program::Value;
use crate::wasi::{Descriptor, OpenDirectory, OpenFile};
use crate::{SessionKind, WasmBackend};

/// A modification of a snapshot or header.
type Change<'a, T> = &'a dyn Fn(&mut T);

const MAX_SIZE: ByteSize = ByteSize::from_mebibytes(64);

/// A module with a mutable table, a global, and a memory of at most three pages. `write` writes to descriptor 6.
const MODULE: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_readdir" (func $list (param i32 i32 i32 i64 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_open"
      (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_link" (func $link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1 3) (table $t 2 9 funcref) (global (mut i64) (i64.const 3))
    (data (i32.const 64) "kept")
    (func $f (table.set $t (i32.const 0) (ref.func $f)))
    (elem declare func $f)
    (func (export "link")
      (call $exit (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 1) (i64.const 64)
        (i64.const 0) (i32.const 0) (i32.const 8))))
    (func (export "make")
      (if (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 1) (i64.const 64)
        (i64.const 0) (i32.const 0) (i32.const 8)) (then (unreachable))))
    (func (export "share")
      (if (call $link (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 4) (i32.const 64) (i32.const 4))
        (then (unreachable))))
    (func (export "write")
      (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 4))
      (drop (call $read (i32.const 6) (i32.const 0) (i32.const 1) (i32.const 8)))
      (drop (call $list (i32.const 6) (i32.const 1024) (i32.const 512) (i64.const -1) (i32.const 8)))
      (call $exit (call $write (i32.const 6) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;

fn call(name: &str) -> ExecRequest {
    ExecRequest::builder(Command::Argv(vec![name.to_owned()])).build().unwrap()
}

async fn snapshot(backend: &WasmBackend, calls: &[&str]) -> SessionSnapshot {
    let module = wat::parse_str(MODULE).unwrap();
    let session = backend.open_session(SessionKind::Module(module.into()), Spec::default()).await.unwrap();
    for name in calls {
        assert!(session.exec(&call(name)).await.unwrap().exit.success(), "{name}");
    }
    session.snapshot().unwrap()
}

fn read_only() -> Spec {
    Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap()
}

/// Saves the snapshot, restores it, and calls `write`; returns its exit code.
async fn written(backend: &WasmBackend, snapshot: &SessionSnapshot, spec: Spec) -> Result<i32> {
    let snapshot = SessionSnapshot::from_bytes(&snapshot.to_bytes()?, MAX_SIZE)?;
    let session = backend.restore_session(&snapshot, spec).await?;
    let done = session.exec(&call("write")).await?;
    assert_eq!(done.exit.signal, None, "{:?}", done.exit);
    Ok(done.exit.code)
}

#[tokio::test]
async fn a_guest_that_its_module_cannot_have_is_refused() {
    let backend = WasmBackend::default();
    let good = snapshot(&backend, &[]).await;
    assert_eq!(written(&backend, &good, Spec::default()).await.unwrap(), 8);
    let changes: [(&str, Change<'_, SessionSnapshot>); 13] = [
        ("a memory larger than the module's maximum", &|it| it.frozen.image = image(4)),
        ("a memory smaller than the module's minimum", &|it| it.frozen.image = image(0)),
        ("a global too many", &|it| it.frozen.globals = vec![Value::I64(1); 2].into()),
        ("a global of another type", &|it| it.frozen.globals = vec![Value::F32(1)].into()),
        ("a table too many", &|it| it.frozen.tables = vec![vec![None; 2]; 2].into()),
        ("a table that is too small", &|it| it.frozen.tables = vec![vec![None]].into()),
        ("a table beyond its maximum", &|it| it.frozen.tables = vec![vec![None; 10]].into()),
        ("a function that does not exist", &|it| it.frozen.tables = vec![vec![Some(u32::MAX); 2]].into()),
        ("a workspace that does not exist", &|it| it.workspace = Ino(99)),
        ("the root as the workspace", &|it| it.workspace = Ino(1)),
        ("one directory as workspace and temporary directory", &|it| it.temporary = it.workspace),
        ("an invalid module", &|it| it.kind = Kind::Module(b"\0asm".to_vec().into())),
        ("a component", &|it| it.kind = Kind::Module(b"\0asm\x0d\0\x01\0".to_vec().into())),
    ];
    for (what, change) in changes {
        let mut changed = good.clone();
        change(&mut changed);
        let refused = written(&backend, &changed, Spec::default()).await.expect_err(what);
        let kind = refused.kind();
        let known = [ErrorKind::InvalidInput, ErrorKind::NotExecutable, ErrorKind::Unsupported];
        assert!(known.contains(&kind), "{what}: {kind:?}: {refused}");
    }
}

fn image(pages: usize) -> std::sync::Arc<crate::sys::Image> {
    crate::sys::Image::new(pages << 16, std::iter::empty()).unwrap()
}

fn directory(ino: u64) -> Descriptor {
    let everything = || Some("/".to_owned());
    Descriptor::Directory(OpenDirectory { ino: Ino(ino), preopen: everything(), name: everything(), writable: true })
}

fn file(ino: u64, position: u64) -> Descriptor {
    Descriptor::File(OpenFile { ino: Ino(ino), position, reads: true, writes: true, flags: u32::MAX })
}

#[tokio::test]
async fn descriptors_that_no_guest_can_open_are_refused() {
    let backend = WasmBackend::default();
    let good = snapshot(&backend, &["make"]).await;
    assert_eq!(written(&backend, &good, Spec::default()).await.unwrap(), 0);
    let (workspace, temporary) = (good.workspace.0, good.temporary.0);
    let refused = [directory(1), directory(99), directory(0), file(1, 0), file(workspace, 0), file(u64::MAX, 0)];
    for descriptor in refused {
        let mut changed = good.clone();
        changed.descriptors[6] = Some(descriptor.clone());
        let refused = written(&backend, &changed, Spec::default()).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{descriptor:?}: {refused}");
    }
    let mut many = good.clone();
    many.descriptors = vec![Some(Descriptor::Input); 1025];
    assert_eq!(written(&backend, &many, Spec::default()).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    // Foreign but harmless: a directory in place of a file, streams at other numbers, no descriptors, a position at the
    // end of all files.
    let inode = good.descriptors[6].as_ref().and_then(Descriptor::ino).unwrap().0;
    for descriptor in [directory(workspace), directory(temporary), Descriptor::Input, file(inode, u64::MAX)] {
        let mut changed = good.clone();
        changed.descriptors[6] = Some(descriptor.clone());
        let code = written(&backend, &changed, Spec::default()).await.unwrap();
        // An append goes to the end of the file, whatever its position.
        assert_eq!(code == 0, matches!(descriptor, Descriptor::File(_)), "{descriptor:?}");
    }
    let mut none = good.clone();
    none.descriptors.clear();
    assert_eq!(written(&backend, &none, Spec::default()).await.unwrap(), 8);
}

#[tokio::test]
async fn write_access_in_a_snapshot_is_refused_by_a_read_only_spec() {
    let backend = WasmBackend::default();
    let good = snapshot(&backend, &["make"]).await;
    assert_ne!(written(&backend, &good, read_only()).await.unwrap(), 0);
    let mut changed = good.clone();
    let inode = good.descriptors[6].as_ref().and_then(Descriptor::ino).unwrap().0;
    changed.descriptors[6] = Some(file(inode, 0));
    assert_ne!(written(&backend, &changed, read_only()).await.unwrap(), 0);
    // A directory descriptor that claims to be writable: creating a file in it fails.
    let mut changed = snapshot(&backend, &[]).await;
    changed.descriptors[3] = Some(directory(changed.workspace.0));
    let session = backend.restore_session(&changed, read_only()).await.unwrap();
    assert_ne!(session.exec(&call("link")).await.unwrap().exit.code, 0);
    // A second name of the file in the temporary directory would make it writable.
    let shared = snapshot(&backend, &["make", "share"]).await;
    let refused = written(&backend, &shared, read_only()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert_eq!(written(&backend, &shared, Spec::default()).await.unwrap(), 0);
}

/// Creates a file with this header and memory, as `to_bytes` does.
fn with_header(good: &SessionSnapshot, memory: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = good.header();
    change(&mut header);
    let mut plain = postcard::to_stdvec(&header).unwrap();
    plain.extend_from_slice(memory);
    SessionSnapshot::packed(&plain)
}

#[tokio::test]
async fn false_sizes_and_offsets_are_refused() {
    let good = snapshot(&WasmBackend::default(), &[]).await;
    let memory = [7; 4096 * 2];
    let read = |memory: &[u8], change: &dyn Fn(&mut Header)| {
        SessionSnapshot::from_bytes(&with_header(&good, memory, change), MAX_SIZE)
    };
    assert!(read(&memory, &|it| it.pieces = vec![0, 15]).is_ok());
    let changes: [(&str, Change<'_, Header>); 9] = [
        ("pieces out of order", &|it| it.pieces = vec![3, 2]),
        ("a piece twice", &|it| it.pieces = vec![2, 2]),
        ("a piece outside", &|it| it.pieces = vec![0, 16]),
        ("a piece far outside", &|it| it.pieces = vec![0, u32::MAX]),
        ("fewer pieces than bytes", &|it| it.pieces = vec![0]),
        ("more pieces than bytes", &|it| it.pieces = vec![0, 1, 2]),
        ("half a page", &|it| (it.size, it.pieces) = (100_000, vec![0, 1])),
        ("more entries than the tables have", &|it| (it.entries, it.pieces) = (vec![None; 3], vec![0, 1])),
        ("longer tables than entries", &|it| (it.tables, it.pieces) = (vec![u32::MAX], vec![0, 1])),
    ];
    for (what, change) in changes {
        assert_eq!(read(&memory, change).expect_err(what).kind(), ErrorKind::InvalidInput, "{what}");
    }
    for size in [u64::MAX, MAX_SIZE.as_bytes() + (1 << 16), 1 << 33] {
        let refused = read(&memory, &|it| (it.size, it.pieces) = (size, vec![0, 1])).expect_err("too large");
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted, "{size}");
    }
}

/// A file of a few kilobytes whose lists of empty elements would take gigabytes.
#[tokio::test]
async fn a_file_does_not_unpack_to_more_than_is_allowed() {
    let good = snapshot(&WasmBackend::default(), &[]).await;
    let max = ByteSize::from_mebibytes(8);
    let bomb = with_header(&good, &[], |header| {
        header.pieces.clear();
        header.entries = vec![None; 6 << 20];
    });
    assert!(bomb.len() < 100_000, "{} bytes", bomb.len());
    assert_eq!(SessionSnapshot::from_bytes(&bomb, max).unwrap_err().kind(), ErrorKind::InvalidInput);
    let bomb = with_header(&good, &[], |header| {
        header.pieces.clear();
        header.descriptors = vec![None; 6 << 20];
    });
    assert_eq!(SessionSnapshot::from_bytes(&bomb, max).unwrap_err().kind(), ErrorKind::InvalidInput);
}
