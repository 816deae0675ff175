//! The types of the allowlist: rules, verdicts, and tests of a call's arguments.
//!
//! A test uses the low 32 bits of an argument unless it documents otherwise: the kernel itself truncates `int`
//! arguments, so a filter that compared all 64 bits could be bypassed by setting a high one.
use std::fmt;

use super::checks::PRLIMIT;
use super::policy::TagKey;

/// The verdict on a system call, with its reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub name: &'static str,
    pub verdict: Verdict,
    pub why: &'static str,
}

/// The verdict on a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same for all arguments.
    Always(Action),
    /// The action of the first case whose tests all hold, or `otherwise`.
    ByArguments { cases: &'static [Case], otherwise: Action },
    /// The allowlist's verdict on `prlimit64`, except that an exec tag can be set with the key.
    Tagging(TagKey),
    /// The verdict `with` the key in the sixth argument, for calls that have fewer, and the verdict `without` it.
    Keyed { key: TagKey, with: &'static Verdict, without: &'static Verdict },
}

/// A case of a verdict that depends on arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub when: &'static [Test],
    pub then: Action,
}

/// A test of one argument, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The low 32 bits, after masking, are one of `values`.
    OneOf { argument: u8, mask: u32, values: &'static [u32] },
    /// The low 32 bits have at least one bit of `mask`.
    AnyBit { argument: u8, mask: u32 },
    /// All 64 bits, a pointer, are not null.
    NotNull { argument: u8 },
}

/// The final action on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    /// The call is not executed and fails with this error. With 0 it seems to succeed.
    Errno(u16),
    /// The call waits until the owner of the filter's listener lets it continue or fail.
    Notify,
    KillProcess,
}

impl Action {
    /// Returns the filter's return value to the kernel.
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Errno(errno) => 0x0005_0000 | errno as u32,
            Self::Notify => 0x7fc0_0000,
            Self::KillProcess => 0x8000_0000,
        }
    }
}

pub(super) const fn errno(errno: i32) -> Action {
    assert!(0 <= errno && errno < 4096);
    Action::Errno(errno as u16)
}

/// Creates a test that an argument is one of a few values.
pub(super) const fn one_of(argument: u8, values: &'static [u32]) -> Test {
    Test::OneOf { argument, mask: u32::MAX, values }
}

/// Creates a test that a field of an argument is one of a few values.
pub(super) const fn field_one_of(argument: u8, mask: u32, values: &'static [u32]) -> Test {
    Test::OneOf { argument, mask, values }
}

/// Creates a test that an argument has any of a few bits.
pub(super) const fn any_bit(argument: u8, mask: u32) -> Test {
    Test::AnyBit { argument, mask }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always(action) => action.fmt(f),
            Self::Keyed { with, without, .. } => write!(f, "with the key {with}; else {without}"),
            Self::Tagging(_) => write!(f, "allow tagging with the key; else {PRLIMIT}"),
            Self::ByArguments { cases, otherwise } => {
                for case in *cases {
                    write!(f, "{case}; ")?;
                }
                write!(f, "else {otherwise}")
            }
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} if ", self.then)?;
        for (index, test) in self.when.iter().enumerate() {
            let and = if index == 0 { "" } else { " and " };
            write!(f, "{and}{test}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OneOf { argument, mask, values } => {
                write!(f, "arg{argument}")?;
                if mask != u32::MAX {
                    write!(f, " & {mask:#x}")?;
                }
                f.write_str(" in")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value:#x}", if index == 0 { " {" } else { ", " })?;
                }
                f.write_str("}")
            }
            Self::AnyBit { argument, mask } => write!(f, "arg{argument} & {mask:#x} is not 0"),
            Self::NotNull { argument } => write!(f, "arg{argument} is not null"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Allow => f.write_str("allow"),
            Self::Notify => f.write_str("notify"),
            Self::KillProcess => f.write_str("kill"),
            Self::Errno(0) => f.write_str("success without effect"),
            Self::Errno(errno) => match i32::from(errno) {
                libc::EPERM => f.write_str("EPERM"),
                libc::ENOSYS => f.write_str("ENOSYS"),
                libc::ENOMEM => f.write_str("ENOMEM"),
                libc::EINVAL => f.write_str("EINVAL"),
                libc::EOPNOTSUPP => f.write_str("EOPNOTSUPP"),
                libc::ENODEV => f.write_str("ENODEV"),
                libc::EAFNOSUPPORT => f.write_str("EAFNOSUPPORT"),
                libc::EPROTONOSUPPORT => f.write_str("EPROTONOSUPPORT"),
                other => write!(f, "errno {other}"),
            },
        }
    }
}
