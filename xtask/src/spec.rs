//! Generates `SPECIFICATION.md` from the doc comments of tests. A line `/// Promise (SECTION): TEXT` above a test or a
//! conformance case is one promise. It ends at a blank line, at the next promise, or with the comment. The template has
//! the sections in order, their introductions, and rows for promises without a test.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::repository::Repository;
use crate::tidy::{self, Source};

const SPECIFICATION: &str = "SPECIFICATION.md";
const TEMPLATE: &str = include_str!("spec.txt");
/// The table of conformance cases, which are tests as well.
const CASES: &str = "crates/cofferdam-conformance/src/cases/mod.rs";
const TABLE: &str = "| promise | test |\n|---|---|\n";

/// A promise and the test that shows it.
#[derive(Debug)]
struct Promise<'a> {
    section: &'a str,
    text: String,
    test: String,
    path: String,
}

/// Writes the specification, or only compares it.
pub fn run(repository: &Repository, check_only: bool) -> Result<()> {
    println!("== spec");
    let sources = tidy::read(repository)?;
    let (text, count, mut breaches) = generate(TEMPLATE, &sources);
    if check_only {
        breaches.extend(difference(&text, &sources));
    }
    for breach in &breaches {
        println!("   {breach}");
    }
    if !breaches.is_empty() {
        bail!("spec found {} breaches", breaches.len());
    }
    if !check_only {
        std::fs::write(repository.root().join(SPECIFICATION), text)?;
    }
    println!("   spec: ok, {count} promises");
    Ok(())
}

/// Returns promises that are not above a test or name no section, and a stale specification.
pub fn check(sources: &[Source]) -> Vec<String> {
    let (text, _, mut breaches) = generate(TEMPLATE, sources);
    breaches.extend(difference(&text, sources));
    breaches
}

fn difference(text: &str, sources: &[Source]) -> Option<String> {
    let found = sources.iter().find(|source| source.path.as_os_str() == SPECIFICATION);
    let is_current = found.is_some_and(|source| source.text == text);
    (!is_current).then(|| format!("{SPECIFICATION}: does not match the tests; run 'cargo xtask spec'"))
}

/// Returns the document, the number of promises, and the breaches. Rows are in the order of files and their lines.
fn generate(template: &str, sources: &[Source]) -> (String, usize, Vec<String>) {
    let mut breaches = Vec::new();
    let mut rows: BTreeMap<&str, Vec<String>> =
        template.lines().filter_map(|line| line.strip_prefix("## ")).map(|title| (title, Vec::new())).collect();
    let mut files: Vec<&Source> = sources.iter().filter(|source| source.is("rs")).collect();
    files.sort_by_key(|source| &source.path);
    let found: Vec<Promise<'_>> = files.into_iter().flat_map(|source| promises(source, &mut breaches)).collect();
    for promise in found {
        let row = format!("| {} | [`{}`]({}) |", promise.text.replace('|', "\\|"), promise.test, promise.path);
        match rows.get_mut(promise.section) {
            Some(section) => section.push(row),
            None => breaches.push(format!("{}: xtask/src/spec.txt has no section '{}'", promise.path, promise.section)),
        }
    }
    let mut sections = template.split("\n## ");
    let mut document = format!("{}\n", sections.next().unwrap_or_default().trim_end());
    let mut count = 0;
    for section in sections {
        let (title, rest) = section.split_once('\n').unwrap_or((section, ""));
        let (fixed, text): (Vec<&str>, Vec<&str>) = rest.lines().partition(|line| line.starts_with('|'));
        let _ = write!(document, "\n## {title}\n\n");
        let text = text.join("\n");
        if !text.trim().is_empty() {
            let _ = write!(document, "{}\n\n", text.trim());
        }
        document.push_str(TABLE);
        let shown = rows.remove(title).unwrap_or_default();
        for row in shown.iter().map(String::as_str).chain(fixed) {
            count += 1;
            let _ = writeln!(document, "{row}");
        }
    }
    (document, count, breaches)
}

