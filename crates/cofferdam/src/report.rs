//! Messages of Cofferdam itself: errors, remarks after a run, JSON documents.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use clap::CommandFactory;
use clap::error::ErrorKind as UsageKind;
use cofferdam::{ByteSize, Error, Exit, LimitKind, Limits, Result};
use serde_json::{Value, json};

use crate::args::Cli;
use crate::style::{Style, Tone};
use crate::terminal::{one_line, safe_json, write_safe_json};

/// Exit status if Cofferdam itself failed.
pub const FAILED: u8 = 125;
/// Exit status if the reader closed the output, like that of a shell after SIGPIPE.
pub const READER_GONE: u8 = 141;

/// The output form of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text for people.
    Text,
    /// One JSON document on standard output.
    Json,
    /// JSON lines on standard output.
    Events,
}

impl Form {
    /// Returns the form of a command with the option `--json`.
    pub fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// Returns the exit status of a command, after reporting its error.
pub fn finish(result: Result<u8>, form: Form) -> u8 {
    result.unwrap_or_else(|failure| error(&failure, form))
}

/// Reports an error. Returns the exit status.
pub fn error(error: &Error, form: Form) -> u8 {
    remark(&error.to_string(), Tone::Bad);
    if let Some(remedy) = error.remedy() {
        stderr_line(&format!("  try: {}", one_line(remedy)));
    }
    let status = error.kind().exit_code();
    let mut details = error.to_json();
    details["status"] = status.into();
    // If standard output is closed, standard error still has the message.
    let _ = match form {
        Form::Text => Ok(()),
        Form::Json => document(&json!({"error": details})),
        Form::Events => print(&format!("{}\n", safe_json(json!({"type": "error", "error": details}).to_string()))),
    };
    status
}

/// Reports arguments that do not parse, or prints help. Returns the exit status.
pub fn usage(error: &clap::Error, raw: &[OsString]) -> u8 {
    if matches!(error.kind(), UsageKind::DisplayHelp | UsageKind::DisplayVersion) {
        return match error.print() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => READER_GONE,
            Err(_) => FAILED,
            Ok(()) => 0,
        };
    }
    let text = error.render().to_string();
    if error.kind() == UsageKind::DisplayHelpOnMissingArgumentOrSubcommand {
        text.lines().for_each(stderr_line);
        return FAILED;
    }
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    match first.strip_prefix("error: ") {
        Some(message) => remark(message, Tone::Bad),
        None => stderr_line(&one_line(first)),
    }
    for line in rest.lines().filter(|line| !line.is_empty()) {
        match line.starts_with("For more information") {
            true => stderr_line(&format!("  try: {}", help_command(raw))),
            false => stderr_line(&one_line(line)),
        }
    }
    let mut details = Error::invalid("parse the command line", first.strip_prefix("error: ").unwrap_or(first))
        .with_remedy(help_command(raw))
        .to_json();
    details["status"] = FAILED.into();
    let own = raw.iter().take_while(|word| *word != "--");
    if own.clone().any(|word| word == "--json") {
        let _ = document(&json!({"error": details}));
    } else if own.clone().any(|word| word == "--events") {
        let _ = print(&format!("{}\n", safe_json(json!({"type": "error", "error": details}).to_string())));
    }
    FAILED
}

/// Returns the command line that prints the help for the given arguments.
fn help_command(raw: &[OsString]) -> String {
    let command = Cli::command();
    let known = |word: &OsString| command.get_subcommands().find(|known| *word == known.get_name());
    let name = raw.iter().skip(1).find_map(known).map(|known| format!(" {}", known.get_name()));
    format!("cofferdam{} --help", name.unwrap_or_default())
}

/// Prints one line on standard error.
pub fn remark(text: &str, tone: Tone) {
    stderr_line(&format!("{} {}", Style::stderr().paint(tone, "cofferdam:"), one_line(text)));
}

