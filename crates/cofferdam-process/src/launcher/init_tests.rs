//! Tests of those parts of the init that need no kernel: the init itself is a program without a test harness. They
//! compare what the init reads and writes with what its owner writes and reads.

use proptest::prelude::*;

use super::handover::{Handoff, MAX_FDS, Measured};
use super::{PROGRAM, in_memory, on_a_mount};
use crate::protocol::{self, Evidence};

#[path = "../../../cofferdam-linux/bare/cpu_charges.rs"]
mod cpu_charges;
#[path = "../../../cofferdam-linux/bare/plan.rs"]
mod plan;
#[path = "../../../cofferdam-linux/bare/quota.rs"]
mod quota;
#[path = "../../../cofferdam-linux/bare/texts.rs"]
mod texts;
#[path = "../../init/wire.rs"]
mod wire;

#[test]
fn the_program_is_small_and_not_writable() {
    use std::os::unix::fs::PermissionsExt;
    assert!(PROGRAM.starts_with(b"\x7fELF"));
    assert!(PROGRAM.len() < 40 * 1024, "{} bytes", PROGRAM.len());
    let file = std::fs::File::from(in_memory().unwrap());
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o111);
    assert!(file.set_len(0).is_err(), "sealed");
    if rustix::process::geteuid().is_root() {
        let file = std::fs::File::from(on_a_mount().unwrap());
        assert_eq!(file.metadata().unwrap().len(), PROGRAM.len() as u64);
        assert!(file.set_len(0).is_err(), "opened for reading");
    }
}

#[test]
fn a_handover_is_read_back() {
    let handoff = Handoff {
        tag: (1 << 32, u64::MAX),
        control: 7,
        listener: 8,
        locks: 9,
        fds: [3, 4, 5, 6, 7, 8, 9, 10],
        fd_count: MAX_FDS,
        watch_memory: Some(1 << 30),
        watch_cpu: None,
        max_processes: Some(10),
        backlog_unbounded: true,
        open_files: 512,
        counts_files: true,
        matches_expected: true,
        measured: Measured { capabilities: [1, 2, 3], no_new_privileges: true, seccomp: false },
    };
    let mut bytes = handoff.encode().to_vec();
    bytes.extend_from_slice(b"evidence");
    assert_eq!(Handoff::decode(&bytes), Some((handoff, &b"evidence"[..])));
    assert_eq!(Handoff::decode(&bytes[..100]), None);
    let too_many = Handoff { fd_count: MAX_FDS + 1, ..handoff };
    assert_eq!(Handoff::decode(&too_many.encode()), None);
}

#[test]
fn both_sides_agree_on_sizes() {
    assert_eq!(wire::MAX_MESSAGE, protocol::MAX_MESSAGE);
    assert_eq!(wire::MAX_INLINE, cofferdam_linux::message::MAX_INLINE);
}

#[test]
fn long_messages_are_flagged_as_the_init_expects() {
    use std::os::fd::AsFd;
    let (owner, init) = cofferdam_linux::message::pair().unwrap();
    for (length, marker) in [(10, wire::INLINE), (100_000, wire::IN_MEMORY_FILE)] {
        let request = protocol::Request::Start(protocol::Start {
            exec: 1,
            argv: vec!["x".repeat(length)],
            env: Vec::new(),
            directory: "/".into(),
            terminal: None,
            if_expected: false,
            last: false,
        });
        protocol::send(owner.as_fd(), &request, &[], std::time::Duration::from_secs(1)).unwrap();
        let mut buffer = vec![0; wire::MAX_INLINE];
        let (length, fds) = cofferdam_linux::message::receive(init.as_fd(), &mut buffer).unwrap();
        assert_eq!(
            (buffer[0], length == 1, fds.len() == 1),
            (marker, marker == wire::IN_MEMORY_FILE, marker != wire::INLINE)
        );
    }
}

/// Converts a request, as the init decodes it, to the owner's type.
fn as_owner(request: wire::Request<'_>) -> protocol::Request {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match request {
        wire::Request::Signal { exec, kill } => protocol::Request::Signal { exec, kill },
        wire::Request::Start(start) => {
            let env: Vec<String> = start.env.iter().map(text).collect();
            protocol::Request::Start(protocol::Start {
                exec: start.exec,
                argv: start.argv.iter().map(text).collect(),
                env: env.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect(),
                directory: text(start.directory),
                terminal: start.terminal,
                if_expected: start.if_expected,
                last: start.last,
            })
        }
    }
}

