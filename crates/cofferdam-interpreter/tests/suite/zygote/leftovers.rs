//! When a request has ended nothing of it is left, whatever it did to be forgotten.

use cofferdam_contract::Backend as _;
use cofferdam_contract::{Limits, Spec};
use cofferdam_interpreter::{Zygote, ZygoteConfig};
use std::time::Duration;

use super::{run, started, told, zygote};
use crate::support::{backend, block_on, printed, python, stdout};

/// Names what it leaves, and counts what has that name.
const PREPARE: &str = "import os, sys, time, signal, ctypes\nlibc = ctypes.CDLL(None)\n\
    def name():\n    libc.prctl(15, b'leftover', 0, 0, 0)\n\
    def count():\n    found = 0\n    for pid in filter(str.isdigit, os.listdir('/proc')):\n        \
    try:\n            found += open(f'/proc/{pid}/comm').read() in ('leftover\\n', 'sleep\\n')\n        \
    except OSError:\n            pass\n    return found\n\
    def settle():\n    for _ in range(1000):\n        if count():\n            return\n        time.sleep(0.005)\n";

/// Each leaves at least one process, whose name is `leftover`, and prints how many there are.
const LEAVING: &[(&str, &str)] = &[
    ("a child", "if os.fork() == 0:\n    name()\n    time.sleep(1000)\nsettle()"),
    (
        "a child of a child in a session of its own",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        name()\n        os.setsid()\n        time.sleep(1000)\n    os._exit(0)\nos.wait()\nsettle()",
    ),
    (
        "one that closed everything",
        "if os.fork() == 0:\n    name()\n    os.closerange(0, 100)\n    os.setsid()\n    time.sleep(1000)\nsettle()",
    ),
    (
        "one that is stopped",
        "pid = os.fork()\nif pid == 0:\n    name()\n    time.sleep(1000)\nsettle()\nos.kill(pid, signal.SIGSTOP)",
    ),
    (
        "one that ignores everything",
        "if os.fork() == 0:\n    for s in signal.valid_signals():\n        try:\n            signal.signal(s, signal.SIG_IGN)\n        except OSError:\n            pass\n    name()\n    time.sleep(1000)\nsettle()",
    ),
    (
        "below one that adopts and one that does not",
        "libc.prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    if os.fork() == 0:\n        name()\n        time.sleep(1000)\n    os._exit(0)\nsettle()\nlibc.prctl(36, 0, 0, 0, 0)",
    ),
    (
        "in a domain of its own",
        "import struct\nif os.fork() == 0:\n    name()\n    fd = libc.syscall(444, struct.pack('=QQQ', 0, 0, 3), 24, 0)\n    assert fd >= 0 and libc.syscall(446, fd, 0) == 0\n    time.sleep(1000)\nsettle()",
    ),
    ("another program", "os.posix_spawn('/bin/sleep', ['sleep', '1000'], {}, setsid=True)\nsettle()"),
    (
        "one that waits for a vfork",
        "if os.fork() == 0:\n    name()\n    if libc.vfork() == 0:\n        libc.pause()\nsettle()",
    ),
    (
        "a chain in which each forks the next and ends",
        "if os.fork() == 0:\n    name()\n    os.setsid()\n    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n    while True:\n        if os.fork():\n            os._exit(0)\nsettle()",
    ),
    (
        "as many as there may be",
        "def bomb():\n    name()\n    while True:\n        try:\n            os.fork()\n        except OSError:\n            time.sleep(0.001)\nif os.fork() == 0:\n    bomb()\nsettle()\ntime.sleep(0.2)",
    ),
];

async fn left(zygote: &Zygote) -> String {
    told(zygote, &format!("{PREPARE}print(count())"), &[]).await
}

#[test]
fn nothing_is_left_of_a_fork_that_ended() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        for (what, leave) in LEAVING {
            let request = python(&format!("{PREPARE}{leave}\nprint(count())\nsys.stdout.flush()\nos._exit(5)"));
            let completed = run(&zygote, request).await.expect("it runs");
            assert_eq!(completed.exit.code, 5, "{what}: {}", printed(&completed));
            // The control: it was there, and could be found.
            let found: u32 = stdout(&completed).trim().parse().unwrap_or(0);
            assert!(found > 0, "{what}: {}", printed(&completed));
            assert_eq!(left(&zygote).await, "0\n", "{what}");
        }
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn a_time_out_a_cancel_and_a_dropped_handle_end_everything() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        for (what, leave) in LEAVING {
            let text = format!("{PREPARE}{leave}\nprint(count())\ntime.sleep(1000)");
            let request = python(&text).to_builder().timeout(Duration::from_secs(2)).build().expect("valid");
            let completed = run(&zygote, request).await.expect("it runs");
            assert!(completed.exit.timed_out && completed.exit.code == -1, "{what}: {}", printed(&completed));
            assert_eq!(left(&zygote).await, "0\n", "{what}, timed out");
        }
        let text = format!("{PREPARE}{}\nprint(count())\ntime.sleep(1000)", LEAVING[1].1);
        let (handle, _) = started(&zygote, &text).await;
        let exit = handle.cancel_within(Duration::from_millis(50)).await.expect("it ends");
        assert!(exit.cancelled && exit.signal == Some(15), "{exit:?}");
        assert_eq!(left(&zygote).await, "0\n", "cancelled");
        let (handle, _) = started(&zygote, &text).await;
        let watch = handle.exit_watch();
        drop(handle);
        assert!(watch.exit().await.expect("it ends").cancelled);
        assert_eq!(left(&zygote).await, "0\n", "dropped");
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn a_fork_that_takes_all_processes_takes_them_from_its_siblings_only_while_it_runs() {
    block_on(async {
        let backend = backend();
        let config = ZygoteConfig { ready: 1, most_running: 2, ..ZygoteConfig::python() };
        let limits = Limits { pids: Some(12 + config.extra_processes()), ..Limits::default() };
        let sandbox = backend.create(Spec::builder().limits(limits).build().expect("valid")).await.expect("a sandbox");
        let zygote = Zygote::warm(sandbox, config).await.expect("it becomes warm");
        let bomb = format!(
            "{PREPARE}print('x', flush=True)\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.01)"
        );
        let (handle, _) = started(&zygote, &bomb).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        handle.close().await.expect("it ends");
        for _ in 0..3 {
            assert_eq!(told(&zygote, "print(1)", &[]).await, "1\n");
        }
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn directories_of_a_fork_are_removed() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let text = "import tempfile, os\nprint(tempfile.gettempdir(), os.path.dirname(__file__), oct(os.stat(tempfile.gettempdir()).st_mode), os.environ['TMPDIR'] == tempfile.gettempdir())\n\
                    d = tempfile.mkdtemp()\nopen(d + '/x', 'w').write('x')\nos.chmod(d, 0)";
        let made = told(&zygote, text, &[]).await;
        let words: Vec<&str> = made.split_whitespace().collect();
        assert_eq!(words[2..], ["0o40700", "True"], "{made}");
        // Removed right after the exit is told.
        let gone = "import os, sys, time\nfor _ in range(500):\n    if not any(map(os.path.exists, sys.argv[1:])):\n        break\n    time.sleep(0.01)\nprint([p for p in sys.argv[1:] if os.path.exists(p)])";
        assert_eq!(told(&zygote, gone, &words[..2]).await, "[]\n");
        zygote.close().await.expect("it closes");
    });
}
