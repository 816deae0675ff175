//! Fields that several kinds of records have.

use crate::{ExecutionId, Record, Text, Timestamp};

impl Record {
    /// The kinds of lines that this version writes.
    pub const KINDS: &[&str] = &[
        "segment",
        "begin",
        "end",
        "cancelled",
        "network",
        "network-lost",
        "plugin-denied",
        "call",
        "action",
        "torn",
        "gap",
        "removed",
    ];

    /// Returns the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Segment(_) => "segment",
            Self::Begin(_) => "begin",
            Self::End(_) => "end",
            Self::Cancelled(_) => "cancelled",
            Self::Network(_) => "network",
            Self::NetworkLost(_) => "network-lost",
            Self::PluginDenied(_) => "plugin-denied",
            Self::Call(_) => "call",
            Self::Action(_) => "action",
            Self::Torn(_) => "torn",
            Self::Gap(_) => "gap",
            Self::Removed(_) => "removed",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the sandbox, if the line names one.
    pub fn sandbox(&self) -> Option<&str> {
        let sandbox = match self {
            Self::End(end) => end.outcome.sandbox.as_ref(),
            Self::Network(line) => Some(&line.sandbox),
            Self::NetworkLost(line) => Some(&line.sandbox),
            Self::Call(line) => line.sandbox.as_ref(),
            Self::Action(line) => line.sandbox.as_ref(),
            _ => None,
        };
        sandbox.map(Text::as_str)
    }

    /// Returns the execution, if the line has one.
    pub fn id(&self) -> Option<&ExecutionId> {
        match self {
            Self::Begin(subject) => Some(&subject.id),
            Self::End(end) => Some(&end.subject.id),
            Self::Cancelled(cancelled) => Some(&cancelled.id),
            _ => None,
        }
    }

    /// Returns the tenant, if the line has one.
    pub fn tenant(&self) -> Option<&str> {
        let tenant = match self {
            Self::Begin(subject) => subject.tenant.as_ref(),
            Self::End(end) => end.subject.tenant.as_ref(),
            Self::Cancelled(cancelled) => cancelled.tenant.as_ref(),
            Self::Network(line) => Some(&line.tenant),
            Self::NetworkLost(line) => Some(&line.tenant),
            Self::PluginDenied(line) => line.tenant.as_ref(),
            Self::Call(line) => Some(&line.tenant),
            Self::Action(line) => Some(&line.tenant),
            _ => None,
        };
        tenant.map(Text::as_str)
    }

    /// Returns the time of the event; for an execution, its start.
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Segment(line) => Some(line.time),
            Self::Begin(subject) => Some(subject.start),
            Self::End(end) => Some(end.subject.start),
            Self::Cancelled(line) => Some(line.time),
            Self::Network(line) => Some(line.time),
            Self::NetworkLost(line) => Some(line.time),
            Self::PluginDenied(line) => Some(line.time),
            Self::Call(line) => Some(line.time),
            Self::Action(line) => Some(line.time),
            Self::Torn(line) => Some(line.time),
            Self::Gap(line) => Some(line.time),
            Self::Removed(line) => Some(line.time),
            Self::Unknown => None,
        }
    }
}
