//! Tests of the protocol: one side reads the frames that the other writes, and no bytes make a reader panic.

use proptest::prelude::*;

use crate::wire::{
    self, Answer, Configure, Counts, Entry, Frame, HEAD, MAX_BODY, Make, NotStarted, Probe, Reader, Request, Reseed,
    Root, Sink, Split, Start, Step, Texts, put_text,
};

#[expect(dead_code, reason = "each side uses its half")]
#[path = "../../cofferdam-linux/bare/partner.rs"]
mod partner;

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn texts(all: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Bytes::default();
    all.iter().for_each(|text| put_text(&mut bytes, text));
    bytes.0
}

fn request_is_read_back(request: &Request<'_>, id: u64) {
    let mut body = Bytes::default();
    request.encode(&mut body);
    let mut body = body.0;
    let read =
        |body: &[u8]| Request::decode(&Frame { kind: request.kind(), id, body }).is_some_and(|read| read == *request);
    assert!(read(&body));
    // A body with one byte more or less is another request or invalid.
    assert!(!read(&body[..body.len() - 1]));
    body.push(7);
    assert!(!read(&body));
}

fn answer_is_read_back(answer: &Answer<'_>) {
    let mut body = Bytes::default();
    answer.encode(&mut body);
    let frame = Frame { kind: answer.kind(), id: 3, body: &body.0 };
    assert_eq!(Answer::decode(&frame).as_ref(), Some(answer));
}

/// Generates a number that is known, or not.
fn known() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(0..u64::MAX)
}

fn counts() -> impl Strategy<Value = Counts> {
    prop::collection::vec(known(), 8).prop_map(|all| Counts {
        cpu_micros: all[0],
        memory: all[1],
        peak: all[2],
        kills: all[3],
        refused: all[4],
        tasks: all[5],
        stored: all[6],
        full: all[7],
    })
}

type Text = Vec<u8>;

