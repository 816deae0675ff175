//! Tests of the host with peers that are not agents. All their frames result in a prompt error and use bounded memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Command, Error, ErrorKind, ExecRequest, Exit, LimitKind, Limits, SandboxPath, Script};
use cofferdam_guest::{Guest, Meter, ReadCpu, Settings};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::enclosure::LONG;

/// Encodes a frame.
pub fn frame(kind: u8, id: u64, body: &[u8]) -> Vec<u8> {
    [&(9 + body.len() as u32).to_le_bytes()[..], &[kind], &id.to_le_bytes(), body].concat()
}

const HELLO: u8 = 1;
pub const DONE: u8 = 2;
const PROBED: u8 = 3;
const STARTED: u8 = 4;
const OUTPUT: u8 = 6;
const ENDED: u8 = 7;
const CREDIT: u8 = 8;
const OPENED: u8 = 10;
const DATA: u8 = 11;
const ENTRIES: u8 = 12;
const COUNTED: u8 = 13;
const PONG: u8 = 14;
const QUERY: u8 = 17;
const CONNECTED: u8 = 18;
const DATA_END: u8 = 19;
const NUMBERS: [u8; 64] = [0xff; 64];

/// Reads the next request. Returns its kind and id.
pub async fn request(stream: &mut DuplexStream) -> Option<(u8, u64)> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.ok()?;
    let mut rest = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut rest).await.ok()?;
    Some((rest[0], u64::from_le_bytes(rest[1..9].try_into().unwrap())))
}

/// Behaves like an agent until the guest is connected. Returns the stream and the kind and id of the next request:
/// Start, Read, Write, List or Count.
async fn behave(mut stream: DuplexStream) -> Option<(DuplexStream, u8, u64)> {
    loop {
        let (kind, id) = request(&mut stream).await?;
        let answer = match kind {
            1 => frame(
                HELLO,
                id,
                &[&0x4346_4744u32.to_le_bytes()[..], &cofferdam_guest::PROTOCOL.to_le_bytes(), &1u32.to_le_bytes()]
                    .concat(),
            ),
            2 => frame(DONE, id, &[0; 8]),
            3 => frame(PROBED, id, &[&38i32.to_le_bytes()[..], &[0; 8]].concat()),
            21 => frame(PONG, 0, b""),
            kind => return Some((stream, kind, id)),
        };
        stream.write_all(&answer).await.ok()?;
    }
}

fn settings() -> Settings {
    Settings { answer_timeout: Duration::from_secs(3), ..Settings::default() }
}

pub async fn connected() -> (Guest, tokio::task::JoinHandle<Option<(DuplexStream, u8, u64)>>) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let peer = tokio::spawn(behave(theirs));
    let (reader, writer) = tokio::io::split(ours);
    let (guest, _) = Guest::connect(reader, writer, settings(), Instant::now() + LONG).await.unwrap();
    (guest, peer)
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Start,
    Read,
    Write,
    List,
    Usage,
    Connect,
    Accept,
}

async fn ask(guest: &Guest, what: Operation) -> Result<(), Error> {
    let path = SandboxPath::new("file").unwrap();
    match what {
        Operation::Start => {
            let request = ExecRequest::argv(["true"]).build().unwrap();
            let handle = guest.start(&request, &Limits::default()).await?;
            handle.exit().await.map(drop)
        }
        Operation::Read => {
            let mut reader = guest.read_file(&path).await?;
            let read = reader.read_to_end(&mut Vec::new()).await;
            read.map(drop).map_err(|error| Error::new(ErrorKind::Closed, "read", error.to_string()))
        }
        Operation::Write => guest.write_file(&path, Box::new(tokio::io::repeat(0).take(10 << 20))).await.map(drop),
        Operation::List => guest.list_dir(&path).await.map(drop),
        Operation::Usage => guest.usage(&Limits::default()).await.map(drop),
        Operation::Connect => {
            let mut connection = guest.connect_to(80).await?;
            let closed = |error: std::io::Error| Error::new(ErrorKind::Closed, "read", error.to_string());
            connection.write_all(b"x").await.map_err(closed)?;
            connection.read_to_end(&mut Vec::new()).await.map(drop).map_err(closed)
        }
        Operation::Accept => guest.accept().await.map(drop),
    }
}

