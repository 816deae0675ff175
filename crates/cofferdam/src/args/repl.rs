//! `cofferdam repl`.

use std::path::PathBuf;

use clap::Args;
use cofferdam::Level;

use super::{LimitArgs, OutputArgs, PlaceArgs, RunArgs};

const REPL_HELP: &str = "\
Examples:
  cofferdam repl                       Python, a line at a time, with what was defined before
  cofferdam repl --lang javascript --timeout 5s --workspace .:ro

An open bracket, a colon at the end of a line and the like let the code go on; an empty line ends it.
Ctrl-C interrupts what runs and keeps what was defined (Python); what does not stop in 3 s, or at a second
Ctrl-C, and JavaScript, is ended with all that was defined. exit(), quit() and Ctrl-D end the sandbox.
A limit on CPU time counts for all calls together; `--cpu-time none` lifts it.";

/// `cofferdam repl`.
#[derive(Debug, Args)]
#[command(after_help = REPL_HELP)]
pub struct ReplArgs {
    /// Language: python, javascript or typescript
    #[arg(long, value_name = "LANG", default_value = "python")]
    pub lang: String,

    /// Least thickness of the wall: process (2), container, vm (3)
    #[arg(long)]
    pub level: Option<Level>,

    /// Backend that makes the sandbox
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    /// File that keeps the lines that were typed [default: $XDG_STATE_HOME/cofferdam/history-LANG]
    #[arg(long, value_name = "FILE", conflicts_with = "no_history")]
    pub history: Option<PathBuf>,

    /// Keep no lines
    #[arg(long)]
    pub no_history: bool,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub place: PlaceArgs,
}

impl ReplArgs {
    /// The same as a run would be asked for.
    pub fn into_run(self) -> (RunArgs, Option<PathBuf>, bool) {
        let Self { lang, level, backend, history, no_history, limits, place } = self;
        let output = OutputArgs::default();
        let run = RunArgs { lang: Some(lang), level, backend, limits, place, output, ..RunArgs::default() };
        (run, history, no_history)
    }
}
