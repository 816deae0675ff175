//! Cases: an undeclared capability must answer `Unsupported`.

use bytes::Bytes;
use cofferdam_contract::{
    Access, ByteSize, Capability, Command, CopyOut, ErrorKind, ExecRequest, Mount, MountAccess, MountSource,
    MountTarget, NetworkPolicy, NewEntry, RootFs, Script, Snapshot, SpecBuilder, Stdin, TerminalSize, WatchOptions,
    Workspace,
};

use crate::GuestProgram as P;
use crate::case::{Context, Stop, Verdict, expect_error, path};

const UNSUPPORTED: [ErrorKind; 1] = [ErrorKind::Unsupported];

/// Returns the capability's name.
pub(crate) fn name(capability: Capability) -> String {
    serde_json::to_value(capability)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("{capability:?}"))
}

/// Tests a capability that is not declared.
pub(crate) async fn probe(cx: &Context, capability: Capability) -> Verdict {
    match capability {
        Capability::MultipleExecs => second_exec(cx).await,
        Capability::StreamingStdin => {
            refused_request(cx, cx.request(&P::Succeed)?.stdin(Stdin::Stream).build()?, "streaming input").await
        }
        Capability::Terminal => {
            let size = TerminalSize { rows: 24, columns: 80 };
            refused_request(cx, cx.request(&P::Succeed)?.terminal(size).build()?, "a terminal").await
        }
        Capability::Files => every_file_operation(cx).await,
        Capability::HostWorkspace => {
            let directory = tempfile::tempdir()?;
            let workspace = Workspace::HostDir { path: directory.path().canonicalize()?, access: Access::ReadWrite };
            refused_spec(cx, cx.spec().workspace(workspace), "a host directory as workspace").await
        }
        Capability::CopyOnWrite => {
            let directory = tempfile::tempdir()?;
            let workspace = Workspace::CopyOnWrite { path: directory.path().canonicalize()? };
            refused_spec(cx, cx.spec().workspace(workspace), "a copy-on-write workspace").await?;
            expect_error(cx.sandbox().await?.changes().await.map(drop), &UNSUPPORTED, "changes, undeclared")
        }
        Capability::Mounts => {
            let size = ByteSize::from_bytes(1 << 20);
            refused_mount(cx, MountSource::Tmpfs { size }).await?;
            refused_mount(cx, host_mount(MountAccess::ReadOnly)).await
        }
        Capability::CopyOnWriteMounts => refused_mount(cx, host_mount(MountAccess::CopyOnWrite)).await,
        Capability::DiskMounts => {
            refused_mount(cx, MountSource::Disk { path: "/missing".into(), access: Access::ReadOnly }).await
        }
        Capability::RootDirectory => {
            let root = RootFs::Directory { path: "/".into() };
            refused_spec(cx, cx.spec().root(root), "another root").await
        }
        Capability::Image => {
            let root = RootFs::Image { reference: "cofferdam/base".to_owned() };
            refused_spec(cx, cx.spec().root(root), "an image").await
        }
        Capability::Snapshot => snapshot_and_restore(cx).await,
        Capability::Fork => {
            let fork = cx.sandbox().await?.fork().await.map(|sandbox| cx.keep(sandbox));
            expect_error(fork, &UNSUPPORTED, "fork")
        }
        Capability::Pause => {
            let sandbox = cx.sandbox().await?;
            expect_error(sandbox.pause().await, &UNSUPPORTED, "pause, undeclared")?;
            expect_error(sandbox.resume().await, &UNSUPPORTED, "resume, undeclared")
        }
        Capability::Warm => {
            expect_error(cx.backend().prepare(cx.spec().build()?).await, &UNSUPPORTED, "warm, undeclared")
        }
        Capability::NetworkAllowlist => {
            let policy = NetworkPolicy::Allow { hosts: vec!["example.org".to_owned()] };
            refused_spec(cx, cx.spec().network(policy), "an allowlist of hosts").await
        }
        Capability::Connect => {
            expect_error(cx.sandbox().await?.connect(80).await.map(drop), &UNSUPPORTED, "connect, undeclared")
        }
        Capability::Watch => {
            let watched = cx.sandbox().await?.watch(&path("")?, WatchOptions::default()).await;
            expect_error(watched, &UNSUPPORTED, "watch, undeclared")
        }
        Capability::UnixPrograms => shell_and_script(cx).await,
        other => Err(Stop::skip(format!("the suite has no test of {}", name(other)))),
    }
}

