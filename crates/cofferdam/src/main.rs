//! The command line: parses the arguments, runs the command, returns the exit status. Each decision has its own module.
//! Nothing is read or started before a command needs it.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod completion;
mod config;
mod encode;
mod host_stream;
mod images;
mod interrupts;
mod launcher;
mod out_file;
mod plan;
mod program;
mod progress;
#[cfg(any(feature = "plugins", feature = "server"))]
mod prompt;
mod report;
mod resident;
mod settings;
mod sink;
mod state;
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
    completion::answer();
    // Forks before anything is read except the path of the server, because the launcher inherits a copy of this memory.
    // With a server, this process rarely needs its own launcher.
    let launcher = if resident::may_be_there() { None } else { ForkedLauncher::fork_when(launcher::is_wanted) };
    let raw: Vec<_> = std::env::args_os().collect();
    let status = match args::parse(&raw) {
        Ok(cli) => commands::dispatch(cli, launcher),
        Err(error) => report::usage(&error, &raw),
    };
    ExitCode::from(status)
}
