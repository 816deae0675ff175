//! Attacks on the host's files and secrets.

use super::super::row::{Control, Row, WorkspaceKind, row, words};

pub fn rows() -> Vec<Row> {
    vec![
        row("reading the host's files", "host_files", Control::Succeeds).args(|host| host.markers()),
        row("reading the host's files from a private workspace", "host_files", Control::None("as the row before"))
            .args(|host| host.markers())
            .workspace(WorkspaceKind::Private),
        row("reading init through /proc", "proc_init", Control::Succeeds).control_args(|host| vec![host.supervisor()]),
        row("changing init through /proc", "proc_init_write", Control::None("it would open the host's init")),
        row("overwriting a program through /proc", "exe_overwrite", Control::None("needs a runtime as its victim")),
        row("a leaked descriptor", "fd_leak", Control::Succeeds).control_with_leaked_root(),
        row("a leaked descriptor in a terminal", "fd_leak", Control::None("as the row before")).terminal(),
        row(
            "steering the kernel through /proc/sys",
            "proc_sys_write",
            Control::None("it opens sysrq-trigger and core_pattern for writing"),
        ),
        row("reading the kernel through /proc", "proc_secrets", Control::SucceedsWhereAllowed),
        row("watching and holding up shared files", "shared_files", Control::Succeeds),
        row("watching and holding up files of a private workspace", "shared_files", Control::None("as the row before"))
            .args(|_| words(["/workspace"]))
            .workspace(WorkspaceKind::Private),
        row("watching and holding up files of a shared workspace", "shared_files", Control::None("as the row before"))
            .args(|_| words(["/workspace"]))
            .workspace(WorkspaceKind::Shared),
        row("device files", "dev_nodes", Control::None("it would make device files on the host")),
        row("device files in a private workspace", "dev_nodes", Control::None("as the row before"))
            .workspace(WorkspaceKind::Private),
        row("device files in a shared workspace", "dev_nodes", Control::None("as the row before"))
            .workspace(WorkspaceKind::Shared),
        row("writing to what is read-only", "readonly_paths", Control::None("it would change the host's files"))
            .args(|_| words(["/workspace"])),
        row(
            "writing to what is read-only from a private workspace",
            "readonly_paths",
            Control::None("as the row before"),
        )
        .workspace(WorkspaceKind::Private),
        row("hard links to the outside", "hard_link", Control::None("it would link and move the host's files"))
            .args(|host| [words(["/workspace"]), host.markers()].concat())
            .workspace(WorkspaceKind::Private),
        row("hard links into a shared workspace", "hard_link", Control::None("as the row before"))
            .args(|host| [words(["/workspace"]), host.markers()].concat())
            .workspace(WorkspaceKind::Shared),
        row("file handles", "file_handles", Control::SucceedsWhereAllowed).args(|_| words(["/usr"])),
        row("file handles of the workspace", "file_handles", Control::None("as the row before"))
            .args(|_| words(["/workspace"])),
        row("a set-uid file in a private workspace", "setuid_file", Control::Succeeds)
            .control_args(|_| vec![std::env::temp_dir().display().to_string()])
            .workspace(WorkspaceKind::Private),
        row("a set-uid file in a shared workspace", "setuid_file", Control::None("as the row before"))
            .workspace(WorkspaceKind::Shared),
    ]
}

/// Returns the rows of a separate test, which runs in a process with the secret in its environment.
pub fn secrets() -> Vec<Row> {
    vec![
        row("a secret of the supervisor's environment", "env_secret", Control::Succeeds)
            .args(|host| vec![host.secret_backwards()]),
        row(
            "a secret of the supervisor's environment, in a terminal",
            "env_secret",
            Control::None("as the row before"),
        )
        .args(|host| vec![host.secret_backwards()])
        .terminal(),
    ]
}
