//! Cases: the life of a sandbox from create to close.

use cofferdam_contract::{Capability, ErrorKind, ExecRequest, Limits, RootFs, Spec, TenantId, Workspace, collect};

use crate::GuestProgram as P;
use crate::case::{Context, Verdict, check, check_eq, expect_error, path, text, write_small};

pub(super) async fn close_is_idempotent(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    cx.exec_ok(&sandbox, P::Succeed).await?;
    let (one, other) = tokio::join!(sandbox.close(), sandbox.close());
    one?;
    other?;
    sandbox.close().await?;
    Ok(())
}

pub(super) async fn closed_answers_closed(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    if cx.declares(Capability::Files) {
        write_small(&sandbox, "file", "x").await?;
    }
    sandbox.close().await?;
    let closed = [ErrorKind::Closed];
    expect_error(sandbox.start(cx.request(&P::Succeed)?.build()?).await, &closed, "start after close")?;
    if cx.declares(Capability::Files) {
        let file = path("file")?;
        expect_error(sandbox.read_file(&file).await, &closed, "read_file after close")?;
        expect_error(sandbox.write_bytes(&file, "y").await, &closed, "write_file after close")?;
        expect_error(sandbox.list_dir(&path("")?).await, &closed, "list_dir after close")?;
        expect_error(sandbox.rename(&file, &path("new")?).await, &closed, "rename after close")?;
        expect_error(sandbox.remove(&file).await, &closed, "remove after close")?;
    }
    if cx.declares(Capability::Snapshot) {
        expect_error(sandbox.snapshot().await, &closed, "snapshot after close")?;
    }
    if cx.declares(Capability::Fork) {
        expect_error(sandbox.fork().await, &closed, "fork after close")?;
    }
    match sandbox.usage().await {
        Ok(usage) => check!(usage.processes.unwrap_or(0) == 0, "a closed sandbox has processes: {usage:?}"),
        Err(error) => check_eq!(error.kind(), ErrorKind::Closed, "usage after close"),
    }
    Ok(())
}

pub(super) async fn close_ends_execs(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::IgnoreTermAndSleep).await?;
    sandbox.close().await?;
    match handle.exit().await {
        Ok(exit) => check!(exit.cancelled && !exit.success(), "an exec ended by close is not cancelled: {exit:?}"),
        Err(error) => check_eq!(error.kind(), ErrorKind::Closed, "the exit of an exec that close ended"),
    }
    Ok(())
}

pub(super) async fn one_shot(cx: Context) -> Verdict {
    let program = P::Print { stdout: "once".into(), stderr: String::new() };
    let request = cx.request(&program)?.build()?;
    let (done, posture) = cx.backend().run(cx.spec().build()?, request).await?;
    check_eq!(text(&done.stdout), "once", "output");
    check_eq!(done.exit.code, 0, "code");
    check!(!posture.items().is_empty(), "the posture is empty");
    Ok(())
}

pub(super) async fn single_command(cx: Context) -> Verdict {
    let spec = cx.spec().build()?;
    let program = P::Print { stdout: "single".into(), stderr: String::new() };
    // More than once, because a backend may handle the first one differently.
    for _ in 0..3 {
        let (sandbox, handle) = cx.backend().start_one(spec.clone(), cx.request(&program)?.build()?).await?;
        let done = collect(handle).await?;
        check_eq!(text(&done.stdout), "single", "output");
        check_eq!(done.exit.code, 0, "code");
        check!(!sandbox.posture().items().is_empty(), "the posture is empty");
        check_eq!(sandbox.spec(), &spec, "spec");
        sandbox.close().await?;
    }
    let (sandbox, handle) = cx.backend().start_one(spec.clone(), cx.request(&P::IgnoreTermAndSleep)?.build()?).await?;
    sandbox.close().await?;
    match handle.exit().await {
        Ok(exit) => check!(exit.cancelled && !exit.success(), "an exec ended by close is not cancelled: {exit:?}"),
        Err(error) => check_eq!(error.kind(), ErrorKind::Closed, "the exit of an exec that close ended"),
    }
    let missing = ExecRequest::argv(["/no/such/program"]).build()?;
    let ordinary = cx.sandbox_of(spec.clone()).await?.start(missing.clone()).await.err().map(|error| error.kind());
    let single = cx.backend().start_one(spec, missing).await.err().map(|error| error.kind());
    check_eq!(single, ordinary, "the refusal of a program that does not exist");
    Ok(())
}

