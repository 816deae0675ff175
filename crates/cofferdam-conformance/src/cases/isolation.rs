//! Cases: isolation of sandboxes and execs from each other and from the host.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ErrorKind, Sandbox};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::GuestProgram as P;
use crate::case::{Context, Verdict, check, check_eq, expect_error, path, read_small, stdin_bytes, text, write_small};

const MANY: u8 = 8;

/// Runs execs concurrently, each with input, output and code of its own.
async fn run_many(cx: &Context, sandboxes: Vec<Arc<dyn Sandbox>>) -> Verdict {
    let mut running = JoinSet::new();
    for (number, sandbox) in (1u8..).zip(sandboxes) {
        let input = format!("input of {number}\n").repeat(100);
        let request = cx.request(&P::CopyInput { code: number })?.stdin(stdin_bytes(input.clone())).build()?;
        running.spawn(async move { (number, input, sandbox.exec(request).await) });
    }
    let mut codes = BTreeSet::new();
    while let Some(joined) = running.join_next().await {
        let (number, input, done) = joined.map_err(std::io::Error::other)?;
        let done = done?;
        check_eq!(done.exit.code, i32::from(number), "the code of a concurrent exec");
        check!(text(&done.stdout) == input, "exec {number} printed {:?}", text(&done.stdout));
        check_eq!(text(&done.stderr), "", "stderr of a concurrent exec");
        codes.insert(number);
    }
    check_eq!(codes.len(), usize::from(MANY), "execs that ended");
    Ok(())
}

pub(super) async fn concurrent_sandboxes(cx: Context) -> Verdict {
    let mut making = JoinSet::new();
    for _ in 0..MANY {
        let cx = cx.clone();
        making.spawn(async move { cx.sandbox().await });
    }
    let mut sandboxes = Vec::new();
    while let Some(created) = making.join_next().await {
        sandboxes.push(created.map_err(std::io::Error::other)??);
    }
    run_many(&cx, sandboxes).await
}

pub(super) async fn concurrent_execs(cx: Context) -> Verdict {
    let sandbox = cx.sandbox_of(cx.limited(|limits| limits.pids = Some(100))?).await?;
    run_many(&cx, vec![sandbox; usize::from(MANY)]).await
}

pub(super) async fn private_workspaces(cx: Context) -> Verdict {
    let (one, other) = (cx.sandbox().await?, cx.sandbox().await?);
    write_small(&one, "file", "one").await?;
    expect_error(other.read_file(&path("file")?).await, &[ErrorKind::NotFound], "reading another sandbox's file")?;
    write_small(&other, "file", "other").await?;
    check_eq!(text(&read_small(&one, "file").await?), "one", "the first sandbox's file");
    Ok(())
}

pub(super) async fn host_files_are_out_of_reach(cx: Context) -> Verdict {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(b"host-secret")?;
    let name = file.path().display().to_string();
    let done = cx.run(P::ReadFile { path: name.clone() }).await?;
    check!(!text(&done.stdout).contains("host-secret"), "the guest read the host's {name}");
    check!(done.exit.code != 0, "reading the host's {name} succeeded");
    let done = cx.run(P::WriteFile { path: name.clone(), contents: "changed".into() }).await?;
    check_eq!(
        std::fs::read_to_string(file.path())?,
        "host-secret",
        "the host's file after the guest wrote to its path"
    );
    drop(done);
    Ok(())
}

pub(super) async fn no_network(cx: Context) -> Verdict {
    // Checked first, so that no listener is opened if guests cannot connect at all.
    let _ = cx.request(&P::Connect { host: "127.0.0.1".into(), port: 1 })?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let done = cx.run(P::Connect { host: "127.0.0.1".into(), port }).await?;
    check_eq!(text(&done.stdout), "refused\n", "connecting to a listener of the host");
    let seen = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
    check!(seen.is_err(), "a connection of the guest reached the host");
    Ok(())
}
