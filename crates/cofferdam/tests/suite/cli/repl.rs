//! `cofferdam repl` in a terminal.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{WEAKER, repository};
use crate::census::{census, left_behind};
use crate::terminal::{Terminal, wait_readable};

/// The query for the cursor position, which only a terminal answers.
const WHERE: &str = "\x1b[6n";
const UP: &str = "\x1b[A";
const CONTROL_C: &str = "\x03";
const CONTROL_D: &str = "\x04";

/// A simulated user at a terminal that answers queries.
struct Person {
    terminal: Terminal,
    child: Child,
    /// Unread output.
    seen: String,
    answered: usize,
}

impl Person {
    /// Makes the terminal the controlling one of the program, so that its keys send signals.
    fn sits_down(words: &[&str], home: &Path) -> Self {
        let terminal = Terminal::new();
        terminal.resize(24, 200);
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_cofferdam"), "repl", "--allow-weaker", WEAKER]).args(words);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("TERM", "xterm");
        command.env("XDG_STATE_HOME", home).current_dir(repository());
        let child = command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio()).spawn();
        let mut person = Self { terminal, child: child.expect("setsid starts"), seen: String::new(), answered: 0 };
        person.reads("Ctrl-D exits");
        person.is_asked();
        person
    }

    fn types(&mut self, keys: &str) {
        self.terminal.screen.write_all(keys.as_bytes()).expect("written");
    }

    /// Types a line and the key that ends it.
    fn enters(&mut self, line: &str) {
        self.types(&format!("{line}\r"));
    }

    /// Reads until a text appears. Returns the text before it.
    fn reads(&mut self, text: &str) -> String {
        let mut piece = [0; 4096];
        loop {
            let plain = plain(&self.seen);
            if let Some((before, after)) = plain.split_once(text) {
                let before = before.to_owned();
                (self.seen, self.answered) = (after.to_owned(), 0);
                return before;
            }
            assert!(wait_readable(&self.terminal.screen), "'{text}' never came: {:?}", self.seen);
            let count = self.terminal.screen.read(&mut piece).expect("readable");
            self.seen += &String::from_utf8_lossy(&piece[..count]);
            let questions = self.seen.matches(WHERE).count();
            for _ in self.answered..questions {
                self.types("\x1b[5;1R");
            }
            self.answered = questions;
        }
    }

    /// Waits for a prompt.
    fn is_asked(&mut self) -> String {
        self.reads(">>> ")
    }

    /// Ends the program with a key. Returns its status.
    fn leaves(mut self) -> i32 {
        self.types(CONTROL_D);
        let code = self.child.wait().expect("it ends").code();
        assert!(self.terminal.is_cooked(), "the terminal is as it was");
        code.unwrap_or(-1)
    }
}

