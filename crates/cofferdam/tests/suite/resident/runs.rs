//! Comparison of runs with and without the server.

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Home, by_server, leaving_nothing, read, ready};
use crate::cli::published::{ECHO, Serving, exchange};
use crate::terminal::Terminal;

/// Arguments of a run and its standard input.
type Row = (&'static [&'static str], &'static str);

const ROWS: &[Row] = &[
    (&["--", "sh", "-c", "echo out; echo err >&2; exit 3"], ""),
    (&["--", "sh", "-c", "kill -KILL $$"], ""),
    (&["--", "no-such-program"], ""),
    (&["--", "/etc/passwd"], ""),
    (&["--timeout", "300ms", "--", "sh", "-c", "echo begun; sleep 60"], ""),
    (&["--max-output", "1000", "--", "sh", "-c", "seq 1 100000"], ""),
    (&["--", "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"], ""),
    (&["--memory", "16M", "--lang", "python", "--code", "x = bytearray(1 << 28)"], ""),
    (&["--env", "A=b", "--", "sh", "-c", "env | sort; pwd; id -u"], ""),
    (&["--working-dir", "missing", "--", "true"], ""),
    (&["--stdin", "--", "sh", "-c", "cat; echo end"], "one\ntwo\n"),
    (&["--stdin", "--", "true"], "not read by the command"),
    (&["--lang", "python", "--code", "import sys; print(sys.argv[1:]); sys.exit(5)", "--", "a", "b c"], ""),
    (&["--lang", "python", "--code", "import os, sys; print(sorted(os.environ)); print('e', file=sys.stderr)"], ""),
    (&["--lang", "python", "--stdin", "--code", "import sys; print(sys.stdin.read().upper())"], "abc"),
    (&["--lang", "python", "--timeout", "500ms", "--code", "import time; print(1); time.sleep(60)"], ""),
    (&["--lang", "python", "--code", "import os; os.kill(os.getpid(), 15)"], ""),
    (&["--lang", "javascript", "--code", "console.log(process.argv.slice(2)); process.exitCode = 7", "--", "x"], ""),
    (&["--lang", "sh", "--code", "echo $0 | wc -l; exit 9"], ""),
    (&["--tenant", "acme", "--pids", "1", "--", "sh", "-c", "true & wait"], ""),
    (&["examples/primes.py"], ""),
];

/// Returns true for code, whose full result needs access to the sandbox, which servers do not give.
fn is_code(row: &Row) -> bool {
    row.0.contains(&"--lang") || row.0[0].ends_with(".py")
}

fn outcome(home: &Home, how: &str, form: &[&str], row: &Row) -> (Option<i32>, String, String) {
    let mut command = home.run(["--use-server", how]);
    let mut child = command.args(form).args(row.0);
    child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("the binary starts");
    // A run that does not read its input may have exited already.
    let _ = child.stdin.take().expect("it is piped").write_all(row.1.as_bytes());
    read(&child.wait_with_output().expect("it ends"))
}

/// Returns a document without the members that differ between runs: names and users of sandboxes, times, usage. An
/// interpreter's sandbox has room for one process more than the code, which its posture reports.
fn comparable(document: &str) -> Value {
    let mut value: Value = serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    for path in [
        "/sandbox",
        "/exit/duration",
        "/exit/usage/cpu_seconds",
        "/exit/usage/peak_memory_bytes",
        "/usage",
        "/id",
        "/duration",
        "/meta/sandbox",
        "/meta/posture",
    ] {
        if let Some(field) = value.pointer_mut(path) {
            *field = Value::Null;
        }
    }
    for row in value["posture"].as_array_mut().into_iter().flatten() {
        if row["protection"] == "pids" || row["protection"] == "user" {
            row["mechanism"] = Value::Null;
        }
    }
    value
}

