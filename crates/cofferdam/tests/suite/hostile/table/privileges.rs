//! Attacks that gain privilege.

use super::super::row::{Control, Row, WorkspaceKind, row};

pub fn rows() -> Vec<Row> {
    vec![
        row("becoming root", "become_root", Control::Succeeds),
        row("becoming root in a terminal", "become_root", Control::None("as the row before")).terminal(),
        row("writing the user map", "user_map", Control::SucceedsWhereAllowed),
        row("set-uid programs", "setuid_exec", Control::SucceedsWhereAllowed),
        row("raising limits", "raise_limits", Control::None("it would give itself real-time priority")),
        row("raising limits from a private workspace", "raise_limits", Control::None("as the row before"))
            .workspace(WorkspaceKind::Private),
    ]
}
