//! The user's terminal: effects of guest output, and `--tty`.

use std::io::Write;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use super::run;
use crate::terminal::Terminal;

fn start(terminal: &Terminal, words: &[&str]) -> Child {
    run(words).stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio()).spawn().unwrap()
}

const HOSTILE: &str = r"printf '\033]0;title\007\033[31mred\033[6n\n'; echo END";

/// Promise (Process isolation): Control sequences of a guest do not reach the terminal of the caller.
#[test]
fn control_sequences_do_not_reach_a_terminal() {
    let mut terminal = Terminal::new();
    let mut child = start(&terminal, &["--", "sh", "-c", HOSTILE]);
    let seen = terminal.read_until("END\r\n\x1b[0m");
    assert_eq!(seen, "\\x1b]0;title\\x07\x1b[31mred\\x1b[6n\r\nEND\r\n\x1b[0m");
    assert!(child.wait().unwrap().success());
}

#[test]
fn raw_output_reaches_a_terminal_as_it_is() {
    let mut terminal = Terminal::new();
    let mut child = start(&terminal, &["--raw-output", "--", "sh", "-c", HOSTILE]);
    assert_eq!(terminal.read_until("END\r\n"), "\x1b]0;title\x07\x1b[31mred\x1b[6n\r\nEND\r\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn our_own_colours_are_for_terminals_that_want_them() {
    for (variable, coloured) in [("", true), ("1", false)] {
        let mut terminal = Terminal::new();
        let mut command = run(["missing.py"]);
        command.env("NO_COLOR", variable).stderr(terminal.stdio());
        let mut child = command.spawn().unwrap();
        assert_eq!(terminal.read_until("cofferdam run -- COMMAND").contains('\x1b'), coloured);
        assert_eq!(child.wait().unwrap().code(), Some(127));
    }
}

#[test]
fn a_terminal_program_gets_keys_size_and_its_own_terminal() {
    let mut terminal = Terminal::new();
    terminal.resize(41, 101);
    let line = "stty size; test -t 0 && test -t 1 && echo ready $TERM; read word; echo \"got $word\"; exit 5";
    let mut child = start(&terminal, &["--tty", "--", "sh", "-c", line]);
    let seen = terminal.read_until("ready xterm");
    assert!(seen.contains("41 101"), "{seen}");
    assert!(!terminal.is_cooked());
    terminal.screen.write_all(b"word\r").unwrap();
    terminal.read_until("got word");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(terminal.is_cooked());
}

#[test]
fn a_change_of_size_is_passed_on() {
    let mut terminal = Terminal::new();
    terminal.resize(24, 80);
    let line = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut child = start(&terminal, &["--tty", "--", "sh", "-c", line]);
    terminal.read_until("ready");
    terminal.resize(50, 132);
    // The kernel only signals processes with this controlling terminal, so the test sends the signal.
    kill_process(Pid::from_child(&child), Signal::WINCH).unwrap();
    terminal.read_until("50 132");
    assert!(child.wait().unwrap().success());
}

#[test]
fn control_c_in_a_terminal_belongs_to_the_program() {
    let mut terminal = Terminal::new();
    let line = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = start(&terminal, &["--tty", "--", "sh", "-c", line]);
    terminal.read_until("ready");
    terminal.screen.write_all(b"\x03").unwrap();
    terminal.read_until("caught");
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

#[test]
fn the_terminal_is_given_back_after_a_signal() {
    let mut terminal = Terminal::new();
    let mut child = start(&terminal, &["--tty", "--cancel-grace", "200ms", "--", "sh", "-c", "echo ready; sleep 60"]);
    terminal.read_until("ready");
    assert!(!terminal.is_cooked());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(terminal.is_cooked());
}
