//! Runs a program to its end, and reports a failure in one line.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

/// Maximum time of a program. Slow peers take well under a second.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of a program's error message that is reported.
const MAX_WORDS: usize = 160;

/// Returns true if a program of this name is in the search path.
pub fn installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// The output of a program that is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Standard output, to check it.
    Output,
    /// Standard output, and standard error for the message of a failure.
    OutputAndErrors,
}

/// Runs a command line, and checks that it printed `expected`. The error describes the failure in one line.
pub async fn run(line: &[impl AsRef<OsStr>], expected: &str, keep: Keep) -> Result<(), String> {
    run_with(line, None, expected, keep).await
}

/// Runs like [`run`], with one more environment variable.
pub async fn run_with(
    line: &[impl AsRef<OsStr>],
    variable: Option<(&str, &Path)>,
    expected: &str,
    keep: Keep,
) -> Result<(), String> {
    let piped = |yes| if yes { Stdio::piped() } else { Stdio::null() };
    let mut command = command(line);
    command.envs(variable).stdout(piped(!expected.is_empty())).stderr(piped(keep == Keep::OutputAndErrors));
    let output = finish(command).await?;
    if !output.status.success() {
        return Err(reason(&output.stderr, output.status));
    }
    if output.stdout != expected.as_bytes() {
        return Err(format!("fails: printed {:?}", String::from_utf8_lossy(&output.stdout)));
    }
    Ok(())
}

/// Runs a command line whose output does not matter.
pub async fn succeeds(line: &[impl AsRef<OsStr>]) -> Result<(), String> {
    let mut command = command(line);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let output = finish(command).await?;
    if output.status.success() { Ok(()) } else { Err(reason(&output.stderr, output.status)) }
}

/// Returns a command in a process group of its own, so that it can be killed with all its descendants.
fn command(line: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command
}

async fn finish(mut command: Command) -> Result<Output, String> {
    let child = command.spawn().map_err(|error| format!("fails: {error}"))?;
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    match tokio::time::timeout(PROGRAM_TIMEOUT, child.wait_with_output()).await {
        Ok(output) => output.map_err(|error| format!("fails: {error}")),
        Err(_) => {
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            Err(format!("fails: did not end within {} s", PROGRAM_TIMEOUT.as_secs()))
        }
    }
}

/// Returns the reason of a failure in one line: the first line of its message, or its exit status.
pub fn reason(stderr: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(stderr);
    let words = text.lines().map(plain).find(|line| !line.is_empty());
    match words {
        Some(words) => format!("fails: {}", words.chars().take(MAX_WORDS).collect::<String>()),
        None => match status.signal() {
            Some(signal) => format!("fails: ended by signal {signal}"),
            None => format!("fails: {status}"),
        },
    }
}

/// Removes terminal escape sequences from a line.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // An escape sequence ends with a letter.
            let _ = characters.by_ref().find(char::is_ascii_alphabetic);
        } else if !character.is_control() {
            text.push(character);
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn why(script: &str) -> String {
        block_on(run(&["sh", "-c", script], "", Keep::OutputAndErrors)).unwrap_err()
    }

    /// Promise (Measurements and structure): A benchmark reports the failure of another sandbox with its first or last
    /// words.
    #[test]
    fn a_failure_is_described_by_the_start_or_the_end_of_its_output() {
        assert_eq!(why("printf '\\n\\033[31mno  daemon\\033[0m\\nmore\\n' >&2; exit 1"), "fails: no  daemon");
        assert_eq!(why("exit 3"), "fails: exit status: 3");
        assert_eq!(why("kill -KILL $$"), "fails: ended by signal 9");
        let long = why("printf 'x%.0s' $(seq 999) >&2; exit 1");
        assert_eq!(long.len(), "fails: ".len() + MAX_WORDS);
    }

    #[test]
    fn output_is_checked() {
        let run = |script| block_on(run(&["sh", "-c", script], "1\n", Keep::Output));
        assert_eq!(run("echo 1"), Ok(()));
        assert!(run("echo 2").unwrap_err().contains("2"));
        assert!(block_on(succeeds(&["/nonexistent/program"])).unwrap_err().starts_with("fails: "));
    }
}
