//! Cases: standard input.

use cofferdam_contract::{ByteSize, Stdin};
use tokio::io::AsyncWriteExt;

use crate::GuestProgram as P;
use crate::case::{Context, Stop, Verdict, check, check_eq, read_all, stdin_bytes, text, wait_for};
use crate::pattern;

pub(super) async fn empty_is_end_of_file(cx: Context) -> Verdict {
    let done = cx.run(P::CountInput).await?;
    check_eq!(done.stdout, "0\n", "bytes counted");
    check_eq!(done.exit.code, 0, "code");
    Ok(())
}

pub(super) async fn bytes_then_end_of_file(cx: Context) -> Verdict {
    let all: Vec<u8> = (0..=255).collect();
    let request = cx.request(&P::CopyInput { code: 5 })?.stdin(stdin_bytes(all.clone()));
    let done = cx.run_request(request).await?;
    check_eq!(done.stdout, all, "the 256 byte values through the guest");
    check_eq!(done.exit.code, 5, "code after end-of-file");
    Ok(())
}

pub(super) async fn one_mebibyte_through(cx: Context) -> Verdict {
    let data = pattern::bytes(1 << 20);
    let request = cx.request(&P::CopyInput { code: 0 })?.stdin(stdin_bytes(data.clone()));
    let done = cx.run_request(request.max_output(ByteSize::from_mebibytes(2))).await?;
    check_eq!(done.stdout.len(), data.len(), "bytes through the guest");
    check!(done.stdout == data, "the bytes came back changed");
    let done = cx.run_request(cx.request(&P::CountInput)?.stdin(stdin_bytes(data))).await?;
    check_eq!(done.stdout, "1048576\n", "bytes counted");
    Ok(())
}

pub(super) async fn stream_with_end_of_file(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = sandbox.start(cx.request(&P::CopyInput { code: 0 })?.stdin(Stdin::Stream).build()?).await?;
    let mut stdin = handle.stdin().ok_or_else(|| Stop::fail("a streaming request has no stdin"))?;
    check!(handle.stdin().is_none(), "stdin can be taken twice");
    let mut output = handle.output();
    stdin.write_all(b"one").await?;
    stdin.flush().await?;
    wait_for(&mut output, "one").await?;
    stdin.write_all(b"two").await?;
    stdin.close().await?;
    check_eq!(text(&read_all(&mut output).await.0), "two", "output after the second part");
    check_eq!(handle.exit().await?.code, 0, "code");
    Ok(())
}

pub(super) async fn dropping_the_writer_is_end_of_file(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = sandbox.start(cx.request(&P::CountInput)?.stdin(Stdin::Stream).build()?).await?;
    let mut stdin = handle.stdin().ok_or_else(|| Stop::fail("a streaming request has no stdin"))?;
    stdin.write_all(b"12345").await?;
    stdin.flush().await?;
    drop(stdin);
    check_eq!(text(&read_all(&mut handle.output()).await.0), "5\n", "bytes counted");
    Ok(())
}

pub(super) async fn unread_input_blocks_nothing(cx: Context) -> Verdict {
    let request = cx.request(&P::Print { stdout: "done".into(), stderr: String::new() })?;
    let done = cx.run_request(request.stdin(stdin_bytes(vec![b'x'; 1 << 20]))).await?;
    check_eq!(done.stdout, "done", "output");
    check_eq!(done.exit.code, 0, "code");
    Ok(())
}
