//! Cases: terminals.

use cofferdam_contract::{ErrorKind, ExecHandle, Sandbox, Stdin, TerminalSize};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, expect_error, wait_for};

const SIGINT: i32 = 2;

async fn start(cx: &Context, sandbox: &Arc<dyn Sandbox>, program: P) -> Outcome<ExecHandle> {
    let request = cx.request(&program)?.terminal(TerminalSize { rows: 30, columns: 100 }).stdin(Stdin::Stream);
    Ok(sandbox.start(request.build()?).await?)
}

pub(super) async fn is_one_of_the_size_asked(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = start(&cx, &sandbox, P::WatchTerminal).await?;
    wait_for(&mut handle.output(), "tty 30 100").await.map(drop)
}

pub(super) async fn resize(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = start(&cx, &sandbox, P::WatchTerminal).await?;
    let mut output = handle.output();
    wait_for(&mut output, "tty 30 100").await?;
    handle.resize(TerminalSize { rows: 41, columns: 133 })?;
    wait_for(&mut output, "tty 41 133").await.map(drop)
}

pub(super) async fn control_c_interrupts(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = start(&cx, &sandbox, P::SleepForever).await?;
    wait_for(&mut handle.output(), "ready").await?;
    let mut stdin = handle.stdin().ok_or_else(|| Stop::fail("no stdin"))?;
    stdin.write_all(b"\x03").await?;
    stdin.flush().await?;
    let exit = handle.exit().await?;
    check_eq!(exit.signal, Some(SIGINT), "signal");
    check!(!exit.cancelled && !exit.timed_out, "the terminal ended it: {exit:?}");
    Ok(())
}

pub(super) async fn none_unless_asked(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = sandbox.start(cx.request(&P::WatchTerminal)?.build()?).await?;
    wait_for(&mut handle.output(), "no tty").await?;
    let resized = handle.resize(TerminalSize { rows: 1, columns: 1 });
    expect_error(resized, &[ErrorKind::Unsupported], "resizing without a terminal")
}