/// Carries out an operation, answers with these bytes, and keeps the stream open. Returns the result.
async fn result_of(
    what: Operation,
    answer: impl FnOnce(u64) -> Vec<u8> + Send + 'static,
) -> (Result<(), Error>, Guest) {
    let (guest, peer) = connected().await;
    let answering = tokio::spawn(async move {
        let (mut stream, _, id) = peer.await.unwrap()?;
        // The host may close the connection at any byte.
        let _ = stream.write_all(&answer(id)).await;
        let mut sink = tokio::io::sink();
        tokio::io::copy(&mut stream, &mut sink).await.ok()
    });
    let result = tokio::time::timeout(LONG, ask(&guest, what)).await.expect("the operation does not hang");
    answering.abort();
    (result, guest)
}

/// Promise (Containers): A message that no guest agent sends ends the connection.
#[tokio::test]
async fn invalid_answers_end_the_connection() {
    let many = |frame: Vec<u8>, count: usize| frame.repeat(count);
    let started = |id| frame(STARTED, id, &NUMBERS);
    type Answer = Box<dyn FnOnce(u64) -> Vec<u8> + Send>;
    let cases: Vec<(&str, Operation, Answer)> = vec![
        ("a giant length", Operation::Usage, Box::new(|_| vec![0xff; 64])),
        ("a length of nothing", Operation::Usage, Box::new(|_| vec![0; 64])),
        ("an unknown kind", Operation::Usage, Box::new(|id| frame(99, id, b"x"))),
        ("an id of the future", Operation::Usage, Box::new(|id| frame(DONE, id + 1, &[0; 8]))),
        ("an answer to nothing", Operation::Usage, Box::new(|_| frame(DONE, 0, &[0; 8]))),
        ("a body cut short", Operation::Usage, Box::new(|id| frame(COUNTED, id, &[0; 3]))),
        ("a body too long", Operation::Usage, Box::new(|id| frame(DONE, id, &[0; 9]))),
        ("another answer", Operation::Usage, Box::new(move |id| frame(OPENED, id, &[0; 12]))),
        ("output before the start", Operation::Start, Box::new(|id| frame(OUTPUT, id, b"\0x"))),
        ("two starts", Operation::Start, Box::new(move |id| many(started(id), 2))),
        ("an end before the start", Operation::Start, Box::new(|id| frame(ENDED, id, &[0; 84]))),
        ("empty output", Operation::Start, Box::new(move |id| [started(id), frame(OUTPUT, id, b"\0")].concat())),
        ("a third stream", Operation::Start, Box::new(move |id| [started(id), frame(OUTPUT, id, b"\x02x")].concat())),
        (
            "credit from nowhere",
            Operation::Start,
            Box::new(move |id| [started(id), frame(CREDIT, id, &[9, 0, 0, 0])].concat()),
        ),
        ("data before the file", Operation::Read, Box::new(|id| frame(DATA, id, b"x"))),
        ("two files", Operation::Read, Box::new(move |id| many(frame(OPENED, id, &[0; 12]), 2))),
        ("no data", Operation::Read, Box::new(|id| [frame(OPENED, id, &[0; 12]), frame(DATA, id, b"")].concat())),
        ("entries for a file", Operation::Read, Box::new(|id| frame(ENTRIES, id, b""))),
        ("much credit", Operation::Write, Box::new(|id| frame(CREDIT, id, &[0xff; 4]))),
        ("entries of nothing", Operation::List, Box::new(|id| frame(ENTRIES, id, &[0xff; 50]))),
        ("a name that leads out", Operation::List, Box::new(|id| frame(ENTRIES, id, &entry(b"../x")))),
        ("no name", Operation::List, Box::new(|id| frame(ENTRIES, id, &entry(b"")))),
        ("data before the connection", Operation::Connect, Box::new(|id| frame(DATA, id, b"x"))),
        ("two connections", Operation::Connect, Box::new(move |id| many(frame(CONNECTED, id, &[1; 6]), 2))),
        ("a query of a connection", Operation::Connect, Box::new(|id| frame(QUERY, id, &[0; 20]))),
        (
            "credit beyond the window",
            Operation::Connect,
            Box::new(|id| [frame(CONNECTED, id, &[1; 6]), frame(CREDIT, id, &[0xff; 4])].concat()),
        ),
        (
            "data after its end",
            Operation::Connect,
            Box::new(|id| [frame(CONNECTED, id, &[1; 6]), frame(DATA_END, id, b""), frame(DATA, id, b"x")].concat()),
        ),
        ("a connection cut short", Operation::Accept, Box::new(|id| frame(CONNECTED, id, &[1; 5]))),
        ("output of no program", Operation::Accept, Box::new(|id| frame(OUTPUT, id, b"\0x"))),
    ];
    for (what, operation, answer) in cases {
        let (result, guest) = result_of(operation, answer).await;
        let error = result.err().unwrap_or_else(|| panic!("{what} was accepted"));
        assert_eq!(error.kind(), ErrorKind::Closed, "{what}: {error}");
        assert!(!guest.is_alive(), "{what}");
        assert!(guest.closed().await.unwrap().why.contains("its agent sent"), "{what}");
    }
}

