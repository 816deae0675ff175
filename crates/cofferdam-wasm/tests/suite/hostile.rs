//! Hostile modules: calls that WASI must refuse.

use std::time::Duration;

use cofferdam_contract::{ByteSize, Spec};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::support::{PRELUDE, assemble, limited, program, run, sandbox, script, text};

const PERM: i32 = 63;
const ROFS: i32 = 69;
const MFILE: i32 = 33;

/// Places texts in memory from 0x200000 on. Returns code that does so, and the address and length of each.
fn write_texts(texts: &[&str]) -> (String, Vec<(usize, usize)>) {
    let (mut code, mut spans, mut at) = (String::new(), Vec::new(), 0x20_0000);
    for text in texts {
        for (offset, byte) in text.bytes().enumerate() {
            code += &format!("(i32.store8 (i32.const {}) (i32.const {byte}))\n", at + offset);
        }
        spans.push((at, text.len()));
        at += text.len() + 16;
    }
    (code, spans)
}

/// Returns the error number of a call with paths.
async fn errno(imports: &str, texts: &[&str], call: impl Fn(&[(usize, usize)]) -> String) -> i32 {
    let (stores, spans) = write_texts(texts);
    let module = program(imports, &format!("{stores} (call $exit {})", call(&spans)));
    run(module, Spec::default()).await.unwrap().exit.code
}

fn open(fd: u32, (at, length): (usize, usize)) -> String {
    format!(
        "(call $path_open (i32.const {fd}) (i32.const 1) (i32.const {at}) (i32.const {length}) (i32.const 0)
          (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 12))"
    )
}

/// Promise (WebAssembly): No path of a module leads above a directory that it was given.
#[tokio::test]
async fn no_path_leads_above_its_directory() {
    for path in ["..", "../x", "./..", "a/../..", "/", "/etc/passwd", "/workspace", "//tmp", "../tmp"] {
        for fd in 3..6 {
            // `a` exists, so only the `..` can be the reason for the refusal.
            let (stores, spans) = write_texts(&["a", path]);
            let (created, target) = (spans[0], spans[1]);
            let make = format!(
                "(drop (call $path_create_directory (i32.const {fd}) (i32.const {}) (i32.const 1)))",
                created.0
            );
            let module = program("", &format!("{stores} {make} (call $exit {})", open(fd, target)));
            let code = run(module, Spec::default()).await.unwrap().exit.code;
            assert_eq!(code, PERM, "{path} from {fd}");
        }
    }
}

/// Promise (WebAssembly): No link of a module leads above a directory that it was given.
#[tokio::test]
async fn no_link_leads_above_its_directory() {
    for target in ["..", "../../..", "/etc", "/", "/tmp", "/workspacex", "b/../.."] {
        let code = errno("", &[target, "link", "link/x"], |spans| {
            let ((target, length), (link, size)) = (spans[0], spans[1]);
            format!(
                "(block (result i32) (call $check (call $path_symlink (i32.const {target}) (i32.const {length})
                   (i32.const 3) (i32.const {link}) (i32.const {size})))
                 (drop (call $path_create_directory (i32.const 3) (i32.const {b}) (i32.const 1)))
                 {})",
                open(3, spans[2]),
                b = target,
            )
        })
        .await;
        // With `b` missing its link is dangling; all others lead out.
        assert!(code == PERM || (target.starts_with('b') && code == 44), "{target}: {code}");
    }
}

