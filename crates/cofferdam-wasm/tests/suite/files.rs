//! Files between guests and the file API, where the conformance suite's cases need features that WASI lacks.

use cofferdam_conformance::{GuestProgram as P, Programs};
use cofferdam_contract::{Access, EntryKind, ErrorKind, ExecRequest, SandboxPath, Spec, Workspace};
use cofferdam_wasm::WasmPrograms;

use crate::support::{program, sandbox, text};

fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

fn request(program: P) -> ExecRequest {
    WasmPrograms.request(&program).unwrap().build().unwrap()
}

#[tokio::test]
async fn list_shows_files_of_guests_in_order() {
    let sandbox = sandbox(Spec::default()).await;
    for (name, contents) in [("b", "12345"), ("a/below", "x"), ("B", "")] {
        sandbox.write_bytes(&path(name), contents).await.unwrap();
    }
    let program = P::Sequence(vec![
        P::MakeSymlink { path: "c".into(), target: "b".into() },
        P::MakeDirectory { path: "e".into() },
        P::MakeFiles { path: "e".into(), count: 1500 },
    ]);
    assert!(sandbox.exec(request(program)).await.unwrap().exit.success());
    let listed = sandbox.list_dir(&path("")).await.unwrap();
    let seen: Vec<_> = listed.iter().map(|entry| (entry.name.as_str(), entry.kind, entry.size)).collect();
    let expected = [
        ("B", EntryKind::File, 0),
        ("a", EntryKind::Directory, 0),
        ("b", EntryKind::File, 5),
        ("c", EntryKind::Symlink, 0),
        ("e", EntryKind::Directory, 0),
    ];
    assert_eq!(seen, expected);
    let mut names: Vec<String> = (0..1500).map(|number| format!("f{number}")).collect();
    names.sort();
    let listed = sandbox.list_dir(&path("e")).await.unwrap();
    assert_eq!(listed.into_iter().map(|entry| entry.name).collect::<Vec<_>>(), names);
}