proptest! {
    #[test]
    fn requests_are_read_back(
        path: Text, data: Text, number: u32, small: (u16, u16), flag: bool, modified: Option<(i64, u32)>, mode: Option<u32>,
        words: Vec<Text>, pairs: Vec<(Text, Text)>, key: (u64, u64), tag: bool, watch in known(), arguments: [u64; 5],
    ) {
        let root = if flag { Root::Workspace } else { Root::Code };
        let (path, data) = (&path[..], &data[..]);
        let argv = texts(&words);
        let pairs: Vec<Text> = pairs.into_iter().flat_map(|(one, other)| [one, other]).collect();
        let env = texts(&pairs);
        let (argv, env) = (Texts::new(words.len(), &argv), Texts::new(pairs.len(), &env));
        prop_assert_eq!(argv.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), words);
        let configure = Configure {
            workspace: path, code: data, stores: argv, groups: 2, watch_memory: watch, watch_cpu: None,
            tag: tag.then_some(key), silence: key.0, filter: data, quotas: path, max_processes: watch, rights: key.1, scopes: 3, rules: env,
        };
        let start = Start { exec: 9, argv, env, directory: path, terminal: tag.then_some(small), input: flag };
        for request in [
            Request::Hello { magic: number, version: 1 },
            Request::Configure(configure),
            Request::Start(start),
            Request::Signal { kill: flag },
            Request::Resize { rows: small.0, columns: small.1 },
            Request::Read { root, path, window: number },
            Request::More { bytes: number },
            Request::Write { root, path, strict: flag },
            Request::Finish { mode: number, modified },
            Request::List { root, path },
            Request::Remove { root, path },
            Request::Rename { root, path, to: data },
            Request::Make { root, path, make: Make::Directory { mode: number } },
            Request::Make { root, path, make: Make::Symlink { target: data } },
            Request::Make { root, path, make: Make::Link { target: data } },
            Request::Adjust { root, path, mode, modified },
            Request::Freeze { on: flag },
            Request::Probe(Probe::File { path, from: number }),
            Request::Probe(Probe::Open { path, flags: number, confined: flag }),
            Request::Probe(Probe::Stat { path }),
            Request::Probe(Probe::Space { path }),
            Request::Probe(Probe::Entries { path }),
            Request::Probe(Probe::Call { number: key.0, arguments }),
            Request::Probe(Probe::Landlock),
            Request::Probe(Probe::Tag { key }),
            Request::Probe(Probe::Confinement),
            Request::Probe(Probe::Denial),
            Request::Probe(Probe::ConfiguredTag),
            Request::Reseed(Reseed {
                silence: key.0,
                now: (key.1, number),
                entropy: &[small.0 as u8; 64],
                machine_id: &[7; 16],
                boot_id: &[small.1 as u8; 16],
                hostname: path,
            }),
            Request::Accept { window: number },
            Request::Connect { port: small.0, window: number },
            Request::Watch { window: number },
            Request::Mark { watch: key.0, path, mask: number, list: flag },
            Request::Unmark { wd: number as i32 },
        ] {
            request_is_read_back(&request, 9);
        }
        for request in [
            Request::InputEnd,
            Request::Forget,
            Request::Count,
            Request::Ping,
            Request::End,
            Request::Quiesce,
            Request::Release,
            Request::Input { data },
            Request::Data { data },
            Request::Listen { ports: data },
            Request::Response { from: &[small.0 as u8; 7], data },
        ] {
            let mut body = Bytes::default();
            request.encode(&mut body);
            let frame = Frame { kind: request.kind(), id: 0, body: &body.0 };
            prop_assert_eq!(Request::decode(&frame), Some(request));
        }
    }

    #[test]
    fn answers_are_read_back(data: Text, number: u32, large: u64, errno: i32, flag: bool, counts in counts()) {
        let data = &data[..];
        for step in [Step::Fork, Step::Directory, Step::Prepare, Step::Execute] {
            answer_is_read_back(&Answer::NotStarted { failure: NotStarted { step, errno } });
        }
        for answer in [
            Answer::Hello { magic: number, version: 1, pid: 1 },
            Answer::Done { errno, kind: number },
            Answer::Probed { errno, value: large, data },
            Answer::Started { counts },
            Answer::Output { second: flag, data },
            Answer::Ended { status: errno, peak_bytes: large, cpu_micros: large, counts },
            Answer::Credit { bytes: number },
            Answer::LimitPassed { memory: flag },
            Answer::Opened { size: large, mode: number },
            Answer::Data { data },
            Answer::Entries { entries: data },
            Answer::Counted { counts },
            Answer::Pong,
            Answer::Quiesced,
            Answer::Reseeded { version: number, execs: data },
            Answer::Query { from: &[flag.into(); 7], data },
            Answer::Connected { address: number.to_le_bytes(), port: number as u16 },
            Answer::Requested { address: number.to_le_bytes(), port: number as u16 },
            Answer::DataEnd,
        ] {
            answer_is_read_back(&answer);
        }
    }

    #[test]
    fn entries_are_read_back(name: Text, target: Text, numbers: (u32, u32, u64, u64, i64, u32)) {
        let (mode, links, inode, size, seconds, nanoseconds) = numbers;
        let modified = (seconds, nanoseconds);
        let entry = Entry { mode, links, inode, size, modified, name: &name, target: &target };
        let mut bytes = Bytes::default();
        entry.encode(&mut bytes);
        prop_assert_eq!(bytes.0.len(), entry.encoded_len());
        prop_assert_eq!(Reader::new(&bytes.0).entry(), Some(entry));
    }

    #[test]
    fn no_bytes_make_a_reader_panic(kind: u8, id: u64, body: Text) {
        let frame = Frame { kind, id, body: &body };
        if let Some(Request::Start(start)) = Request::decode(&frame) {
            prop_assert_eq!(start.argv.iter().count(), start.argv.count());
            prop_assert_eq!(start.env.iter().count(), start.env.count());
        }
        let _ = (Answer::decode(&frame), Reader::new(&body).entry(), wire::split(&body));
    }

    #[test]
    fn frames_are_found_again(kind: u8, id: u64, body: Text, more: Text, cut: prop::sample::Index) {
        let mut bytes = wire::head(kind, id, body.len()).to_vec();
        bytes.extend_from_slice(&body);
        let whole = bytes.len();
        prop_assert_eq!(wire::split(&bytes[..cut.index(whole)]), Split::More);
        bytes.extend_from_slice(&more);
        prop_assert_eq!(wire::split(&bytes), Split::Frame(Frame { kind, id, body: &body }, whole));
    }
}