fn host_mount(access: MountAccess) -> MountSource {
    MountSource::HostPath { path: std::env::temp_dir(), access }
}

async fn refused_mount(cx: &Context, source: MountSource) -> Verdict {
    let mount = Mount { target: MountTarget::new("/mounted")?, source };
    refused_spec(cx, cx.spec().mount(mount), "a mount").await
}

async fn refused_request(cx: &Context, request: ExecRequest, what: &str) -> Verdict {
    let started = cx.sandbox().await?.start(request).await;
    expect_error(started, &UNSUPPORTED, &format!("starting with {what}, undeclared"))
}

async fn refused_spec(cx: &Context, spec: SpecBuilder, what: &str) -> Verdict {
    let created = cx.backend().create(spec.build()?).await.map(|sandbox| cx.keep(sandbox));
    expect_error(created, &UNSUPPORTED, &format!("creating with {what}, undeclared"))
}

async fn second_exec(cx: &Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let _first = cx.start_ready(&sandbox, P::SleepForever).await?;
    expect_error(sandbox.start(cx.request(&P::Succeed)?.build()?).await, &UNSUPPORTED, "a second exec, undeclared")
}

async fn every_file_operation(cx: &Context) -> Verdict {
    let (sandbox, file) = (cx.sandbox().await?, path("file")?);
    expect_error(sandbox.write_bytes(&file, "x").await, &UNSUPPORTED, "write_file, undeclared")?;
    expect_error(sandbox.read_file(&file).await, &UNSUPPORTED, "read_file, undeclared")?;
    expect_error(sandbox.list_dir(&path("")?).await, &UNSUPPORTED, "list_dir, undeclared")?;
    expect_error(sandbox.put(&file, NewEntry::Directory { mode: 0o755 }).await, &UNSUPPORTED, "put, undeclared")?;
    let copied = sandbox.copy_out(&CopyOut::all(path("")?), &mut tokio::io::sink()).await;
    expect_error(copied, &UNSUPPORTED, "copy_out, undeclared")?;
    expect_error(sandbox.rename(&file, &path("new")?).await, &UNSUPPORTED, "rename, undeclared")?;
    expect_error(sandbox.remove(&file).await, &UNSUPPORTED, "remove, undeclared")
}

async fn snapshot_and_restore(cx: &Context) -> Verdict {
    expect_error(cx.sandbox().await?.snapshot().await, &UNSUPPORTED, "snapshot, undeclared")?;
    let restored = cx.backend().restore(Snapshot::new(cx.backend().name(), ()), cx.spec().build()?).await;
    expect_error(restored.map(|sandbox| cx.keep(sandbox)), &UNSUPPORTED, "restore, undeclared")
}

async fn shell_and_script(cx: &Context) -> Verdict {
    refused_request(cx, ExecRequest::shell(":").build()?, "a shell line").await?;
    let script = Script {
        interpreter: vec!["sh".to_owned()],
        name: "main.sh".to_owned(),
        contents: Bytes::from_static(b":\n"),
        args: Vec::new(),
    };
    refused_request(cx, ExecRequest::builder(Command::Script(script)).build()?, "a script").await
}

/// Runs the test of one capability as a case of its own.
async fn case(cx: Context, capability: Capability) -> Verdict {
    if cx.declares(capability) {
        return Err(Stop::skip(format!("{} is declared and tested by its own cases", name(capability))));
    }
    probe(&cx, capability).await
}

macro_rules! one_case_each {
    ($($function:ident $capability:ident,)*) => {$(
        pub(super) async fn $function(cx: Context) -> Verdict {
            case(cx, Capability::$capability).await
        }
    )*};
}

one_case_each! {
    multiple_execs MultipleExecs,
    streaming_stdin StreamingStdin,
    terminal Terminal,
    files Files,
    host_workspace HostWorkspace,
    copy_on_write CopyOnWrite,
    mounts Mounts,
    copy_on_write_mounts CopyOnWriteMounts,
    disk_mounts DiskMounts,
    root_directory RootDirectory,
    image Image,
    snapshot Snapshot,
    fork Fork,
    pause Pause,
    warm Warm,
    network_allowlist NetworkAllowlist,
    connect Connect,
    watch Watch,
    unix_programs UnixPrograms,
}
