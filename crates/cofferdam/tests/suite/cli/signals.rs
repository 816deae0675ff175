//! Termination signals.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use super::{run, start};

/// Starts a shell line that prints `ready`, and waits for that.
fn ready(options: &[&str], line: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = start(run(options).args(["--", "sh", "-c", line]));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    assert_eq!(first, "ready\n");
    (child, stdout)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

const POLITE: &str = "trap 'echo stopped; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
const STUBBORN: &str = "trap 'echo heard' TERM; echo ready; while :; do sleep 0.05; done";

/// Promise (Command line): A signal to `cofferdam` requests the end of the command.
#[test]
fn a_signal_to_us_asks_the_command_to_end() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let (mut child, mut stdout) = ready(&[], POLITE);
        send(&child, signal);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("stopped\n", Some(status)));
    }
}

/// Promise (Command line): A second signal kills the command at once.
#[test]
fn a_second_signal_kills_at_once() {
    let (mut child, mut stdout) = ready(&["--cancel-grace", "1h"], STUBBORN);
    send(&child, Signal::INT);
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "heard\n");
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_command_that_ignores_the_request_is_killed_after_the_grace() {
    let (mut child, _stdout) =
        ready(&["--cancel-grace", "200ms"], "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn the_document_comes_also_after_a_signal() {
    let mut child = start(&mut run(["--json", "--stdin", "--cancel-grace", "200ms", "--", "sh", "-c", "echo up; cat"]));
    // This form prints nothing at the start, so the signal may arrive before it, and then there is no document.
    std::thread::sleep(std::time::Duration::from_millis(500));
    send(&child, Signal::INT);
    let _open = child.stdin.take();
    let (code, stdout, _) = super::read(&child.wait_with_output().unwrap());
    assert_eq!(code, 130);
    if !stdout.is_empty() {
        assert_eq!(super::json(&stdout)["exit"]["cancelled"], true);
    }
}