fn entry(name: &[u8]) -> Vec<u8> {
    [&[0; 36][..], &(name.len() as u32).to_le_bytes(), name, &[0; 4]].concat()
}

#[tokio::test]
async fn more_of_a_file_than_was_asked_for_ends_the_connection() {
    let (guest, peer) = connected().await;
    let flooding = tokio::spawn(async move {
        let (mut stream, _, id) = peer.await.unwrap().unwrap();
        stream.write_all(&frame(OPENED, id, &[0; 12])).await.unwrap();
        let mut sent = 0usize;
        while stream.write_all(&frame(DATA, id, &[7; 60 * 1024])).await.is_ok() {
            sent += 60 * 1024;
        }
        sent
    });
    // Without a reader, the host must not buffer more than the window.
    let reader = guest.read_file(&SandboxPath::new("file").unwrap()).await.unwrap();
    let sent = tokio::time::timeout(LONG, flooding).await.expect("the host closes the connection").unwrap();
    assert!(sent < 1 << 20, "{sent} bytes were accepted");
    assert!(!guest.is_alive());
    drop(reader);
}

/// Promise (Network): A guest agent that sends queries without end is closed.
#[tokio::test]
async fn queries_without_end_are_refused() {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let flooding = tokio::spawn(async move {
        let (mut stream, kind, listener) = behave(theirs).await.unwrap();
        assert_eq!(kind, 26, "it lets the agent listen");
        stream.write_all(&frame(DONE, listener, &[0; 8])).await.unwrap();
        let (mut stream, ..) = behave(stream).await.unwrap();
        let mut sent = 0;
        while stream.write_all(&frame(QUERY, listener, &[0; 500])).await.is_ok() {
            sent += 1;
        }
        sent
    });
    let (reader, writer) = tokio::io::split(ours);
    let settings = Settings { ports: Some(vec![80]), ..settings() };
    let (guest, _) = Guest::connect(reader, writer, settings, Instant::now() + LONG).await.unwrap();
    let error = tokio::time::timeout(LONG, ask(&guest, Operation::Usage)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(guest.closed().await.unwrap().why.contains("more queries than the host allows"));
    let sent = tokio::time::timeout(LONG, flooding).await.unwrap().unwrap();
    assert!(sent < 1000, "{sent} queries were accepted");
}

/// Promise (Network): A guest agent cannot make the host buffer more of a connection than its window.
#[tokio::test]
async fn more_of_a_connection_than_its_window_ends_everything() {
    let (guest, peer) = connected().await;
    let flooding = tokio::spawn(async move {
        let (mut stream, _, id) = peer.await.unwrap().unwrap();
        stream.write_all(&frame(CONNECTED, id, &[1; 6])).await.unwrap();
        let mut sent = 0usize;
        while stream.write_all(&frame(DATA, id, &[7; 60 * 1024])).await.is_ok() {
            sent += 60 * 1024;
        }
        sent
    });
    let connection = guest.connect_to(80).await.unwrap();
    let sent = tokio::time::timeout(LONG, flooding).await.expect("the host closes the connection").unwrap();
    assert!(sent < 1 << 20, "{sent} bytes were accepted");
    assert!(!guest.is_alive());
    drop(connection);
}

/// Writes to a connection until it fails. Returns the number of bytes that were accepted.
async fn fill(connection: &mut (impl AsyncWriteExt + Unpin)) -> usize {
    let mut sent = 0;
    while let Ok(count @ 1..) = connection.write(&[7; 60 * 1024]).await {
        sent += count;
    }
    sent
}

#[tokio::test]
async fn credit_of_a_peer_that_reads_nothing_ends_the_connection() {
    let (guest, peer) = connected().await;
    let crediting = tokio::spawn(async move {
        let (mut stream, _, id) = peer.await.unwrap().unwrap();
        stream.write_all(&frame(CONNECTED, id, &[1; 6])).await.unwrap();
        loop {
            // Meanwhile the host uses the credit.
            tokio::time::sleep(Duration::from_millis(20)).await;
            if stream.write_all(&frame(CREDIT, id, &(60u32 * 1024).to_le_bytes())).await.is_err() {
                return;
            }
        }
    });
    let mut connection = guest.connect_to(80).await.unwrap();
    let sent = tokio::time::timeout(LONG, fill(&mut connection)).await.expect("the host closes the connection");
    assert!(sent < 256 * 1024, "{sent} bytes were queued");
    assert!(guest.closed().await.unwrap().why.contains("credit for bytes that the host did not send"));
    tokio::time::timeout(LONG, crediting).await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_whose_bytes_are_not_read_count_as_open() {
    let (guest, peer) = connected().await;
    let mut connection = Box::pin(guest.connect_to(80));
    let (mut stream, _, first) = tokio::select! {
        peer = peer => peer.unwrap().unwrap(),
        _ = &mut connection => panic!("the peer did not answer"),
    };
    for id in first.. {
        let opened = [frame(CONNECTED, id, &[1; 6]), frame(DONE, id, &[0; 8])];
        stream.write_all(&opened[0]).await.unwrap();
        let mut open = connection.await.unwrap();
        open.write_all(&[7; 60 * 1024]).await.unwrap();
        stream.write_all(&opened[1]).await.unwrap();
        open.read_to_end(&mut Vec::new()).await.unwrap();
        drop(open);
        connection = Box::pin(guest.connect_to(80));
        // Sends the request, whose id is the next one.
        let sent = tokio::time::timeout(Duration::ZERO, &mut connection).await;
        if let Ok(result) = sent {
            let error = result.err().expect("the peer did not answer");
            // The frames of the first one fill the stream.
            assert_eq!((error.kind(), id - first), (ErrorKind::ResourceExhausted, 64), "{error}");
            return;
        }
    }
}

#[tokio::test]
async fn pong_without_a_written_ping_ends_the_connection() {
    let (guest, peer) = connected().await;
    let blind = tokio::spawn(async move {
        let (mut stream, ..) = peer.await.unwrap().unwrap();
        // By now a ping waits behind the contents.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        stream.write_all(&frame(PONG, 0, b"")).await.unwrap();
        tokio::time::sleep(LONG).await;
    });
    let contents = Box::new(tokio::io::repeat(0).take(64 << 20));
    let written = tokio::time::timeout(LONG, guest.write_file(&SandboxPath::new("file").unwrap(), contents)).await;
    assert!(written.expect("writing does not hang").is_err());
    assert!(guest.closed().await.unwrap().why.contains("an answer without a request"));
    blind.abort();
}

/// Promise (Containers): A directory listing without an end is cut off.
#[tokio::test]
async fn a_list_without_end_is_cut_off() {
    let many = entry(b"name").repeat(1000);
    let (result, guest) = result_of(Operation::List, move |id| frame(ENTRIES, id, &many).repeat(120)).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert!(guest.is_alive(), "a large directory is no violation of the protocol");
}

/// Promise (Containers): A guest agent that stays silent is an error of its own.
#[tokio::test]
async fn silence_is_an_error_of_its_own() {
    for what in
        [Operation::Usage, Operation::Start, Operation::Read, Operation::List, Operation::Write, Operation::Connect]
    {
        let (result, _) = result_of(what, |_| Vec::new()).await;
        let kind = result.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Closed), "{what:?}: {kind:?}");
    }
}

