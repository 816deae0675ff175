//! Scripts in prepared interpreters.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{Backend, ByteSize, ErrorKind, ExecRequest, SandboxPath, Spec, Stdin};
use cofferdam_wasm::{Call, Language, SessionKind, SessionSnapshot, WasmBackend, WasmConfig};

use crate::interpreters::{BOTH, backend, cache_for, patient, run, source};
use crate::support::{limited, text};

const MAX_SIZE: ByteSize = ByteSize::from_mebibytes(256);

/// Pairs of source text and its output.
async fn prints(language: Language, cases: &[(&str, &str)]) {
    let Some(backend) = backend("scripts in warm interpreters") else { return };
    for (source, expected) in cases {
        let done = run(backend, language, source).await;
        let printed = (text(&done.stdout), text(&done.stderr), done.exit.code);
        assert_eq!(printed, (format!("{expected}\n"), String::new(), 0), "{source}");
    }
}

/// Promise (WebAssembly): Common Python programs run.
#[tokio::test]
async fn common_python_programs_run() {
    prints(
        Language::Python,
        &[
            ("import json; print(json.dumps({'a': [1, 2.5, None, 'ü']}, sort_keys=True))", r#"{"a": [1, 2.5, null, "\u00fc"]}"#),
            ("import math; print(math.factorial(25), math.isclose(math.sin(math.pi), 0, abs_tol=1e-9))", "15511210043330985984000000 True"),
            ("import re; print(re.sub(r'(\\w+) (\\w+)', r'\\2 \\1', 'hello world'))", "world hello"),
            ("from datetime import date, timedelta; print(date(2024, 2, 28) + timedelta(days=2))", "2024-03-01"),
            ("from collections import Counter, deque; print(Counter('abca').most_common(1), deque([1], 3))", "[('a', 2)] deque([1], maxlen=3)"),
            ("import asyncio\nasync def f(n):\n    await asyncio.sleep(0.001)\n    return n\nasync def g():\n    return await asyncio.gather(f(1), f(2))\nprint(asyncio.run(g()))", "[1, 2]"),
            ("import dataclasses, statistics\n@dataclasses.dataclass\nclass P:\n    x: int\nprint(P(3), statistics.mean([1, 2]))", "P(x=3) 1.5"),
            ("import hashlib; print(hashlib.sha256(b'x').hexdigest()[:8])", "2d711642"),
            ("import sys; print(sys.argv, __name__, __file__)", "['main.py', 'one', 'two words'] __main__ main.py"),
            ("import os; print(os.getcwd(), sorted(k for k in os.environ if 'COFFERDAM' in k))", "/workspace []"),
            ("open('own.py', 'w').write('value = 42')\nimport own; print(own.value)", "42"),
            ("import os, pathlib\npathlib.Path('d').mkdir()\npathlib.Path('d/f').write_text('x')\nprint(os.listdir('.'), os.path.getsize('d/f'))", "['d'] 1"),
            ("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    print(error)", "division by zero"),
            ("import sys; print('a'); sys.exit(0)", "a"),
        ],
    )
    .await;
}

/// Promise (WebAssembly): Common JavaScript programs run.
#[tokio::test]
async fn common_javascript_programs_run() {
    prints(
        Language::JavaScript,
        &[
            (
                "console.log({ a: 1, b: ['x', null], c: { d: undefined } })",
                "{ a: 1, b: [ 'x', null ], c: { d: undefined } }",
            ),
            ("console.log(JSON.stringify({ a: [1, 'ü'] }), 1 + 1, 'text')", "{\"a\":[1,\"ü\"]} 2 text"),
            ("Promise.resolve(3).then((n) => console.log(n)); console.log('first')", "first\n3"),
            ("setTimeout(() => console.log('late'), 5); setTimeout(() => console.log('soon'), 1)", "soon\nlate"),
            ("console.log(process.argv.slice(2), process.cwd())", "[ 'one', 'two words' ] /workspace"),
            (
                "require('fs').writeFileSync('own.js', 'exports.value = 42'); console.log(require('./own.js').value)",
                "42",
            ),
            ("console.log([3, 1, 2].sort().map((n) => n * 2).join())", "2,4,6"),
            ("console.log(typeof process.env.HOME, new Map([[1, 2]]).get(1))", "string 2"),
            ("try { null.x } catch (error) { console.log(error instanceof TypeError) }", "true"),
        ],
    )
    .await;
}

/// Promise (WebAssembly): A missing feature raises an exception of the language.
#[tokio::test]
async fn failures_raise_exceptions_of_the_language() {
    let Some(backend) = backend("errors of scripts") else { return };
    let python = run(backend, Language::Python, "def f():\n    raise ValueError('no')\n\nf()\n").await;
    let shown = "Traceback (most recent call last):\n  File \"main.py\", line 4, in <module>\n    f()\n  \
                 File \"main.py\", line 2, in f\n    raise ValueError('no')\nValueError: no\n";
    assert_eq!((text(&python.stderr), python.exit.code), (shown.to_owned(), 1));
    for (source, code, expected) in [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("raise SystemExit", 0, ""),
        ("import os; os._exit(9)", 9, ""),
    ] {
        let done = run(backend, Language::Python, source).await;
        assert_eq!((done.exit.code, text(&done.stderr)), (code, expected.to_owned()), "{source}");
    }
    let wrong = run(backend, Language::Python, "x = (").await;
    assert!(
        wrong.exit.code == 1 && text(&wrong.stderr).contains("SyntaxError: '(' was never closed"),
        "{}",
        text(&wrong.stderr)
    );
    for (source, expected) in [
        ("import socket; socket.create_connection(('127.0.0.1', 1))", "Error"),
        ("import threading; threading.Thread(target=print).start()", "can't start new thread"),
        ("import subprocess; subprocess.run(['ls'])", "Error"),
        ("import os; os.fork()", "Error"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("open('/workspace/../etc/passwd')", "Error"),
    ] {
        let done = run(backend, Language::Python, source).await;
        let stderr = text(&done.stderr);
        assert!(
            done.exit.code == 1 && stderr.starts_with("Traceback") && stderr.contains(expected),
            "{source}: {stderr}"
        );
    }
    for (source, code, expected) in [
        ("throw new TypeError('no')", 1, "TypeError: no"),
        ("process.exit(5)", 5, ""),
        ("process.exitCode = 6", 6, ""),
        ("x = (", 1, "SyntaxError"),
        ("Promise.reject(new Error('lost'))", 1, "lost"),
        ("require('net')", 1, "not available"),
        ("require('child_process')", 1, "not available"),
        ("require('fs').readFileSync('/etc/passwd')", 1, "Error"),
    ] {
        let done = run(backend, Language::JavaScript, source).await;
        let stderr = text(&done.stderr);
        assert!(done.exit.code == code && stderr.contains(expected), "{source}: {:?} {stderr}", done.exit);
    }
}

/// Promise (WebAssembly): Endless recursion in a script raises an exception of its language.
#[tokio::test]
async fn endless_recursion_of_any_kind_is_an_exception() {
    let Some(backend) = backend("endless recursion") else { return };
    for source in [
        "def f(): f()\nf()",
        "class A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x",
        "class A:\n    def __repr__(self): return repr(self)\nrepr(A())",
        "class A:\n    def __eq__(self, other): return self == other\nA() == A()",
        "class A:\n    def __init__(self): A()\nA()",
        "def f(n): return sorted([1], key=f)\nf(0)",
        "import json\ndef f(o): return json.dumps(object(), default=f)\nf(0)",
        "import re\ndef f(m): return re.sub('a', f, 'a')\nf(0)",
        "import functools\n@functools.lru_cache\ndef f(n): return f(n + 1)\nf(0)",
        "import sys\nopen('m.py', 'w').write('import sys; del sys.modules[\"m\"]; import m')\nimport m",
        "def f(): exec('f()', globals())\nf()",
        "import sys\nsys.setrecursionlimit(10**8)\nclass A:\n    def __getattr__(self, n): return getattr(self, n)\nA().x",
    ] {
        let done = run(backend, Language::Python, source).await;
        let stderr = text(&done.stderr);
        assert!(done.exit.code == 1 && stderr.contains("RecursionError"), "{source}: {:?} {stderr}", done.exit);
    }
    // Deep recursion that ends must succeed.
    let deep = "def f(n): return eval('f(n - 1)', globals(), {'n': n}) if n else 'end'\nprint(f(150))";
    prints(Language::Python, &[(deep, "end")]).await;
    prints(
        Language::JavaScript,
        &[
            ("async function f() { return f() }\nf().catch((error) => console.log(error.name))", "RangeError"),
            (
                "function f() { return new Promise((yes) => yes(f())) }\nf().catch((error) => console.log(error.name))",
                "RangeError",
            ),
            ("async function* f() { yield* f() }\nf().next().catch((error) => console.log(error.name))", "RangeError"),
        ],
    )
    .await;
}

#[tokio::test]
async fn cost_of_timers_is_linear() {
    let Some(backend) = backend("many timers") else { return };
    // A check of all objects for each new one would take ten times the CPU limit.
    let spec = || {
        limited(|limits| {
            limits.wall_time = Duration::from_secs(600);
            limits.cpu_time = Some(Duration::from_secs(60));
        })
    };
    let many = "let n = 0; for (let i = 0; i < 50000; i++) setTimeout(() => n++, i % 7);\
                setTimeout(() => console.log(n), 50)";
    let gone = "const all = []; for (let i = 0; i < 50000; i++) all.push(setTimeout(() => console.log('no'), 1e6));\
                all.forEach(clearTimeout); console.log('none')";
    let order = "for (const [name, wait] of [['c', 30], ['a', 1], ['b', 15], ['a2', 1]]) setTimeout(() => console.log(name), wait);\
                 let n = 0; const every = setInterval(() => { if (++n === 3) { clearInterval(every); console.log('third') } }, 20)";
    for (text_of, expected) in [(many, "50000\n"), (gone, "none\n"), (order, "a\na2\nb\nc\nthird\n")] {
        let request = source(Language::JavaScript, "main.js", text_of).build().unwrap();
        let done = backend.run(spec(), request).await.unwrap().0;
        assert_eq!((text(&done.stdout).as_str(), done.exit.code), (expected, 0), "{text_of}: {:?}", done.exit);
    }
}

#[tokio::test]
async fn missing_features_are_explained() {
    let Some(backend) = backend("what is missing") else { return };
    for (source, expected) in [
        ("import _thread; _thread.start_new_thread(print, ())", "no network, threads or processes"),
        ("from concurrent.futures import ThreadPoolExecutor", "Python for WebAssembly comes without it"),
        ("import ssl", "Python for WebAssembly comes without it"),
        ("import numpy", "Packages are not installed"),
        ("raise ModuleNotFoundError(name=5)", "ModuleNotFoundError"),
    ] {
        let done = run(backend, Language::Python, source).await;
        let stderr = text(&done.stderr);
        assert!(
            done.exit.code == 1 && stderr.starts_with("Traceback") && stderr.contains(expected),
            "{source}: {stderr}"
        );
    }
    for option in ["-m", "-V"] {
        let sandbox = backend.create(patient()).await.unwrap();
        let request = ExecRequest::argv(["python3", option, "json.tool"]).build().unwrap();
        let error = sandbox.start(request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("the option '{option}'")), "{error}");
    }
}

#[tokio::test]
async fn a_script_can_ask_whether_it_is_the_main_one() {
    prints(
        Language::JavaScript,
        &[
            ("console.log(require.main === module, __filename, __dirname)", "true /workspace/main.js /workspace"),
            (
                "require('fs').writeFileSync('own.js', 'exports.main = require.main === module'); console.log(require('./own.js').main)",
                "false",
            ),
            ("const __filename = 'mine'; console.log(__filename)", "mine"),
        ],
    )
    .await;
}

#[tokio::test]
async fn input_environment_and_working_directory_reach_a_script() {
    let Some(backend) = backend("what reaches a script") else { return };
    let both = [
        (Language::Python, "import sys, os; print(sys.stdin.read(), os.environ['A'], os.getcwd())"),
        (Language::JavaScript, "console.log(require('fs').readFileSync(0, 'utf8'), process.env.A, process.cwd())"),
    ];
    for (language, script) in both {
        let sandbox = backend.create(patient()).await.unwrap();
        let path = SandboxPath::new("below/f").unwrap();
        sandbox.write_file(&path, Box::new(&b"x"[..])).await.unwrap();
        let request = source(language, "main", script).stdin(Stdin::Bytes("given".into())).env("A", "b c");
        let request = request.working_dir(SandboxPath::new("below").unwrap()).build().unwrap();
        let done = sandbox.exec(request).await.unwrap();
        assert_eq!(text(&done.stdout), "given b c /workspace/below\n", "{}", text(&done.stderr));
    }
}

/// Promise (WebAssembly): No state of a script's run remains for the next run.
#[tokio::test]
async fn no_state_of_a_script_remains_for_the_next() {
    let Some(backend) = backend("scripts one after the other") else { return };
    let pairs = [
        (
            Language::Python,
            "import sys, os\nprint('left' in dir(), hasattr(sys, 'left'), os.listdir('.'), 'own' in sys.modules)\nleft = sys.left = 1\nopen('own.py', 'w').close()\nimport own\nsys.setrecursionlimit(99999)",
            "False False [] False\n",
        ),
        (
            Language::JavaScript,
            "console.log(typeof globalThis.left, Array.prototype.left, require('fs').readdirSync('.'))\nglobalThis.left = 1; Array.prototype.left = 2; require('fs').writeFileSync('x', '')",
            "undefined undefined []\n",
        ),
    ];
    for (language, script, expected) in pairs {
        let loaded = backend.load_language(language, patient()).await.unwrap();
        let (printed, codes) = loaded
            .on_runner(|runner| {
                let done = || runner.run(&Call { source: script.into(), ..Call::default() }).unwrap();
                let all: Vec<_> = (0..4).map(|_| done()).collect();
                (
                    all.iter().map(|done| text(&done.stdout)).collect::<Vec<_>>(),
                    all.iter().map(|done| done.exit.code).max(),
                )
            })
            .unwrap();
        assert_eq!((printed, codes), (vec![expected.to_owned(); 4], Some(0)));
    }
}

const DRAWS: [(Language, &str); 2] = [
    (Language::Python, "import random, uuid, secrets; print(random.random(), uuid.uuid4(), secrets.token_hex(8))"),
    (Language::JavaScript, "console.log(Math.random(), Math.random())"),
];

/// Promise (WebAssembly): Two runs get different random numbers.
#[tokio::test]
async fn two_runs_draw_different_numbers() {
    let Some(backend) = backend("randomness of scripts") else { return };
    for (language, draw) in DRAWS {
        let (one, other) = (run(backend, language, draw).await, run(backend, language, draw).await);
        different(&text(&one.stdout), &text(&other.stdout));
    }
}

/// Checks that the two drew no common word.
fn different(one: &str, other: &str) {
    assert!(!one.is_empty());
    for (one, other) in one.split_whitespace().zip(other.split_whitespace()) {
        assert_ne!(one, other);
    }
}

/// Promise (WebAssembly): An exception does not end a session.
#[tokio::test]
async fn sessions_keep_variables_after_exceptions() {
    let Some(backend) = backend("sessions of interpreters") else { return };
    let both = [
        (Language::Python, "x = 41", "1 / 0", "ZeroDivisionError", "x += 1; print(x)"),
        (Language::JavaScript, "var x = 41", "null.x", "TypeError", "x += 1; console.log(x)"),
    ];
    for (language, define, fail, error, show) in both {
        let session = backend.open_session(SessionKind::Language(language), patient()).await.unwrap();
        let other = backend.open_session(SessionKind::Language(language), patient()).await.unwrap();
        assert!(session.execute(define).await.unwrap().exit.success());
        let failed = session.execute(fail).await.unwrap();
        assert!(failed.exit.code == 1 && text(&failed.stderr).contains(error), "{}", text(&failed.stderr));
        assert_eq!(text(&session.execute(show).await.unwrap().stdout), "42\n");
        assert_eq!(other.execute(show).await.unwrap().exit.code, 1, "another session knows it");
        let wrong = ExecRequest::builder(cofferdam_contract::Command::Argv(vec!["f".to_owned()])).build().unwrap();
        assert_eq!(session.start(&wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
        let endless = if language == Language::Python { "while True: pass" } else { "while (true);" };
        let request = source(language, "<session>", endless).timeout(std::time::Duration::from_millis(300));
        assert!(session.exec(&request.build().unwrap()).await.unwrap().exit.timed_out);
        assert_eq!(session.execute(show).await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(text(&other.execute(define).await.unwrap().stderr), "");
    }
}

#[tokio::test]
async fn session_ends_with_its_exit_code() {
    let Some(backend) = backend("ends of sessions") else { return };
    for (language, end) in [(Language::Python, "import os; os._exit(4)"), (Language::JavaScript, "process.exit(4)")] {
        let session = backend.open_session(SessionKind::Language(language), patient()).await.unwrap();
        assert_eq!(session.execute(end).await.unwrap().exit.code, 4, "{language:?}");
    }
    let session = backend.open_session(SessionKind::Language(Language::Python), patient()).await.unwrap();
    assert_eq!(session.execute("import sys; sys.exit(5)").await.unwrap().exit.code, 5);
}

/// Promise (WebAssembly): Forks have the same variables and get different random numbers.
#[tokio::test]
async fn forks_know_the_same_and_draw_different_numbers() {
    let Some(backend) = backend("forks of interpreters") else { return };
    for (language, draw) in DRAWS {
        let session = backend.open_session(SessionKind::Language(language), patient()).await.unwrap();
        // The generator was used under another name before the fork.
        let before = if language == Language::Python {
            "from random import random as draw; a = draw()"
        } else {
            "var draw = Math.random; var a = draw()"
        };
        assert!(session.execute(before).await.unwrap().exit.success());
        let print = if language == Language::Python { "print(draw())" } else { "console.log(draw())" };
        let forks = [session.fork().await.unwrap(), session.fork().await.unwrap()];
        for source in [draw, print] {
            let one = text(&forks[0].execute(source).await.unwrap().stdout);
            let two = text(&forks[1].execute(source).await.unwrap().stdout);
            let own = text(&session.execute(source).await.unwrap().stdout);
            different(&one, &two);
            different(&one, &own);
        }
        let change = if language == Language::Python {
            "a = 'changed'; open('f', 'w').close()"
        } else {
            "a = 'changed'; require('fs').writeFileSync('f', '')"
        };
        assert!(forks[0].execute(change).await.unwrap().exit.success());
        let print_state = if language == Language::Python {
            "import os; print(a == 'changed', os.listdir('.'))"
        } else {
            "console.log(a === 'changed', require('fs').readdirSync('.').length)"
        };
        let seen = text(&forks[1].execute(print_state).await.unwrap().stdout);
        assert!(seen == "False []\n" || seen == "false 0\n", "{seen}");
    }
}

/// Promise (WebAssembly): A script's snapshot resumes in another process with the same variables.
#[tokio::test]
async fn script_snapshot_resumes_in_another_process() {
    const FILE: &str = "COFFERDAM_TEST_INTERPRETER_SNAPSHOT";
    let Some(backend) = backend("a snapshot in another process") else { return };
    let path = |language: Language| {
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("snapshot-{language:?}-{}", std::process::id()))
    };
    let both = [
        (Language::Python, "x = [1, {'a': 2}]; open('f', 'w').write('kept')", "print(x, open('f').read())"),
        (
            Language::JavaScript,
            "var x = [1, { a: 2 }]; require('fs').writeFileSync('f', 'kept')",
            "console.log(x, require('fs').readFileSync('f', 'utf8'))",
        ),
    ];
    if let Some(files) = std::env::var_os(FILE) {
        for ((_, _, show), file) in both.iter().zip(std::env::split_paths(&files)) {
            let snapshot = SessionSnapshot::read(std::fs::File::open(file).unwrap(), MAX_SIZE).unwrap();
            let session = backend.restore_session(&snapshot, patient()).await.unwrap();
            let done = session.execute(*show).await.unwrap();
            let seen = text(&done.stdout);
            assert!(seen == "[1, {'a': 2}] kept\n" || seen == "[ 1, { a: 2 } ] kept\n", "{seen}{}", text(&done.stderr));
        }
        return;
    }
    for (language, define, _) in both {
        let session = backend.open_session(SessionKind::Language(language), patient()).await.unwrap();
        assert!(session.execute(define).await.unwrap().exit.success());
        session.snapshot().unwrap().write(std::fs::File::create(path(language)).unwrap()).unwrap();
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["warm::script_snapshot_resumes_in_another_process", "--exact"]);
    let output = again.env(FILE, std::env::join_paths(BOTH.map(path)).unwrap()).output().unwrap();
    BOTH.iter().for_each(|language| std::fs::remove_file(path(*language)).unwrap());
    let stdout = text(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{}", text(&output.stderr));
}

/// Copies the entries of a cache.
fn copied(cache: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(cache).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        let target = to.join(entry.file_name());
        std::fs::create_dir(&target).unwrap();
        for file in std::fs::read_dir(entry.path()).unwrap().flatten() {
            std::fs::copy(file.path(), target.join(file.file_name())).unwrap();
        }
    }
}

/// Returns the cache entries of prepared JavaScript interpreters, which are fast to recreate.
fn ready(cache: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(cache).unwrap().flatten().map(|entry| entry.path());
    let mut ready: Vec<_> = entries
        .filter(|path| {
            path.is_dir()
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ready-javascript-"))
        })
        .collect();
    ready.sort();
    ready
}

/// Promise (WebAssembly): Damaged and foreign files in the cache are recreated.
#[tokio::test]
async fn a_damaged_or_foreign_entry_of_the_cache_is_made_again() {
    let Some(shared) = backend("a damaged cache") else { return };
    let Some(cache) = cache_for("a damaged cache") else { return };
    // Make sure that there is an entry to damage.
    assert!(run(shared, Language::JavaScript, "").await.exit.success());
    let top = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("spoiled-{}", std::process::id()));
    let spoil = |what: &str, spoil: &dyn Fn(&std::path::Path)| {
        let copy = top.join(what);
        copied(cache, &copy);
        ready(&copy).iter().for_each(|entry| spoil(entry));
        copy
    };
    let flip = |file: std::path::PathBuf, at: usize| {
        let mut bytes = std::fs::read(&file).unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1;
        std::fs::write(file, bytes).unwrap();
    };
    let copies = [
        spoil("code", &|entry| flip(entry.join("code"), 100_000)),
        spoil("state", &|entry| flip(entry.join("state"), usize::MAX)),
        spoil("header", &|entry| flip(entry.join("state"), 6)),
        spoil("manifest", &|entry| flip(entry.join("manifest"), 30)),
        spoil("swapped", &|entry| {
            std::fs::rename(entry.join("code"), entry.join("other")).unwrap();
            std::fs::rename(entry.join("state"), entry.join("code")).unwrap();
            std::fs::rename(entry.join("other"), entry.join("state")).unwrap();
        }),
        spoil("cut", &|entry| {
            std::fs::OpenOptions::new().write(true).open(entry.join("state")).unwrap().set_len(2).unwrap()
        }),
        spoil("link", &|entry| {
            std::fs::rename(entry.join("code"), entry.join("elsewhere")).unwrap();
            std::os::unix::fs::symlink("elsewhere", entry.join("code")).unwrap();
        }),
        // A complete entry under another name.
        spoil("foreign", &|entry| {
            let python = std::fs::read_dir(cache).unwrap().flatten().map(|entry| entry.path());
            let python =
                python.filter(|path| path.to_string_lossy().contains("ready-python-")).find(|path| path.is_dir());
            if let Some(python) = python {
                std::fs::remove_dir_all(entry).unwrap();
                copied_entry(&python, entry);
            }
        }),
    ];
    for copy in &copies {
        let backend = WasmBackend::new(WasmConfig { cache: Some(copy.clone()), ..WasmConfig::default() });
        let done = run(&backend, Language::JavaScript, "console.log(1)").await;
        assert_eq!(text(&done.stdout), "1\n", "{}: {}", copy.display(), text(&done.stderr));
    }
    let open = spoil("open", &|_| {});
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let backend = WasmBackend::new(WasmConfig { cache: Some(open), ..WasmConfig::default() });
    let request = source(Language::JavaScript, "main.js", "1").build().unwrap();
    let refused = backend.run(patient(), request).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("other users can write"), "{refused}");
    std::fs::remove_dir_all(&top).unwrap();
}

fn copied_entry(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Promise (WebAssembly): The error for an interpreter that is not installed has a remedy.
#[tokio::test]
async fn missing_interpreter_error_has_a_remedy() {
    let empty = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("empty-{}", std::process::id()));
    for cache in [None, Some(empty.clone())] {
        let backend = WasmBackend::new(WasmConfig { cache, ..WasmConfig::default() });
        let request = source(Language::Python, "main.py", "1").build().unwrap();
        let refused = backend.run(patient(), request).await.unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Unavailable | ErrorKind::Unsupported), "{refused}");
        assert!(refused.remedy().is_some(), "{refused}");
    }
    assert!(!empty.exists(), "a lookup must not create the directory");
}

