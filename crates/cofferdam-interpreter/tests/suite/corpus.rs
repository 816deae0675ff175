//! Scripts that give the same output, errors and exit in a cold start and in a prepared interpreter.

use cofferdam_contract::{Completed, ExecRequest, SandboxPath, Stdin};
use cofferdam_interpreter::{EXTRA_PROCESSES, InterpreterConfig, WarmInterpreter};
use cofferdam_process::ProcessBackend;

use crate::support::{backend, block_on, code_with_args, has, main_file, sandbox};

/// A marker at the end of a line of output that differs for a reason and is excluded from the comparison.
const OWN: &str = "#own";

const PYTHON: &[(&str, &str)] = &[
    ("print", "print(1); print('é', flush=True)"),
    ("empty", ""),
    ("looks-like-an-answer", "print('+')\nprint('-2 directory')"),
    ("namespace", "print(sorted(globals()), __name__, __spec__, __package__, __doc__, __builtins__)"),
    ("docstring", "'''words'''\nprint(__doc__)"),
    ("annotations", "x: int = 1\nprint(__annotations__ if '__annotations__' in globals() else '-')"),
    ("loader", "print(type(__loader__).__name__, __loader__.name, __loader__.path == __file__)"),
    ("main-guard", "if __name__ == '__main__':\n    print('main')"),
    (
        "main-module",
        "import sys, __main__\nprint(__main__.__dict__ is globals(), sys.modules['__main__'].x if 0 else 0)",
    ),
    ("argv", "import sys\nprint(sys.argv[1:], sys.argv[0] == __file__, sys.orig_argv[:2], sys.orig_argv[3:])"),
    ("path", "import sys, os\nprint(sys.path[0] == os.path.dirname(__file__), sys.path[1:])"),
    ("own-file", "print(open(__file__).read())"),
    ("own-source", "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))"),
    ("flags", "import sys\nprint(sys.flags, sys.dont_write_bytecode, sys.executable, sys.prefix)"),
    (
        "streams",
        "import sys\nfor s in sys.stdin, sys.stdout, sys.stderr:\n    print(s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno())",
    ),
    ("environment", "import os\nprint(sorted(os.environ.items()))\nprint(os.getcwd())"),
    (
        "environment-of-children",
        "import subprocess\nprint(sorted(subprocess.run(['env'], capture_output=True, text=True).stdout.split('\\n')))",
    ),
    ("time-zone", "import time\nprint(time.tzname)"),
    ("descriptors", "import os\nprint(sorted(os.listdir('/proc/self/fd')))"),
    (
        "no-children",
        "import os\ntry:\n    print(os.waitpid(-1, os.WNOHANG))\nexcept ChildProcessError as e:\n    print(e)",
    ),
    (
        "signals",
        "import signal\nprint([(s, signal.getsignal(s)) for s in signal.valid_signals()])\nprint(signal.pthread_sigmask(0, []))",
    ),
    ("input", "print(input('? ') + input())\nimport sys\nprint(sys.stdin.read())"),
    ("input-ends", "input(); input(); input(); input()"),
    ("binary-input", "import sys\nprint(sys.stdin.buffer.read())"),
    ("exit-code", "import sys\nsys.exit(7)"),
    ("exit-none", "raise SystemExit"),
    ("exit-negative", "raise SystemExit(-1)"),
    ("exit-large", "raise SystemExit(1 << 33 | 5)"),
    ("exit-true", "raise SystemExit(True)"),
    ("exit-message", "import sys\nsys.exit('no ☃')"),
    ("exit-object", "import sys\nsys.exit([1, 2])"),
    ("exit-now", "import os\nprint('x')\nos._exit(9)"),
    ("exit-in-function", "def f():\n    exit(3)\nf()"),
    ("exception", "def f(x):\n    return 1 / x\n\nf(0)"),
    ("exception-with-cause", "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e"),
    ("exception-in-context", "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b')"),
    ("exception-without-frames", "raise RuntimeError('at the top')"),
    ("exception-in-import", "import json\njson.loads('{')"),
    (
        "exception-group",
        "import sys\nif sys.version_info >= (3, 11):\n    raise eval('ExceptionGroup')('g', [ValueError(1), KeyError(2)])",
    ),
    ("exception-of-own", "class E(Exception):\n    def __str__(self):\n        return 'own'\nraise E"),
    ("exception-notes", "e = ValueError(1)\nif hasattr(e, 'add_note'):\n    e.add_note('a note')\nraise e"),
    ("deep-recursion", "import sys\ndef f():\n    f()\ntry:\n    f()\nexcept RecursionError as e:\n    print('deep')"),
    ("syntax-error", "x = (1,\nprint(2"),
    ("indentation-error", "if 1:\nprint(2)"),
    ("tab-error", "if 1:\n\tx = 1\n        y = 2"),
    ("latin-1", "# -*- coding: latin-1 -*-\nprint(ascii('é'))"),
    ("byte-order-mark", "\u{feff}print(1)"),
    ("crlf", "print(1)\r\nprint(2)\r\n"),
    ("future", "from __future__ import annotations\ndef f(x: nothing): pass\nprint(f.__annotations__)"),
    ("no-future", "def f(x: int): pass\nprint(f.__annotations__)"),
    (
        "excepthook",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[2].tb_lineno, a[2].tb_frame.f_code.co_name)\n1/0",
    ),
    ("bad-excepthook", "import sys\ndef hook(*a):\n    raise ValueError('hook')\nsys.excepthook = hook\n1/0"),
    ("excepthook-exits", "import sys\nsys.excepthook = lambda *a: sys.exit(5)\n1/0"),
    ("interrupt", "raise KeyboardInterrupt"),
    ("interrupted", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(5)"),
    ("terminated", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nimport time\ntime.sleep(5)"),
    ("aborted", "import ctypes\nctypes.string_at(0)"),
    ("atexit", "import atexit\natexit.register(print, 'first')\natexit.register(print, 'last')\nprint('main')"),
    ("atexit-after-exception", "import atexit\natexit.register(print, 'end')\n1/0"),
    ("atexit-fails", "import atexit\n@atexit.register\ndef f():\n    1/0\natexit.register(print, 'x')"),
    ("atexit-exits", "import atexit, sys\n@atexit.register\ndef f():\n    sys.exit(4)\nprint(1)"),
    (
        "threads",
        "import threading, time\ndef f():\n    time.sleep(0.05)\n    print('thread')\nthreading.Thread(target=f).start()\nprint('main')",
    ),
    ("thread-fails", "import threading\nt = threading.Thread(target=lambda: 1/0, name='T')\nt.start()\nt.join()"),
    (
        "daemon-thread",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nprint('main')",
    ),
    (
        "thread-after-exception",
        "import threading, time\ndef f():\n    time.sleep(0.05)\n    print('thread')\nthreading.Thread(target=f).start()\nraise ValueError",
    ),
    (
        "main-thread",
        "import threading\nprint(threading.current_thread() is threading.main_thread(), threading.active_count())",
    ),
    ("finalizer", "class A:\n    def __del__(self):\n        print('gone', os.sep)\nimport os\na = A()\nprint('main')"),
    (
        "finalizer-in-cycle",
        "class A:\n    def __del__(self):\n        print('gone')\na = A()\na.a = a\ndel a\nprint('main')",
    ),
    (
        "finalizers-in-order",
        "class A:\n    def __init__(self, n): self.n = n\n    def __del__(self): print(self.n)\na, b, _c = A('a'), A('b'), A('c')",
    ),
    (
        "weakref-finalizer",
        "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalized')\nprint('main')",
    ),
    (
        "open-file",
        "f = open('/workspace/x', 'w')\nf.write('kept')\nimport atexit, os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n    os._exit(0 if open('/workspace/x').read() == 'kept' else 1)",
    ),
    (
        "generator-is-closed",
        "def g():\n    try:\n        yield 1\n    finally:\n        print('closed')\nx = g()\nnext(x)",
    ),
    ("unflushed-output", "import sys\nsys.stdout = open(1, 'w', closefd=False)\nprint('late')"),
    ("other-stdout", "import sys, io\nsys.stdout = io.StringIO()\nprint('hidden')"),
    ("closed-stdout", "import sys\nsys.stdout.close()"),
    ("closed-descriptor", "import os\nos.close(1)\nprint(2)"),
    ("no-stdout", "import sys\nsys.stdout = None\nprint(1)"),
    (
        "fork",
        "import os\npid = os.fork()\nif pid == 0:\n    print('child')\nelse:\n    os.waitpid(pid, 0)\n    print('parent')",
    ),
    ("fork-exits", "import os, sys\npid = os.fork()\nif pid == 0:\n    sys.exit(6)\nprint(os.waitpid(pid, 0)[1])"),
    ("exec", "import os\nos.execvp('echo', ['echo', 'other'])"),
    (
        "pool",
        "import multiprocessing\ndef f(x):\n    return x * x\nif __name__ == '__main__':\n    with multiprocessing.get_context('fork').Pool(2) as p:\n        print(p.map(f, range(4)))",
    ),
    (
        "spawned-pool",
        "import multiprocessing\ndef f(x):\n    return x * x\nif __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as p:\n        print(p.map(f, range(4)))",
    ),
    ("pickle-of-main", "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)"),
    (
        "dataclass-and-tuple",
        "import dataclasses, collections\n@dataclasses.dataclass\nclass A:\n    x: int\nprint(A(1), collections.namedtuple('N', 'a')(1).__class__.__module__)",
    ),
    ("asyncio", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    print('async')\nasyncio.run(f())"),
    ("warning", "import warnings\nwarnings.warn('careful')"),
    ("unawaited", "async def f(): pass\nf()"),
    ("logging", "import logging\nlogging.warning('logged')"),
    ("garbage", "import gc\nprint(gc.isenabled(), gc.get_threshold())"),
    (
        "limits",
        "import resource\nprint([resource.getrlimit(i) for i in (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)])",
    ),
    ("mask", "import os\nmask = os.umask(0)\nprint(oct(mask))"),
    (
        "links-and-moves",
        "import os\nfor top in '/workspace', '/tmp':\n    for name in 'from', 'to':\n        os.makedirs(f'{top}/own/{name}')\n    \
         open(f'{top}/own/from/x', 'w').write('x')\n    os.link(f'{top}/own/from/x', f'{top}/own/to/linked')\n    \
         os.rename(f'{top}/own/from/x', f'{top}/own/to/moved')\n    print(sorted(os.listdir(f'{top}/own/to')))",
    ),
    (
        "more-orphans-than-processes",
        "import os, time\nfor i in range(100):\n    pid = os.fork()\n    if pid == 0:\n        \
         if os.fork() == 0:\n            os._exit(0)\n        os._exit(0)\n    os.waitpid(pid, 0)\n    time.sleep(0.005)\nprint('done')",
    ),
    ("large-output", "print('x' * 3_000_000)"),
    ("both-streams", "import sys\nprint(1)\nprint(2, file=sys.stderr)\nsys.stdout.write('3')"),
    (
        "directory-is-not-writable",
        "import os\ntry:\n    open(os.path.dirname(__file__) + '/x', 'w')\nexcept OSError:\n    print('refused')",
    ),
];

const NODE: &[(&str, &str)] = &[
    ("print", "console.log(1); console.error('é')"),
    ("empty", ""),
    (
        "main",
        "console.log(require.main === module, module.id, module.parent, module.loaded, __filename === process.argv[1])",
    ),
    ("arguments", "console.log(process.argv.slice(2), process.execArgv, process.argv0, process.title)"),
    ("paths", "console.log(module.paths.length, __dirname === require('path').dirname(__filename), process.cwd())"),
    ("cache", "console.log(Object.keys(require.cache).length)"),
    ("environment", "console.log(Object.entries(process.env).sort())"),
    (
        "environment-of-children",
        "console.log(require('child_process').execFileSync('env').toString().split('\\n').sort())",
    ),
    ("time-zone", "console.log(new Date(0).toString())"),
    ("input", "process.stdin.on('data', (d) => process.stdout.write('got ' + d)).on('end', () => console.log('end'))"),
    ("input-at-once", "console.log(require('fs').readFileSync(0, 'utf8'))"),
    ("exit-code", "process.exitCode = 7"),
    ("exit", "process.on('exit', (c) => console.log('exit', c)); process.exit(3)"),
    ("before-exit", "process.on('beforeExit', () => console.log('before')); console.log('main')"),
    ("exception", "function f() { throw new Error('x') }\nf()"),
    ("exception-of-text", "throw 'text'"),
    ("syntax-error", "let x = ("),
    ("rejection", "Promise.reject(new Error('unhandled'))"),
    ("caught", "process.on('uncaughtException', (e) => console.log('caught', e.message)); throw new Error('x')"),
    ("missing-module", "require('nothing-of-this-name')"),
    (
        "order",
        "setTimeout(() => console.log('timer'), 100); setImmediate(() => console.log('immediate')); process.nextTick(() => console.log('tick')); Promise.resolve().then(() => console.log('micro')); console.log('main')",
    ),
    ("signal", "process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 5000)"),
    (
        "abort-handler",
        "process.on('SIGTERM', () => { console.log('term'); process.exit(4) }); process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 5000)",
    ),
    (
        "worker",
        "const w = require('worker_threads'); new w.Worker('require(\"worker_threads\").parentPort.postMessage(process.execArgv.length)', { eval: true }).on('message', (m) => console.log('worker', m))",
    ),
    (
        "forked",
        "if (process.send) { process.send('child'); process.disconnect() } else require('child_process').fork(__filename).on('message', (m) => console.log(m))",
    ),
    ("stack", "console.log(new Error('x').stack.split('\\n').slice(0, 2).join())"),
    ("import", "import('node:path').then((p) => console.log(typeof p.join))"),
    ("large-output", "process.stdout.write('x'.repeat(3000000))"),
    ("descriptors", "console.log(process.stdout._type, process.stdin.fd, process.stdout.isTTY)"),
    ("builtin-state", "console.log(process.listenerCount('exit'), process.exitCode, process.uptime() > 0)"),
];

const ESM: &[(&str, &str)] = &[
    ("print", "console.log(1)"),
    ("meta", "import { basename } from 'node:path';\nconsole.log(basename(import.meta.url), typeof require)"),
    ("await", "await new Promise((r) => setTimeout(r, 5)); console.log('awaited')"),
    ("unsettled", "await new Promise(() => {})"),
    ("exception", "throw new Error('x')"),
    ("syntax-error", "let x = ("),
    ("exit-code", "process.exitCode = 7"),
];

/// Promise (Warm interpreters): A Python script runs in a warm interpreter as in a cold one, except as
/// `docs/interpreters.md` lists.
#[test]
fn python_scripts_run_as_from_cold() {
    compare("python_scripts_run_as_from_cold", &InterpreterConfig::python(), "main.py", PYTHON);
}

/// Promise (Warm interpreters): Preloaded modules do not change the behaviour of a script.
#[test]
fn preloaded_modules_change_nothing() {
    // Modules with their own threads, exit functions, hooks and state.
    let config = InterpreterConfig::python().with_modules([
        "asyncio",
        "concurrent.futures.thread",
        "inspect",
        "logging",
        "multiprocessing.pool",
        "random",
        "resource",
        "subprocess",
        "traceback",
        "unittest",
    ]);
    compare("preloaded_modules_change_nothing", &config, "main.py", PYTHON);
}

/// Promise (Warm interpreters): Python options of a request take effect in a warm interpreter.
#[test]
fn python_options_count_for_the_request() {
    let words = ["python3", "-I", "-S", "-O"].map(str::to_owned).to_vec();
    let config = InterpreterConfig { command: words, ..InterpreterConfig::python() };
    let names = ["path", "flags", "streams", "exception", "finalizer", "argv", "namespace"];
    let some: Vec<_> = PYTHON.iter().filter(|(name, _)| names.contains(name)).copied().collect();
    compare("python_options_count_for_the_request", &config, "main.py", &some);
}

/// Promise (Warm interpreters): A Node script runs in a warm interpreter as in a cold one.
#[test]
fn node_scripts_run_as_from_cold() {
    compare("node_scripts_run_as_from_cold", &InterpreterConfig::node(), "main.js", NODE);
}

/// Promise (Warm interpreters): A Node module runs in a warm interpreter as in a cold one.
#[test]
fn node_modules_run_as_from_cold() {
    compare("node_modules_run_as_from_cold", &InterpreterConfig::node(), "main.mjs", ESM);
}

fn differ(differences: &mut Vec<String>, name: &str, cold: &str, warm: &str) {
    if cold != warm {
        differences.push(format!("{name}:\n--- cold\n{cold}\n--- warm\n{warm}"));
    }
}

fn compare(test: &str, config: &InterpreterConfig, file: &str, corpus: &[(&str, &str)]) {
    block_on(async {
        let backend = backend();
        if !has(&backend, test, config).await {
            return;
        }
        let mut differences = Vec::new();
        for (name, text) in corpus {
            let request = request(config, file, text);
            let (cold, warm) = both(&backend, config, request).await;
            differ(&mut differences, name, &cold, &warm);
        }
        assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    });
}

fn request(config: &InterpreterConfig, file: &str, text: &str) -> ExecRequest {
    code_with_args(config, file, text, &["one", "two words", "-v", ""])
        .env("OWN", "a=b c")
        .env("TZ", "XST-3")
        .stdin(Stdin::Bytes("first\nsecond\nthird é".into()))
        .build()
        .expect("valid")
}

/// Runs a request in a cold start and in a prepared interpreter.
async fn both(backend: &ProcessBackend, config: &InterpreterConfig, request: ExecRequest) -> (String, String) {
    let cold = sandbox(backend, 0).await.exec(request.clone()).await.expect("it runs");
    let waiting = sandbox(backend, EXTRA_PROCESSES).await;
    let waiting = WarmInterpreter::prepare(waiting, config.clone()).await.expect("it becomes warm");
    let warm = waiting.run(request).await.expect("it runs");
    (observable(&cold), observable(&warm))
}

/// Returns the compared parts. The directory of a script has a new random name each time.
fn observable(completed: &Completed) -> String {
    let exit = &completed.exit;
    let text = |bytes: &[u8]| {
        let text = without_own_names(&String::from_utf8_lossy(bytes));
        if text.len() > 100_000 { format!("{} bytes", text.len()) } else { text }
    };
    let ended = (exit.code, exit.signal, exit.truncated, exit.usage.output_bytes, exit.killed_by);
    let ended = if completed.stdout.len() > 100_000 {
        format!("{ended:?}")
    } else {
        format!("{:?}", (ended.0, ended.1, ended.2, ended.4))
    };
    format!("{ended}\n{}\n{}", text(&completed.stdout), text(&completed.stderr))
}

fn without_own_names(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.ends_with(OWN));
    let lines = lines.map(|line| {
        let mut line = line.to_owned();
        for prefix in ["/tmp/code-", "/code/"] {
            while let Some(at) = line.find(prefix) {
                let rest = &line[at + prefix.len()..];
                let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
                line.replace_range(at..at + prefix.len() + end, "DIR");
            }
        }
        // The number of occurrences of a process id or an address in a message.
        let line = mask(&line, "0x");
        mask(&line, "(node:").replace("executeUserEntryPoint [as runMain]", "executeUserEntryPoint")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Replaces the hexadecimal digits after `prefix`.
fn mask(line: &str, prefix: &str) -> String {
    let mut parts = line.split(prefix);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.extend([prefix, part.trim_start_matches(|c: char| c.is_ascii_hexdigit())]);
    }
    masked
}

/// Promise (Warm interpreters): A script file of the workspace runs in a warm interpreter as in a cold one.
#[test]
fn files_of_the_workspace_run_as_from_cold() {
    block_on(async {
        let backend = backend();
        let test = "files_of_the_workspace_run_as_from_cold";
        for config in [InterpreterConfig::python(), InterpreterConfig::node()] {
            if !has(&backend, test, &config).await {
                continue;
            }
            let python = main_file(config.runtime).ends_with("py");
            let (files, runs): (&[(&str, &str)], &[&str]) = if python {
                let other = "import sys, os, helper\nprint(__file__, sys.argv, sys.path[0], helper.__file__)\n1/0";
                (
                    &[
                        ("a/x.py", other),
                        ("a/helper.py", "y = 1"),
                        ("p/__main__.py", "import sys\nprint(sys.argv, __file__, __package__, sys.path[0])"),
                    ],
                    &["x.py", "./x.py", "/workspace/a/x.py", "missing.py", "../p", "../a", "/"],
                )
            } else {
                let other = "console.log(__filename, process.argv, require('./helper'));throw new Error('x')";
                (
                    &[
                        ("a/x.js", other),
                        ("a/helper.js", "module.exports = 1"),
                        ("a/y.mjs", "import h from './helper.js'; console.log(h)"),
                    ],
                    &["x.js", "./x.js", "/workspace/a/x.js", "missing.js", "y.mjs"],
                )
            };
            for run in runs {
                let words = config.command.iter().map(String::as_str).chain([*run, "arg"]);
                let directory = SandboxPath::new("a").expect("valid");
                let request = ExecRequest::argv(words).working_dir(directory).build().expect("valid");
                let mut results = Vec::new();
                for warmed in [false, true] {
                    let sandbox = sandbox(&backend, EXTRA_PROCESSES).await;
                    for (path, text) in files {
                        let path = SandboxPath::new(path).expect("valid");
                        sandbox.write_bytes(&path, text.as_bytes().to_vec()).await.expect("it is written");
                    }
                    if warmed {
                        let waiting = WarmInterpreter::prepare(sandbox, config.clone()).await.expect("it becomes warm");
                        results.push(waiting.run(request.clone()).await);
                    } else {
                        results.push(sandbox.exec(request.clone()).await);
                    }
                }
                let results: Vec<String> =
                    results.iter().map(|one| observable(one.as_ref().expect("it runs"))).collect();
                assert_eq!(results[0], results[1], "{run}");
            }
        }
    });
}
