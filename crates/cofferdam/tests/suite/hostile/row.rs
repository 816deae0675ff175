//! One row of the table: which attack, with what, where, and how it must end.

use std::time::Duration;

use cofferdam_contract::{ByteSize, LimitKind, Limits};

use super::host::Host;

/// The signal with which a system-call filter kills.
pub const SIGSYS: i32 = 31;

/// The workspace that the attack starts from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The compiled programs, lent read-only.
    Lent,
    /// A private workspace.
    Private,
    /// A host directory, writable.
    Shared,
}

/// How the attack must end. A guest that says it escaped fails every row.
#[derive(Clone, Copy)]
pub enum Expect {
    /// The guest says that every attempt was refused.
    Contained,
    /// That, or this signal killed it.
    ContainedOrSignal(i32),
    /// That, or this limit killed it.
    ContainedOrLimit(LimitKind),
    /// The limit killed it, and the exit says so.
    Limit(LimitKind),
    /// It ended by itself, and its output was cut at the request's maximum.
    Truncated,
}

/// Whether the same program is also run outside the sandbox, where it must succeed: so that a row cannot pass because
/// its program is broken.
pub enum Control {
    /// It must succeed outside.
    Succeeds,
    /// It succeeds outside where the host allows it; elsewhere that it did not is printed.
    SucceedsWhereAllowed,
    /// It is not run outside, for this reason.
    None(&'static str),
}

type Arguments = fn(&Host) -> Vec<String>;

/// One row.
pub struct Row {
    pub name: &'static str,
    pub guest: &'static str,
    pub args: Arguments,
    pub control_args: Arguments,
    pub control_in_root: bool,
    pub place: Place,
    pub terminal: bool,
    pub limits: Limits,
    pub timeout: Duration,
    pub expect: Expect,
    pub control: Control,
    /// Mebibytes by which the host's memory in use may pass the memory limit while the attack runs.
    pub host_memory: Option<u64>,
}

/// A row with the default limits, no arguments, in the lent workspace.
pub fn row(name: &'static str, guest: &'static str, control: Control) -> Row {
    Row {
        name,
        guest,
        args: |_| Vec::new(),
        control_args: |_| Vec::new(),
        control_in_root: false,
        place: Place::Lent,
        terminal: false,
        limits: Limits::default(),
        timeout: Duration::from_secs(60),
        expect: Expect::Contained,
        control,
        host_memory: None,
    }
}

impl Row {
    /// Arguments, inside and outside.
    pub fn args(mut self, args: Arguments) -> Self {
        self.args = args;
        self.control_args = args;
        self
    }

    /// Other arguments for the control.
    pub fn control_args(mut self, args: Arguments) -> Self {
        self.control_args = args;
        self
    }

    /// The control's standard input is the host's root directory: a leaked descriptor.
    pub fn control_with_leaked_root(mut self) -> Self {
        self.control_in_root = true;
        self
    }

    /// Where it runs.
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// It runs in a terminal.
    pub fn terminal(mut self) -> Self {
        self.terminal = true;
        self
    }

    /// How it must end.
    pub fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    /// The memory limit, in MiB.
    pub fn memory(mut self, mebibytes: u64) -> Self {
        self.limits.memory = Some(ByteSize::from_mebibytes(mebibytes));
        self
    }

    /// The host's memory is read while it runs, and may be taken up to the memory limit and this many MiB.
    pub fn host_memory(mut self, mebibytes: u64) -> Self {
        self.host_memory = Some(mebibytes);
        self
    }

    /// The disk limit, in MiB.
    pub fn disk(mut self, mebibytes: u64) -> Self {
        self.limits.disk = Some(ByteSize::from_mebibytes(mebibytes));
        self
    }

    /// The limit on processes.
    pub fn processes(mut self, count: u32) -> Self {
        self.limits.pids = Some(count);
        self
    }

    /// The limit on processor seconds.
    pub fn cpu_seconds(mut self, seconds: u64) -> Self {
        self.limits.cpu_time = Some(Duration::from_secs(seconds));
        self
    }
}

/// Words as arguments.
pub fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
