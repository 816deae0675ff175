//! Results of a run of the suite.

use std::fmt;
use std::time::Duration;

use cofferdam_contract::serde_duration;
use serde::{Deserialize, Serialize};

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// The backend behaves as the contract requires.
    Passed,
    /// The backend does not, as described here.
    Failed(String),
    /// The case was not run, for this reason.
    Skipped(String),
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The case, such as `exit/timeout`.
    pub name: String,
    /// The requirement that the case tests, such as `K6`.
    pub requirement: String,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Wall time of the case, in seconds.
    #[serde(with = "serde_duration")]
    pub duration: Duration,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.outcome {
            Outcome::Passed => "ok",
            Outcome::Failed(_) => "FAILED",
            Outcome::Skipped(_) => "skipped",
        };
        write!(f, "{word:7} {:3} {:52} {:6} ms", self.requirement, self.name, self.duration.as_millis())?;
        match &self.outcome {
            Outcome::Passed => Ok(()),
            Outcome::Failed(detail) | Outcome::Skipped(detail) => write!(f, "  {}", printable(detail)),
        }
    }
}

/// Returns the text without control characters, because parts of it come from the guest.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// The results of a run, in the table's order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The backend's name.
    pub backend: String,
    /// One result for each case.
    pub cases: Vec<CaseResult>,
}

impl Report {
    /// Returns true if no case failed and at least one passed.
    pub fn is_success(&self) -> bool {
        self.failures().next().is_none() && self.count(|outcome| *outcome == Outcome::Passed) > 0
    }

    /// Returns the cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|case| matches!(case.outcome, Outcome::Failed(_)))
    }

    /// Returns the result of the case with this name.
    pub fn get(&self, name: &str) -> Option<&CaseResult> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// Returns the last line of the text form: `N passed, N failed, N skipped`.
    pub fn summary(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.count(|outcome| *outcome == Outcome::Passed),
            self.failures().count(),
            self.count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        )
    }

    fn count(&self, wanted: impl Fn(&Outcome) -> bool) -> usize {
        self.cases.iter().filter(|case| wanted(&case.outcome)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            writeln!(f, "{case}")?;
        }
        f.write_str(&self.summary())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[Outcome]) -> Report {
        let cases = outcomes.iter().map(|outcome| CaseResult {
            name: "a/b".into(),
            requirement: "K6".into(),
            outcome: outcome.clone(),
            duration: Duration::from_millis(7),
        });
        Report { backend: "x".into(), cases: cases.collect() }
    }

    /// Promise (Conformance suite): A skip never counts as a pass.
    #[test]
    fn a_skip_is_never_a_pass() {
        assert!(!report(&[]).is_success());
        assert!(!report(&[Outcome::Skipped("no".into())]).is_success());
        assert!(!report(&[Outcome::Passed, Outcome::Failed("no".into())]).is_success());
        let good = report(&[Outcome::Passed, Outcome::Skipped("why".into())]);
        assert!(good.is_success());
        assert!(good.to_string().ends_with("why\n1 passed, 0 failed, 1 skipped"), "{good}");
    }

    #[test]
    fn json_round_trips_and_is_flat() {
        let report = report(&[Outcome::Passed, Outcome::Failed("no".into())]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cases"][1]["outcome"], "failed");
        assert_eq!(json["cases"][1]["detail"], "no");
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    #[test]
    fn a_guest_cannot_write_escapes_into_the_report() {
        let text = report(&[Outcome::Failed("\u{1b}[2J\nforged".into())]).to_string();
        assert!(!text.contains('\u{1b}'));
        assert_eq!(text.lines().count(), 2);
    }
}
