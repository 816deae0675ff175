//! Tests of quiescing, resuming and reattaching: with the real agent, and with peers that are not agents.

use std::time::{Duration, Instant};

use cofferdam_contract::{ByteSize, ErrorKind, ExecRequest, Limits, OutputEvent, SandboxPath, Stdin, collect};
use cofferdam_guest::{Guest, PROTOCOL, Record, Reseed, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::enclosure::{DISK, Enclosure, LONG, Streams, connect, guest};
use crate::execs::{shell, start, wait_for};
use crate::peer::{DONE, connected, frame, request};

const QUIESCE: u8 = 23;
const RELEASE: u8 = 24;
const RESEED: u8 = 25;
const QUIESCED: u8 = 15;
const RESEEDED: u8 = 16;

async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("it does not hang")
}

/// Promise (Containers): No byte is lost while a guest is quiesced and released twenty times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiescing_twenty_times_loses_no_byte() {
    let (_enclosure, guest) = guest().await;
    let writes = "i=0; while [ ! -e stop ]; do n=0; while [ $n -lt 40 ]; do echo line $i; \
                  i=$((i+1)); n=$((n+1)); done; sleep 0.01; done";
    // The limit is high enough for the output on a slow machine.
    let request = ExecRequest::shell(writes).max_output(ByteSize::from_mebibytes(64)).build().unwrap();
    let writer = start(&guest, request).await;
    let mut output = writer.output();
    let (progress, mut read) = tokio::sync::watch::channel(0);
    let reading = tokio::spawn(async move {
        let mut seen = Vec::new();
        while let Some(event) = output.next().await {
            match event {
                OutputEvent::Chunk(chunk) => seen.extend_from_slice(&chunk.data),
                other => panic!("{other:?}"),
            }
            progress.send_replace(seen.len());
        }
        seen
    });
    let copies = start(&guest, ExecRequest::argv(["cat"]).stdin(Stdin::Stream).build().unwrap()).await;
    let mut copied = copies.output();
    let mut stdin = copies.stdin().unwrap();
    for round in 0..20u32 {
        let quiesced = promptly(guest.quiesce()).await.unwrap();
        assert!(guest.is_quiesced());
        // Written while the guest is quiesced, and echoed afterwards.
        stdin.write_all(format!("round {round}\n").as_bytes()).await.unwrap();
        let record = serde_json::to_string(quiesced.record()).unwrap();
        let back: Record = serde_json::from_str(&record).unwrap();
        assert_eq!(&back, quiesced.record());
        promptly(guest.release()).await.unwrap();
        assert!(!guest.is_quiesced());
        let mut got = Vec::new();
        while !got.ends_with(b"\n") {
            match promptly(copied.next()).await.unwrap() {
                OutputEvent::Chunk(chunk) => got.extend_from_slice(&chunk.data),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got, format!("round {round}\n").as_bytes());
        // The program writes more before the guest is quiesced again.
        let before = *read.borrow();
        promptly(read.wait_for(|bytes| *bytes > before)).await.unwrap();
    }
    assert!(writer.try_exit().is_none(), "the program still writes");
    guest.write_file(&SandboxPath::new("stop").unwrap(), Box::new(tokio::io::empty())).await.unwrap();
    let exit = promptly(writer.exit()).await.unwrap();
    assert!(exit.success() && !exit.truncated, "{exit:?}");
    let seen = String::from_utf8(promptly(reading).await.unwrap()).unwrap();
    assert!(seen.lines().count() > 20, "{seen}");
    let expected: String = (0..seen.lines().count()).map(|line| format!("line {line}\n")).collect();
    assert!(seen == expected, "{} bytes of {}", seen.len(), expected.len());
    drop(stdin);
    assert!(promptly(copies.exit()).await.unwrap().success());
}