/// Promise (WebAssembly): A path with a slash at its end leads no further than the path without it.
#[tokio::test]
async fn a_slash_at_the_end_leads_no_further() {
    let imports = r#"(import "wasi_snapshot_preview1" "path_filestat_get"
      (func $path_filestat_get (param i32 i32 i32 i32 i32) (result i32)))"#;
    for target in ["../", "..//", "../../", "/", "/etc/", "/tmp/", ".//../"] {
        for path in ["link/", "link//", "link/.", "link/./", "link/x", "link/x/"] {
            let calls = |at: usize, length: usize, nested: usize| {
                let name = format!("(i32.const {at}) (i32.const {length})");
                let opened = |follow: u32, how: u32| {
                    format!(
                        "(call $path_open (i32.const 3) (i32.const {follow}) {name} (i32.const {how}) (i64.const 66)
                          (i64.const 0) (i32.const 0) (i32.const 12))"
                    )
                };
                [
                    opened(1, 0),
                    opened(0, 0),
                    opened(1, 1),
                    opened(1, 2),
                    opened(1, 9),
                    format!("(call $path_create_directory (i32.const 3) {name})"),
                    format!("(call $path_rename (i32.const 3) {name} (i32.const 4) {name})"),
                    format!(
                        "(call $path_rename (i32.const 4) (i32.const {nested}) (i32.const 5) (i32.const 3) {name})"
                    ),
                    format!("(call $path_filestat_get (i32.const 3) (i32.const 1) {name} (i32.const 64))"),
                ]
            };
            let (stores, spans) = write_texts(&[target, "link", path, "there"]);
            let ((to, long), (link, size)) = (spans[0], spans[1]);
            let nested = spans[3].0;
            let make = format!(
                "(call $check (call $path_create_directory (i32.const 4) (i32.const {nested}) (i32.const 5)))
                 (call $check (call $path_symlink (i32.const {to}) (i32.const {long}) (i32.const 3) (i32.const {link})
                   (i32.const {size})))"
            );
            // One program makes all calls, and prints their results.
            let calls = calls(spans[2].0, spans[2].1, nested);
            let tell_calls: String = calls
                .iter()
                .map(|call| {
                    format!("(call $print_number (i64.extend_i32_u {call})) (call $print_number (i64.const 1000))")
                })
                .collect();
            let done = run(program(imports, &format!("{stores} {make} {tell_calls}")), Spec::default()).await.unwrap();
            let answers: Vec<_> = text(&done.stdout).split_terminator("1000").map(str::to_owned).collect();
            assert_eq!(answers, ["63"; 9], "{path} to {target}: {:?} {}", done.exit, text(&done.stderr));
        }
    }
}

/// Promise (WebAssembly): A module cannot rename or link files out of a read-only directory.
#[tokio::test]
async fn a_read_only_directory_lets_nothing_be_renamed_or_linked_out() {
    let imports = r#"(import "wasi_snapshot_preview1" "path_link"
      (func $path_link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))"#;
    let (stores, spans) = write_texts(&["given"]);
    let (at, length) = spans[0];
    let name = format!("(i32.const {at}) (i32.const {length})");
    let workspace = cofferdam_contract::Workspace::Private { access: cofferdam_contract::Access::ReadOnly };
    for call in [
        format!("(call $path_rename (i32.const 3) {name} (i32.const 4) {name})"),
        format!("(call $path_link (i32.const 3) (i32.const 0) {name} (i32.const 4) {name})"),
        format!("(call $path_symlink {name} (i32.const 3) {name})"),
        format!("(call $path_create_directory (i32.const 5) {name})"),
        // Truncated by open, with and without the right to write.
        format!(
            "(call $path_open (i32.const 3) (i32.const 0) {name} (i32.const 8) (i64.const 66) (i64.const 0) (i32.const 0)
              (i32.const 12))"
        ),
        format!(
            "(call $path_open (i32.const 3) (i32.const 0) {name} (i32.const 8) (i64.const 2) (i64.const 0) (i32.const 0)
              (i32.const 12))"
        ),
    ] {
        let sandbox = sandbox(Spec::builder().workspace(workspace.clone()).build().unwrap()).await;
        let given = cofferdam_contract::SandboxPath::new("given").unwrap();
        sandbox.write_bytes(&given, "kept").await.unwrap();
        let module = program(imports, &format!("{stores} (call $exit {call})"));
        assert_eq!(sandbox.exec(script(module).build().unwrap()).await.unwrap().exit.code, ROFS, "{call}");
        let contents = sandbox.read_file_to_end(&given, ByteSize::from_mebibytes(1)).await.unwrap();
        assert_eq!(contents, b"kept", "{call}");
    }
}

#[tokio::test]
async fn descriptors_run_out_before_memory_does() {
    let (stores, spans) = write_texts(&["."]);
    let code = format!(
        "{stores} (block $done (loop $more
           (local.set $i {})
           (br_if $done (local.get $i))
           (local.set $n (i64.add (local.get $n) (i64.const 1)))
           (br $more)))
         (call $print_number (local.get $n)) (call $exit (local.get $i))",
        open(3, spans[0])
    );
    let done = run(program("", &code), Spec::default()).await.unwrap();
    assert_eq!(done.exit.code, MFILE);
    assert_eq!(text(&done.stdout), (1024 - 6).to_string());
}

/// Promise (WebAssembly): The disk limit counts file names and empty files.
#[tokio::test]
async fn names_and_empty_files_cannot_outgrow_the_disk() {
    let code = "(i32.store8 (i32.const 0x200000) (i32.const 110))
      (call $make_files (i32.const 3) (i32.const 0x200000) (i32.const 1) (i32.const 100000000))";
    let sandbox = sandbox(limited(|limits| limits.disk = Some(ByteSize::from_mebibytes(4)))).await;
    let done = sandbox.exec(script(program("", code)).build().unwrap()).await.unwrap();
    assert_eq!(done.exit.code, 1);
    assert_eq!(done.exit.limits_hit, [cofferdam_contract::LimitKind::Disk]);
    assert!(sandbox.usage().await.unwrap().disk_bytes.unwrap() <= 4 << 20);
    let listed = sandbox.list_dir(&cofferdam_contract::SandboxPath::default()).await.unwrap();
    assert!(listed.len() < (4 << 20) / 512, "{} files in 4 MiB", listed.len());
}

