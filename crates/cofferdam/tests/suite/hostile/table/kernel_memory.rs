//! Attacks that allocate kernel objects: ten times the limit, while the host's memory is sampled.
//!
//! `docs/limits.md` lists all such objects and their bounds. Each bounded object has a row here. Forms of the guest
//! without a row are the limitations that the page states.

use cofferdam_contract::LimitKind;

use super::super::host::Host;
use super::super::row::{Control, Expect, Row, WorkspaceKind, row, words};

/// Tolerance above the limit: other programs of the host allocate and free memory too, and without control groups the
/// watch reacts with a delay.
const SLACK_MIB: u64 = 192;
/// The tolerance for descriptors in flight. `RLIMIT_NOFILE` alone bounds them to 245 MiB, which the usual tolerance
/// would allow.
const SLACK_IN_FLIGHT_MIB: u64 = 96;

/// Defines the attacks, with the form of `kernel_memory.c` and the number of processes that share the goal.
macro_rules! attacks {
    ($($name:literal: $form:literal $processes:literal,)*) => {
        /// The forms, each with its number of processes.
        pub const FORMS: &[(&str, &str)] = &[$(($form, $processes)),*];

        pub fn rows() -> Vec<Row> {
            vec![$(attack($name, $form, |_| words([$form, "640", $processes, "400"])),)*]
        }
    };
}

fn attack(name: &'static str, form: &str, args: fn(&Host) -> Vec<String>) -> Row {
    row(name, "kernel_memory", Control::None("it would use up the machine"))
        .args(args)
        .workspace(WorkspaceKind::Mounted)
        .memory(64)
        .disk(512)
        .processes(40)
        .host_memory(if form == "in-flight" { SLACK_IN_FLIGHT_MIB } else { SLACK_MIB })
        .expect(Expect::ContainedOrLimit(LimitKind::Memory))
}

attacks! {
    "kernel memory: shared pages of /dev/zero": "zero-device" "1",
    "kernel memory: System V semaphores": "semaphores" "1",
    "kernel memory: System V messages": "messages" "1",
    "kernel memory: page tables": "page-tables" "8",
    "kernel memory: mappings": "mappings" "8",
    "kernel memory: Unix connections that wait": "unix-queue" "1",
    "kernel memory: sockets on their way": "in-flight" "1",
    "kernel memory: Unix datagrams": "unix-datagrams" "1",
    "kernel memory: UDP datagrams": "udp-datagrams" "4",
    "kernel memory: TCP connections": "connections" "1",
    "kernel memory: UDP datagrams that are not finished": "corked" "8",
    "kernel memory: descriptors that watch descriptors": "watchers" "8",
    "kernel memory: a table of locks": "lock-table" "1",
    "kernel memory: filters": "filters" "8",
    "kernel memory: pages spliced into pipes": "spliced-pages" "1",
    "kernel memory: pages sent by reference": "sent-pages" "1",
    "kernel memory: multicast groups": "memberships" "8",
    "kernel memory: names of files": "names" "1",
    "kernel memory: pages that were written and may only be read": "read-only" "8",
    "kernel memory: processes whose first thread has ended": "hidden" "8",
    "kernel memory: pipes": "pipes" "8",
    "kernel memory: locks of processes": "locks" "16",
    "kernel memory: locks of open files": "open-file-locks" "16",
    "kernel memory: answers of netlink": "netlink" "8",
    "kernel memory: TCP connections that wait": "tcp-queue" "8",
    "kernel memory: events of watched files": "events" "8",
    "kernel memory: closed TCP connections": "closed" "8",
    "kernel memory: filters of sockets": "socket-filters" "8",
    "kernel memory: options of sockets": "socket-options" "36",
    "kernel memory: access control lists of files": "access-lists" "8",
    "kernel memory: locks of whole files": "flock" "16",
    "kernel memory: rules of Landlock": "landlock" "8",
    "kernel memory: names and pages of the host's files": "host-files" "8",
}