/// Promise (Server): A run through the server equals a local run in output, errors, exit status and JSON, except for
/// names, times and the process limit.
#[test]
fn a_run_through_the_server_is_the_run_without_it() {
    leaving_nothing(|| {
        let home = Home::new();
        let server = home.server(&[]);
        for row in ROWS {
            server.warm();
            assert_eq!(outcome(&home, "require", &[], row), outcome(&home, "never", &[], row), "{row:?}");
            server.warm();
            let (status, with, _) = outcome(&home, "require", &["--json"], row);
            if is_code(row) {
                assert!(status == Some(125) && with.contains("--use-server auto"), "{row:?}: {with}");
                continue;
            }
            let (expected, without, _) = outcome(&home, "never", &["--json"], row);
            assert_eq!((status, comparable(&with)), (expected, comparable(&without)), "{row:?}");
        }
        let status = server.status();
        assert_eq!(status["runs"], 2 * ROWS.len() - ROWS.iter().filter(|row| is_code(row)).count());
        assert_eq!(server.end().0, Some(0));
        assert!(home.gone());
    });
}

/// Promise (Server): The server runs Python and Node in warm interpreters.
#[test]
fn python_and_node_run_in_interpreters_that_waited() {
    leaving_nothing(|| {
        let home = Home::new();
        let server = home.server(&["--python-modules", "json"]);
        server.warm();
        let run = |lang: &str, code: &str| {
            let output = home.run(["-v", "--tenant", "acme", "--lang", lang, "--code", code]).output().unwrap();
            let (code, stdout, stderr) = read(&output);
            assert!(by_server(&stderr) && code == Some(0), "{stderr}");
            stdout
        };
        let loaded = "import sys; print('json' in sys.modules, len(__import__('os').listdir('/workspace')))";
        assert_eq!(run("python", loaded), "True 0\n");
        server.warm();
        // The previous run left nothing behind.
        assert_eq!(run("python", "open('mark', 'x').close(); print(1)"), "1\n");
        server.warm();
        assert_eq!(run("python", "open('mark', 'x').close(); print(2)"), "2\n");
        assert_eq!(run("javascript", "console.log(6 * 7)"), "42\n");
        let status = server.status();
        let taken: Vec<_> = status["interpreters"].as_array().unwrap().iter().map(|kind| &kind["taken"]).collect();
        assert_eq!(taken, [3, 1], "{status:#}");
        assert_eq!(status["warm_runs"], 4, "{status:#}");
        // Runs that are incompatible with prepared interpreters still work.
        let cold = home.run(["--memory", "64M", "--lang", "python", "--code", "print(3)"]).output().unwrap();
        assert_eq!(read(&cold), (Some(0), "3\n".to_owned(), String::new()));
        assert_eq!(server.status()["warm_runs"], 4);
    });
}

/// Promise (Server): Events arrive through the server while the command runs.
#[test]
fn events_come_live_through_the_server() {
    let home = Home::new();
    let _server = home.server(&["--python", "0", "--node", "0"]);
    let output =
        home.run(["--use-server", "require", "--events", "--", "sh", "-c", "echo a; exit 4"]).output().unwrap();
    let (status, stdout, _) = read(&output);
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(status, Some(4));
    assert_eq!(lines.first().unwrap()["type"], "started");
    assert_eq!(lines.first().unwrap()["backend"], "process");
    assert!(lines.first().unwrap()["sandbox"].as_str().is_some_and(|name| name != "not-made-yet"));
    assert_eq!(lines.last().unwrap()["status"], 4);
    assert!(lines.last().unwrap()["posture"].as_array().is_some_and(|rows| !rows.is_empty()));
}

/// Promise (Server): A signal to the client requests the end of the command.
#[test]
fn a_signal_to_the_client_asks_the_command_to_end() {
    leaving_nothing(|| {
        let home = Home::new();
        let server = home.server(&["--python", "0", "--node", "0"]);
        let polite = "trap 'echo stopped; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
        let (mut child, mut stdout) = ready(&mut home.run(["--use-server", "require", "--", "sh", "-c", polite]));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("stopped\n", Some(130)));

        let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
        let words = ["--use-server", "require", "--cancel-grace", "1h", "--", "sh", "-c", stubborn];
        let (mut child, _stdout) = ready(&mut home.run(words));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        server.until("everything ended", |status| status["running"] == 0);
    });
}

