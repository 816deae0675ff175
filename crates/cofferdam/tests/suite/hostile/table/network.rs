//! Attacks through sockets.

use super::super::row::{Control, Row, WorkspaceKind, row};

pub fn rows() -> Vec<Row> {
    vec![
        row("an abstract socket of the host", "abstract_socket", Control::Succeeds)
            .args(|host| vec![host.abstract_name()]),
        row("a socket in the host's file system", "path_socket", Control::Succeeds).args(|host| vec![host.socket()]),
        row("the host's loopback and the world", "network_reach", Control::Succeeds).args(|host| vec![host.port()]),
        row("rare sockets", "rare_sockets", Control::None("it would load protocol modules into the host's kernel")),
        row("changing the network", "netlink_change", Control::None("it would change the host's network"))
            .workspace(WorkspaceKind::Private),
    ]
}
