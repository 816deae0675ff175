//! A row of the table: the attack, its arguments, its workspace and its required end.

use std::time::Duration;

use cofferdam_contract::{ByteSize, LimitKind, Limits};

use super::host::Host;

/// The signal of system call filters.
pub const SIGSYS: i32 = 31;

/// The workspace of the attack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceKind {
    /// The compiled programs, mounted read-only.
    Mounted,
    /// A private workspace.
    Private,
    /// A host directory, writable.
    Shared,
}

/// The required end of the attack. A guest that reports an escape fails every row.
#[derive(Clone, Copy)]
pub enum Expect {
    /// The guest reports that every attempt was refused.
    Contained,
    /// The same, or this signal killed it.
    ContainedOrSignal(i32),
    /// The same, or this limit killed it.
    ContainedOrLimit(LimitKind),
    /// The limit killed it, and the exit reports the limit.
    Limit(LimitKind),
    /// It exited by itself, and its output was truncated at the request's maximum.
    Truncated,
}

/// The control: the same program runs outside the sandbox, where it must succeed, so that a row cannot pass because its
/// program is broken.
pub enum Control {
    /// It must succeed outside.
    Succeeds,
    /// It succeeds outside if the host allows it. A failure is printed.
    SucceedsWhereAllowed,
    /// It does not run outside, for this reason.
    None(&'static str),
}

type Arguments = fn(&Host) -> Vec<String>;

/// A row of the table.
pub struct Row {
    pub name: &'static str,
    pub guest: &'static str,
    pub args: Arguments,
    pub control_args: Arguments,
    pub control_in_root: bool,
    pub workspace: WorkspaceKind,
    pub terminal: bool,
    pub limits: Limits,
    pub timeout: Duration,
    pub expect: Expect,
    pub control: Control,
    /// Mebibytes by which the host's memory use may exceed the memory limit during the attack.
    pub host_memory: Option<u64>,
}

/// Creates a row with the default limits, no arguments, and the compiled programs as workspace.
pub fn row(name: &'static str, guest: &'static str, control: Control) -> Row {
    Row {
        name,
        guest,
        args: |_| Vec::new(),
        control_args: |_| Vec::new(),
        control_in_root: false,
        workspace: WorkspaceKind::Mounted,
        terminal: false,
        limits: Limits::default(),
        timeout: Duration::from_secs(60),
        expect: Expect::Contained,
        control,
        host_memory: None,
    }
}

impl Row {
    /// Sets the arguments, inside and outside.
    pub fn args(mut self, args: Arguments) -> Self {
        self.args = args;
        self.control_args = args;
        self
    }

    /// Sets other arguments for the control.
    pub fn control_args(mut self, args: Arguments) -> Self {
        self.control_args = args;
        self
    }

    /// Sets the control's standard input to the host's root directory: a leaked descriptor.
    pub fn control_with_leaked_root(mut self) -> Self {
        self.control_in_root = true;
        self
    }

    /// Sets the workspace.
    pub fn workspace(mut self, workspace: WorkspaceKind) -> Self {
        self.workspace = workspace;
        self
    }

    /// Runs the attack in a terminal.
    pub fn terminal(mut self) -> Self {
        self.terminal = true;
        self
    }

    /// Sets the required end.
    pub fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    /// Sets the memory limit in MiB.
    pub fn memory(mut self, mebibytes: u64) -> Self {
        self.limits.memory = Some(ByteSize::from_mebibytes(mebibytes));
        self
    }

    /// Samples the host's memory, whose use may grow by the memory limit and this many MiB.
    pub fn host_memory(mut self, mebibytes: u64) -> Self {
        self.host_memory = Some(mebibytes);
        self
    }

    /// Sets the disk limit in MiB.
    pub fn disk(mut self, mebibytes: u64) -> Self {
        self.limits.disk = Some(ByteSize::from_mebibytes(mebibytes));
        self
    }

    /// Sets the limit of processes.
    pub fn processes(mut self, count: u32) -> Self {
        self.limits.pids = Some(count);
        self
    }

    /// Sets the CPU time limit in seconds.
    pub fn cpu_seconds(mut self, seconds: u64) -> Self {
        self.limits.cpu_time = Some(Duration::from_secs(seconds));
        self
    }
}

/// Converts words to arguments.
pub fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
