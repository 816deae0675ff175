//! Checks the documents and builds the book from them.
//!
//! Links to files and headings of this repository must lead somewhere, and the book's table of contents must list every page.
//! Files that `ARCHITECTURE.md`, `CONTRIBUTING.md` and the module documentation of crates name must exist. Links to other
//! hosts are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{exists, step};
use crate::repository::Repository;

/// The directory of the book's pages.
const PAGES: &str = "docs";
/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Documents that name files of this repository in code spans.
const MAPS: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md"];
/// Prefixes of such names.
const SOURCE_DIRECTORIES: &[&str] = &["crates/", "docs/", "examples/", "xtask/"];

/// Texts of the documents, by path relative to the root.
type Documents = BTreeMap<PathBuf, String>;

/// Checks links and the table of contents, then builds the book into `target/book` if `mdbook` is installed.
pub fn run(repository: &Repository) -> Result<()> {
    println!("== docs");
    let documents = read(repository)?;
    let is_file = |path: &Path| repository.root().join(path).exists();
    let mut breaches = broken_links(&documents, is_file);
    breaches.extend(unlisted_pages(&documents));
    for name in MAPS {
        let text = documents.get(Path::new(name)).map_or("", String::as_str);
        breaches.extend(missing_paths(name, text, is_file));
    }
    for root in crate_roots(repository)? {
        let text = repository.read(&root)?;
        breaches.extend(missing_modules(&root, &text, is_file));
    }
    for breach in &breaches {
        println!("   {breach}");
    }
    if !breaches.is_empty() {
        bail!("docs found {} breaches", breaches.len());
    }
    println!("   docs: ok, {} documents", documents.len());
    if exists("mdbook") {
        step("mdbook", Command::new("mdbook").arg("build").current_dir(repository.root()))
    } else {
        println!("SKIP mdbook: not installed (cargo install mdbook does that)");
        Ok(())
    }
}

fn read(repository: &Repository) -> Result<Documents> {
    let files = repository.files()?.into_iter().filter(|path| is_markdown(path));
    files
        .map(|path| {
            let text = std::fs::read_to_string(repository.root().join(&path))
                .with_context(|| format!("cannot read {}", path.display()))?;
            Ok((path, text))
        })
        .collect()
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// Returns a line for each link to a missing file or heading.
fn broken_links(documents: &Documents, is_file: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut breaches = Vec::new();
    for (document, text) in documents {
        let directory = document.parent().unwrap_or(Path::new(""));
        for (number, target) in targets(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').map_or((target, None), |(file, name)| (file, Some(name)));
            let location = format!("{}:{number}", document.display());
            let path = if file.is_empty() { document.clone() } else { normalized(&directory.join(file)) };
            if !is_file(&path) {
                breaches.push(format!("{location}: links to {file}, which does not exist"));
                continue;
            }
            let (Some(heading), Some(linked)) = (heading, documents.get(&path)) else { continue };
            if !headings(linked).contains(heading) {
                breaches.push(format!("{location}: links to #{heading}, which is not a heading of {}", path.display()));
            }
        }
    }
    breaches
}

/// Returns a line for each page that the table of contents does not list.
fn unlisted_pages(documents: &Documents) -> Vec<String> {
    let Some(summary) = documents.get(Path::new(SUMMARY)) else {
        return vec![format!("{SUMMARY}: is missing")];
    };
    let listed: BTreeSet<PathBuf> =
        targets(summary).into_iter().map(|(_, target)| normalized(&Path::new(PAGES).join(target))).collect();
    let pages = documents.keys().filter(|path| path.starts_with(PAGES) && path.as_os_str() != SUMMARY);
    pages
        .filter(|path| !listed.contains(*path))
        .map(|path| format!("{SUMMARY}: does not list {}", path.display()))
        .collect()
}

/// Returns the root module of each crate, relative to the root of the repository.
fn crate_roots(repository: &Repository) -> Result<Vec<PathBuf>> {
    let is_root = |path: &PathBuf| {
        path.components().count() == 4 && (path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"))
    };
    Ok(repository.files()?.into_iter().filter(|path| path.starts_with("crates") && is_root(path)).collect())
}

/// Returns a line for each path in a document's code spans that does not exist.
fn missing_paths(name: &str, text: &str, is_file: impl Fn(&Path) -> bool) -> Vec<String> {
    let lines: Vec<_> = prose(text).collect();
    let named = lines.iter().flat_map(|(number, line)| code_spans(line).map(move |span| (number, span)));
    named
        .filter(|(_, span)| {
            SOURCE_DIRECTORIES.iter().any(|directory| span.starts_with(directory))
                && !span.contains("NAME")
                && !span.contains('*')
        })
        .filter(|(_, span)| !is_file(Path::new(span)))
        .map(|(number, span)| format!("{name}:{number}: names {span}, which does not exist"))
        .collect()
}

/// Returns a line for each missing file in the module documentation of a crate's root: `docs/…`, or a path in the crate
/// or in its `src`.
fn missing_modules(root: &Path, text: &str, is_file: impl Fn(&Path) -> bool) -> Vec<String> {
    let source = root.parent().unwrap_or(Path::new(""));
    let package = source.parent().unwrap_or(Path::new(""));
    let documentation: String = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    let lines: Vec<_> = prose(&documentation).collect();
    let named = lines.iter().flat_map(|(number, line)| code_spans(line).map(move |span| (number, span)));
    named
        .filter(|(_, span)| !span.contains(' ') && [".rs", ".md", "/"].iter().any(|end| span.ends_with(end)))
        .filter(|(_, span)| ![source, package, Path::new("")].iter().any(|directory| is_file(&directory.join(span))))
        .map(|(number, span)| format!("{}:{number}: names {span}, which does not exist", root.display()))
        .collect()
}

/// Returns the code spans of a line.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Resolves `..` by name.
fn normalized(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if result.file_name().is_some() => {
                result.pop();
            }
            Component::CurDir => {}
            other => result.push(other),
        }
    }
    result
}