/// Returns the promises of a file, each with the test below it.
fn promises<'a>(source: &'a Source, breaches: &mut Vec<String>) -> Vec<Promise<'a>> {
    let path = source.path.display().to_string();
    let mut found = Vec::new();
    let mut pending: Vec<Promise<'_>> = Vec::new();
    let mut is_open = false;
    let mut is_test = false;
    for (number, line) in source.text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if let Some(rest) = line.strip_prefix("/// Promise") {
            let parts = rest.strip_prefix(" (").and_then(|rest| rest.split_once("): "));
            is_open = parts.is_some();
            match parts {
                Some((section, text)) => {
                    pending.push(Promise { section, text: text.into(), test: String::new(), path: path.clone() });
                }
                None => breaches.push(format!("{path}:{number}: write '/// Promise (SECTION): TEXT'")),
            }
        } else if let Some(text) = line.strip_prefix("/// ").filter(|_| is_open) {
            if let Some(promise) = pending.last_mut() {
                let _ = write!(promise.text, " {text}");
            }
        } else if line.is_empty() || line.starts_with("//") || line.starts_with("#[") {
            is_open = false;
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else {
            let name = if source.path.as_os_str() == CASES { case(line) } else { function(line).filter(|_| is_test) };
            match name {
                Some(name) => found.extend(pending.drain(..).map(|promise| Promise { test: name.into(), ..promise })),
                None if pending.is_empty() => {}
                None => breaches.push(format!("{path}:{number}: a promise is above this line, which is no test")),
            }
            pending.clear();
            (is_open, is_test) = (false, false);
        }
    }
    found
}

fn function(line: &str) -> Option<&str> {
    line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?.split(['(', '<']).next()
}

fn case(line: &str) -> Option<&str> {
    line.strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "# S\n\nText.\n\n## One\n\nMore.\n\n| fixed | unproven: reason |\n\n## Two\n";

    fn document(path: &str, text: &str) -> (String, Vec<String>) {
        let (document, _, breaches) = generate(EMPTY, &[Source { path: path.into(), text: text.into() }]);
        (document, breaches)
    }

    #[test]
    fn promises_become_rows_of_their_sections() {
        let first = "/// Promise (Two): A guest\n/// has `a|b`.\n#[test]\n#[ignore]\nfn first() {}\n";
        let second = "/// Tests it.\n///\n/// Promise (One): X.\n/// Promise (Two): Y.\n///\n/// Note.\n\
            #[tokio::test(start_paused = true)]\nasync fn second() {}\n";
        let (document, breaches) = document("a.rs", &format!("{first}{second}"));
        let expected = "# S\n\nText.\n\n## One\n\nMore.\n\n| promise | test |\n|---|---|\n\
            | X. | [`second`](a.rs) |\n| fixed | unproven: reason |\n\n## Two\n\n| promise | test |\n|---|---|\n\
            | A guest has `a\\|b`. | [`first`](a.rs) |\n| Y. | [`second`](a.rs) |\n";
        assert_eq!(document, expected);
        assert_eq!(breaches, [""; 0]);
    }

    #[test]
    fn conformance_cases_are_tests() {
        let (document, breaches) =
            document(CASES, "    /// Promise (One): X.\n    \"exit/code\" \"K6\" [] exit::code;\n");
        assert!(document.contains(&format!("| X. | [`exit/code`]({CASES}) |\n")), "{document}");
        assert_eq!(breaches, [""; 0]);
    }

    #[test]
    fn promises_without_a_test_or_a_section_are_breaches() {
        for text in [
            "/// Promise (One): X.\nfn helper() {}\n",
            "/// Promise (One): X.\n\"exit/code\";\n",
            "/// Promise (Three): X.\n#[test]\nfn works() {}\n",
            "/// Promise: X.\n#[test]\nfn works() {}\n",
        ] {
            assert_eq!(document("a.rs", text).1.len(), 1, "{text}");
        }
    }

    #[test]
    fn a_stale_specification_is_a_breach() {
        let text = generate(TEMPLATE, &[]).0;
        let source = |text: &str| [Source { path: SPECIFICATION.into(), text: text.into() }];
        assert_eq!(check(&source(&text)), [""; 0]);
        assert_eq!(check(&source("stale")).len(), 1);
        assert_eq!(check(&[]).len(), 1);
    }
}
