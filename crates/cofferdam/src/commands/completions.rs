//! `cofferdam completions`: scripts for shells, which call this program for candidates.

use clap_complete::env::Shells;
use cofferdam::{Error, ErrorKind};

use crate::args::CompletionsArgs;
use crate::completion::VARIABLE;
use crate::report::{self, Form, print, printed};

/// Prints a completion script.
pub fn main(args: &CompletionsArgs) -> u8 {
    let (shells, mut script) = (Shells::builtins(), Vec::new());
    let written = shells
        .completer(&args.shell.to_string())
        .map(|shell| shell.write_registration(VARIABLE, "cofferdam", "cofferdam", "cofferdam", &mut script));
    match written {
        Some(Ok(())) => printed(print(&String::from_utf8_lossy(&script)), 0),
        _ => report::error(
            &Error::new(ErrorKind::Internal, "completions", "there is no script for this shell"),
            Form::Text,
        ),
    }
}
