//! Tests that the tables of `docs/screening.md` are correct.

use cofferdam_screen::{Analyzer, Language, Rules};

use crate::found;

const TEXT: &str = include_str!("../../../../docs/screening.md");

/// Returns the rows under a heading: the text between backquotes in the first two cells.
fn rows(heading: &str) -> Vec<(String, String)> {
    let (_, section) = TEXT.split_once(&format!("### {heading}\n")).expect(heading);
    let lines = section.lines().take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| `"));
    let rows: Vec<(String, String)> = lines
        .map(|line| {
            let (code, rest) = line.trim_start_matches("| `").split_once("` | ").expect(line);
            (code.to_owned(), rest.trim_end_matches(" |").trim_matches('`').to_owned())
        })
        .collect();
    assert!(rows.len() > 1, "{heading}");
    rows
}

/// Promise (Static analysis and audit log): Static analysis finds what its documentation lists as found.
#[test]
fn documented_findings_are_found() {
    let screen = Analyzer::default();
    for (heading, language) in [
        ("Found in Python", Language::Python),
        ("Found in JavaScript", Language::JavaScript),
        ("Found though harmless in Python", Language::Python),
        ("Found though harmless in JavaScript", Language::JavaScript),
    ] {
        for (code, expected) in rows(heading) {
            assert_eq!(found(&screen, language, &code), expected, "{code}");
        }
    }
}

/// Promise (Static analysis and audit log): Static analysis misses what its documentation lists as missed.
#[test]
fn documented_evasions_are_not_found() {
    let screen = Analyzer::default();
    for (heading, language) in
        [("Not found in Python", Language::Python), ("Not found in JavaScript", Language::JavaScript)]
    {
        for (code, _) in rows(heading) {
            assert_eq!(found(&screen, language, &code), "", "{code}");
        }
    }
}

/// Formats a value as the page does.
fn shown() -> Result<(), cofferdam_screen::AnalysisError> {
    let analyzer = Analyzer::new(Rules::default());
    let report = analyzer.check(Language::Python, "import os as x\n")?;
    assert_eq!(report.findings[0].to_string(), "line 1, column 8: os as x: imports os (import:os)");
    Ok(())
}

#[test]
fn the_program_of_the_documentation_is_this_one_and_runs() {
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let (_, text) = TEXT.split_once("```rust\n").unwrap();
    let (uses, body) = text.split_once("```").unwrap().0.split_once("\n\n").unwrap();
    let here = bare(include_str!("documentation.rs"));
    assert!(here.contains(&bare(uses)) && here.contains(&bare(body)), "{uses}{body}");
    shown().unwrap();
}

#[test]
fn the_rules_of_the_documentation_are_rules() {
    let (_, text) = TEXT.split_once("```toml\n").unwrap();
    let (text, _) = text.split_once("```").unwrap();
    let rules: Rules = toml::from_str(text).unwrap();
    let screen = Analyzer::new(rules);
    assert_eq!(found(&screen, Language::Python, "import os.path\nos.system('x')"), "2:1 import:os");
    let defaults = Rules::default();
    for name in defaults.python.imports.iter().chain(&defaults.javascript.imports) {
        assert!(TEXT.contains(&format!("`{name}`")), "{name} is not in the documentation");
    }
}
