//! Parser for the output of test programs: the lines of Rust's test harness, `SKIP …` lines of the project's tests, the
//! conformance suite's lines for skipped cases, and the results of the SDKs' tests.

/// The prefix of the reason of an ignored test that another test starts itself. It does not count as skipped.
const HELPER: &str = "started by ";

/// The results of test programs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Number of tests that passed.
    pub passed: usize,
    /// One line for each failure.
    pub failures: Vec<String>,
    /// One line for each test that failed in parallel with others and passed alone.
    pub unsteady: Vec<String>,
    /// One line for each skip, with its reason.
    pub skips: Vec<String>,
    /// Seconds and name of each test, if the program reports them.
    pub times: Vec<(f64, String)>,
}

/// The source of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Printed {
    /// One test program. It may have started itself again, whose result then comes before its own.
    ByOne,
    /// Several programs, one after the other.
    BySeveral,
}

impl Outcome {
    /// Parses the output of the program `name`.
    pub fn parse(name: &str, text: &str, printed: Printed) -> Self {
        let mut outcome = Self::default();
        for line in text.lines() {
            if let Some((test, result)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) {
                // With times, as in `ok <1.234s>`.
                let (result, time) = result.split_once(" <").unwrap_or((result, ""));
                outcome.times.extend(time.trim_end_matches("s>").parse().ok().map(|time| (time, test.to_owned())));
                outcome.test(name, test, result);
            } else if let Some(skip) = line.trim_start().strip_prefix("SKIP ") {
                outcome.skips.push(format!("SKIP {skip}"));
            } else if let Some(case) = line.strip_prefix("skipped ").filter(|case| case.contains(" ms  ")) {
                outcome.skips.push(format!("SKIP conformance: {}", suite_case(case)));
            } else if let Some(counts) = line.strip_prefix("test result: ") {
                // Quiet runs print no line for each test.
                let passed = counts.split_whitespace().nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
                outcome.passed = if printed == Printed::ByOne { passed } else { outcome.passed + passed };
            } else if let Some((_, skip)) = line.split_once(" # SKIP ") {
                outcome.skips.push(format!("SKIP {name}: {skip}"));
            } else if let Some(passed) = foreign_count(line) {
                outcome.passed += passed;
            }
        }
        outcome
    }

    fn test(&mut self, program: &str, test: &str, result: &str) {
        match result.split_once(", ") {
            Some(("ignored", reason)) if reason.starts_with(HELPER) => {}
            Some(("ignored", reason)) => self.skips.push(format!("SKIP {program}: {test}: {reason}")),
            None if result == "ignored" => self.skips.push(format!("SKIP {program}: {test}: no reason given")),
            None if result == "FAILED" => self.failures.push(format!("{program}: {test}")),
            _ => {}
        }
    }

    /// Returns the names of the failed tests of the program `name`. Returns `None` if there were other failures.
    pub fn failed_tests(&self, name: &str) -> Option<Vec<&str>> {
        self.failures.iter().map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
    }

    /// Adds the result of a failed test that was run again alone.
    pub fn again(&mut self, test: &str, again: &Self) {
        let passed = again.failures.is_empty() && again.passed == 1;
        if let Some(at) = self.failures.iter().position(|line| line == test).filter(|_| passed) {
            self.unsteady.push(self.failures.remove(at));
            self.passed += 1;
        }
    }

    /// Returns the number of failures.
    pub fn failed(&self) -> usize {
        self.failures.len()
    }

    /// Returns every skip with its number of occurrences: one case may be skipped for several configurations.
    pub fn distinct_skips(&self) -> Vec<(&str, usize)> {
        let mut distinct: Vec<(&str, usize)> = Vec::new();
        for skip in &self.skips {
            match distinct.iter_mut().find(|(known, _)| known == skip) {
                Some((_, times)) => *times += 1,
                None => distinct.push((skip, 1)),
            }
        }
        distinct
    }

    /// Returns the tests that took at least `seconds`, slowest first.
    pub fn slowest(&self, seconds: f64) -> Vec<(f64, &str)> {
        let slow = self.times.iter().filter(|(time, _)| *time >= seconds);
        let mut slow: Vec<_> = slow.map(|(time, test)| (*time, test.as_str())).collect();
        slow.sort_by(|a, b| b.0.total_cmp(&a.0));
        slow
    }

    /// Returns true if any test ran or was skipped.
    pub fn ran(&self) -> bool {
        *self != Self::default()
    }

