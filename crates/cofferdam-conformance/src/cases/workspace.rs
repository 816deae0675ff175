//! Cases: workspaces, private and of the host, writable and read-only.

use std::sync::Arc;

use cofferdam_contract::{Access, ErrorKind, Limits, Sandbox, Spec, Workspace};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Verdict, check, check_eq, expect_error, path, read_small, text, write_small};

pub(super) async fn read_only_rejects_writes(cx: Context) -> Verdict {
    let spec = cx.spec().workspace(Workspace::Private { access: Access::ReadOnly }).build()?;
    for program in [
        P::WriteFile { path: "new".into(), contents: "x".into() },
        P::MakeDirectory { path: "new".into() },
        P::MakeSymlink { path: "new".into(), target: "x".into() },
    ] {
        let name = program.name();
        let request = cx.request(&program)?.build()?;
        let done = cx.sandbox_of(spec.clone()).await?.exec(request).await?;
        check!(done.exit.code != 0, "{name} succeeded in a read-only workspace");
    }
    Ok(())
}

pub(super) async fn read_only_filled_by_the_file_api(cx: Context) -> Verdict {
    let spec = cx.spec().workspace(Workspace::Private { access: Access::ReadOnly }).build()?;
    let sandbox = cx.sandbox_of(spec).await?;
    write_small(&sandbox, "given", "kept").await?;
    let program = P::Sequence(vec![
        P::ReadFile { path: "given".into() },
        P::WriteFile { path: "given".into(), contents: "changed".into() },
    ]);
    let done = cx.exec(&sandbox, program).await?;
    check_eq!(text(&done.stdout), "kept", "what the guest read");
    check!(done.exit.code != 0, "the guest changed a file of a read-only workspace");
    check_eq!(text(&read_small(&sandbox, "given").await?), "kept", "the file afterwards");
    Ok(())
}

/// Returns a host directory and a spec that mounts it. The spec has no disk limit, because most hosts cannot enforce
/// one in a host directory and then refuse. `limits/disk-in-a-host-directory` covers that.
fn host(cx: &Context, access: Access) -> Outcome<(TempDir, Spec)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().canonicalize()?;
    let limits = Limits { disk: None, ..cx.spec().build()?.limits().clone() };
    let spec = cx.spec().limits(limits).workspace(Workspace::HostDir { path, access }).build()?;
    Ok((directory, spec))
}

pub(super) async fn host_directory(cx: Context) -> Verdict {
    let (directory, spec) = host(&cx, Access::ReadWrite)?;
    std::fs::write(directory.path().join("given"), "by the host")?;
    let sandbox = cx.sandbox_of(spec).await?;
    let program = P::Sequence(vec![
        P::ReadFile { path: "given".into() },
        P::WriteFile { path: "made".into(), contents: "by the guest".into() },
        P::MakeDirectory { path: "sub".into() },
        P::WriteFile { path: "sub/made".into(), contents: "below".into() },
    ]);
    let done = cx.exec_ok(&sandbox, program).await?;
    check_eq!(text(&done.stdout), "by the host", "what the guest read");
    check_eq!(std::fs::read_to_string(directory.path().join("made"))?, "by the guest", "what the guest wrote");
    same_owner(&directory, "made")?;
    same_owner(&directory, "sub/made")?;
    sandbox.close().await?;
    Ok(())
}

/// Checks that a file created by the guest has the directory's owner, so that the caller can clean up.
#[cfg(unix)]
fn same_owner(directory: &TempDir, name: &str) -> Verdict {
    use std::os::unix::fs::MetadataExt;
    let (above, created) = (std::fs::metadata(directory.path())?, std::fs::metadata(directory.path().join(name))?);
    check_eq!((created.uid(), created.gid()), (above.uid(), above.gid()), format!("the owner of {name}"));
    Ok(())
}

#[cfg(not(unix))]
fn same_owner(_: &TempDir, _: &str) -> Verdict {
    Ok(())
}

pub(super) async fn host_directory_read_only(cx: Context) -> Verdict {
    let (directory, spec) = host(&cx, Access::ReadOnly)?;
    std::fs::write(directory.path().join("given"), "by the host")?;
    let program = P::Sequence(vec![
        P::ReadFile { path: "given".into() },
        P::WriteFile { path: "made".into(), contents: "by the guest".into() },
    ]);
    let sandbox = cx.sandbox_of(spec.clone()).await?;
    let done = cx.exec(&sandbox, program).await?;
    check_eq!(text(&done.stdout), "by the host", "what the guest read");
    check!(done.exit.code != 0, "the guest made a file in a read-only host directory");
    let program = P::WriteFile { path: "given".into(), contents: "changed".into() };
    let done = cx.sandbox_of(spec).await?.exec(cx.request(&program)?.build()?).await?;
    check!(done.exit.code != 0, "the guest changed a file of a read-only host directory");
    check_eq!(std::fs::read_to_string(directory.path().join("given"))?, "by the host", "the host's file");
    check_eq!(std::fs::read_dir(directory.path())?.count(), 1, "entries of the host's directory");
    Ok(())
}

