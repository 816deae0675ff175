//! Attacks on processes outside and on the sandbox's own init.

use super::super::row::{Control, Expect, Row, SIGSYS, WorkspaceKind, row};

pub fn rows() -> Vec<Row> {
    vec![
        row("signals to a process of the host", "host_signal", Control::Succeeds)
            .args(|host| vec![host.canary()])
            .control_args(|host| vec![host.victim()]),
        row("signals to everything", "kill_all", Control::None("it would kill everything")).expect(Expect::Contained),
        row(
            "starving the process that keeps the limits",
            "starve_init",
            Control::None("it would slow the machine's init"),
        ),
        row("tracing a process of the host", "ptrace_host", Control::SucceedsWhereAllowed)
            .args(|host| vec![host.canary()])
            .control_args(|host| vec![host.victim()]),
        row("changing a call after the filter", "ptrace_bypass", Control::SucceedsWhereAllowed),
        row("entering another namespace", "setns", Control::None("succeeds only for root"))
            .args(|host| vec![host.canary()]),
        row("new namespaces", "namespaces", Control::SucceedsWhereAllowed),
        row("mount calls", "mount_calls", Control::None("it would change the host's mounts"))
            .workspace(WorkspaceKind::Private),
        row("mount calls in a shared workspace", "mount_calls", Control::None("as the row before"))
            .workspace(WorkspaceKind::Shared),
        row("leaving the control group", "cgroup_escape", Control::None("it would mount and write control groups"))
            .workspace(WorkspaceKind::Private),
        row("seeing the host's control group", "cgroup_view", Control::SucceedsWhereAllowed),
        row("foreign system calls", "foreign_abi", Control::SucceedsWhereAllowed),
        row("a foreign system call without a child", "foreign_abi_direct", Control::SucceedsWhereAllowed)
            .expect(Expect::ContainedOrSignal(SIGSYS)),
        row("a program in no file system", "memfd_exec", Control::Succeeds),
        row("a crash", "core_dump", Control::None("the host's core handler would get it"))
            .workspace(WorkspaceKind::Private),
    ]
}
