//! The report of `verify`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Digest, Head, Timestamp};

/// The maximum number of listed findings of each severity; the others are counted.
const MAX_FINDINGS: u64 = 100;

/// The verdict on a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every line is unchanged and in its place, and no line is known to be lost.
    Whole,
    /// Every line is unchanged, but lines are known to be lost or unfinished, as after a crash. The findings list them.
    Incomplete,
    /// Lines were changed, removed, added or moved.
    Broken,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// Information.
    Note,
    /// A loss, as after a crash.
    Loss,
    /// A deviation from the log as it was written.
    Breach,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The severity.
    pub weight: Weight,
    /// The file, by its name in the log's directory.
    pub file: String,
    /// The number of the line in the file, from 1; 0 for the file as a whole.
    pub line: u64,
    /// The description.
    pub reason: String,
}

/// The numbers of executions in the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Begin records.
    pub begun: u64,
    /// End records.
    pub ended: u64,
    /// Executions that were never started.
    pub cancelled: u64,
    /// Executions without an end: they are running, or their supervisor was killed.
    pub open: u64,
}

/// The report of `verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The verdict.
    pub verdict: Verdict,
    /// Number of segments.
    pub segments: u64,
    /// Number of lines.
    pub lines: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// The creation time of the first segment.
    pub since: Option<Timestamp>,
    /// The last line.
    pub head: Option<Head>,
    /// True if lines are signed with a key.
    pub keyed: bool,
    /// True if the signatures were checked with a key.
    pub key_checked: bool,
    /// Executions.
    pub executions: Counts,
    /// Ids of executions without an end, at most 100.
    pub open: Vec<String>,
    /// The findings, at most 100 of each severity.
    pub findings: Vec<Finding>,
    /// The number of notes.
    pub notes: u64,
    /// The number of losses.
    pub losses: u64,
    /// The number of breaches.
    pub breaches: u64,
}

/// The report of the part of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReport {
    /// True if every line of the log is unchanged and in its place.
    pub is_whole: bool,
    /// The number of lines of the tenant.
    pub records: u64,
    /// The hash of the first one.
    pub first: Option<Digest>,
    /// The hash of the last one. Stored elsewhere, it proves later that the log was not cut off before it.
    pub last: Option<Digest>,
    /// Connections and requests of the tenant without a line of their own.
    pub network_lost: u64,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            verdict: Verdict::Whole,
            segments: 0,
            lines: 0,
            bytes: 0,
            since: None,
            head: None,
            keyed: false,
            key_checked: false,
            executions: Counts::default(),
            open: Vec::new(),
            findings: Vec::new(),
            notes: 0,
            losses: 0,
            breaches: 0,
        }
    }

    pub(crate) fn add(&mut self, weight: Weight, file: &str, line: u64, reason: impl Into<String>) {
        let (count, verdict) = match weight {
            Weight::Note => (&mut self.notes, Verdict::Whole),
            Weight::Loss => (&mut self.losses, Verdict::Incomplete),
            Weight::Breach => (&mut self.breaches, Verdict::Broken),
        };
        *count += 1;
        self.verdict = self.verdict.max(verdict);
        if *count <= MAX_FINDINGS {
            self.findings.push(Finding { weight, file: file.to_owned(), line, reason: reason.into() });
        }
    }

    /// Returns the exit status of a command that verifies: 0 if the log is whole, 1 if it is broken, 3 if it is
    /// incomplete.
    pub fn exit_status(&self) -> u8 {
        match self.verdict {
            Verdict::Whole => 0,
            Verdict::Broken => 1,
            Verdict::Incomplete => 3,
        }
    }

    /// Returns the report as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Formats the report as text that is safe for a terminal.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Whole => "whole: every line is unchanged",
            Verdict::Incomplete => "incomplete: every line is unchanged, but some are known to be lost or unfinished",
            Verdict::Broken => "BROKEN: lines were changed, removed, added or moved",
        };
        writeln!(f, "{verdict}")?;
        let Counts { begun, ended, cancelled, open } = self.executions;
        writeln!(f, "{} lines, {} bytes, {} segments", self.lines, self.bytes, self.segments)?;
        writeln!(f, "executions: {begun} begun, {ended} ended, {cancelled} cancelled, {open} without an end")?;
        if let Some(head) = &self.head {
            writeln!(f, "head: line {} in segment {}, {}", head.seq, head.segment, head.hash)?;
        }
        for Finding { weight, file, line, reason } in &self.findings {
            let weight = match weight {
                Weight::Note => "note",
                Weight::Loss => "loss",
                Weight::Breach => "BREACH",
            };
            match line {
                0 => writeln!(f, "{weight}: {file}: {reason}")?,
                line => writeln!(f, "{weight}: {file}:{line}: {reason}")?,
            }
        }
        let listed = self.findings.len() as u64;
        match (self.notes + self.losses + self.breaches).saturating_sub(listed) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_and_lists_are_bounded() {
        let mut report = Report::new();
        report.add(Weight::Note, "a", 0, "x");
        assert_eq!((report.verdict, report.exit_status()), (Verdict::Whole, 0));
        report.add(Weight::Loss, "a", 1, "y");
        assert_eq!((report.verdict, report.exit_status()), (Verdict::Incomplete, 3));
        for _ in 0..150 {
            report.add(Weight::Breach, "a", 2, "z");
        }
        report.add(Weight::Note, "a", 0, "x");
        assert_eq!((report.verdict, report.exit_status()), (Verdict::Broken, 1));
        assert_eq!((report.findings.len(), report.breaches), (103, 150));
        assert!(report.to_string().ends_with("and 50 more\n"));
        assert!(report.to_json().starts_with(r#"{"verdict":"broken","segments":0,"#));
    }
}