fn body(message: &impl serde::Serialize) -> Vec<u8> {
    protocol::encode(message).unwrap()[1..].to_vec()
}

prop_compose! {
    fn starts()(
        exec: u64,
        argv in prop::collection::vec(".{0,200}", 0..5),
        env in prop::collection::vec((".{0,9}", ".{0,200}"), 0..5),
        directory in ".{0,20}",
        terminal: Option<(u16, u16)>,
        if_expected: bool,
        last: bool,
    ) -> protocol::Start {
        protocol::Start { exec, argv, env, directory, terminal, if_expected, last }
    }
}

fn failures() -> impl Strategy<Value = (protocol::NotStarted, wire::NotStarted)> {
    use protocol::NotStarted as Owner;
    use wire::Step;
    let steps = [
        (Owner::Unexpected, Step::Unexpected),
        (Owner::Fork, Step::Fork),
        (Owner::Directory, Step::Directory),
        (Owner::Prepare, Step::Prepare),
        (Owner::Execute, Step::Execute),
    ];
    (prop::sample::select(steps.to_vec()), any::<i32>())
        .prop_map(|((owner, step), errno)| (owner, wire::NotStarted { step, errno }))
}

/// Decodes an event of the init as the owner does.
fn decoded(event: wire::Event) -> protocol::Event {
    let message = event.encode();
    let (&first, body) = message.bytes().split_first().unwrap();
    assert_eq!(first, wire::INLINE);
    protocol::decode(body).unwrap()
}

proptest! {
    /// Promise (Process isolation): The init decodes exactly the messages of its owner.
    #[test]
    fn init_decodes_messages_of_its_owner(start in starts(), exec: u64, kill: bool) {
        for request in [protocol::Request::Start(start), protocol::Request::Signal { exec, kill }] {
            let body = body(&request);
            prop_assert_eq!(as_owner(wire::request(&body).unwrap()), request);
            // A message that is too short or too long is refused.
            prop_assert_eq!(wire::request(&body[..body.len() - 1]), None);
            let longer = [&body[..], &[0]].concat();
            prop_assert_eq!(wire::request(&longer), None);
        }
    }

    /// Promise (Process isolation): The init refuses the messages that its owner would refuse.
    #[test]
    fn init_refuses_messages_that_its_owner_refuses(body in prop::collection::vec(any::<u8>(), 0..40)) {
        match (wire::request(&body), protocol::decode::<protocol::Request>(&body)) {
            (Some(request), Ok(expected)) => prop_assert_eq!(as_owner(request), expected),
            (None, Err(_)) => {}
            // The owner's strings are UTF-8. The init passes bytes on unchanged.
            (Some(wire::Request::Start(start)), Err(_)) => {
                let mut texts = start.argv.iter().chain(start.env.iter()).chain([start.directory]);
                prop_assert!(texts.any(|text| std::str::from_utf8(text).is_err()));
            }
            (request, expected) => prop_assert!(false, "{:?} {:?}", request, expected),
        }
    }

    /// Promise (Process isolation): The owner decodes exactly the messages of the init.
    #[test]
    fn owner_decodes_messages_of_the_init(
        exec: u64, status: i32, peak_bytes: u64, cpu_micros: u64, memory: bool, (reason, failure) in failures(),
    ) {
        let errno = failure.errno;
        prop_assert_eq!(decoded(wire::Event::Started { exec }), protocol::Event::Started { exec });
        prop_assert_eq!(
            decoded(wire::Event::NotStarted { exec, failure }),
            protocol::Event::NotStarted { exec, reason, errno }
        );
        prop_assert_eq!(
            decoded(wire::Event::Ended { exec, status, peak_bytes, cpu_micros, processes_refused: exec }),
            protocol::Event::Ended { exec, status, peak_bytes, cpu_micros, processes_refused: exec }
        );
        prop_assert_eq!(decoded(wire::Event::LimitPassed { memory }), protocol::Event::LimitPassed { memory });
        for (ours, theirs) in [(None, None), (Some(Ok(())), Some(Ok(()))), (Some(Err(failure)), Some(Err((reason, errno))))] {
            let evidence = Evidence { disk_bytes: cpu_micros, ..Evidence::default() };
            let (head, tail) = wire::ready(ours);
            let message = [head, &body(&evidence), tail.bytes()].concat();
            let ready = protocol::Event::Ready { evidence: Box::new(evidence), first: theirs };
            prop_assert_eq!(protocol::decode::<protocol::Event>(&message[1..]).unwrap(), ready);
            prop_assert_eq!(message[0], wire::INLINE);
        }
    }

    /// Promise (Process isolation): The init receives arguments and environment in the layout of execve.
    #[test]
    fn an_order_is_laid_out_as_execve_takes_it(start in starts()) {
        let body = body(&protocol::Request::Start(start.clone()));
        let Some(wire::Request::Start(request)) = wire::request(&body) else { panic!("not a start") };
        let mut area = vec![0u64; plan::room(&request).div_ceil(8)];
        let mut area: Vec<u8> = area.iter_mut().flat_map(|word| word.to_ne_bytes()).collect();
        area.truncate(plan::room(&request));
        let has_nul = start.argv.iter().chain([&start.directory]).any(|text| text.contains('\0'))
            || start.env.iter().any(|(name, value)| name.contains('\0') || value.contains('\0'));
        let base = area.as_ptr() as usize;
        let Some(laid) = plan::lay(&request, &mut area) else {
            prop_assert!(has_nul);
            return Ok(());
        };
        prop_assert!(!has_nul);
        let text = |address: usize| {
            let rest = &area[address - base..];
            String::from_utf8(rest[..rest.iter().position(|&byte| byte == 0).unwrap()].to_vec()).unwrap()
        };
        let list = |address: usize| -> Vec<String> {
            let words = area[address - base..].chunks_exact(8);
            let words = words.map(|word| usize::from_ne_bytes(word.try_into().unwrap()));
            words.take_while(|&word| word != 0).map(text).collect()
        };
        prop_assert_eq!(list(laid.argv), start.argv.clone());
        let env: Vec<String> = start.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        prop_assert_eq!(list(laid.env), env);
        prop_assert_eq!(text(laid.directory), start.directory.clone());
        // The remaining space holds every candidate.
        let mut candidate = vec![0; area.len() - laid.used];
        let mut found = Vec::new();
        if let Some(mut candidates) = plan::Candidates::of(&request) {
            while candidates.next(&mut candidate) {
                found.push(candidate[..candidate.iter().position(|&byte| byte == 0).unwrap()].to_vec());
            }
        }
        prop_assert_eq!(found, candidates(&start));
    }
}

