//! Cases: output.

use cofferdam_contract::{ByteSize, OutputEvent, Stdin};
use tokio::io::AsyncWriteExt;

use crate::GuestProgram as P;
use crate::case::{Context, Stop, Verdict, check, check_eq, read_all, text, wait_for};

pub(super) async fn binary(cx: Context) -> Verdict {
    let done = cx.run(P::PrintAllBytes).await?;
    let expected: Vec<u8> = (0..=255).collect();
    check_eq!(done.stdout, expected, "the 256 byte values");
    Ok(())
}

pub(super) async fn order_within_each_stream(cx: Context) -> Verdict {
    let count = 2000;
    let done = cx.run(P::PrintNumbered { count }).await?;
    for (output, letter) in [(&done.stdout, 'o'), (&done.stderr, 'e')] {
        let expected: String = (1..=count).map(|number| format!("{letter}{number}\n")).collect();
        check!(text(output) == expected, "the lines of stream {letter} are not 1 to {count} in order");
    }
    Ok(())
}

pub(super) async fn truncated_exactly(cx: Context) -> Verdict {
    let (total, limit) = (4 << 20, 1000);
    let request = cx.request(&P::PrintRepeated { line: "0123456789".into(), total })?;
    let done = cx.run_request(request.max_output(ByteSize::from_bytes(limit))).await?;
    check_eq!(done.stdout.len() as u64, limit, "bytes forwarded");
    check!(done.exit.truncated, "truncated is false");
    check_eq!(done.exit.code, 0, "the code of a program that must not have been blocked");
    check_eq!(done.exit.usage.output_bytes, total, "bytes written by the program");
    check!(text(&done.stdout).starts_with("0123456789\n0123"), "the beginning must be kept: {:?}", text(&done.stdout));
    Ok(())
}

pub(super) async fn not_truncated_at_the_limit(cx: Context) -> Verdict {
    let request = cx.request(&P::PrintRepeated { line: "abc".into(), total: 5000 })?;
    let done = cx.run_request(request.max_output(ByteSize::from_bytes(5000))).await?;
    check_eq!(done.stdout.len(), 5000, "bytes forwarded");
    check!(!done.exit.truncated, "output of exactly the limit was reported as truncated");
    Ok(())
}

pub(super) async fn truncation_counts_both_streams(cx: Context) -> Verdict {
    let request = cx.request(&P::PrintNumbered { count: 500 })?;
    let done = cx.run_request(request.max_output(ByteSize::from_bytes(700))).await?;
    check_eq!(done.stdout.len() + done.stderr.len(), 700, "bytes forwarded");
    check!(done.exit.truncated, "truncated is false");
    Ok(())
}

pub(super) async fn live(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let program = P::PrintAroundInput { before: "before".into(), after: "after".into() };
    let handle = sandbox.start(cx.request(&program)?.stdin(Stdin::Stream).build()?).await?;
    let mut output = handle.output();
    wait_for(&mut output, "before").await?;
    check!(handle.try_exit().is_none(), "the program has ended, although it waits for input");
    let mut stdin = handle.stdin().ok_or_else(|| Stop::fail("no stdin"))?;
    stdin.write_all(b"\n").await?;
    check_eq!(text(&read_all(&mut output).await.0), "after", "output after the input");
    check_eq!(handle.exit().await?.code, 0, "code");
    Ok(())
}

pub(super) async fn late_subscriber(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let program = P::PrintAroundInput { before: "before".into(), after: "after".into() };
    let handle = sandbox.start(cx.request(&program)?.stdin(Stdin::Stream).build()?).await?;
    let mut first = handle.output();
    wait_for(&mut first, "before").await?;
    let mut late = handle.output();
    let mut stdin = handle.stdin().ok_or_else(|| Stop::fail("no stdin"))?;
    stdin.write_all(b"\n").await?;
    check_eq!(text(&read_all(&mut late).await.0), "after", "output of the late subscriber");
    check_eq!(text(&read_all(&mut first).await.0), "after", "later output of the first subscriber");
    let (rest, lost) = read_all(&mut handle.output()).await;
    check!(rest.is_empty() && lost == 0, "a subscriber after the end got {} bytes, {lost} lost", rest.len());
    Ok(())
}

pub(super) async fn slow_subscriber(cx: Context) -> Verdict {
    let (total, buffer) = (4u64 << 20, 64 << 10);
    let request = cx.request(&P::PrintRepeated { line: "slow".into(), total })?;
    let request = request.max_output(ByteSize::from_bytes(total)).output_buffer(ByteSize::from_bytes(buffer));
    let handle = cx.sandbox().await?.start(request.build()?).await?;
    let (mut slow, mut other) = (handle.output(), handle.output());
    // The slow subscriber reads nothing until the program has ended, which must not block the program.
    let (seen, lost) = read_all(&mut other).await;
    let exit = handle.exit().await?;
    check_eq!(exit.code, 0, "code");
    check!(!exit.truncated, "a slow subscriber must not cause truncation");
    check!(seen.len() as u64 + lost <= total, "the other subscriber received more than was written");
    let event = slow.next().await;
    check!(
        matches!(event, Some(OutputEvent::Lost { .. })),
        "the loss was not reported to the slow subscriber: {event:?}"
    );
    let Some(OutputEvent::Lost { bytes, chunks }) = event else { return Ok(()) };
    let (rest, lost_later) = read_all(&mut slow).await;
    check!(chunks > 0 && lost_later == 0, "{chunks} chunks lost, then {lost_later} bytes after the end");
    check_eq!(bytes + rest.len() as u64, total, "bytes lost and bytes read together");
    // One chunk may be larger than the buffer.
    check!(rest.len() as u64 <= buffer.max(1 << 20), "{} bytes were kept, in a buffer of {buffer}", rest.len());
    Ok(())
}
