//! Execs: cuts of their streams, lost exits, dropped handles, and times.

use std::time::Duration;

use cofferdam_contract::{ByteSize, ErrorKind, ExecRequest, SandboxPath};

use crate::server::{Fault, LocalE2b};
use crate::support::{backend, create, eventually, spec};
use cofferdam_contract::Backend;

/// Promise (E2B): A cut stream is followed again by its process, and the exit says that output may be missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_stream_is_reconnected_and_reports_truncated_output() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 7";
    let handle = sandbox.start(ExecRequest::shell(script).build().unwrap()).await.expect("started");
    let cutting = async {
        let mut cuts = 0;
        while handle.try_exit().is_none() {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cuts += server.cut();
        }
        cuts
    };
    let (completed, cuts) = tokio::join!(cofferdam_contract::collect(&handle), cutting);
    let completed = completed.expect("it ends");
    assert!(cuts >= 3, "{cuts}");
    assert_eq!(completed.exit.code, 7);
    assert!(completed.exit.truncated, "output may be missing, and the exit does not say so");
    // The output is in order and has complete lines of the program, and its end is there.
    let lines: Vec<&[u8]> = completed.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let numbers: Vec<u32> = lines
        .iter()
        .map(|line| std::str::from_utf8(line).unwrap().strip_prefix("line ").unwrap().parse().unwrap())
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    sandbox.close().await.expect("closed");
    server.stop().await;
}

/// Promise (E2B): An exit that the agent has forgotten is an error, and never a guess.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_unknown_to_the_agent_is_an_error() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let handle = sandbox.start(ExecRequest::shell("sleep 1").build().unwrap()).await.expect("started");
    // The connections fail until the program has ended and is forgotten.
    for _ in 0..12 {
        server.state.faults.add("/process.Process/Connect", Fault::Status(503, "not now"));
    }
    server.cut();
    eventually(async || server.running() == 0).await;
    server.forget_ended();
    let error = handle.exit().await.expect_err("unknown");
    assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("unknown"), "{error}");
    sandbox.close().await.expect("closed");
    server.stop().await;
}

/// Promise (E2B): Ending an exec also ends its processes that changed the limits by which they are found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_changed_limits_end_with_their_exec() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let script = "exec tail -f /dev/null";
    let other = sandbox.start(ExecRequest::shell(script).build().unwrap()).await.expect("started");
    let script = "locks=$(ulimit -Hx)
(ulimit -x 5; exec sleep 1000) &
(ulimit -x 0; ulimit -m 0; exec sleep 1001) &
(ulimit -x $((locks - 1)); exec sleep 1002) &
(ulimit -S -x 5; exec setsid sleep 1003) &
(ulimit -m 5; exec sleep 1004) &
exec sleep 1005";
    let handle = sandbox.start(ExecRequest::argv(["bash", "-c", script]).build().unwrap()).await.expect("started");
    // Exits with the number of running programs of this name.
    let count = async |name: &str| {
        let line = format!("grep -lsx {name} /proc/[0-9]*/comm | wc -l");
        let counted = sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.expect("counted");
        String::from_utf8_lossy(&counted.stdout).trim().parse::<u32>().expect("a number")
    };
    eventually(async || count("sleep").await == 6).await;
    let exit = handle.close().await;
    assert!(exit.is_ok(), "{exit:?}");
    eventually(async || count("sleep").await == 0).await;
    assert_eq!(count("tail").await, 1, "another exec was ended");
    drop(other);
    sandbox.close().await.expect("closed");
    server.stop().await;
}

/// Promise (E2B): Dropped handles and sandboxes end at E2B.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_handles_and_sandboxes_end_at_e2b() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let handle = sandbox.start(ExecRequest::argv(["sleep", "1000"]).build().unwrap()).await.expect("started");
    assert_eq!(server.running(), 1);
    drop(handle);
    eventually(async || server.running() == 0).await;
    // A start that is given up leaves no process.
    let start = sandbox.start(ExecRequest::argv(["sleep", "1000"]).build().unwrap());
    let given_up = tokio::time::timeout(Duration::from_millis(2), start).await;
    assert!(given_up.is_err() || given_up.is_ok_and(|started| started.is_ok()));
    eventually(async || server.running() == 0).await;
    // A create that is given up leaves no sandbox.
    let given_up = tokio::time::timeout(Duration::from_millis(1), backend(&server).create(spec())).await;
    assert!(given_up.is_err() || given_up.is_ok_and(|created| created.is_ok()));
    drop(sandbox);
    eventually(async || server.living().is_empty()).await;
    server.stop().await;
}

/// Promise (E2B): A sandbox that E2B has ended is reported as closed, and so are its execs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_ended_by_e2b_is_closed() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let handle = sandbox.start(ExecRequest::argv(["sleep", "1000"]).build().unwrap()).await.expect("started");
    server.expire(sandbox.id().as_str()).await;
    let error = handle.exit().await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let name = SandboxPath::new("file").unwrap();
    let refused = sandbox.write_bytes(&name, "x").await.expect_err("gone");
    assert!(refused.kind() == ErrorKind::Closed && refused.remedy().is_some(), "{refused}");
    sandbox.close().await.expect("nothing is left to close");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_output_and_input_are_complete() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let size = 3 << 20;
    let contents: Vec<u8> = (0..size).map(|number: u32| (number % 251) as u8).collect();
    let request = ExecRequest::argv(["cat"])
        .stdin(cofferdam_contract::Stdin::Bytes(contents.clone().into()))
        .max_output(ByteSize::from_mebibytes(8))
        .build();
    let done = sandbox.exec(request.unwrap()).await.expect("it runs");
    assert!(done.exit.success() && done.stdout == contents, "{:?}, {} bytes", done.exit, done.stdout.len());
    assert!(!done.exit.truncated);
    sandbox.close().await.expect("closed");
    server.stop().await;
}
