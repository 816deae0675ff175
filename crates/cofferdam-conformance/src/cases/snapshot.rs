//! Cases: snapshots and forks.

use cofferdam_contract::{ErrorKind, Snapshot, TenantId};

use crate::GuestProgram as P;
use crate::case::{Context, Verdict, check, check_eq, expect_error, path, read_small, text, write_small};

pub(super) async fn restores_files(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "made".into(), contents: "before".into() }).await?;
    let snapshot = sandbox.snapshot().await?;
    check_eq!(snapshot.backend(), cx.backend().name(), "the backend that a snapshot names");
    write_small(&sandbox, "made", "after").await?;
    for _ in 0..2 {
        let restored = cx.keep(cx.backend().restore(snapshot.clone(), cx.spec().label("n", "2").build()?).await?);
        check!(restored.id() != sandbox.id(), "the restored sandbox has the id of the first");
        check_eq!(restored.spec().labels().get("n").map(String::as_str), Some("2"), "a label of the new spec");
        check_eq!(text(&read_small(&restored, "made").await?), "before", "the restored file");
        write_small(&restored, "made", "changed").await?;
        let done = cx.exec_ok(&restored, P::ReadFile { path: "made".into() }).await?;
        check_eq!(text(&done.stdout), "changed", "the file as the restored guest reads it");
    }
    check_eq!(text(&read_small(&sandbox, "made").await?), "after", "the first sandbox's file");
    sandbox.close().await?;
    let restored = cx.keep(cx.backend().restore(snapshot, cx.spec().build()?).await?);
    check_eq!(text(&read_small(&restored, "made").await?), "before", "the file restored after the first was closed");
    Ok(())
}

pub(super) async fn of_another_backend(cx: Context) -> Verdict {
    for name in ["another-backend", cx.backend().name()] {
        let restored = cx.backend().restore(Snapshot::new(name, "not its own"), cx.spec().build()?).await;
        let restored = restored.map(|sandbox| cx.keep(sandbox));
        expect_error(restored, &[ErrorKind::InvalidInput], "restoring a snapshot of another backend")?;
    }
    Ok(())
}

pub(super) async fn of_another_tenant(cx: Context) -> Verdict {
    let (owner, other) = (TenantId::new("snapshot-owner")?, TenantId::new("snapshot-other")?);
    let of_owner = cx.spec().tenant(owner).build()?;
    let sandbox = cx.sandbox_of(of_owner.clone()).await?;
    let snapshot = sandbox.snapshot().await?;
    sandbox.close().await?;
    let restored = cx.backend().restore(snapshot.clone(), cx.spec().tenant(other).build()?).await;
    let restored = restored.map(|sandbox| cx.keep(sandbox));
    expect_error(restored, &[ErrorKind::Denied], "restoring a snapshot of another tenant")?;
    let restored = cx.keep(cx.backend().restore(snapshot, of_owner).await?);
    cx.exec_ok(&restored, P::Succeed).await?;
    Ok(())
}

pub(super) async fn forks_are_independent(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "file", "common").await?;
    let fork = cx.keep(sandbox.fork().await?);
    check!(fork.id() != sandbox.id(), "a fork has the id of its origin");
    check_eq!(text(&read_small(&fork, "file").await?), "common", "the file in the fork");
    write_small(&fork, "file", "fork").await?;
    write_small(&sandbox, "new", "origin").await?;
    check_eq!(text(&read_small(&sandbox, "file").await?), "common", "the origin's file after the fork wrote");
    expect_error(fork.read_file(&path("new")?).await, &[ErrorKind::NotFound], "reading the origin's new file")?;
    sandbox.close().await?;
    cx.exec_ok(&fork, P::Succeed).await?;
    check_eq!(text(&read_small(&fork, "file").await?), "fork", "the fork's file after the origin was closed");
    Ok(())
}
