//! The command line: parse, do, answer with an exit status. Every decision lives in a module of its own; nothing is
//! read or started before a command needs it.
#![forbid(unsafe_code)]

mod args;
mod bound;
mod commands;
mod config;
mod encode;
mod host_stream;
mod interrupts;
mod launcher;
#[cfg(feature = "vm")]
mod out_file;
mod plan;
mod progress;
mod report;
mod resident;
mod settings;
mod sink;
mod stdin;
mod style;
mod terminal;
mod tty;
mod values;

use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

use cofferdam::registry::ForkedLauncher;

fn main() -> ExitCode {
    // Before anything is read but where a daemon would be: what is in memory now is in the launcher's memory, too. With a
    // daemon there is hardly ever a need for a launcher of our own.
    let launcher = if resident::may_be_there() { None } else { ForkedLauncher::fork_when(launcher::is_wanted) };
    let raw: Vec<_> = std::env::args_os().collect();
    let status = match args::parse(&raw) {
        Ok(cli) => commands::dispatch(cli, launcher),
        Err(error) => report::usage(&error, &raw),
    };
    ExitCode::from(status)
}