/// Every call with its parameters: `i` for 32 bits, `l` for 64.
const CALLS: &[(&str, &str)] = &[
    ("args_get", "ii"),
    ("args_sizes_get", "ii"),
    ("environ_get", "ii"),
    ("environ_sizes_get", "ii"),
    ("clock_res_get", "ii"),
    ("clock_time_get", "ili"),
    ("fd_advise", "illi"),
    ("fd_allocate", "ill"),
    ("fd_close", "i"),
    ("fd_datasync", "i"),
    ("fd_fdstat_get", "ii"),
    ("fd_fdstat_set_flags", "ii"),
    ("fd_fdstat_set_rights", "ill"),
    ("fd_filestat_get", "ii"),
    ("fd_filestat_set_size", "il"),
    ("fd_filestat_set_times", "illi"),
    ("fd_pread", "iiili"),
    ("fd_prestat_get", "ii"),
    ("fd_prestat_dir_name", "iii"),
    ("fd_pwrite", "iiili"),
    ("fd_read", "iiii"),
    ("fd_readdir", "iiili"),
    ("fd_renumber", "ii"),
    ("fd_seek", "ilii"),
    ("fd_sync", "i"),
    ("fd_tell", "ii"),
    ("fd_write", "iiii"),
    ("path_create_directory", "iii"),
    ("path_filestat_get", "iiiii"),
    ("path_filestat_set_times", "iiiilli"),
    ("path_link", "iiiiiii"),
    ("path_open", "iiiiillii"),
    ("path_readlink", "iiiiii"),
    ("path_remove_directory", "iii"),
    ("path_rename", "iiiiii"),
    ("path_symlink", "iiiii"),
    ("path_unlink_file", "iii"),
    ("poll_oneoff", "iiii"),
    ("random_get", "ii"),
    ("sched_yield", ""),
    ("sock_accept", "iii"),
    ("sock_recv", "iiiiii"),
    ("sock_send", "iiiii"),
    ("sock_shutdown", "ii"),
];

/// Returns a module that makes these calls one after the other.
fn caller(calls: &[(usize, Vec<u64>)]) -> Vec<u8> {
    let mut text = "(module\n".to_owned();
    for (name, types) in CALLS {
        let params: String = types.chars().map(|kind| if kind == 'i' { " i32" } else { " i64" }).collect();
        text +=
            &format!("(import \"wasi_snapshot_preview1\" \"{name}\" (func ${name} (param{params}) (result i32)))\n");
    }
    // Paths and buffers that some of the numbers point to by chance.
    text += "(memory (export \"memory\") 2)\n(data (i32.const 64) \"a/../b\\00\\40\\00\\00\\00\\06\\00\\00\\00..//tmp/./a\")\n";
    text += "(func (export \"_start\")\n";
    for (call, numbers) in calls {
        let (name, types) = CALLS[*call];
        let args: String = types
            .chars()
            .zip(numbers)
            .map(|(kind, number)| match kind {
                'i' => format!(" (i32.const {})", *number as u32),
                _ => format!(" (i64.const {})", *number),
            })
            .collect();
        text += &format!("(drop (call ${name}{args}))\n");
    }
    crate::support::assemble(&(text + "))"))
}

