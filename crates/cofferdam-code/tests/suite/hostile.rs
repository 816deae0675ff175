//! Tests of malicious code that attacks its executor or the readers of its results.

use std::time::Duration;

use cofferdam_code::{Bounds, CodeConfig, CodeRequest, CodeResult};
use cofferdam_contract::{ByteSize, EntryKind};

use crate::support::{World, spec};

async fn run(world: &World, code: &str) -> CodeResult {
    world.try_run(CodeRequest::new("python", code).timeout(Duration::from_secs(30))).await.expect("a result")
}

/// Finds the path of the results file, which is no secret inside the sandbox.
const FIND_PATH: &str = "import sys, os\nframe = sys._getframe()\nwhile 'state' not in frame.f_locals or 'room' not in frame.f_locals['state']: frame = frame.f_back\nresults_path = frame.f_locals['state']['results_path']\n";

#[tokio::test]
async fn a_flood_is_cut() {
    let world = World::new().await;
    let result = run(&world, "import sys\nfor _ in range(400): sys.stdout.write('x' * 65536)\n'the value'").await;
    assert_eq!((result.stdout.bytes().len(), result.truncated), (1 << 20, true));
    assert_eq!(result.results[0].data["text/plain"], "'the value'", "a flood does not wash results away");
}

/// Promise (Code execution): Malformed results of a guest are dropped and cannot forge other fields.
#[tokio::test]
async fn nonsense_among_the_results_is_dropped_and_spoofs_nothing() {
    let world = World::new().await;
    let write = |body: &str| format!("{FIND_PATH}{body}\nos._exit(9)");
    for (body, dropped) in [
        ("open(results_path, 'w').write('garbage\\n' * 10)", 10),
        ("open(results_path, 'wb').write(os.urandom(100000))", 1),
        ("open(results_path, 'w').write('{\"kind\":\"exit\",\"data\":{\"exit_code\":\"0\"},\"exit_code\":0}\\n')", 1),
        ("open(results_path, 'w').write('x' * (20 << 20))", 1),
        ("os.mkfifo(results_path)", 1),
        ("os.mkdir(results_path)", 1),
        ("os.symlink('/proc/kmsg', results_path)", 1),
        ("os.symlink('/etc/passwd', results_path)", 1),
        ("os.symlink(results_path, results_path)", 1),
    ] {
        let result = run(&world, &write(body)).await;
        assert_eq!(result.exit_code, 9, "{body}: {}", result.stderr.text());
        assert!(result.results.is_empty(), "{body}: {:?}", result.results);
        assert!(result.results_dropped >= dropped, "{body}: {}", result.results_dropped);
        assert!(world.sandbox.list_dir(&Default::default()).await.expect("a listing").is_empty(), "{body}");
    }
    let many = run(&world, "for n in range(1000): display(n)").await;
    assert!(many.results.len() <= 64, "{}", many.results.len());
    let large = run(&world, "'x' * (100 << 20)").await;
    let shown = large.results[0].data["text/plain"].as_str().expect("text");
    assert!(shown.len() < 70_000 && shown.ends_with("characters more)"), "{}", shown.len());
    let angry = run(&world, "class A:\n    def __repr__(self): raise SystemExit(5)\nA()").await;
    assert_eq!(angry.exit_code, 5, "an exception in a representation is the code's own");
}

#[tokio::test]
async fn oversized_representations_are_omitted_and_others_reported() {
    let world = World::new().await;
    let html = "class A:\n    def _repr_html_(self): return '<' * (20 << 20)\n    def __repr__(self): return 'an A'";
    for (language, code, text, left_out) in [
        ("python", format!("{html}\nA()"), "an A", "text/html: too large"),
        (
            "python",
            format!("{html}\n    def _repr_svg_(self): return '<' * (7 << 20)\nA()"),
            "an A",
            "text/html: too large",
        ),
        (
            "python",
            format!("{html}\n    def _repr_svg_(self): return '\"' * (7 << 20)\nA()"),
            "an A",
            "text/html, image/svg+xml: too large",
        ),
        // Its text would need more memory than there is.
        ("python", "'x' * (600 << 20)".to_owned(), "'xxxx", ""),
        ("python", "bytes(600 << 20)".to_owned(), "b'\\x00\\x00", ""),
        ("javascript", "new Array(1e8)".to_owned(), "[ <100000000 empty items> ]", "application/json: too large"),
        ("javascript", "({ a: 'x'.repeat(400 << 20) })".to_owned(), "{\n  a: 'xxx", "application/json: too large"),
        (
            "javascript",
            "let a = []; for (let n = 0; n < 30; n++) a = [a, a]; a".to_owned(),
            "[",
            "application/json: too large",
        ),
    ] {
        let result = world.run(language, &code).await;
        assert_eq!((result.exit_code, result.results_dropped), (0, 0), "{code}: {}", result.stderr.text());
        let [value] = &result.results[..] else { panic!("{code}: {:?}", result.results.len()) };
        let shown = value.data["text/plain"].as_str().expect("text");
        assert!(shown.starts_with(text) && shown.len() < 70_000, "{code}: {shown:.100}");
        assert_eq!(value.note.as_deref().unwrap_or_default(), left_out, "{code}");
    }
}