/// Returns the files that a program's name may mean, by a simple implementation.
fn candidates(start: &protocol::Start) -> Vec<Vec<u8>> {
    let Some(program) = start.argv.first() else { return Vec::new() };
    if program.contains('/') {
        return vec![program.clone().into_bytes()];
    }
    let path = start.env.iter().find(|(name, _)| name == "PATH").map_or("/usr/bin:/bin", |(_, value)| value);
    let directories = path.split(':').filter(|directory| directory.starts_with('/'));
    directories.map(|directory| format!("{directory}/{program}").into_bytes()).collect()
}

#[test]
fn programs_are_searched_in_the_path() {
    let start = |program: &str, path: &str| protocol::Start {
        exec: 1,
        argv: vec![program.into()],
        env: vec![("A".into(), "b".into()), ("PATH".into(), path.into())],
        directory: "/".into(),
        terminal: None,
        if_expected: false,
        last: false,
    };
    for (program, path, expected) in [
        ("sh", "/a:relative:/b", vec!["/a/sh", "/b/sh"]),
        ("sh", "", vec![]),
        ("sh", ":/a:", vec!["/a/sh"]),
        ("./sh", "/a", vec!["./sh"]),
    ] {
        let body = body(&protocol::Request::Start(start(program, path)));
        let Some(wire::Request::Start(request)) = wire::request(&body) else { panic!("not a start") };
        let mut candidates = plan::Candidates::of(&request).unwrap();
        let mut buffer = [0; 64];
        for expected in expected {
            assert!(candidates.next(&mut buffer));
            assert!(buffer.starts_with(expected.as_bytes()) && buffer[expected.len()] == 0, "{program} in {path}");
        }
        assert!(!candidates.next(&mut buffer));
    }
}