fn stderr_line(line: &str) {
    // A closed standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints text on standard output.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Prints one JSON document on standard output.
pub fn document(value: &Value) -> io::Result<()> {
    write_safe_json(value, io::stdout().lock())
}

/// Prints a result as one JSON document or as text.
pub fn show(form: Form, value: &Value, text: &str) -> io::Result<()> {
    match form {
        Form::Text => print(text),
        Form::Json | Form::Events => document(value),
    }
}

/// Returns the exit status after printing: `status`, unless printing failed.
pub fn printed(result: io::Result<()>, status: u8) -> u8 {
    match result {
        Ok(()) => status,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => READER_GONE,
        Err(error) => {
            remark(&format!("cannot write to standard output: {error}"), Tone::Bad);
            FAILED
        }
    }
}

/// Returns messages about the end of a run, in addition to its status.
pub fn remarks(exit: &Exit, limits: &Limits, max_output: ByteSize, lost: u64) -> Vec<String> {
    let mut remarks = Vec::new();
    if exit.truncated {
        remarks.push(format!(
            "output truncated: {max_output} of {} printed (raise the limit with --max-output)",
            ByteSize::from_bytes(exit.usage.output_bytes)
        ));
    }
    if lost > 0 {
        remarks.push(format!("output lost: {} arrived faster than they could be printed", ByteSize::from_bytes(lost)));
    }
    if exit.timed_out {
        remarks.push(format!("killed: time limit of {} reached (raise it with --timeout)", seconds(limits.wall_time)));
    } else if let Some(kind) = exit.killed_by {
        remarks.push(format!("killed: {} reached ({})", limit(kind, limits), raise(kind)));
    }
    // Reports a process that was killed for memory even if the program ignored that.
    let shown = |kind: LimitKind| Some(kind) != exit.killed_by && (!exit.success() || kind == LimitKind::Memory);
    let others = exit.limits_hit.iter().filter(|kind| shown(**kind));
    remarks.extend(others.map(|kind| format!("{} was reached while it ran ({})", limit(*kind, limits), raise(*kind))));
    remarks
}

fn limit(kind: LimitKind, limits: &Limits) -> String {
    let (name, value) = match kind {
        LimitKind::Memory => ("memory limit", limits.memory.map(|size| size.to_string())),
        LimitKind::Cpu => ("CPU time limit", limits.cpu_time.map(seconds)),
        LimitKind::Pids => ("limit on processes and threads", limits.pids.map(|count| count.to_string())),
        LimitKind::Disk => ("disk limit", limits.disk.map(|size| size.to_string())),
    };
    value.map_or(name.to_owned(), |value| format!("{name} of {value}"))
}

fn raise(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Memory => "raise it with --memory",
        LimitKind::Cpu => "raise it with --cpu-time",
        LimitKind::Pids => "raise it with --pids",
        LimitKind::Disk => "raise it with --disk",
    }
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam::Usage;

    fn exit() -> Exit {
        Exit {
            code: 0,
            signal: None,
            timed_out: false,
            cancelled: false,
            truncated: false,
            killed_by: None,
            limits_hit: vec![],
            duration: Duration::ZERO,
            usage: Usage { output_bytes: 3 << 20, ..Usage::default() },
        }
    }

    fn messages_of(exit: &Exit) -> Vec<String> {
        remarks(exit, &Limits::default(), ByteSize::from_mebibytes(1), 0)
    }

    #[test]
    fn a_limit_that_killed_is_named_with_its_option() {
        for (kind, text) in [
            (LimitKind::Memory, "killed: memory limit of 512 MiB reached (raise it with --memory)"),
            (LimitKind::Cpu, "killed: CPU time limit of 30 s reached (raise it with --cpu-time)"),
            (LimitKind::Pids, "killed: limit on processes and threads of 256 reached (raise it with --pids)"),
            (LimitKind::Disk, "killed: disk limit of 1 GiB reached (raise it with --disk)"),
        ] {
            let exit = Exit { code: -1, killed_by: Some(kind), limits_hit: vec![kind], ..exit() };
            assert_eq!(messages_of(&exit), [text]);
        }
        let exit = Exit { code: -1, timed_out: true, ..exit() };
        assert_eq!(messages_of(&exit), ["killed: time limit of 60 s reached (raise it with --timeout)"]);
    }

    #[test]
    fn a_limit_that_hindered_is_named_when_the_run_failed_and_memory_always() {
        let hindered = Exit { limits_hit: vec![LimitKind::Disk], ..exit() };
        assert!(messages_of(&hindered).is_empty());
        let memory = Exit { limits_hit: vec![LimitKind::Memory], ..exit() };
        assert_eq!(messages_of(&memory), ["memory limit of 512 MiB was reached while it ran (raise it with --memory)"]);
        let failed = Exit { code: 1, ..hindered };
        assert_eq!(messages_of(&failed), ["disk limit of 1 GiB was reached while it ran (raise it with --disk)"]);
    }

    #[test]
    fn truncated_and_lost_output_is_reported() {
        let exit = Exit { truncated: true, ..exit() };
        let messages_of = remarks(&exit, &Limits::default(), ByteSize::from_mebibytes(1), 2048);
        assert_eq!(
            messages_of,
            [
                "output truncated: 1 MiB of 3 MiB printed (raise the limit with --max-output)",
                "output lost: 2 KiB arrived faster than they could be printed"
            ]
        );
    }
}
