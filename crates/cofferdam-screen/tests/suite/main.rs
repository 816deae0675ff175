//! Tests of the static analysis through its public API.
#![forbid(unsafe_code)]

mod configuration;
mod corpus;
mod documentation;
mod hostile;
mod javascript;
mod python;
mod typescript;

use cofferdam_screen::{Analyzer, Language};

/// Checks each code of a table against `LINE:COLUMN RULE, …`. Returns the number of checked codes.
fn table(screen: &Analyzer, language: Language, cases: &[(&str, &str)]) -> usize {
    let mut wrong = Vec::new();
    for (code, expected) in cases {
        let found = found(screen, language, code);
        if found != *expected {
            wrong.push(format!("{code:?}\n  expected {expected}\n  found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    cases.len()
}

fn found(screen: &Analyzer, language: Language, code: &str) -> String {
    let report = match screen.check(language, code) {
        Ok(report) => report,
        Err(error) => return format!("{error}"),
    };
    // Findings at one position are sorted alphabetically, which is easier to write than the order of the rules.
    let mut findings: Vec<_> =
        report.findings.iter().map(|found| (found.line, found.column, found.rule.to_string())).collect();
    findings.sort();
    findings.iter().map(|(line, column, rule)| format!("{line}:{column} {rule}")).collect::<Vec<_>>().join(", ")
}
