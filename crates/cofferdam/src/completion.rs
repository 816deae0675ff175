//! Completion of words in shells: the script of a shell calls this program with the words of the line.
//!
//! Names of sandboxes come from the server, within [`NAMES_TIMEOUT`]. Without a server there are none, and no error: a
//! shell shows nothing but candidates.

use clap::CommandFactory;
use clap_complete::env::CompleteEnv;

use crate::args::Cli;

/// The environment variable with the shell that asks.
pub const VARIABLE: &str = "COFFERDAM_COMPLETE";

/// Answers a shell that asks for candidates, and exits then.
pub fn answer() {
    if std::env::var_os(VARIABLE).is_some() {
        CompleteEnv::with_factory(Cli::command).var(VARIABLE).bin("cofferdam").complete();
    }
}

#[cfg(feature = "server")]
pub use names::{ends_of_copies, sandboxes};

#[cfg(feature = "server")]
mod names {
    use std::ffi::OsStr;
    use std::sync::mpsc;
    use std::time::Duration;

    use clap_complete::engine::{
        ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
    };

    use crate::commands::sandbox_names;

    /// The time to ask the server.
    const NAMES_TIMEOUT: Duration = Duration::from_millis(200);

    /// Returns the completion of an argument that names a sandbox.
    pub fn sandboxes() -> ArgValueCandidates {
        ArgValueCandidates::new(|| names().into_iter().map(CompletionCandidate::new).collect())
    }

    /// Returns the completion of an end of a copy: a path of this host, or the name of a sandbox with a colon.
    pub fn ends_of_copies() -> ArgValueCompleter {
        ArgValueCompleter::new(|current: &OsStr| {
            let mut all = PathCompleter::any().complete(current);
            let wanted = |name: &String| current.to_str().is_some_and(|current| name.starts_with(current));
            let ends = names().into_iter().map(|name| format!("{name}:")).filter(wanted);
            all.extend(ends.map(CompletionCandidate::new));
            all
        })
    }

    /// Asks the server, in a thread that ends with this process.
    fn names() -> Vec<String> {
        let (sender, names) = mpsc::channel();
        std::thread::spawn(move || sender.send(sandbox_names().unwrap_or_default()));
        let mut names = names.recv_timeout(NAMES_TIMEOUT).unwrap_or_default();
        // The shell reads candidates as words.
        names.retain(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')));
        names
    }
}