/// Runs the programs of docs/wasm.md.
async fn shown_on_the_page(cache: PathBuf, file: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let backend = WasmBackend::new(WasmConfig { cache: Some(cache), ..WasmConfig::default() });
    let session = backend.open_session(SessionKind::Language(Language::Python), Spec::default()).await?;
    session.execute("x = 41").await?;
    let done = session.execute("x += 1; print(x)").await?; // 42

    let twin = session.fork().await?; // goes its own way from here
    session.snapshot()?.write(File::create(&file)?)?;
    let snapshot = SessionSnapshot::read(File::open(&file)?, ByteSize::from_mebibytes(512))?;
    let later = backend.restore_session(&snapshot, Spec::default()).await?; // also in another process
    assert_eq!(text(&done.stdout), "42\n");
    for copy in [twin, later] {
        assert_eq!(text(&copy.execute("print(x)").await?.stdout), "42\n");
    }

    let loaded = backend.load_language(Language::Python, Spec::default()).await?;
    let done = loaded.on_runner(|runner| runner.run(&Call { source: "print(1)".into(), ..Call::default() }))??;
    assert_eq!(text(&done.stdout), "1\n");
    Ok(())
}

#[tokio::test]
async fn documented_programs_run() {
    let Some(cache) = cache_for("documented programs") else { return };
    let directory = tempfile::tempdir().unwrap();
    shown_on_the_page(cache.to_owned(), directory.path().join("session.snapshot")).await.unwrap();
}