/// Promise (WebAssembly): No arguments to WASI functions harm the host.
#[tokio::test]
async fn no_numbers_given_to_the_calls_do_harm() {
    let number = prop_oneof![
        4 => 0u64..8,
        4 => 60u64..90,
        2 => Just(131_072),
        1 => Just(131_071),
        2 => Just(u64::from(u32::MAX)),
        1 => Just(u64::MAX),
        1 => Just(1 << 31),
        1 => Just(1 << 40),
        1 => any::<u64>(),
    ];
    let calls = prop::collection::vec((0..CALLS.len(), prop::collection::vec(number, 9)), 1..60);
    let config = ProptestConfig { rng_seed: RngSeed::Fixed(4), ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    for _ in 0..60 {
        let calls = calls.new_tree(&mut runner).unwrap().current();
        let spec = limited(|limits| {
            limits.wall_time = Duration::from_millis(500);
            limits.disk = Some(ByteSize::from_mebibytes(1));
        });
        let sandbox = sandbox(spec).await;
        let done = sandbox.exec(script(caller(&calls)).build().unwrap()).await;
        let done = done.unwrap_or_else(|error| panic!("{error} after {calls:?}"));
        assert!(done.exit.success() || done.exit.timed_out, "{:?} after {calls:?}", done.exit);
        // The sandbox stays usable.
        let hello = sandbox.exec(script(program("", "(call $print_number (i64.const 1))")).build().unwrap()).await;
        assert_eq!(text(&hello.unwrap().stdout), "1");
        let usage = sandbox.usage().await.unwrap();
        assert!(usage.disk_bytes.unwrap() <= 1 << 20, "{usage:?}");
        assert_eq!(usage.memory_bytes, Some(0), "only files use memory, and they have their own account");
    }
}

#[tokio::test]
async fn there_are_no_sockets() {
    for (call, fd, errno) in [
        ("(call $sock_shutdown (i32.const 3) (i32.const 1))", 3, 57),
        ("(call $sock_shutdown (i32.const 77) (i32.const 1))", 77, 8),
    ] {
        let imports =
            r#"(import "wasi_snapshot_preview1" "sock_shutdown" (func $sock_shutdown (param i32 i32) (result i32)))"#;
        let done = run(program(imports, &format!("(call $exit {call})")), Spec::default()).await.unwrap();
        assert_eq!(done.exit.code, errno, "descriptor {fd}");
    }
}

#[tokio::test]
async fn descriptors_that_are_replaced_and_replaced_again_are_let_go() {
    let imports = r#"(import "wasi_snapshot_preview1" "fd_renumber"
      (func $fd_renumber (param i32 i32) (result i32)))"#;
    let (stores, spans) = write_texts(&["."]);
    let open = open(3, spans[0]);
    let fd = "(i32.load (i32.const 12))";
    // Onto itself, onto a closed one, and onto the previous one, more often than there are descriptors.
    let code = format!(
        "{stores}
         (call $check {open}) (drop (call $fd_renumber {fd} {fd})) (call $check {open})
         (call $check (call $fd_close {fd})) (drop (call $fd_renumber (i32.const 3) {fd})) (call $check {open})
         (i32.store (i32.const 1024) {fd})
         (loop $more
           (call $check {open})
           (call $check (call $fd_renumber {fd} (i32.load (i32.const 1024))))
           (local.set $n (i64.add (local.get $n) (i64.const 1)))
           (br_if $more (i64.lt_u (local.get $n) (i64.const 5000))))
         (call $print_number (local.get $n))"
    );
    let done = run(program(imports, &code), Spec::default()).await.unwrap();
    assert_eq!((text(&done.stdout).as_str(), done.exit.code), ("5000", 0), "{:?} {}", done.exit, text(&done.stderr));
}

#[tokio::test]
async fn an_address_has_32_bits_however_it_is_reckoned() {
    // Bits shifted out of an address are lost, and an addition that overflows is out of bounds.
    let functions = "(func $shifted (param $i i32) (result i32) (i32.load (i32.shl (local.get $i) (i32.const 3))))
      (func $scaled (param $i i32) (result i32) (i32.load (i32.mul (local.get $i) (i32.const 8))))
      (func $added (param $i i32) (param $j i32) (result i32) (i32.load (i32.add (local.get $i) (local.get $j))))
      (func $beyond (param $i i32) (result i32) (i32.load offset=0xfffffff8 (local.get $i)))
      (func $splat (param $i i32) (result i32)
        (i32x4.extract_lane 0 (f64x2.splat (f64.load offset=0xfffffff0 (local.get $i)))))";
    for (call, expected) in [
        ("(call $shifted (i32.const 0x20000100))", Some(42)),
        ("(call $scaled (i32.const 0xe0000100))", Some(42)),
        ("(call $added (i32.const 0xfffff000) (i32.const 0x1800))", Some(42)),
        ("(call $beyond (i32.const 0x808))", None),
        ("(call $beyond (i32.const -1))", None),
        ("(call $splat (i32.const 0x810))", None),
        ("(call $shifted (i32.const 0x1fffffff))", None),
    ] {
        let code = format!("(i32.store (i32.const 0x800) (i32.const 42)) (call $exit {call})");
        let start = format!("(func (export \"_start\") {code})");
        let exit =
            run(assemble(&format!("(module {PRELUDE}\n{functions}\n{start})")), Spec::default()).await.unwrap().exit;
        match expected {
            Some(code) => assert_eq!((exit.code, exit.signal), (code, None), "{call}"),
            None => assert_eq!(exit.signal, Some(11), "{call}: {exit:?}"),
        }
    }
}
