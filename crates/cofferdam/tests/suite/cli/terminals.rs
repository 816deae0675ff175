//! The user's terminal: effects of guest output, and `--tty`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::run;

/// Timeout without a byte after which a test fails. It decides nothing else.
const READ_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A pseudo-terminal: the end of the user's screen and keyboard, and the end of the programs.
pub struct Terminal {
    pub screen: File,
    inside: File,
}

impl Terminal {
    pub fn new() -> Self {
        let screen: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let inside = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        Self { screen: screen.into(), inside }
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.screen, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    pub fn stdio(&self) -> Stdio {
        self.inside.try_clone().unwrap().into()
    }

    /// Returns true if programs get complete lines with echo, as in a terminal with default modes.
    pub fn is_cooked(&self) -> bool {
        tcgetattr(&self.inside).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Reads until `text` appears.
    pub fn read_until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        let mut piece = [0; 1024];
        while !String::from_utf8_lossy(&seen).contains(text) {
            assert!(wait_readable(&self.screen), "'{text}' never came: {}", String::from_utf8_lossy(&seen));
            let count = self.screen.read(&mut piece).unwrap();
            seen.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    fn start(&self, words: &[&str]) -> Child {
        run(words).stdin(self.stdio()).stdout(self.stdio()).stderr(self.stdio()).spawn().unwrap()
    }
}

/// Waits until data can be read. Returns false after a timeout.
pub fn wait_readable(screen: &File) -> bool {
    poll(&mut [PollFd::new(screen, PollFlags::IN)], Some(&READ_TIMEOUT)).unwrap() > 0
}

const HOSTILE: &str = r"printf '\033]0;title\007\033[31mred\033[6n\n'; echo END";

/// Promise (Process isolation): Control sequences of a guest do not reach the terminal of the caller.
#[test]
fn control_sequences_do_not_reach_a_terminal() {
    let mut terminal = Terminal::new();
    let mut child = terminal.start(&["--", "sh", "-c", HOSTILE]);
    let seen = terminal.read_until("END\r\n\x1b[0m");
    assert_eq!(seen, "\\x1b]0;title\\x07\x1b[31mred\\x1b[6n\r\nEND\r\n\x1b[0m");
    assert!(child.wait().unwrap().success());
}

#[test]
fn raw_output_reaches_a_terminal_as_it_is() {
    let mut terminal = Terminal::new();
    let mut child = terminal.start(&["--raw-output", "--", "sh", "-c", HOSTILE]);
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
    let mut child = terminal.start(&["--tty", "--", "sh", "-c", line]);
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
    let mut child = terminal.start(&["--tty", "--", "sh", "-c", line]);
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
    let mut child = terminal.start(&["--tty", "--", "sh", "-c", line]);
    terminal.read_until("ready");
    terminal.screen.write_all(b"\x03").unwrap();
    terminal.read_until("caught");
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

#[test]
fn the_terminal_is_given_back_after_a_signal() {
    let mut terminal = Terminal::new();
    let mut child = terminal.start(&["--tty", "--cancel-grace", "200ms", "--", "sh", "-c", "echo ready; sleep 60"]);
    terminal.read_until("ready");
    assert!(!terminal.is_cooked());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(terminal.is_cooked());
}
