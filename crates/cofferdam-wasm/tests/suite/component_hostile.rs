//! Hostile components: calls that must be refused.

use std::time::Duration;

use cofferdam_contract::{Access, ByteSize, NetworkPolicy, SandboxPath, Spec, Workspace};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::componentize::{component, component_with, texts};
use crate::support::{limited, run, sandbox, script, text};

const NOT_PERMITTED: i32 = 131;
const READ_ONLY: i32 = 133;
const NO_ENTRY: i32 = 120;
const INSUFFICIENT_MEMORY: i32 = 122;
const BAD_DESCRIPTOR: i32 = 103;
const NAME_TOO_LONG: i32 = 118;
const FILE_TOO_LARGE: i32 = 108;
const SIGABRT: i32 = 6;

async fn code_of(more: &str, code: &str) -> i32 {
    let done = run(component_with(more, code), Spec::default()).await.unwrap();
    assert_eq!(done.exit.signal, None, "{code}\n{}", text(&done.stderr));
    done.exit.code
}

/// Checks that a component which breaks the rules is killed, and that the sandbox stays usable.
async fn trapped(more: &str, code: &str) {
    let sandbox = sandbox(limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(256)))).await;
    let done = sandbox.exec(script(component_with(more, code)).build().unwrap()).await.unwrap();
    let stderr = text(&done.stderr);
    assert!(done.exit.signal == Some(SIGABRT) && stderr.starts_with("wasm trap: "), "{code}: {:?} {stderr}", done.exit);
    let hello = sandbox.exec(script(component("(i32.const 0)")).build().unwrap()).await.unwrap();
    assert!(hello.exit.success());
    let usage = sandbox.usage().await.unwrap();
    assert_eq!(usage.memory_bytes, Some(0), "only files use memory, and they have their own account");
}

/// Promise (WebAssembly): No path of a component leads above a directory that it was given.
#[tokio::test]
async fn no_path_leads_above_its_directory() {
    for path in ["..", "../x", "./..", "a/../..", "/", "/etc/passwd", "/workspace", "//tmp", "../tmp"] {
        let (data, spans) = texts(&["a", path]);
        for directory in 0..3 {
            let code = format!(
                "(local.set $i (call $directory (i32.const {directory})))
                 (call $create_directory_at (local.get $i) {} (i32.const 256))
                 (call $exit (call $open (local.get $i) {} (i32.const 0) (i32.const 1))) (i32.const 0)",
                spans[0], spans[1]
            );
            assert_eq!(code_of(&data, &code).await, NOT_PERMITTED, "{path} from {directory}");
        }
    }
}

/// Promise (WebAssembly): No link of a component leads above a directory that it was given.
#[tokio::test]
async fn no_link_leads_above_its_directory() {
    let targets = ["..", "../../..", "/etc", "/", "/tmp", "/workspacex", "b/../..", "../", "/etc/", "b/../../"];
    for (target, path) in
        targets.into_iter().flat_map(|target| ["link/x", "link/", "link/x/"].map(|path| (target, path)))
    {
        let (data, spans) = texts(&[target, "link", path, "b"]);
        let code = format!(
            "(local.set $i (call $directory (i32.const 0)))
             (call $create_directory_at (local.get $i) {} (i32.const 256))
             (call $symlink_at (local.get $i) {} {} (i32.const 256))
             (call $check (call $outcome (i32.const 1)))
             (call $exit (call $open (local.get $i) {} (i32.const 0) (i32.const 1))) (i32.const 0)",
            spans[3], spans[0], spans[1], spans[2]
        );
        assert_eq!(code_of(&data, &code).await, NOT_PERMITTED, "{path} to {target}");
    }
}