    /// Adds another outcome to this one.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.unsteady.extend(other.unsteady);
        self.skips.extend(other.skips);
    }

    /// Formats the counts as `N passed, N failed, N skipped`.
    pub fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failures.len(), self.skips.len())
    }
}

/// Returns the count in the results of Python's unittest, of Node.js, and of the conformance suite of the SDKs. With a
/// failure, the first is the number of all tests.
fn foreign_count(line: &str) -> Option<usize> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let count = match words[..] {
        ["Ran", count, "test" | "tests", "in", _] | ["#", "pass", count] | [count, "passed,", _, "failed"] => count,
        _ => return None,
    };
    count.parse().ok()
}

/// Removes the padding from `K6  exit/timeout      12 ms  reason`.
fn suite_case(case: &str) -> String {
    let (left, reason) = case.split_once(" ms  ").unwrap_or((case, ""));
    format!("{}: {reason}", left.split_whitespace().nth(1).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_harness_and_conformance_suite_is_parsed() {
        let text = "\
test inner ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
running 5 tests
test a::works ... ok <7.250s>
test a::is_broken ... FAILED <0.010s>
test a::needs_more ... ignored, needs a second machine
test a::inner ... ignored, started by outer
test a::forgotten ... ignored

successes:

---- a::works stdout ----
SKIP hostile: a keyring of the host: the kernel has none
skipped K6  undeclared/files                                          0 ms  files is declared and tested by its own cases
skipped parts of the report

test result: FAILED. 1 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let outcome = Outcome::parse("demo", text, Printed::ByOne);
        assert_eq!(outcome.line(), "1 passed, 1 failed, 4 skipped");
        assert_eq!(outcome.failures, ["demo: a::is_broken"]);
        assert_eq!(outcome.slowest(5.0), [(7.25, "a::works")]);
        assert_eq!(
            outcome.skips,
            [
                "SKIP demo: a::needs_more: needs a second machine",
                "SKIP demo: a::forgotten: no reason given",
                "SKIP hostile: a keyring of the host: the kernel has none",
                "SKIP conformance: undeclared/files: files is declared and tested by its own cases",
            ]
        );
    }

    #[test]
    fn results_of_other_languages_are_understood() {
        let text = "\
ok 1 - events
ok 2 - types # SKIP there is no compiler
# tests 2
# pass 1
# fail 0
Ran 57 tests in 20.297s
OK
38 passed, 2 failed
";
        let outcome = Outcome::parse("sdk", text, Printed::BySeveral);
        assert_eq!(outcome.passed, 1 + 57 + 38);
        assert_eq!(outcome.skips, ["SKIP sdk: there is no compiler"]);
    }

    #[test]
    fn test_that_passes_alone_is_flaky_and_repeated_failure_fails() {
        let text = "test a ... FAILED\ntest b ... FAILED\ntest result: FAILED. 5 passed; 2 failed\n";
        let mut outcome = Outcome::parse("demo", text, Printed::ByOne);
        assert_eq!(outcome.failed_tests("demo"), Some(vec!["a", "b"]));
        let ended = |text: &str| Outcome::parse("demo", text, Printed::ByOne);
        outcome.again("demo: a", &ended("test a ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n"));
        outcome.again("demo: a", &ended("killed before it printed anything\n"));
        assert_eq!((outcome.failures.len(), outcome.passed), (2, 5));
        outcome.again("demo: b", &ended("test b ... ok\ntest result: ok. 1 passed; 0 failed\n"));
        assert_eq!(
            (outcome.failures.as_slice(), outcome.unsteady.as_slice()),
            (&["demo: a".into()][..], &["demo: b".into()][..])
        );
        assert_eq!(outcome.passed, 6);
        outcome.failures.push("ended with signal 9".into());
        assert_eq!(outcome.failed_tests("demo"), None);
    }

    #[test]
    fn results_add_up() {
        let result = "test result: ok. 1 passed; 0 failed; 0 ignored\n";
        let mut total = Outcome::parse("a", &result.repeat(2), Printed::BySeveral);
        assert!(!Outcome::default().ran());
        total.add(Outcome { passed: 3, failures: vec!["x".into()], ..Outcome::default() });
        total.skips = vec!["SKIP b".into(), "SKIP c".into(), "SKIP b".into()];
        assert_eq!(total.line(), "5 passed, 1 failed, 3 skipped");
        assert_eq!(total.distinct_skips(), [("SKIP b", 2), ("SKIP c", 1)]);
    }
}
