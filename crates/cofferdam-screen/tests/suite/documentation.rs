//! Tests that the examples of `docs/screening.md` are correct.

use cofferdam_screen::{Analyzer, Language, Rules};

use crate::found;

const TEXT: &str = include_str!("../../../../docs/screening.md");

/// Code with its findings that the page describes without an example.
const FOUND: &[(Language, &str, &str)] = &[
    (Language::Python, "import os.path as p", "1:8 import:os"),
    (Language::Python, "from os import system as s", "1:16 import:os"),
    (Language::Python, "getattr(f, \"__globals__\")", "1:12 attribute:__globals__"),
    (Language::Python, "import builtins as b; b.eval(x)", "1:23 call:eval"),
    (Language::Python, "__import__(name)", "1:1 call:__import__, 1:1 dynamic-import"),
    (Language::Python, "f = eval; f = print; f(1)", "1:5 call:eval, 1:22 call:eval"),
    (Language::Python, "import mine; mine.os", "1:14 import:os"),
    (Language::JavaScript, "export * from \"node:fs/promises\"", "1:1 import:fs"),
    (Language::JavaScript, "const r = module.require; r(\"fs\")", "1:27 import:fs"),
    (
        Language::JavaScript,
        "const { binding: b } = process; b(\"fs\")",
        "1:9 call:process.binding, 1:33 call:process.binding",
    ),
    (Language::JavaScript, "import(name)", "1:1 dynamic-import"),
    (Language::JavaScript, "let r = require; r = mine; r(\"fs\")", "1:28 import:fs"),
    (Language::JavaScript, "var require = mine; require(\"fs\")", "1:21 import:fs"),
];

/// Code that analysis misses, as the page describes.
const MISSED: &[(Language, &str)] = &[
    // Code in data.
    (Language::Python, "import pickle; pickle.loads(data)"),
    // Other files are not read.
    (Language::Python, "from mine import run; run(\"rm -r x\")"),
    // An item.
    (Language::Python, "h = {\"f\": sys}; h[\"f\"].modules[\"os\"]"),
    // A name in a string.
    (Language::Python, "\"{0.__globals__}\".format(f)"),
    // The function is not on the list.
    (Language::JavaScript, "fetch(\"http://example.com\")"),
    // Other files are not read.
    (Language::JavaScript, "import(\"./payload.mjs\")"),
    // An argument.
    (Language::JavaScript, "[\"fs\"].map(require)"),
    // A property.
    (Language::JavaScript, "const o = { p: process }; o.p.binding(\"fs\")"),
];

/// Returns the rows of the page's table: language, code and findings, which are empty for missed code.
fn rows() -> Vec<(Language, &'static str, &'static str)> {
    let (_, table) = TEXT.split_once("| language | code | finding |\n|---|---|---|\n").expect("a table");
    let lines = table.lines().take_while(|line| line.starts_with('|'));
    let rows: Vec<_> = lines
        .map(|line| {
            let (language, rest) = line.strip_prefix("| ").and_then(|line| line.split_once(" | `")).expect(line);
            let (code, finding) = rest.split_once("` | ").expect(line);
            let finding = finding.trim_end_matches(" |");
            let language = if language == "Python" { Language::Python } else { Language::JavaScript };
            (language, code, if finding.starts_with("none: ") { "" } else { finding.trim_matches('`') })
        })
        .collect();
    assert!(rows.iter().any(|row| row.2.is_empty()) && rows.iter().any(|row| !row.2.is_empty()), "{rows:?}");
    rows
}

/// Promise (Static analysis and audit log): Static analysis finds what its documentation lists as found.
#[test]
fn documented_findings_are_found() {
    let screen = Analyzer::default();
    for (language, code, expected) in rows().into_iter().filter(|row| !row.2.is_empty()).chain(FOUND.iter().copied()) {
        assert_eq!(found(&screen, language, code), expected, "{code}");
    }
}

/// Promise (Static analysis and audit log): Static analysis misses what its documentation lists as missed.
#[test]
fn documented_evasions_are_not_found() {
    let screen = Analyzer::default();
    let missed = rows().into_iter().filter(|row| row.2.is_empty()).map(|(language, code, _)| (language, code));
    for (language, code) in missed.chain(MISSED.iter().copied()) {
        assert_eq!(found(&screen, language, code), "", "{code}");
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