/// Returns line number and target of each `[text](target)` and `[text]: target` outside code.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            found.push((number, target.trim()));
            continue;
        }
        // Every second part is code. If a link's text is code, the part after it starts with the bracket.
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

/// Returns the lines outside fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((index + 1, line))
    })
}

/// Returns the headings in the form of link anchors. A repeated heading has a number.
fn headings(text: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let lines = prose(text).filter(|(_, line)| line.starts_with('#'));
    lines
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let characters = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            let anchor: String = characters.map(|c| if c == ' ' { '-' } else { c }).collect();
            let count = times.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(texts: &[(&str, &str)]) -> Documents {
        texts.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
    }

    fn broken(texts: &[(&str, &str)]) -> Vec<String> {
        let documents = documents(texts);
        broken_links(&documents, |path| documents.contains_key(path))
    }

    #[test]
    fn targets_outside_code_are_found() {
        let text = "[a](b.md) and [`c`](d.md#e) `[x](y)` ![p](q.svg \"title\")\n```\n[no](z)\n```\n[f]: g.md\n";
        let found: Vec<&str> = targets(text).into_iter().map(|(_, target)| target).collect();
        assert_eq!(found, ["b.md", "d.md#e", "q.svg", "g.md"]);
    }

    #[test]
    fn broken_links_are_found() {
        assert!(broken(&[("README.md", "[a](docs/a.md) [b](https://host.example/x)"), ("docs/a.md", "")]).is_empty());
        assert!(
            broken(&[("docs/a.md", "[up](../README.md) [same](./b.md)"), ("README.md", ""), ("docs/b.md", "")])
                .is_empty()
        );
        let breaches = broken(&[("docs/a.md", "text\n[a](missing.md)")]);
        assert_eq!(breaches, ["docs/a.md:2: links to missing.md, which does not exist"]);
    }

    #[test]
    fn broken_anchors_are_found() {
        let page = "# A `code` title\n## Twice\n## Twice\n";
        for anchor in ["a-code-title", "twice", "twice-1"] {
            assert!(broken(&[("a.md", &format!("[x](b.md#{anchor})")), ("b.md", page)]).is_empty(), "{anchor}");
            assert!(broken(&[("b.md", &format!("{page}[x](#{anchor})"))]).is_empty(), "{anchor}");
        }
        let breaches = broken(&[("a.md", "[x](b.md#twice-2)"), ("b.md", page)]);
        assert_eq!(breaches, ["a.md:1: links to #twice-2, which is not a heading of b.md"]);
        assert_eq!(broken(&[("a.md", "[x](#none)\n```\n# none\n```")]).len(), 1);
    }

    #[test]
    fn missing_files_are_found_in_maps_and_module_documentation() {
        let exists = |path: &Path| {
            ["crates/a/src/b.rs", "crates/a/init", "docs/c.md"].iter().any(|known| path == Path::new(known))
        };
        let text = "see `crates/a/src/b.rs`, `crates/cofferdam-NAME`, `cargo xtask tidy`\n`crates/a/src/d.rs`\n";
        assert_eq!(missing_paths("a.md", text, exists), ["a.md:2: names crates/a/src/d.rs, which does not exist"]);
        let text = "//! See `b.rs`, `init/`, `docs/c.md` and `Type`.\n//! `gone.rs`\nuse x; // `other.rs`\n";
        let breaches = missing_modules(Path::new("crates/a/src/lib.rs"), text, exists);
        assert_eq!(breaches, ["crates/a/src/lib.rs:2: names gone.rs, which does not exist"]);
    }

    #[test]
    fn missing_pages_are_found() {
        let summary = ("docs/SUMMARY.md", "# Summary\n- [A](a.md)\n- [One](adr/1.md)\n");
        let listed = [summary, ("docs/a.md", ""), ("docs/adr/1.md", ""), ("README.md", "")];
        assert!(unlisted_pages(&documents(&listed)).is_empty());
        let more = [summary, ("docs/a.md", ""), ("docs/adr/1.md", ""), ("docs/adr/2.md", "")];
        assert_eq!(unlisted_pages(&documents(&more)), ["docs/SUMMARY.md: does not list docs/adr/2.md"]);
        assert_eq!(unlisted_pages(&documents(&[("docs/a.md", "")])), ["docs/SUMMARY.md: is missing"]);
        // A page that is listed and does not exist is a broken link.
        assert_eq!(broken(&[summary, ("docs/a.md", "")]).len(), 1);
    }
}
