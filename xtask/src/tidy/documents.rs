//! Rules for documents: every claim has a proof.

use std::collections::BTreeSet;

use super::Source;

const SPECIFICATION: &str = "SPECIFICATION.md";
const ESCAPES: &str = "docs/past-escapes.md";
const GUESTS: &str = "crates/cofferdam/tests/guests";
const CASES: &str = "crates/cofferdam-conformance/src/cases/mod.rs";
/// The word for a claim that has no proof yet.
const UNPROVEN: &str = "unproven";
/// Benchmarks, which count as proof like tests.
const BENCHMARKS: &[&str] = &[
    "cargo xtask bench spawn",
    "cargo xtask bench memory",
    "cargo xtask bench churn",
    "cargo xtask bench hogs",
    "cargo xtask bench wasm",
    "cargo xtask bench vm",
    "cargo xtask bench code",
    "cargo xtask test package_",
    "cargo xtask tidy",
    "cargo xtask docs",
];

/// Returns specification rows without an existing test, and hostile programs without a known escape.
pub fn check(sources: &[Source]) -> Vec<String> {
    let text = |path: &str| sources.iter().find(|source| source.path.as_os_str() == path).map(|source| &*source.text);
    let mut breaches = Vec::new();
    match text(SPECIFICATION) {
        Some(specification) => breaches.extend(unproven_rows(specification, &tests(sources))),
        None => breaches.push(format!("{SPECIFICATION}: is missing")),
    }
    let escapes = text(ESCAPES).unwrap_or_default();
    breaches.extend(
        guests(sources)
            .filter(|name| !escapes.contains(&format!("`{name}`")))
            .map(|name| format!("{ESCAPES}: names no escape that {GUESTS}/{name}.c represents")),
    );
    breaches
}

fn guests(sources: &[Source]) -> impl Iterator<Item = String> {
    let files = sources.iter().filter(|source| source.path.starts_with(GUESTS) && source.is("c"));
    files.filter_map(|source| Some(source.path.file_stem()?.to_string_lossy().into_owned()))
}

/// Returns the names of test functions, conformance cases and benchmarks.
fn tests(sources: &[Source]) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = BENCHMARKS.iter().map(|name| (*name).to_owned()).collect();
    for source in sources.iter().filter(|source| source.is("rs")) {
        names.extend(test_functions(&source.text));
        if source.path.as_os_str() == CASES {
            let quoted = source.text.lines().filter_map(|line| line.trim_start().strip_prefix('"')?.split_once('"'));
            names.extend(quoted.map(|(name, _)| name.to_owned()));
        }
    }
    names
}

/// Returns functions after a test attribute, and those that proptest turns into tests.
fn test_functions(text: &str) -> impl Iterator<Item = String> {
    let mut marked = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("#[") {
            marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            return None;
        }
        let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
        let name = rest.split(['(', '<']).next()?.to_owned();
        std::mem::take(&mut marked).then_some(name)
    })
}

/// Checks rows of tables of the form `| promise
///
/// tests |`: the last cell names tests in backquotes, or is `unproven`.
fn unproven_rows(specification: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut in_table = false;
    for (number, line) in specification.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        if !line.starts_with('|') {
            in_table = false;
            continue;
        }
        let heads = !in_table;
        in_table = true;
        if heads || line.starts_with("|---") {
            continue;
        }
        let proof = line.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        let named: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && !proof.starts_with(UNPROVEN) {
            breaches.push(format!("{SPECIFICATION}:{number}: names no test; name one, or write `{UNPROVEN}`"));
        }
        for name in named {
            let function = name.rsplit("::").next().unwrap_or(name);
            if !tests.contains(name) && !tests.contains(function) {
                breaches.push(format!("{SPECIFICATION}:{number}: no test is named '{name}'"));
            }
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_need_a_test_that_exists() {
        let source = "#[test]\n#[ignore]\nfn works() {}\nfn helper() {}\n#[tokio::test(start_paused = true)]\nasync fn waits() {}";
        let tests: BTreeSet<String> = test_functions(source).collect();
        assert_eq!(tests.iter().map(String::as_str).collect::<Vec<_>>(), ["waits", "works"]);
        let row =
            |proof: &str| unproven_rows(&format!("| promise | test |\n|---|---|\n| x | {proof} |\n"), &tests).len();
        assert_eq!(row("`works`, `suite::waits`"), 0);
        assert_eq!(row("unproven: needs a machine with two kernels"), 0);
        assert_eq!(row("`helper`"), 1);
        assert_eq!(row(""), 1);
    }
}