impl Drop for Person {
    /// Ends the program if the test failed before.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Removes sequences for the cursor and colours. Removes answered queries, and keeps incomplete sequences.
fn plain(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('\x1b') {
        plain += before;
        let Some(body) = after.strip_prefix('[') else {
            rest = after.get(1..).unwrap_or_default();
            continue;
        };
        match body.find(|c: char| ('@'..='~').contains(&c)) {
            Some(end) => rest = &body[end + 1..],
            None => return plain + "\x1b" + after,
        }
    }
    plain + rest
}

#[test]
fn a_person_talks_with_python() {
    let before = census();
    let (home, workspace) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    std::fs::set_permissions(workspace.path(), std::fs::Permissions::from_mode(0o777)).expect("ours");
    let mount = format!("{}:rw", workspace.path().display());
    let mut person = Person::sits_down(&["--workspace", &mount, "--disk", "none"], home.path());
    person.enters("x = 20");
    person.is_asked();
    person.enters("x + 22");
    person.reads("\r\n42\r\n");
    person.is_asked();
    // An empty line ends a block.
    person.enters("def f(y):");
    person.reads("... ");
    person.enters("    return x + y");
    person.reads("... ");
    person.enters("");
    person.is_asked();
    person.enters("f(100)");
    person.reads("\r\n120\r\n");
    person.is_asked();
    // Recalls the last line and the line before it.
    person.types(UP);
    person.reads("f(100)");
    person.enters("");
    person.reads("\r\n120\r\n");
    person.is_asked();
    // Output appears while the code waits for the file.
    person.enters("print('fi' + 'rst')\x1b\rimport os, time\x1b\rwhile not os.path.exists('go'): time.sleep(0.05)\x1b\rprint('la' + 'st')");
    let seen = person.reads("\r\nfirst\r\n");
    assert!(!seen.contains("last"), "{seen}");
    std::fs::write(workspace.path().join("go"), "").expect("written");
    person.reads("last\r\n");
    person.is_asked();
    // Discards a line.
    person.types("nonsense(");
    person.reads("nonsense(");
    person.types(CONTROL_C);
    person.is_asked();
    person.enters("x + 1");
    assert!(!person.reads("\r\n21\r\n").contains("NameError"));
    person.is_asked();
    person.enters("nope");
    person.reads("NameError: name 'nope' is not defined");
    person.is_asked();
    // Ctrl-C interrupts the code and keeps the definitions.
    person.enters("print('spin' + 'ning'); [None for _ in iter(int, 1)]");
    person.reads("spinning\r\n");
    assert!(person.terminal.is_cooked(), "keys send signals while code runs");
    person.types(CONTROL_C);
    person.reads("KeyboardInterrupt");
    person.is_asked();
    person.enters("x");
    person.reads("\r\n20\r\n");
    person.is_asked();
    assert_eq!(person.leaves(), 0);
    // Only this user can read the history.
    let history = home.path().join("cofferdam/history-python");
    let mode = |path: &Path| std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!((mode(&history), mode(&home.path().join("cofferdam"))), (0o600, 0o700));
    let saved = std::fs::read_to_string(&history).expect("readable");
    assert!(saved.starts_with("x = 20\nx + 22\n") && saved.ends_with("x\n"), "{saved}");
    let mut person = Person::sits_down(&[], home.path());
    for line in ["x", "print('spin'", "nope", "x + 1"] {
        person.types(UP);
        person.reads(line);
    }
    kill_process(Pid::from_child(&person.child), Signal::TERM).expect("it exists");
    assert_eq!(person.child.wait().expect("it ends").code(), Some(143));
    assert!(person.terminal.is_cooked(), "the terminal is as it was");
    drop(person);
    assert!(left_behind(&before, Duration::from_secs(60)).is_empty());
}

#[test]
fn a_person_talks_with_javascript() {
    let before = census();
    let home = tempfile::tempdir().expect("a directory");
    let words = ["--lang", "javascript", "--pids", "32", "--memory", "1G", "--timeout", "3s", "--no-history"];
    let mut person = Person::sits_down(&words, home.path());
    person.enters("const a = {");
    person.reads("... ");
    person.enters("b: 40 }");
    person.is_asked();
    person.enters("a.b + 2");
    person.reads("\r\n42\r\n");
    person.is_asked();
    person.types(UP);
    person.reads("a.b + 2");
    person.enters(" + 1");
    person.reads("\r\n43\r\n");
    person.is_asked();
    person.enters("throw new Error('n' + 'o')");
    person.reads("Error: no");
    person.is_asked();
    person.enters("for (;;) {}");
    person.reads("a call did not end within 3.");
    person.reads("and the interpreter was killed");
    person.reads("started a new interpreter; all definitions are lost");
    person.is_asked();
    person.enters("typeof a");
    person.reads("\r\n'undefined'\r\n");
    person.is_asked();
    assert_eq!(person.leaves(), 0);
    assert!(home.path().read_dir().expect("a listing").next().is_none(), "no history was to be kept");
    assert!(left_behind(&before, Duration::from_secs(60)).is_empty());
}
