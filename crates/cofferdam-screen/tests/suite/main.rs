//! Screening as callers see it.
#![forbid(unsafe_code)]

mod configuration;
mod corpus;
mod documentation;
mod hostile;
mod javascript;
mod python;
mod typescript;

use cofferdam_screen::{Language, Screen};

/// Checks each code of a table against `LINE:COLUMN RULE, …`, and gives how many there were.
fn table(screen: &Screen, language: Language, cases: &[(&str, &str)]) -> usize {
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

fn found(screen: &Screen, language: Language, code: &str) -> String {
    let report = match screen.check(language, code) {
        Ok(report) => report,
        Err(error) => return format!("{error}"),
    };
    // At one place, in the order of the alphabet, which is easier to write down than that of the rules.
    let mut findings: Vec<_> =
        report.findings.iter().map(|found| (found.line, found.column, found.rule.to_string())).collect();
    findings.sort();
    findings.iter().map(|(line, column, rule)| format!("{line}:{column} {rule}")).collect::<Vec<_>>().join(", ")
}
