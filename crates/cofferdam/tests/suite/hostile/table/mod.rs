//! The table of attacks, by target.

pub mod bombs;
pub mod files;
pub mod kernel;
pub mod kernel_memory;
pub mod network;
pub mod privileges;
pub mod processes;

use super::row::Row;

/// Returns all rows.
pub fn all() -> Vec<Row> {
    [files::rows(), network::rows(), processes::rows(), kernel::rows(), privileges::rows(), terminals(), bombs::rows()]
        .into_iter()
        .flatten()
        .collect()
}

/// Attacks on terminals; small enough to need no file.
pub fn terminals() -> Vec<Row> {
    use super::row::Control;
    use super::row::{WorkspaceKind, row, words};
    const OWN_TERMINAL_ONLY: fn(&super::host::Host) -> Vec<String> = |_| words(["own"]);
    vec![
        row("typing into a terminal", "tiocsti", Control::SucceedsWhereAllowed).control_args(OWN_TERMINAL_ONLY),
        row("typing into its own terminal", "tiocsti", Control::None("as the row before")).terminal(),
        row("opening another's terminal", "foreign_terminal", Control::SucceedsWhereAllowed),
        row("opening another's terminal from one", "foreign_terminal", Control::None("as the row before")).terminal(),
        row("terminal escape sequences", "terminal_injection", Control::None("it would act on the tester's terminal"))
            .workspace(WorkspaceKind::Private),
        row("terminal escape sequences in one", "terminal_injection", Control::None("as the row before")).terminal(),
    ]
}
