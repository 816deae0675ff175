//! `cofferdam completions`: scripts for shells.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::report::{print, printed};

/// Prints a completion script.
pub fn main(args: &CompletionsArgs) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cofferdam", &mut script);
    printed(print(&String::from_utf8_lossy(&script)), 0)
}
