//! `cofferdam repl`.

use std::path::PathBuf;

use clap::Args;
use cofferdam::Level;

use super::{LimitArgs, OutputArgs, RunArgs, SandboxArgs, VolumeMountArgs};

const REPL_HELP: &str = "\
Examples:
  cofferdam repl                       use Python; definitions are kept between lines
  cofferdam repl --lang javascript --timeout 5s --workspace .:ro

Code continues on the next line after an open bracket, a colon and the like; an empty line ends it.
Ctrl-C interrupts running Python code and keeps all definitions. JavaScript, and code that does not
stop within 3 s or at a second Ctrl-C, is killed with its interpreter, and all definitions are lost.
exit(), quit() and Ctrl-D close the sandbox. The CPU time limit counts for all lines together;
`--cpu-time none` removes it.";

/// `cofferdam repl`.
#[derive(Debug, Args)]
#[command(after_help = REPL_HELP)]
pub struct ReplArgs {
    /// Set the language: python, javascript or typescript
    #[arg(long, value_name = "LANG", default_value = "python")]
    pub lang: String,

    /// Require at least this isolation level: wasm (1), process (2), container, vm (3)
    #[arg(long)]
    pub level: Option<Level>,

    /// Select the backend
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    /// Keep the history of lines in this file [default: $XDG_STATE_HOME/cofferdam/history-LANG]
    #[arg(long, value_name = "FILE", conflicts_with = "no_history")]
    pub history: Option<PathBuf>,

    /// Keep no history
    #[arg(long)]
    pub no_history: bool,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub sandbox: SandboxArgs,

    #[command(flatten)]
    pub volumes: VolumeMountArgs,
}

impl ReplArgs {
    /// Converts to the arguments of a run, the history file and the `--no-history` option.
    pub fn into_run(self) -> (RunArgs, Option<PathBuf>, bool) {
        let Self { lang, level, backend, history, no_history, limits, sandbox, volumes } = self;
        let output = OutputArgs::default();
        let run = RunArgs { lang: Some(lang), level, backend, limits, sandbox, volumes, output, ..RunArgs::default() };
        (run, history, no_history)
    }
}
