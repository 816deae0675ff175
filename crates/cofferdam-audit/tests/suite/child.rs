//! Child processes of the tests: this test binary again, with a command in its environment.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use cofferdam_audit::*;

use crate::support::*;

const ORDER: &str = "COFFERDAM_AUDIT_TEST";

/// Returns the command that carries out an order in a directory.
pub fn command(order: &str, directory: &Path) -> Command {
    prefixed(&[], order, directory)
}

/// Returns the command with another program as its launcher.
pub fn prefixed(prefix: &[&str], order: &str, directory: &Path) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut words: Vec<_> = prefix.iter().map(|word| word.into()).collect();
    words.push(own.into_os_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["--exact", "child::carries_out_an_order", "--ignored", "--nocapture"]);
    command.env(ORDER, order).current_dir(directory).stdin(Stdio::null());
    command
}

/// Carries out an order and returns the output of the child.
pub fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {text}", output.status);
    text
}

#[test]
#[ignore = "started by other tests, with an order in its environment"]
fn carries_out_an_order() {
    let order = std::env::var(ORDER).unwrap_or_default();
    let directory = std::env::current_dir().unwrap();
    match order.split(' ').collect::<Vec<_>>()[..] {
        ["write", name, count] => write(&directory, name, count.parse().unwrap()),
        ["full"] => crate::full::in_a_small_file_system(&directory),
        ["beyond"] => crate::full::beyond_the_reserve(&directory),
        ["file-limit"] => crate::full::under_a_limit_on_files(&directory),
        ["read-only"] => crate::full::in_a_read_only_file_system(&directory),
        // Without an order, the program runs as an ignored test.
        _ => println!("no order"),
    }
}

/// Writes executions, and reports each of them after it is written.
fn write(directory: &Path, name: &str, count: u64) {
    let config = Config { segment_bytes: 64 * 1024, artifact_bytes: Some(4096), ..config(directory) };
    let log = Log::open(config).unwrap();
    let mut out = std::io::stdout();
    let mut saying = String::new();
    for number in 0..count {
        let name = format!("{name}-{number}");
        let mut reservation = log.reserve(subject(&name)).unwrap();
        let mut outcome = outcome();
        if number % 8 == 0 {
            let mut artifact = reservation.artifact(&Redactor::none()).unwrap().unwrap();
            artifact.section("code").unwrap();
            artifact.add(b"print(1)").unwrap();
            outcome.artifact = Some(artifact.finish().unwrap());
        }
        reservation.commit(outcome).unwrap();
        saying.clear();
        saying.push_str("ended ");
        saying.push_str(&name);
        saying.push('\n');
        // In a single write, so that readers see complete lines except for the last.
        out.write_all(saying.as_bytes()).unwrap();
        out.flush().unwrap();
    }
}