/// Connects to a peer that sends this answer to a start, and then nothing. The answer timeout is a minute.
async fn mute(answer: impl FnOnce(u64) -> Vec<u8> + Send + 'static) -> Guest {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        let (mut stream, _, id) = behave(theirs).await?;
        stream.write_all(&answer(id)).await.ok()?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok()
    });
    let (reader, writer) = tokio::io::split(ours);
    let settings = Settings { answer_timeout: LONG, ..Settings::default() };
    Guest::connect(reader, writer, settings, Instant::now() + LONG).await.unwrap().0
}

/// Runs an exec with that peer in less than the answer timeout.
async fn exit_of(guest: &Guest, request: ExecRequest, limits: &Limits) -> Exit {
    let running = async { guest.start(&request, limits).await?.exit().await };
    tokio::time::timeout(LONG / 2, running).await.expect("the exec does not wait for the agent").unwrap()
}

fn script() -> ExecRequest {
    let contents = Bytes::from_static(b"x");
    let script = Script { interpreter: vec!["sh".into()], name: "x".into(), contents, args: vec![] };
    ExecRequest::builder(Command::Script(script)).build().unwrap()
}

/// Promise (Limits): In containers and VMs, the timeout starts with the request, whatever the guest agent does.
#[tokio::test]
async fn timeout_counts_from_the_request_with_any_agent() {
    let limits = Limits { wall_time: Duration::from_secs(1), ..Limits::default() };
    let plain = || ExecRequest::argv(["true"]).build().unwrap();
    let started = |id| frame(STARTED, id, &[0xff; 64]);
    for (request, guest) in
        [(plain(), mute(|_| Vec::new()).await), (plain(), mute(started).await), (script(), mute(|_| Vec::new()).await)]
    {
        let exit = exit_of(&guest, request, &limits).await;
        assert!(exit.timed_out && exit.code == -1, "{exit:?}");
    }
}