pub(super) async fn host_directory_read_only_for_the_file_api(cx: Context) -> Verdict {
    let (directory, spec) = host(&cx, Access::ReadOnly)?;
    std::fs::create_dir(directory.path().join("sub"))?;
    std::fs::write(directory.path().join("sub/given"), "by the host")?;
    let sandbox = cx.sandbox_of(spec).await?;
    check_eq!(text(&read_small(&sandbox, "sub/given").await?), "by the host", "what the file API read");
    for name in ["sub/given", "sub/made", "made", "new/made"] {
        let written = sandbox.write_bytes(&path(name)?, "changed").await;
        expect_error(written, &[ErrorKind::Denied], &format!("writing {name}"))?;
    }
    for name in ["sub/given", "sub", "missing"] {
        let removed = sandbox.remove(&path(name)?).await;
        expect_error(removed, &[ErrorKind::Denied], &format!("removing {name}"))?;
    }
    check_eq!(std::fs::read_to_string(directory.path().join("sub/given"))?, "by the host", "the host's file");
    check_eq!(std::fs::read_dir(directory.path())?.count(), 1, "entries of the host's directory");
    check_eq!(std::fs::read_dir(directory.path().join("sub"))?.count(), 1, "entries below");
    Ok(())
}

pub(super) async fn host_directory_outlives_the_sandbox(cx: Context) -> Verdict {
    let (directory, spec) = host(&cx, Access::ReadWrite)?;
    let sandbox = cx.sandbox_of(spec.clone()).await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "made".into(), contents: "first".into() }).await?;
    sandbox.close().await?;
    check_eq!(std::fs::read_to_string(directory.path().join("made"))?, "first", "the file after close");
    let done = cx.exec_ok(&cx.sandbox_of(spec).await?, P::ReadFile { path: "made".into() }).await?;
    check_eq!(text(&done.stdout), "first", "what another sandbox of the same directory reads");
    Ok(())
}

/// Returns a host directory with files, and a spec of a copy-on-write workspace.
fn copied(cx: &Context) -> Outcome<(TempDir, Spec)> {
    let directory = tempfile::tempdir()?;
    std::fs::create_dir(directory.path().join("sub"))?;
    std::fs::write(directory.path().join("given"), "by the host")?;
    std::fs::write(directory.path().join("sub/given"), "below")?;
    let path = directory.path().canonicalize()?;
    Ok((directory, cx.spec().workspace(Workspace::CopyOnWrite { path }).build()?))
}

/// Checks that a directory is as [`copied`] created it.
fn is_unchanged(directory: &TempDir) -> Verdict {
    check_eq!(std::fs::read_to_string(directory.path().join("given"))?, "by the host", "the host's file");
    check_eq!(std::fs::read_to_string(directory.path().join("sub/given"))?, "below", "the host's file below");
    check_eq!(std::fs::read_dir(directory.path())?.count(), 2, "entries of the host's directory");
    check_eq!(std::fs::read_dir(directory.path().join("sub"))?.count(), 1, "entries below");
    Ok(())
}

/// Checks that the changes name these paths.
async fn changes_name(sandbox: &Arc<dyn Sandbox>, names: &[&str]) -> Verdict {
    let mut layer = Vec::new();
    sandbox.changes().await?.layer.read_to_end(&mut layer).await?;
    for name in names {
        let found = layer.windows(name.len()).any(|bytes| bytes == name.as_bytes());
        check!(found, "the changes do not name {name}");
    }
    Ok(())
}

pub(super) async fn copy_on_write(cx: Context) -> Verdict {
    let (directory, spec) = copied(&cx)?;
    let sandbox = cx.sandbox_of(spec).await?;
    let program = P::Sequence(vec![
        P::ReadFile { path: "given".into() },
        P::WriteFile { path: "given".into(), contents: "by the guest".into() },
        P::WriteFile { path: "sub/made".into(), contents: "new".into() },
        P::MakeDirectory { path: "made".into() },
        P::ReadFile { path: "given".into() },
        P::ReadFile { path: "sub/given".into() },
    ]);
    let done = cx.exec_ok(&sandbox, program).await?;
    check_eq!(text(&done.stdout), "by the hostby the guestbelow", "what the guest read");
    is_unchanged(&directory)?;
    changes_name(&sandbox, &["given", "sub/made", "made", "by the guest"]).await?;
    sandbox.close().await?;
    is_unchanged(&directory)
}

pub(super) async fn copy_on_write_for_the_file_api(cx: Context) -> Verdict {
    let (directory, spec) = copied(&cx)?;
    let sandbox = cx.sandbox_of(spec).await?;
    sandbox.write_bytes(&path("sub/given")?, "changed").await?;
    sandbox.write_bytes(&path("new/made")?, "made").await?;
    sandbox.remove(&path("given")?).await?;
    check_eq!(text(&read_small(&sandbox, "sub/given").await?), "changed", "what the file API reads");
    let done = cx.exec_ok(&sandbox, P::ReadFile { path: "new/made".into() }).await?;
    check_eq!(text(&done.stdout), "made", "what the guest read");
    expect_error(sandbox.read_file(&path("given")?).await.map(drop), &[ErrorKind::NotFound], "a removed file")?;
    changes_name(&sandbox, &[".wh.given", "new/made", "sub/given"]).await?;
    is_unchanged(&directory)
}

pub(super) async fn copy_on_write_starts_anew(cx: Context) -> Verdict {
    let (directory, spec) = copied(&cx)?;
    let first = cx.sandbox_of(spec.clone()).await?;
    cx.exec_ok(&first, P::WriteFile { path: "given".into(), contents: "first".into() }).await?;
    let second = cx.sandbox_of(spec).await?;
    let done = cx.exec_ok(&second, P::ReadFile { path: "given".into() }).await?;
    check_eq!(text(&done.stdout), "by the host", "what another sandbox of the same directory reads");
    is_unchanged(&directory)
}
