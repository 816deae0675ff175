//! Links in Markdown that lead nowhere. Only those within the repository are followed.

use std::collections::BTreeSet;
use std::path::Path;

use super::Source;

/// Links to missing files or headings.
pub fn check(sources: &[Source], root: &Path) -> Vec<String> {
    let documents = sources.iter().filter(|source| source.is("md"));
    documents.flat_map(|source| file_breaches(source, root)).collect()
}

fn file_breaches(source: &Source, root: &Path) -> Vec<String> {
    let directory = root.join(&source.path).parent().map(Path::to_owned).unwrap_or_default();
    let mut breaches = Vec::new();
    for (number, target) in targets(&source.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
        let place = format!("{}:{number}", source.path.display());
        let path = directory.join(file);
        if !file.is_empty() && !path.exists() {
            breaches.push(format!("{place}: links to {file}, which does not exist"));
            continue;
        }
        let Some(heading) = heading else { continue };
        let text = if file.is_empty() { Some(source.text.clone()) } else { std::fs::read_to_string(&path).ok() };
        if text.is_some_and(|text| !headings(&text).contains(heading)) {
            breaches.push(format!("{place}: links to #{heading}, which is no heading there"));
        }
    }
    breaches
}

/// Line number and target of each `[text](target)` outside code.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Every second part is code. Where a link's text is code, the part after it starts with the bracket.
        for part in line.split('`').step_by(2) {
            let mut rest = part;
            while let Some((_, after)) = rest.split_once("](") {
                let Some((target, next)) = after.split_once(')') else { break };
                found.push((number, target.split(' ').next().unwrap_or_default()));
                rest = next;
            }
        }
    }
    found
}

/// Lines outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((index + 1, line))
    })
}

/// Headings as links name them.
fn headings(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_followed() {
        let text = "# A `code` title\n[a](b.md) and [`c`](d.md#e) `[x](y)`\n```\n[no](z)\n```\n[here](#a-code-title)";
        let found: Vec<&str> = targets(text).into_iter().map(|(_, target)| target).collect();
        assert_eq!(found, ["b.md", "d.md#e", "#a-code-title"]);
        let source = Source { path: "README.md".into(), text: text.into() };
        assert_eq!(file_breaches(&source, Path::new("/nonexistent")).len(), 2);
    }
}