/// Promise (Limits): In containers and VMs, the host enforces the CPU limit when the guest agent does not answer.
#[tokio::test]
async fn cpu_limit_holds_by_the_hosts_own_count_with_an_agent_that_does_not_answer() {
    let limits = Limits { cpu_time: Some(Duration::from_secs(1)), wall_time: LONG * 10, ..Limits::default() };
    for kind in [Meter::Same as fn(ReadCpu) -> Meter, Meter::Around] {
        let guest = mute(|id| frame(STARTED, id, &[0xff; 64])).await;
        let used = Arc::new(AtomicU64::new(0));
        // Each poll reads two seconds more.
        let read = move || used.fetch_add(2_000_000, Ordering::Relaxed);
        guest.set_meter(kind(Arc::new(move || {
            let read = read();
            Box::pin(async move { Some(read) })
        })));
        let exit = exit_of(&guest, ExecRequest::argv(["spin"]).build().unwrap(), &limits).await;
        assert_eq!(exit.killed_by, Some(LimitKind::Cpu), "{exit:?}");
    }
}

/// Connects to a peer that reports the end of an exec at once, with invented counts.
async fn inventor() -> Guest {
    let invented = (1u64 << 60).to_le_bytes();
    mute(move |id| {
        let ended = [&[0; 4][..], &invented.repeat(10)].concat();
        [frame(STARTED, id, &[0; 64]), frame(ENDED, id, &ended)].concat()
    })
    .await
}