pub(super) async fn execs_in_sequence(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "kept".into(), contents: "from before".into() }).await?;
    for code in [1, 2, 3] {
        check_eq!(cx.exec(&sandbox, P::Exit(code)).await?.exit.code, i32::from(code), "code");
    }
    let done = cx.exec_ok(&sandbox, P::ReadFile { path: "kept".into() }).await?;
    check_eq!(text(&done.stdout), "from before", "a file of an earlier exec");
    Ok(())
}

pub(super) async fn ids_are_unique(cx: Context) -> Verdict {
    let (one, other) = (cx.sandbox().await?, cx.sandbox().await?);
    check!(one.id() != other.id(), "two sandboxes have the id {}", one.id());
    check!(!one.id().as_str().is_empty(), "an empty id");
    if cx.declares(Capability::MultipleExecs) {
        let first = one.start(cx.request(&P::Succeed)?.build()?).await?;
        let second = one.start(cx.request(&P::Succeed)?.build()?).await?;
        check!(first.id() != second.id(), "two execs have the id {}", first.id());
    }
    Ok(())
}

pub(super) async fn spec_is_kept(cx: Context) -> Verdict {
    let spec = cx.spec().tenant(TenantId::new("acme-7")?).label("job", "42").label("empty", "").build()?;
    let sandbox = cx.sandbox_of(spec.clone()).await?;
    check_eq!(sandbox.spec().tenant().as_str(), "acme-7", "tenant");
    check_eq!(sandbox.spec().labels(), spec.labels(), "labels");
    check_eq!(sandbox.spec(), &spec, "spec");
    Ok(())
}

pub(super) async fn invalid_spec(cx: Context) -> Verdict {
    let bad_limits = r#"{"limits":{"memory":1}}"#;
    let relative = r#"{"workspace":{"kind":"host-dir","path":"relative"}}"#;
    for json in [bad_limits, relative] {
        let spec: Spec = serde_json::from_str(json).map_err(std::io::Error::other)?;
        let created = cx.backend().create(spec).await.map(|sandbox| cx.keep(sandbox));
        expect_error(created, &[ErrorKind::InvalidInput], &format!("creating from {json}"))?;
    }
    Ok(())
}

pub(super) async fn invalid_request(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    for json in [r#"{"command":{"argv":[]}}"#, r#"{"command":{"argv":["a\u0000b"]}}"#, r#"{"command":{"shell":""}}"#] {
        let request: ExecRequest = serde_json::from_str(json).map_err(std::io::Error::other)?;
        expect_error(sandbox.start(request).await, &[ErrorKind::InvalidInput], &format!("starting {json}"))?;
    }
    Ok(())
}

pub(super) async fn unknown_attribute(cx: Context) -> Verdict {
    let own = format!("{}.no-such-option", cx.backend().name());
    let created = cx.backend().create(cx.spec().attribute(own.clone(), true).build()?).await;
    let created = created.map(|sandbox| cx.keep(sandbox));
    expect_error(created, &[ErrorKind::InvalidInput, ErrorKind::Unsupported], &format!("creating with {own}"))?;
    let elsewhere = cx.spec().attribute("another-backend.option", 1).limits(Limits::default());
    cx.sandbox_of(elsewhere.workspace(Workspace::default()).build()?).await.map(drop)
}

pub(super) async fn root_directory(cx: Context) -> Verdict {
    let root = RootFs::Directory { path: cx.root()?.to_owned() };
    let sandbox = cx.sandbox_of(cx.spec().root(root.clone()).build()?).await?;
    let program = P::Print { stdout: "there".into(), stderr: String::new() };
    check_eq!(text(&cx.exec_ok(&sandbox, program).await?.stdout), "there", "output of a program in another root");
    let write = P::WriteFile { path: "/cofferdam-case".into(), contents: "x".into() };
    let request = cx.request(&write)?.build()?;
    let exit = cx.sandbox_of(cx.spec().root(root).build()?).await?.exec(request).await?.exit;
    check!(exit.code != 0, "the guest created a file in another root, which must be read-only");
    Ok(())
}

pub(super) async fn root_directory_missing(cx: Context) -> Verdict {
    let root = RootFs::Directory { path: "/nowhere/no-such-root".into() };
    let created = cx.backend().create(cx.spec().root(root).build()?).await.map(|sandbox| cx.keep(sandbox));
    expect_error(created, &[ErrorKind::NotFound, ErrorKind::InvalidInput], "creating in a root that does not exist")
}
