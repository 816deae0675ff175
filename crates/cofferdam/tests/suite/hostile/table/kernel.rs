//! Attacks on the kernel: system calls that ordinary programs do not need, and control of the host.

use super::super::row::{Control, Row, row};

pub fn rows() -> Vec<Row> {
    vec![
        row("io_uring", "io_uring", Control::SucceedsWhereAllowed),
        row("key rings", "keyrings", Control::SucceedsWhereAllowed),
        row("bpf", "bpf", Control::SucceedsWhereAllowed),
        row("performance events", "perf_events", Control::SucceedsWhereAllowed),
        row("userfaultfd", "userfaultfd", Control::SucceedsWhereAllowed),
        row("rare calls", "rare_calls", Control::SucceedsWhereAllowed),
        row("personality", "personality", Control::SucceedsWhereAllowed),
        row("modules and kexec", "kernel_modules", Control::None("it would ask for another kernel")),
        row("reboot, swap, ports", "machine_control", Control::None("it would change the machine")),
        row("the clock", "set_clock", Control::None("it would set the machine's clock")),
        row("the host name", "set_hostname", Control::None("it would rename the machine")),
    ]
}