#[tokio::test]
async fn invented_usage_is_capped_at_the_possible() {
    let limits = Limits::default();
    let request = || ExecRequest::argv(["true"]).build().unwrap();
    let guest = inventor().await;
    let begun = Instant::now();
    let exit = exit_of(&guest, request(), &limits).await;
    // The peer reports no number of processors, which counts as one.
    assert!(exit.usage.cpu_seconds <= begun.elapsed().as_secs_f64(), "{exit:?}");
    assert_eq!(exit.usage.peak_memory_bytes, limits.memory.map(|size| size.as_bytes()));
}

#[tokio::test]
async fn cpu_time_that_an_agent_invents_is_cut_to_the_hosts_own_count() {
    for kind in [Meter::Same as fn(ReadCpu) -> Meter, Meter::Around] {
        let guest = inventor().await;
        // The host counts one microsecond between the request and the end, which is less than the elapsed time.
        let reads = Arc::new(AtomicU64::new(0));
        guest.set_meter(kind(Arc::new(move || {
            let counted = 5_000_000 + reads.fetch_add(1, Ordering::Relaxed).min(1);
            Box::pin(async move { Some(counted) })
        })));
        let exit = exit_of(&guest, ExecRequest::argv(["true"]).build().unwrap(), &Limits::default()).await;
        assert!(exit.usage.cpu_seconds <= 1e-6, "{exit:?}");
    }
}

/// Promise (Containers): The host gives up a peer that does not read.
#[tokio::test]
async fn peer_that_reads_nothing_is_closed() {
    let (guest, peer) = connected().await;
    let stuck = tokio::spawn(async move {
        let (stream, ..) = peer.await.unwrap().unwrap();
        tokio::time::sleep(LONG).await;
        drop(stream);
    });
    let contents = Box::new(tokio::io::repeat(0).take(64 << 20));
    let error = tokio::time::timeout(LONG, guest.write_file(&SandboxPath::new("file").unwrap(), contents)).await;
    assert!(error.expect("writing does not hang").is_err());
    stuck.abort();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_answers_make_the_host_hang_or_panic(
        what in prop_oneof![Just(Operation::Start), Just(Operation::Read), Just(Operation::List), Just(Operation::Usage), Just(Operation::Write), Just(Operation::Connect), Just(Operation::Accept)],
        frames in prop::collection::vec(
            (prop_oneof![1u8..20, any::<u8>()], -2i64..3, prop::collection::vec(any::<u8>(), 0..90)), 0..8),
        tail in prop::collection::vec(any::<u8>(), 0..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (guest, peer) = connected().await;
            let answering = tokio::spawn(async move {
                let (mut stream, _, id) = peer.await.unwrap()?;
                for (kind, more, body) in frames {
                    stream.write_all(&frame(kind, id.saturating_add_signed(more), &body)).await.ok()?;
                }
                stream.write_all(&tail).await.ok()?;
                // Closes the stream, so that the host does not wait.
                Some(())
            });
            let answer = tokio::time::timeout(LONG, ask(&guest, what)).await;
            prop_assert!(answer.is_ok(), "the operation hangs");
            answering.abort();
            Ok(())
        })?;
    }
}