#[tokio::test]
async fn a_read_only_workspace_stays_as_it_is() {
    let (data, spans) = texts(&["given", "new"]);
    let (given, new) = (&spans[0], &spans[1]);
    let (here, tmp) = ("(call $directory (i32.const 0))", "(call $directory (i32.const 1))");
    let opened = |flags: u32, how: u32, name: &str| {
        format!("(call $exit (call $open {here} {name} (i32.const {how}) (i32.const {flags})))")
    };
    let refused = "(call $exit (call $outcome (i32.const 1)))";
    for (code, expected) in [
        (opened(2, 0, given), READ_ONLY),
        (opened(1, 8, given), READ_ONLY),
        (opened(1, 1, new), READ_ONLY),
        (opened(1, 1, given), 0),
        (opened(1, 0, given), 0),
        (format!("(call $create_directory_at {here} {new} (i32.const 256)) {refused}"), READ_ONLY),
        (format!("(call $unlink_at {here} {given} (i32.const 256)) {refused}"), READ_ONLY),
        (format!("(call $symlink_at {here} {given} {new} (i32.const 256)) {refused}"), READ_ONLY),
        (format!("(call $rename_at {here} {given} {tmp} {new} (i32.const 256)) {refused}"), READ_ONLY),
        (format!("(call $link_at {here} (i32.const 0) {given} {tmp} {new} (i32.const 256)) {refused}"), READ_ONLY),
        // A file that is open for reading can be neither written nor truncated.
        (
            format!(
                "(call $check (call $open {here} {given} (i32.const 0) (i32.const 1)))
                 (call $write_via_stream (i32.load (i32.const 260)) (i64.const 0) (i32.const 256))
                 (call $exit (call $outcome (i32.const 4)))"
            ),
            BAD_DESCRIPTOR,
        ),
        (
            format!(
                "(call $check (call $open {here} {given} (i32.const 0) (i32.const 1)))
                 (call $set_size (i32.load (i32.const 260)) (i64.const 0) (i32.const 256)) {refused}"
            ),
            BAD_DESCRIPTOR,
        ),
    ] {
        let workspace = Workspace::Private { access: Access::ReadOnly };
        let sandbox = sandbox(Spec::builder().workspace(workspace).build().unwrap()).await;
        let path = SandboxPath::new("given").unwrap();
        sandbox.write_bytes(&path, "kept").await.unwrap();
        let program = component_with(&data, &format!("{code} (i32.const 0)"));
        let done = sandbox.exec(script(program).build().unwrap()).await.unwrap();
        assert_eq!((done.exit.code, done.exit.signal), (expected, None), "{code} {}", text(&done.stderr));
        assert_eq!(sandbox.read_file_to_end(&path, ByteSize::from_mebibytes(1)).await.unwrap(), b"kept", "{code}");
        assert_eq!(sandbox.list_dir(&SandboxPath::default()).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn lengths_and_offsets_beyond_everything_are_refused() {
    let long = "n".repeat(300);
    let (data, spans) = texts(&["file", &long]);
    let open = format!(
        "(call $check (call $open (call $directory (i32.const 1)) {} (i32.const 1) (i32.const 3)))
         (local.set $i (i32.load (i32.const 260)))",
        spans[0]
    );
    for (call, behind, expected) in [
        ("(call $set_size (local.get $i) (i64.const -1) (i32.const 256))".to_owned(), 1, FILE_TOO_LARGE),
        (
            "(call $write_at (local.get $i) (i32.const 0) (i32.const 9) (i64.const -4) (i32.const 256))".to_owned(),
            8,
            FILE_TOO_LARGE,
        ),
        ("(call $read_at (local.get $i) (i64.const -1) (i64.const -1) (i32.const 256))".to_owned(), 4, 0),
        (
            format!("(call $create_directory_at (call $directory (i32.const 1)) {} (i32.const 256))", spans[1]),
            1,
            NAME_TOO_LONG,
        ),
        (
            "(call $create_directory_at (call $directory (i32.const 1)) (i32.const 0) (i32.const 0) (i32.const 256))"
                .to_owned(),
            1,
            NO_ENTRY,
        ),
    ] {
        let code = format!("{open} {call} (call $exit (call $outcome (i32.const {behind}))) (i32.const 0)");
        assert_eq!(code_of(&data, &code).await, expected, "{call}");
    }
}

#[tokio::test]
async fn calls_against_the_rules_end_the_component() {
    for code in [
        // Invalid handles, handles of another type, and closed handles.
        "(call $blocking_read (i32.const 77) (i64.const 1) (i32.const 256))",
        "(call $drop_descriptor (i32.const 0))",
        "(call $blocking_read (call $get_stdout) (i64.const 1) (i32.const 256))",
        "(call $drop_descriptor (call $get_stdin))",
        "(call $drop_input (local.tee $i (call $get_stdin))) (call $blocking_read (local.get $i) (i64.const 1) (i32.const 256))",
        "(call $drop_input (local.tee $i (call $get_stdin))) (call $drop_input (local.get $i))",
        // Polls of nothing, or of more than fits into memory.
        "(call $poll (i32.const 0) (i32.const 0) (i32.const 256))",
        "(call $poll (i32.const 0) (i32.const 0x7fffffff) (i32.const 256))",
        // Addresses outside of memory, or misaligned.
        "(call $write (call $get_stdout) (i32.const -8) (i32.const 100) (i32.const 256))",
        "(call $write (call $get_stdout) (i32.const 0) (i32.const -1) (i32.const 256))",
        "(call $write (call $get_stdout) (i32.const 0) (i32.const 1) (i32.const -4))",
        "(call $write (call $get_stdout) (i32.const 0) (i32.const 1) (i32.const 257))",
        "(call $directories (i32.const -1))",
        // Invalid UTF-8.
        "(i32.store8 (i32.const 600) (i32.const 255))
         (drop (call $open (call $directory (i32.const 0)) (i32.const 600) (i32.const 1) (i32.const 0) (i32.const 1)))",
        // More than one call may pass.
        "(drop (memory.grow (i32.const 1000))) (call $write (call $get_stdout) (i32.const 0) (i32.const 0x2000000) (i32.const 256))",
        "(call $write (call $get_stdout) (i32.const 0) (i32.const 0x200000) (i32.const 256))
         (drop (memory.grow (i32.const 1000))) (call $write (call $get_stdout) (i32.const 0) (i32.const 0x200000) (i32.const 256))",
        "(call $write_zeroes (call $get_stdout) (i64.const -1) (i32.const 256))",
        "(call $random (i64.const -1) (i32.const 256))",
        "(call $random (i64.const 0x1000001) (i32.const 256))",
        // Loops that fill the resource table.
        "(loop $more (drop (call $get_stdin)) (br $more))",
        "(loop $more (drop (call $get_stdout)) (br $more))",
        "(loop $more (drop (call $after (i64.const 1))) (br $more))",
        "(loop $more (drop (call $network)) (br $more))",
        "(loop $more (call $directories (i32.const 256)) (br $more))",
        "(loop $more (call $read_directory (call $directory (i32.const 0)) (i32.const 256)) (br $more))",
    ] {
        trapped("", &format!("{code} (i32.const 0)")).await;
    }
}

#[tokio::test]
async fn a_guest_that_gives_no_room_for_an_answer_ends() {
    let lie = |lie: i32| {
        component(&format!(
            "(global.set $lie (i32.const {lie})) (call $random (i64.const 64) (i32.const 256)) (i32.const 0)"
        ))
    };
    for at in [-1, -16, 0x40000, i32::MIN] {
        let done = run(lie(at), Spec::default()).await.unwrap();
        assert_eq!(done.exit.signal, Some(SIGABRT), "{at}: {:?}", done.exit);
    }
    // A call of the host while the host calls `realloc` is a trap of the engine.
    assert!(run(lie(1), Spec::default()).await.unwrap().exit.signal.is_some());
    let spec = limited(|limits| limits.wall_time = Duration::from_secs(2));
    assert!(run(lie(2), spec).await.unwrap().exit.timed_out);
}

#[tokio::test]
async fn open_files_run_out_before_memory_does() {
    let (data, spans) = texts(&["."]);
    let code = format!(
        "(local.set $i (call $directory (i32.const 0)))
         (loop $more
           (call $check (call $open (local.get $i) {} (i32.const 0) (i32.const 1)))
           (br $more))
         (i32.const 0)",
        spans[0]
    );
    assert_eq!(code_of(&data, &code).await, INSUFFICIENT_MEMORY);
}

#[tokio::test]
async fn closed_resources_free_their_slots() {
    let (data, spans) = texts(&["file"]);
    let code = format!(
        "(local.set $i (call $directory (i32.const 0)))
         (loop $more
           (call $check (call $open (local.get $i) {} (i32.const 1) (i32.const 3)))
           (call $drop_descriptor (i32.load (i32.const 260)))
           (call $drop_input (call $get_stdin))
           (local.set $n (i64.add (local.get $n) (i64.const 1)))
           (br_if $more (i64.lt_u (local.get $n) (i64.const 20000))))
         (i32.const 0)",
        spans[0]
    );
    assert_eq!(code_of(&data, &code).await, 0);
}

#[tokio::test]
async fn a_stream_outlives_its_file_and_gives_it_back() {
    // The file is closed and unlinked. The stream keeps writing a megabyte at a time, and dropping it frees the
    // content.
    let (data, spans) = texts(&["file"]);
    let code = format!(
        "(local.set $i (call $directory (i32.const 0)))
         (call $check (call $open (local.get $i) {name} (i32.const 1) (i32.const 3)))
         (call $write_via_stream (i32.load (i32.const 260)) (i64.const 0) (i32.const 300))
         (call $drop_descriptor (i32.load (i32.const 260)))
         (call $unlink_at (local.get $i) {name} (i32.const 256))
         (call $check (call $outcome (i32.const 1)))
         (call $write_zeroes (i32.load (i32.const 304)) (i64.const 1000000) (i32.const 256))
         (i32.load8_u (i32.const 256))",
        name = spans[0]
    );
    let sandbox = sandbox(Spec::default()).await;
    let done = sandbox.exec(script(component_with(&data, &code)).build().unwrap()).await.unwrap();
    assert!(done.exit.success(), "{:?}", done.exit);
    let usage = sandbox.usage().await.unwrap();
    assert!(usage.disk_bytes.unwrap() < 10_000, "{usage:?}");
}

#[tokio::test]
async fn an_endless_stream_ends_with_its_time() {
    let (data, spans) = texts(&["file"]);
    // A file that is a hole of a tebibyte, printed.
    let code = format!(
        "(call $check (call $open (call $directory (i32.const 0)) {} (i32.const 1) (i32.const 3)))
         (call $set_size (i32.load (i32.const 260)) (i64.const 0x10000000000) (i32.const 300))
         (call $read_via_stream (i32.load (i32.const 260)) (i64.const 0) (i32.const 256))
         (local.set $i (i32.load (i32.const 260)))
         (loop $more (call $splice (call $get_stdout) (local.get $i) (i64.const -1) (i32.const 256)) (br $more))
         (i32.const 0)",
        spans[0]
    )
    .replace("(call $get_stdout)", "(global.get $out)");
    let more = format!("{data} (global $out (mut i32) (i32.const 0))");
    let code = format!("(global.set $out (call $get_stdout)) {code}");
    let spec = limited(|limits| limits.wall_time = Duration::from_secs(2));
    let done = run(component_with(&more, &code), spec).await.unwrap();
    assert!(done.exit.timed_out && done.exit.truncated, "{:?}", done.exit);
}

/// Returns the host calls of the prelude: each with its parameters, `i` for 32 bits and `l` for 64, and true if it has
/// a result.
fn calls() -> Vec<(String, String, bool)> {
    let text = include_str!("component.wat").replace('\n', " ");
    let calls = text.split("(import ").skip(1).filter_map(|import| {
        let (_, declared) = import.split_once("(func $")?;
        let (name, rest) = declared.split_once([' ', ')'])?;
        let params = rest.split_once("(param ").map_or("", |(_, params)| params.split(')').next().unwrap_or_default());
        let params = params.split(' ').map(|word| if word == "i64" { 'l' } else { 'i' }).collect::<String>();
        let params = if rest.contains("(param") { params } else { String::new() };
        let answers = import.split("(memory").next().is_some_and(|import| import.contains("(result"));
        Some((name.to_owned(), params, answers))
    });
    calls.filter(|(name, ..)| !name.starts_with("exit")).collect()
}

/// Promise (WebAssembly): No arguments to the functions of WASI 0.2 harm the host.
#[tokio::test]
async fn no_numbers_given_to_the_calls_do_harm() {
    let calls = calls();
    assert!(calls.len() > 35, "{calls:?}");
    let number = prop_oneof![
        // Handles are small numbers.
        8 => 1u64..24,
        4 => (64u64..80).prop_map(|at| at * 4),
        1 => Just(0),
        1 => Just(u64::from(u32::MAX)),
        1 => Just(u64::MAX),
        1 => Just(1 << 31),
        1 => any::<u64>(),
    ];
    let sequence = prop::collection::vec((0..calls.len(), prop::collection::vec(number, 16)), 1..5);
    let mut runner = TestRunner::new(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() });
    let (data, spans) = texts(&["a", "localhost"]);
    // Some handles of each kind, so that some of the numbers are valid.
    let begin = format!(
        "(drop (call $open (call $directory (i32.const 0)) {} (i32.const 1) (i32.const 3)))
         (drop (call $get_stdin)) (drop (call $get_stdout)) (drop (call $after (i64.const 1)))
         (call $write_via_stream (i32.load (i32.const 260)) (i64.const 0) (i32.const 256))
         (call $tcp (i32.const 0) (i32.const 256)) (call $resolve (call $network) {} (i32.const 256))",
        spans[0], spans[1]
    );
    // A port where probably no server listens.
    let network = NetworkPolicy::Allow { hosts: vec!["127.0.0.1:9".to_owned(), "localhost:9".to_owned()] };
    let mut trapped = 0;
    for _ in 0..150 {
        let sequence = sequence.new_tree(&mut runner).unwrap().current();
        let mut code = begin.clone();
        for (call, numbers) in &sequence {
            let (name, params, answers) = &calls[*call];
            let constant = |(kind, number): (char, &u64)| match kind {
                'i' => format!(" (i32.const {})", *number as u32),
                _ => format!(" (i64.const {number})"),
            };
            let arguments: String = params.chars().zip(numbers).map(constant).collect();
            let call = format!("(call ${name}{arguments})");
            code += &if *answers { format!("(drop {call})\n") } else { format!("{call}\n") };
        }
        let spec = limited(|limits| {
            limits.wall_time = Duration::from_secs(4);
            limits.disk = Some(ByteSize::from_mebibytes(1));
        });
        let sandbox = sandbox(spec.to_builder().network(network.clone()).build().unwrap()).await;
        let program = component_with(&data, &format!("{code} (i32.const 0)"));
        let done = sandbox.exec(script(program).build().unwrap()).await;
        let done = done.unwrap_or_else(|error| panic!("{error} after {code}"));
        let signal = done.exit.signal;
        assert!(signal.is_none() || signal == Some(SIGABRT) || done.exit.timed_out, "{:?} after {code}", done.exit);
        trapped += usize::from(signal == Some(SIGABRT));
        let usage = sandbox.usage().await.unwrap();
        assert!(usage.disk_bytes.unwrap() <= 1 << 20, "{usage:?}");
        assert_eq!(usage.memory_bytes, Some(0), "only files use memory, and they have their own account");
    }
    println!("{trapped} of 150 broke a rule");
    assert!((1..150).contains(&trapped));
}
