//! The process backend: processes behind namespaces, mounts, filters and control groups.
//!
//! ```text
//! ProcessBackend --socket--> launcher (this program, executed once more) --forks--> init of each sandbox --> guests
//! ```
//!
//! The launcher starts with the first sandbox and holds a template of the root file system. The child for a sandbox
//! adds the sandbox's own mounts and drops all privileges irreversibly. [`ProcessBackend`] talks to each init over its
//! own socket.
//!
//! A program that uses this crate becomes its own launcher: see [`ProcessConfig::launcher`].
//!
//! # Processes
//!
//! ```text
//! owner (your program)                 launcher                    init of a sandbox            guests
//!   |--- starts itself once more ------->|                                |                        |
//!   |--- Configure --------------------->| template of the root           |                        |
//!   |<-- Hello, facts of the host -------|                                |                        |
//!   |--- Create, a socket -------------->|--- child in new namespaces --->| isolation, by steps    |
//!   |                                    |    that borrows its memory     | executes the init      |
//!   |<-- Ready: evidence, descriptors ------------------------------------|                        |
//!   |--- Start: argv, env, 3 descriptors -------------------------------->|--- vfork and exec ---->|
//!   |<-- Started ---------------------------------------------------------|                        |
//!   |<=========================== output, by pipes =========================================================|
//!   |<-- Ended: status, CPU time, peak ------------------------------------|<-- reaped -------------|
//!   |--- kill the init ---------------------------------------------------> ends, and all guests with it
//!   |<-- the socket reads as closed -----| group removed, nothing left
//! ```
//!
//! - **Owner**: the process that holds the sandboxes, a program that uses this crate.
//! - **Launcher**: the owner's executable, executed again under another `argv[0]`. A constructor before `main`
//!   recognises the name (`docs/adr/0001-launcher.md`). It has one thread and none of its owner's memory. It holds the
//!   template, the compiled filters, control group descriptors, and a pool of prepared namespaces that a worker
//!   process creates and removes (`docs/adr/0006-prepared-namespaces.md`). The launcher has installed the first stage
//!   of the seccomp filter on itself. Every sandbox inherits it and adds the second stage. There is one launcher for
//!   each root file system. A program that creates one sandbox can fork its launcher instead. A forked launcher has a
//!   copy of the memory that the owner had at the fork, with arguments and environment erased
//!   (`docs/adr/0008-forked-launcher.md`).
//! - **Init**: process 1 of a sandbox. It starts as a child that borrows the launcher's memory, isolates and measures
//!   itself, and executes a tiny program without a library (`docs/adr/0009-tiny-init.md`). That program starts and
//!   reaps guests, reports their ends and kills on request. Through a seccomp user-notification listener, the init
//!   allows or refuses calls that create kernel objects outside the memory limit (`docs/limits.md`). It reads nothing
//!   that guests write, except names of processes.
//! - **Lifetimes**: an owner's end closes its socket; the launcher then kills what is left, removes its groups and
//!   exits. An init is killed with its launcher, and its guests with its pid namespace. Mounts end with their
//!   namespaces. Groups of a killed launcher are removed by the next one.
//!
//! # A create, step by step
//!
//! 1. `plan.rs` checks the spec and refuses settings that the backend does not have. `backend.rs` resolves host
//!    directories and names them by path, device and inode.
//! 2. The launcher starts if this root has none. The request carries a socket for the new init. The launcher keeps a
//!    copy, which closes once nothing of the sandbox is left.
//! 3. The launcher opens the workspace as a detached mount, takes prepared namespaces and a control group with the
//!    limits, and creates the child. With version 2 of control groups the child is forked into its group.
//! 4. The child joins its group (version 1), creates a cgroup namespace, enters the prepared namespaces, mounts `/proc`
//!    and covers parts of it, sets the tmpfs size, attaches the workspace, sets resource limits, becomes an ordinary
//!    user, creates the user namespace, drops capabilities, sets no_new_privs, enforces Landlock and installs the
//!    second stage of the filter, in this order.
//! 5. It measures itself and executes the init, which inherits the evidence by a pipe and sends it with descriptors of
//!    its process, workspace and group.
//! 6. The owner reads the group's limits back, computes the posture, and ends the sandbox if it falls short. Sandboxes
//!    of a launcher are of one kind if their workspaces agree on three facts: whether it is a host directory, whether it
//!    is copy-on-write, and whether it is read-only. Protections that are the same for all sandboxes of a kind are tried by the first one. The others
//!    reuse the result.
//!
//! A single command (`Backend::start_one`, `Backend::run`) is sent with its sandbox. The init starts it at once if its
//! measurements equal those of an already accepted sandbox with the same request. If there is none yet, all protections
//! must hold and control groups must enforce all limits. Otherwise the init waits for the owner's decision. A prepared
//! sandbox is created the same way and compared with the spec when it is claimed.
//!
//! # An exec, step by step
//!
//! ```text
//! requested -> sent -> started -> ended -> collected
//!               |        |-- time-out, limit, cancel, handle dropped --> killed --^
//!               '-- not started (not found, not executable, no process left)
//! ```
//!
//! 1. `exec.rs` creates pipes or a terminal, writes code into a private file, and sends the request with three
//!    descriptors.
//! 2. The init starts the program with an exec tag that all children inherit, so all processes of an exec can be found.
//! 3. The owner reads output as it comes, cuts it at the maximum and puts it into the ring.
//! 4. A timer enforces wall time. The control group, or the init's watch, enforces CPU time and memory. The CPU limit of
//!    an exec counts everything that the sandbox uses from the exec's start on.
//! 5. When the main program ends, its output is drained and its exit is stored for all waiters. Its other processes run
//!    until the sandbox closes. A time-out, limit, cancel or dropped handle kills all processes with the tag. Without
//!    control groups, a sandbox that exceeds its memory or CPU limit loses the processes of all its execs.
//!
//! # A connection to a server in a sandbox
//!
//! A socket belongs to the network namespace in which it was created. `Sandbox::connect` requests a socket from the
//! launcher, which keeps the namespace of each sandbox. The launcher forks a child that enters the namespace, creates
//! the socket and sends it to the owner. The owner connects it to the sandbox's loopback address, so that neither the
//! launcher nor the init waits for a guest.
//!
//! # Where to look
//!
//! - From a spec to a sandbox: `plan.rs`, which is pure.
//! - Isolation, step by step: `launcher/create.rs`, `build` first. What every sandbox sees: `launcher/template.rs`.
//! - Measurements: `launcher/evidence.rs`. Their evaluation: `posture.rs`, which is pure.
//! - The program of process 1: `init/`, `init/serve.rs` first.
//! - Watches of the workspace: `watch.rs`.
//! - Prepared namespaces: `launcher/namespace_pool.rs`. Creates: `creation.rs`, then `pending.rs`. Claims of
//!   prepared sandboxes: `prepared.rs`.
#![deny(unsafe_code)]

mod backend;
mod changes;
mod client;
mod config;
mod connect;
mod core;
#[cfg(test)]
mod cpu_time_tests;
mod creation;
mod doctor;
mod error;
mod exec;
mod files;
mod forked;
mod image;
mod interpreters;
mod launcher;
mod mounts;
mod network;
mod pending;
mod plan;
mod posture;
mod prepared;
mod protocol;
mod put;

mod file_memory;
mod sandbox;
mod stdio;
#[expect(unsafe_code, reason = "the entry before main, and descriptors given to the runtime")]
mod sys;
mod watch;

pub use backend::ProcessBackend;
pub use config::{ControlGroups, ForkedLauncher, ImageStore, Images, LauncherStart, ProcessConfig, RootImage};
pub use doctor::doctor;

/// The backend's name in options and configuration.
pub const NAME: &str = "process";