#[tokio::test]
async fn a_removed_tree_takes_no_target_of_its_links_along() {
    let sandbox = sandbox(Spec::default()).await;
    for name in ["kept", "tree/a/b", "tree/c", "outside-the-tree/x"] {
        sandbox.write_bytes(&path(name), name).await.unwrap();
    }
    let links = P::Sequence(vec![
        P::MakeSymlink { path: "link".into(), target: "kept".into() },
        P::MakeSymlink { path: "tree/link".into(), target: "../outside-the-tree".into() },
    ]);
    assert!(sandbox.exec(request(links)).await.unwrap().exit.success());
    for name in ["link", "tree"] {
        sandbox.remove(&path(name)).await.unwrap();
    }
    assert_eq!(
        sandbox.read_file_to_end(&path("kept"), cofferdam_contract::ByteSize::from_mebibytes(1)).await.unwrap(),
        b"kept"
    );
    assert_eq!(sandbox.list_dir(&path("outside-the-tree")).await.unwrap().len(), 1);
    assert_eq!(sandbox.remove(&path("")).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_module_of_the_workspace_runs_by_its_path() {
    let sandbox = sandbox(Spec::default()).await;
    let module = program("", "(call $print_working_dir)");
    sandbox.write_bytes(&path("bin/tool.wasm"), module).await.unwrap();
    for (name, directory) in
        [("/workspace/bin/tool.wasm", ""), ("bin/tool.wasm", ""), ("tool.wasm", "bin"), ("../bin/tool.wasm", "bin")]
    {
        let request = ExecRequest::argv([name]).working_dir(path(directory)).build().unwrap();
        let done = sandbox.exec(request).await.unwrap();
        assert!(done.exit.success() && text(&done.stdout).starts_with("/workspace"), "{name}: {done:?}");
    }
    for (name, kind) in [
        ("tool.wasm", ErrorKind::NotFound),
        ("/workspace/bin", ErrorKind::NotExecutable),
        ("../../../../etc/passwd", ErrorKind::NotFound),
        ("/etc/passwd", ErrorKind::NotFound),
    ] {
        let started = sandbox.start(ExecRequest::argv([name]).build().unwrap()).await;
        assert_eq!(started.unwrap_err().kind(), kind, "{name}");
    }
}

#[tokio::test]
async fn a_script_is_private_to_its_exec() {
    let sandbox = sandbox(Spec::default()).await;
    let done = sandbox.exec(request(P::Print { stdout: "x".into(), stderr: String::new() })).await.unwrap();
    assert_eq!(text(&done.stdout), "x");
    assert!(sandbox.list_dir(&path("")).await.unwrap().is_empty());
}

/// Promise (Files): The file API of a module does not change a host directory that is mounted read-only.
#[tokio::test]
async fn file_api_does_not_change_a_read_only_mount() {
    let mounted = tempfile::tempdir().unwrap();
    std::fs::create_dir(mounted.path().join("sub")).unwrap();
    std::fs::write(mounted.path().join("sub/given"), "by the host").unwrap();
    let workspace = Workspace::HostDir { path: mounted.path().to_owned(), access: Access::ReadOnly };
    let sandbox = sandbox(Spec::builder().workspace(workspace).build().unwrap()).await;
    for name in ["sub/given", "sub/made", "made", "new/made"] {
        let refused = sandbox.write_bytes(&path(name), "changed").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "writing {name}: {refused}");
    }
    for name in ["sub/given", "sub", "missing"] {
        let refused = sandbox.remove(&path(name)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "removing {name}: {refused}");
    }
    assert_eq!(sandbox.list_dir(&path("")).await.unwrap().len(), 1);
    assert_eq!(std::fs::read_to_string(mounted.path().join("sub/given")).unwrap(), "by the host");
    assert_eq!(std::fs::read_dir(mounted.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_read_only_workspace_leaves_the_temporary_directory_writable() {
    let spec = Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap();
    let sandbox = sandbox(spec).await;
    sandbox.write_bytes(&path("given"), "kept").await.unwrap();
    let write = |path: &str| request(P::WriteFile { path: path.into(), contents: "x".into() });
    assert!(sandbox.exec(write("/tmp/made")).await.unwrap().exit.success());
    for name in ["made", "/workspace/made", "given", "/workspace/given"] {
        assert_ne!(sandbox.exec(write(name)).await.unwrap().exit.code, 0, "{name}");
    }
    let swap = P::SwapSymlinkForever { path: "given".into(), inside: "a".into(), outside: "b".into() };
    assert_ne!(
        sandbox.exec(request(swap)).await.unwrap().exit.code,
        0,
        "renaming over a file of a read-only workspace"
    );
    let listed = sandbox.list_dir(&path("")).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].size, 4);
}

#[tokio::test]
async fn a_removed_file_that_its_exec_left_open_goes_with_the_exec() {
    let imports = r#"(import "wasi_snapshot_preview1" "path_unlink_file"
      (func $path_unlink_file (param i32 i32 i32) (result i32)))"#;
    let code = "(i32.store8 (i32.const 0x200000) (i32.const 97))
      (local.set $i (call $create (i32.const 5) (i32.const 0x200000) (i32.const 1)))
      (call $write (local.get $i) (i32.const 0x100000) (i32.const 1000000))
      (call $check (call $path_unlink_file (i32.const 5) (i32.const 0x200000) (i32.const 1)))
      (call $write (local.get $i) (i32.const 0x100000) (i32.const 1000000))";
    let sandbox = sandbox(Spec::default()).await;
    let before = sandbox.usage().await.unwrap().disk_bytes;
    let done = sandbox.exec(crate::support::script(program(imports, code)).build().unwrap()).await.unwrap();
    assert!(done.exit.success(), "{done:?}");
    let after = sandbox.usage().await.unwrap();
    assert_eq!(after.disk_bytes, before);
    assert_eq!(after.memory_bytes, Some(0), "only files use memory");
}