proptest! {
    #[test]
    fn requests_to_an_init_are_read_back(
        number: u32, errno: i32, seconds: u64, nanoseconds in 0..1_000_000_000u32, byte: u8, name in "[a-z0-9.-]{1,63}",
        offset in 0..partner::REQUEST, message: Text,
    ) {
        let reseed = partner::Reseed {
            now: (seconds, nanoseconds),
            entropy: &[byte; 64],
            machine_id: &[1; 16],
            boot_id: &[2; 16],
            hostname: name.as_bytes(),
        };
        let freeze = |on| partner::Request::Freeze { on };
        let mut encoded = [7; partner::REQUEST];
        for request in [freeze(true), freeze(false), partner::Request::Reseed(reseed), partner::Request::Route] {
            prop_assert!(partner::encode(number, &request, &mut encoded).is_some());
            prop_assert_eq!(partner::decode(&encoded), Some((number, request)));
            prop_assert_eq!(partner::decode(&encoded[1..]), None);
            // A changed message is another valid request or invalid.
            encoded[offset] = encoded[offset].wrapping_add(1);
            if let Some((_, partner::Request::Reseed(it))) = partner::decode(&encoded) {
                prop_assert!(partner::is_name(it.hostname) && it.now.1 < 1_000_000_000);
            }
        }
        let answer = partner::answer(number, errno);
        prop_assert_eq!(partner::read_answer(&answer), Some((number, errno)));
        prop_assert_eq!(partner::read_answer(&answer[1..]), None);
        let _ = (partner::decode(&message), partner::read_answer(&message));
    }
}

#[test]
fn invalid_requests_to_an_init_are_not_encoded() {
    const { assert!(partner::DESCRIPTOR > 2) };
    let reseed = |hostname| partner::Reseed {
        now: (0, 0),
        entropy: &[0; 64],
        machine_id: &[0; 16],
        boot_id: &[0; 16],
        hostname,
    };
    let mut encoded = [0; partner::REQUEST];
    for name in [&b""[..], b"A", b"a b", b"a\0", &[b'a'; 64]] {
        let request = partner::Request::Reseed(reseed(name));
        assert_eq!(partner::encode(1, &request, &mut encoded), None, "{name:?}");
    }
}

#[test]
fn lengths_have_bounds() {
    assert_eq!(wire::split(&[0xff; 4]), Split::Invalid);
    assert_eq!(wire::split(&[0; 4]), Split::Invalid);
    assert_eq!(wire::split(&wire::head(1, 1, MAX_BODY)), Split::More);
    assert_eq!(wire::split(&wire::head(1, 1, MAX_BODY + 1)), Split::Invalid);
    assert_eq!(HEAD, wire::head(1, 1, 0).len());
}

#[test]
fn the_agent_is_small_and_needs_nothing() {
    let agent = crate::AGENT;
    assert!(agent.starts_with(b"\x7fELF"));
    assert!(agent.len() < 128 * 1024, "{} bytes", agent.len());
    // No program header names an interpreter.
    let word = |at: usize| u16::from_le_bytes([agent[at], agent[at + 1]]) as usize;
    let (at, size, count) = (u64::from_le_bytes(agent[32..40].try_into().unwrap()) as usize, word(54), word(56));
    assert!((0..count).all(|header| agent[at + header * size] != 3));
}
