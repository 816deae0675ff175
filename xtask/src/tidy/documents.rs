//! A rule for documents: every hostile program represents a known escape.

use super::Source;

const ESCAPES: &str = "docs/past-escapes.md";
const GUESTS: &str = "crates/cofferdam/tests/guests";

/// Returns hostile programs without a known escape.
pub fn check(sources: &[Source]) -> Vec<String> {
    let escapes = sources.iter().find(|source| source.path.as_os_str() == ESCAPES);
    let escapes = escapes.map_or("", |source| &source.text);
    guests(sources)
        .filter(|name| !escapes.contains(&format!("`{name}`")))
        .map(|name| format!("{ESCAPES}: names no escape that {GUESTS}/{name}.c represents"))
        .collect()
}

fn guests(sources: &[Source]) -> impl Iterator<Item = String> {
    let files = sources.iter().filter(|source| source.path.starts_with(GUESTS) && source.is("c"));
    files.filter_map(|source| Some(source.path.file_stem()?.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hostile_program_represents_an_escape() {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let guest = source("crates/cofferdam/tests/guests/swap_links.c", "");
        assert_eq!(check(&[guest.clone(), source(ESCAPES, "| a guest swaps links | `swap_links` |")]).len(), 0);
        assert_eq!(check(&[guest, source(ESCAPES, "")]).len(), 1);
    }
}