/// Promise (Server): A terminal works through the server.
#[test]
fn a_terminal_works_through_the_server() {
    let home = Home::new();
    let _server = home.server(&["--python", "0", "--node", "0"]);
    let mut terminal = Terminal::new();
    terminal.resize(41, 101);
    let line = "trap 'stty size' WINCH; stty size; test -t 0 && echo ready; read word || read word; echo \"got $word\"; exit 5";
    let mut command = home.run(["--use-server", "require", "--tty", "--", "sh", "-c", line]);
    let mut child = command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio()).spawn().unwrap();
    assert!(terminal.read_until("ready").contains("41 101"));
    terminal.resize(50, 132);
    // The kernel only signals processes with this controlling terminal, so the test sends the signal.
    kill_process(Pid::from_child(&child), Signal::WINCH).unwrap();
    // The size arrives before the line. A shell may handle the signal only after its read.
    std::thread::sleep(std::time::Duration::from_millis(300));
    terminal.screen.write_all(b"word\r").unwrap();
    let seen = terminal.read_until("got word");
    assert!(seen.contains("50 132"), "{seen}");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(terminal.is_cooked());
}

/// Promise (Server): Unread input does not delay a cancel.
#[test]
fn unread_input_does_not_delay_a_cancel() {
    let home = Home::new();
    let server = home.server(&["--python", "0", "--node", "0"]);
    let mut command = home.run(["--use-server", "require", "--stdin", "--", "sh", "-c", "echo ready; sleep 100"]);
    let (mut child, _stdout) = ready(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().unwrap();
    // More data than all buffers on the way hold: the write blocks until the run is over.
    let writer = std::thread::spawn(move || stdin.write_all(&vec![b'x'; 8 << 20]));
    std::thread::sleep(std::time::Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(writer.join().unwrap().is_err());
    server.until("it ended", |status| status["running"] == 0);
}

/// Promise (Server): No process writes to a mounted host directory after its run through the server has ended.
#[test]
fn mounted_directory_is_not_written_after_a_served_run() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let _server = home.server(&["--python", "0", "--node", "0"]);
    let mounted = tempfile::tempdir().unwrap();
    std::fs::set_permissions(mounted.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let line = "(while :; do echo x >> beats; done) > /dev/null 2>&1 &\nuntil test -s beats; do :; done";
    let mut command = home.run(["--use-server", "require", "--workspace", ".:rw", "--", "sh", "-c", line]);
    let output = command.current_dir(mounted.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let size = || std::fs::metadata(mounted.path().join("beats")).unwrap().len();
    let before = size();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(size(), before);
}

/// Promise (Server): A run through the server publishes ports like a run without it.
#[test]
fn ports_are_published_through_the_server() {
    let home = Home::new();
    leaving_nothing(|| {
        let server = home.server(&[]);
        let mut run = home.run(["--use-server", "require", "--timeout", "120s", "--publish", "0:8000"]);
        let serving = Serving::start(run.args(["--", "python3", "-c", ECHO]), 1);
        let address = serving.addresses[0].clone();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..8 {
                        assert_eq!(exchange(&address, b"hello"), b"helloend 5");
                    }
                });
            }
        });
        let (status, stderr) = serving.stop();
        assert_eq!(
            (status, stderr.as_str()),
            (Some(143), "cofferdam: interrupted by signal 15; the run was cancelled\n")
        );
        assert_eq!(server.status()["runs"], 1);
        let mut run = home.run(["--use-server", "require", "--publish", "0:8001"]);
        let serving = Serving::start(run.args(["--", "sh", "-c", "echo ready; sleep 100"]), 1);
        assert_eq!(exchange(&serving.addresses[0], b""), b"");
        let (_, stderr) = serving.stop();
        assert!(stderr.contains("no program in the sandbox listens on port 8001"), "{stderr}");
        drop(server);
    });
}