/// Promise (Containers): A quiesced guest runs nothing, and the time does not count against its limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiesced_guest_runs_nothing_and_no_time_counts() {
    let answer_timeout = Duration::from_secs(1);
    let (_enclosure, guest, _) = connect(Settings { answer_timeout, ..Settings::default() }).await.unwrap();
    let counts = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done";
    let counter = start(&guest, ExecRequest::shell(counts).build().unwrap()).await;
    let limits = Limits { wall_time: Duration::from_secs(4), ..Limits::default() };
    let short = guest.start(&ExecRequest::shell("sleep 2; echo done").build().unwrap(), &limits).await.unwrap();
    wait_for(&counter, "3\n").await;
    let quiesced = promptly(guest.quiesce()).await.unwrap();
    let text = serde_json::to_string(quiesced.record()).unwrap();
    assert!(text.contains("\"wall\":4000000"), "{text}");
    let mut output = counter.output();
    while tokio::time::timeout(Duration::from_millis(200), output.next()).await.is_ok() {}
    let path = SandboxPath::new("file").unwrap();
    let errors = [
        guest.start(&ExecRequest::argv(["true"]).build().unwrap(), &Limits::default()).await.unwrap_err(),
        guest.read_file(&path).await.err().unwrap(),
        guest.write_file(&path, Box::new(std::io::Cursor::new("x"))).await.unwrap_err(),
        guest.list_dir(&SandboxPath::new("").unwrap()).await.unwrap_err(),
        guest.remove(&path).await.unwrap_err(),
        guest.usage(&Limits::default()).await.unwrap_err(),
        guest.freeze().await.unwrap_err(),
        guest.quiesce().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.remedy().is_some(), "{error:?}");
    }
    // Longer than the answer timeout, and than the limit of the short exec.
    let nothing = tokio::time::timeout(Duration::from_secs(5), output.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    assert!(guest.is_alive());
    promptly(guest.release()).await.unwrap();
    let done = promptly(collect(short)).await.unwrap();
    assert!(done.exit.success() && !done.exit.timed_out && done.stdout.starts_with(b"done"), "{done:?}");
    assert!(promptly(output.next()).await.is_some(), "the counter resumes");
    assert_eq!(guest.release().await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(guest.reattached().is_empty());
    promptly(counter.cancel()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_with_an_open_file_is_not_quiesced() {
    let (_enclosure, guest) = guest().await;
    let path = SandboxPath::new("file").unwrap();
    let (mut source, contents) = tokio::io::duplex(1024);
    let writing = tokio::spawn({
        let (guest, path) = (guest.clone(), path.clone());
        async move { guest.write_file(&path, Box::new(contents)).await }
    });
    source.write_all(b"one half, ").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = promptly(guest.quiesce()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    source.write_all(b"other half").await.unwrap();
    drop(source);
    assert_eq!(promptly(writing).await.unwrap().unwrap(), 20);
    // A file that is not read to its end.
    guest.write_file(&path, Box::new(tokio::io::repeat(7).take(4 << 20))).await.unwrap();
    let reader = guest.read_file(&path).await.unwrap();
    assert_eq!(promptly(guest.quiesce()).await.unwrap_err().kind(), ErrorKind::Conflict);
    drop(reader);
    promptly(guest.quiesce()).await.unwrap();
    promptly(guest.release()).await.unwrap();
    assert!(shell(&guest, "true").await.0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_quiesce_leaves_a_running_guest() {
    let (_enclosure, guest) = guest().await;
    for micros in [0, 50, 200, 500, 1000, 2000, 4000] {
        let _ = tokio::time::timeout(Duration::from_micros(micros), guest.quiesce()).await;
        let _ = guest.release().await;
        assert!(promptly(shell(&guest, "true")).await.0.success(), "after {micros} microseconds");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_refuse_to_reattach() {
    let (enclosure, Streams { mut reader, mut writer }) = Enclosure::start(DISK);
    // A proxy between host and agent, so that another host can connect.
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (from, to) = tokio::io::split(ours);
    let (mut their_reader, mut their_writer) = tokio::io::split(theirs);
    let splice = tokio::spawn(async move {
        tokio::select! {
            _ = tokio::io::copy(&mut reader, &mut their_writer) => {}
            _ = tokio::io::copy(&mut their_reader, &mut writer) => {}
        }
        (reader, writer)
    });
    let (guest, _) = Guest::connect(from, to, Settings::default(), Instant::now() + LONG).await.unwrap();
    let handle = start(&guest, ExecRequest::argv(["sleep", "1000"]).build().unwrap()).await;
    let record = promptly(guest.quiesce()).await.unwrap().into_record();
    drop((guest, handle));
    let (reader, writer) = promptly(splice).await.unwrap();
    let reseed = Reseed::new("copy").unwrap();
    let reattaching =
        Guest::reattach(reader, writer, Settings::default(), (record, None), reseed, Instant::now() + LONG);
    let error = promptly(reattaching).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    enclosure.ended().await;
}

/// Quiesces a guest whose peer sends this answer. Returns the error, if any, and the guest.
async fn quiesced_by(answer: impl FnOnce(u64) -> Vec<u8> + Send + 'static) -> (Option<ErrorKind>, Guest) {
    let (guest, peer) = connected().await;
    let answering = tokio::spawn(async move {
        let (mut stream, kind, id) = peer.await.unwrap()?;
        assert_eq!(kind, QUIESCE);
        let _ = stream.write_all(&answer(id)).await;
        // Leaves all further requests unanswered.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok()
    });
    let quiesced = promptly(guest.quiesce()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    answering.abort();
    (quiesced.err().map(|error| error.kind()), guest)
}

/// Promise (Containers): A peer that does not quiesce as the guest agent does is an error.
#[tokio::test]
async fn peer_that_does_not_quiesce_is_an_error() {
    type Answer = Box<dyn FnOnce(u64) -> Vec<u8> + Send>;
    let cases: Vec<(&str, Answer, Option<ErrorKind>, bool)> = vec![
        ("silence", Box::new(|_| Vec::new()), Some(ErrorKind::Unavailable), true),
        ("a refusal", Box::new(|id| frame(DONE, id, &[16, 0, 0, 0, 0, 0, 0, 0])), Some(ErrorKind::Unavailable), true),
        ("another answer", Box::new(|id| frame(99, id, b"")), Some(ErrorKind::Closed), false),
        ("a body", Box::new(|id| frame(QUIESCED, id, b"x")), Some(ErrorKind::Closed), false),
        ("the future", Box::new(|id| frame(QUIESCED, id + 1, b"")), Some(ErrorKind::Closed), false),
        ("a proper answer", Box::new(|id| frame(QUIESCED, id, b"")), None, true),
    ];
    for (what, answer, kind, alive) in cases {
        let (failed, guest) = quiesced_by(answer).await;
        assert_eq!((failed, guest.is_alive()), (kind, alive), "{what}");
    }
    // Bytes after the last frame may be read together with it or later. They end the connection in both cases.
    let more: [Answer; 4] = [
        Box::new(|id| [frame(QUIESCED, id, b""), frame(DONE, id, &[0; 8])].concat()),
        Box::new(|id| frame(QUIESCED, id, b"").repeat(2)),
        Box::new(|id| [frame(QUIESCED, id, b""), vec![9]].concat()),
        Box::new(|id| [frame(QUIESCED, id, b""), frame(14, 0, b"")].concat()),
    ];
    for answer in more {
        let (_, guest) = quiesced_by(answer).await;
        assert!(!guest.is_alive());
        assert!(guest.closed().await.unwrap().why.contains("while it was quiesced"));
    }
}

#[tokio::test]
async fn peer_that_does_not_release_is_closed() {
    let (guest, peer) = connected().await;
    let answering = tokio::spawn(async move {
        let (mut stream, _, id) = peer.await.unwrap().unwrap();
        stream.write_all(&frame(QUIESCED, id, b"")).await.unwrap();
        assert_eq!(request(&mut stream).await.unwrap().0, RELEASE);
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok()
    });
    promptly(guest.quiesce()).await.unwrap();
    assert_eq!(promptly(guest.release()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    promptly(guest.closed()).await;
    assert!(!guest.is_alive());
    answering.abort();
}

fn record(text: &str) -> Record {
    serde_json::from_str(text).unwrap()
}

fn with_execs(ids: &[u64]) -> Record {
    let exec = |id: &u64| {
        format!(r#"{{"id":{id},"elapsed":1,"wall":9000000,"cpu":null,"cpu_base":null,"script":false,"kill_in":null}}"#)
    };
    let execs: Vec<String> = ids.iter().map(exec).collect();
    record(&format!(r#"{{"version":{PROTOCOL},"last":7,"execs":[{}]}}"#, execs.join(",")))
}

/// Reattaches to a peer that sends this answer to the first request. Returns the error and the request's id.
async fn reattached_by(
    record: Record,
    answer: impl FnOnce(u64) -> Vec<u8> + Send + 'static,
) -> (ErrorKind, Option<u64>) {
    let (ours, mut theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(64 * 1024);
    let answering = tokio::spawn(async move {
        let (kind, id) = request(&mut theirs).await?;
        assert_eq!(kind, RESEED, "the first request");
        let _ = theirs.write_all(&answer(id)).await;
        tokio::io::copy(&mut theirs, &mut tokio::io::sink()).await.ok();
        Some(id)
    });
    let (reader, writer) = tokio::io::split(ours);
    let settings = Settings { answer_timeout: Duration::from_secs(2), ..Settings::default() };
    let by = Instant::now() + Duration::from_secs(3);
    let reattaching = Guest::reattach(reader, writer, settings, (record, None), Reseed::new("copy").unwrap(), by);
    let error = promptly(reattaching).await.unwrap_err();
    (error.kind(), promptly(answering).await.unwrap())
}

fn reseeded(id: u64, version: u32, ids: &[u64]) -> Vec<u8> {
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    frame(RESEEDED, id, &[&version.to_le_bytes()[..], &ids].concat())
}

/// Promise (Containers): The host reattaches only to a copy of the quiesced guest.
#[tokio::test]
async fn other_peer_than_the_quiesced_copy_is_refused() {
    type Answer = Box<dyn FnOnce(u64) -> Vec<u8> + Send>;
    let cases: Vec<(&str, Answer, ErrorKind)> = vec![
        ("silence", Box::new(|_| Vec::new()), ErrorKind::Unavailable),
        ("garbage", Box::new(|_| vec![0xff; 100]), ErrorKind::Closed),
        ("another answer", Box::new(|id| frame(OPENED, id, &[0; 12])), ErrorKind::Closed),
        ("not a VM", Box::new(|id| frame(DONE, id, &[38, 0, 0, 0, 0, 0, 0, 0])), ErrorKind::Unsupported),
        ("not quiesced", Box::new(|id| frame(DONE, id, &[16, 0, 0, 0, 0, 0, 0, 0])), ErrorKind::Conflict),
        ("an exec too few", Box::new(|id| reseeded(id, PROTOCOL, &[3])), ErrorKind::InvalidInput),
        ("an exec too many", Box::new(|id| reseeded(id, PROTOCOL, &[3, 5, 6])), ErrorKind::InvalidInput),
        ("an exec twice", Box::new(|id| reseeded(id, PROTOCOL, &[3, 5, 5])), ErrorKind::InvalidInput),
        ("half an exec", Box::new(|id| frame(RESEEDED, id, &[2, 0, 0, 0, 1])), ErrorKind::InvalidInput),
        ("another version", Box::new(|id| reseeded(id, PROTOCOL + 1, &[3, 5])), ErrorKind::InvalidInput),
        ("nothing after it", Box::new(|id| reseeded(id, PROTOCOL, &[3, 5])), ErrorKind::Unavailable),
        ("input taken", Box::new(|_| frame(8, 3, &[1, 0, 0, 0])), ErrorKind::Closed),
        ("output and no more", Box::new(|_| frame(6, 3, b"\0x")), ErrorKind::Unavailable),
    ];
    for (what, answer, kind) in cases {
        let (found, first) = reattached_by(with_execs(&[3, 5]), answer).await;
        assert_eq!((found, first), (kind, Some(8)), "{what}");
    }
    let other = record(&format!(r#"{{"version":{},"last":7,"execs":[]}}"#, PROTOCOL - 1));
    let (ours, mut theirs) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(ours);
    let reseed = Reseed::new("copy").unwrap();
    let error =
        Guest::reattach(reader, writer, Settings::default(), (other, None), reseed, Instant::now() + LONG).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(request(&mut theirs).await.is_none(), "the host sends nothing");
}

const OPENED: u8 = 10;