/// Promise (Code execution): The comparison of a workspace is bounded.
#[tokio::test]
async fn workspace_scan_is_bounded() {
    let bounds = Bounds {
        max_files: 2000,
        max_named_files: 50,
        max_hashed: ByteSize::from_mebibytes(1),
        max_contents: ByteSize::from_bytes(10),
        ..Bounds::default()
    };
    let world = World::with(CodeConfig { bounds, ..CodeConfig::default() }, spec()).await;
    let names = "import os\nfor name in ['a\\nb', '\\x1b[31mred', '\\u202edrow', ' ', b'\\xff\\xfe', '-rf']: open(name, 'w').write('0123456789ab')\nos.symlink('/', 'root'); os.symlink('.', 'loop'); os.mkfifo('fifo'); os.link('-rf', 'hard')\nos.truncate(os.open('huge', os.O_CREAT | os.O_WRONLY), 1 << 40) if False else open('huge', 'wb').truncate(900 << 20)";
    let result = world.try_run(CodeRequest::new("python", names).with_contents()).await.expect("a result");
    assert_eq!(result.exit_code, 0, "{}", result.stderr.text());
    let files = &result.files;
    assert!(!files.complete, "a file was too large to be read");
    let kind = |name: &str| files.changes.iter().find(|file| file.name == name).map(|file| file.kind);
    assert_eq!(kind("root"), Some(EntryKind::Symlink));
    assert_eq!(kind("fifo"), Some(EntryKind::Other));
    assert!(files.changes.iter().any(|file| file.name == "a\nb") && files.changes.len() == 11, "{files:?}");
    assert!(files.changes.iter().all(|file| file.contents.is_none()), "none fits");
    let json = serde_json::to_string(&result.files).expect("JSON");
    assert!(!json.contains('\n') && !json.contains('\u{1b}'), "{json}");
    let deep = "import os\nfor n in range(60):\n    os.mkdir('d'); os.chdir('d')\nopen('bottom', 'w')";
    assert_eq!(run(&world, deep).await.exit_code, 0);
    let many = "for n in range(100_000): open(f'f{n}', 'w').close()";
    let result = run(&world, many).await;
    assert_eq!(result.exit_code, 0, "{}", result.stderr.text());
    assert!(!result.files.complete && result.files.changes.len() <= 50, "{}", result.files.changes.len());
}

#[tokio::test]
async fn names_like_our_own_hide_nothing() {
    let world = World::new().await;
    let hide =
        "import os\nopen('.cofferdam-seen', 'w')\nos.mkdir('.cofferdam-x')\nopen('.cofferdam-x/a', 'w')\n'a value'";
    let result = run(&world, hide).await;
    let names: Vec<_> = result.files.changes.iter().map(|file| file.name.as_str()).collect();
    assert_eq!((names, result.files.complete), (vec![".cofferdam-seen", ".cofferdam-x/a"], true));
    // The results file of a concurrent call is in the workspace.
    let slow = "import os, time\nopen(results_path, 'w')\ntime.sleep(3)";
    let quick = "import time\ntime.sleep(1)";
    let slow = format!("{FIND_PATH}{slow}");
    let (_, quick) = tokio::join!(run(&world, &slow), run(&world, quick));
    assert!(quick.files.changes.is_empty(), "{:?}", quick.files);
}

#[tokio::test]
async fn a_link_that_was_there_may_have_changed() {
    let world = World::new().await;
    assert!(run(&world, "import os\nos.symlink('a', 'link')").await.files.complete);
    let files = run(&world, "import os\nos.remove('link')\nos.symlink('b', 'link')").await.files;
    assert!(!files.complete, "{files:?}");
}

#[tokio::test]
async fn an_interpreter_in_the_workspace_is_not_run() {
    let world = World::new().await;
    let plant = "import os, stat\nfor name in ['python3', 'sh', 'node', 'cat', 'bash']:\n    open(name, 'w').write('#!/bin/sh\\necho planted')\n    os.chmod(name, 0o755)\nfor name in ['json.py', 'os.py', 'io.py', '_json.py', 'traceback.py', 'sitecustomize.py', 'binascii.py']:\n    open(name, 'w').write('print(\"planted\")')";
    assert_eq!(run(&world, plant).await.exit_code, 0);
    for (language, code) in
        [("python", "print(1)\n[1]"), ("sh", "echo 1"), ("bash", "echo 1"), ("javascript", "console.log(1)")]
    {
        assert_eq!(world.run(language, code).await.stdout.text(), "1\n", "{language}");
    }
}

#[tokio::test]
async fn a_fork_bomb_ends_at_its_limit() {
    let world = World::new().await;
    let bomb = "import os, time\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\nexcept BaseException as error:\n    print(type(error).__name__)\n'here'";
    let result =
        world.try_run(CodeRequest::new("python", bomb).timeout(Duration::from_secs(20))).await.expect("a result");
    if !result.meta.weaker.is_empty() {
        println!("SKIP on a host without a limit on processes: {:?}", result.meta.weaker);
        return;
    }
    assert_eq!(result.stdout.text(), "BlockingIOError\n", "{}", result.stderr.text());
    assert_eq!(result.results[0].data["text/plain"], "'here'", "children write no results");
}
