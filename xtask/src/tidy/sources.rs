//! Rules for single files: length, places of `unsafe`, words for unfinished work, paths of one host.

use std::path::{Component, Path};

use anyhow::Result;
use serde_json::Value;

use super::Source;
use crate::repository::Repository;

/// The maximum number of lines of a Rust file.
const MAX_LINES: usize = 600;
/// The crate that wraps the kernel. Elsewhere, `unsafe` needs a `sys` module.
const UNSAFE_CRATE: &str = "crates/cofferdam-linux";
/// The directory of hostile programs, which open real files of a host.
const GUESTS: &str = "crates/cofferdam/tests/guests";
/// Words for unfinished work. Written in two parts, so that this file does not contain them.
const UNFINISHED: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimpl", "emented!(")];
/// Tokens that can follow the keyword in code.
const UNSAFE_FORMS: &[&str] = &["{", "fn ", "impl ", "impl<", "trait ", "extern "];
/// User names that examples and tests invent.
const INVENTED_USERS: &[&str] = &["user", "me", "you", "alice", "bob", "someone", "sandbox"];

/// Returns breaches in the text of files.
pub fn check(sources: &[Source], root: &Path) -> Vec<String> {
    let host_paths = paths_of_host(root);
    sources.iter().flat_map(|source| file_breaches(source, &host_paths)).collect()
}

fn file_breaches(source: &Source, host_paths: &[String]) -> Vec<String> {
    let name = source.path.display();
    let mut breaches = Vec::new();
    // A test with a pending snapshot fails as another user, who cannot remove it.
    if source.is("pending-snap") || name.to_string().ends_with(".snap.new") {
        breaches.push(format!("{name}: a pending snapshot; accept or delete it"));
    }
    let rust = source.is("rs");
    let lines = source.text.lines().count();
    if rust && lines > MAX_LINES {
        breaches.push(format!("{name}: {lines} lines, at most {MAX_LINES} are allowed; split it"));
    }
    for (number, line) in source.text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        if rust && !may_be_unsafe(&source.path) && is_unsafe(line) {
            breaches.push(format!("{name}:{number}: unsafe code outside cofferdam-linux and sys modules"));
        }
        if !source.is("lock") && UNFINISHED.iter().any(|word| has_word(line, word)) {
            breaches.push(format!("{name}:{number}: unfinished; finish it, or open an issue and remove the mark"));
        }
        if source.path.starts_with(GUESTS) {
            continue;
        }
        if let Some(path) = host_paths.iter().find(|path| line.contains(path.as_str())) {
            breaches.push(format!("{name}:{number}: names {path}, a path of one host"));
        } else if let Some(user) = home_of(line) {
            breaches.push(format!("{name}:{number}: names the home directory of '{user}'"));
        }
    }
    breaches
}

/// Returns paths of this host: the checkout, and the tools of the user that runs this.
fn paths_of_host(root: &Path) -> Vec<String> {
    let mut paths = vec![root.display().to_string()];
    if let Some(home) = std::env::var_os("HOME") {
        paths.extend([".cargo", ".rustup"].map(|name| Path::new(&home).join(name).display().to_string()));
    }
    // A checkout in `/` or `/src` would match everything.
    paths.retain(|path| Path::new(path).components().count() > 2);
    paths
}

/// Returns the user in `/home/user/…` or `/Users/user/…`, unless it is an invented one.
fn home_of(line: &str) -> Option<&str> {
    [concat!("/ho", "me/"), concat!("/Us", "ers/")].iter().find_map(|prefix| {
        let (_, rest) = line.split_once(prefix)?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')?;
        let user = &rest[..end];
        let real = rest[end..].starts_with('/') && !user.is_empty() && !INVENTED_USERS.contains(&user);
        real.then_some(user)
    })
}

fn may_be_unsafe(path: &Path) -> bool {
    let in_sys = path.components().any(|part| part == Component::Normal("sys".as_ref()));
    path.starts_with(UNSAFE_CRATE) || in_sys || path.file_name().is_some_and(|name| name == "sys.rs")
}

fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let keyword = concat!("un", "safe");
    code.match_indices(keyword).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + keyword.len()..];
        let attribute = before == Some('[') && after.starts_with('(');
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '"' && c != '`');
        let spaced = after.starts_with(' ') && UNSAFE_FORMS.iter().any(|form| after.trim_start().starts_with(form));
        attribute || (starts && spaced)
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let apart = |c: char| !c.is_alphanumeric() && c != '_';
        line[..at].chars().next_back().is_none_or(apart)
            && (word.ends_with('(') || line[at + word.len()..].chars().next().is_none_or(apart))
    })
}

/// Returns crates whose root does not forbid `unsafe`. A crate with a `sys` module has to deny it elsewhere.
pub fn roots(packages: &[Value], repository: &Repository) -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    for package in packages.iter().filter(|package| package["name"] != "cofferdam-linux") {
        for target in package["targets"].as_array().into_iter().flatten() {
            let kind = target["kind"][0].as_str().unwrap_or_default();
            let Some(path) = target["src_path"].as_str().map(Path::new) else { continue };
            if !["lib", "bin", "test", "bench"].contains(&kind) {
                continue;
            }
            let text = repository.read(path)?;
            let has_sys = path.parent().is_some_and(|directory| directory.join("sys").is_dir());
            let denies = has_sys && kind == "lib" && text.contains("#![deny(unsafe_code)]");
            if !text.contains("#![forbid(unsafe_code)]") && !denies {
                let shown = path.strip_prefix(repository.root()).unwrap_or(path).display();
                let word = if has_sys { "deny" } else { "forbid" };
                breaches.push(format!("{shown}: needs #![{word}(unsafe_code)]"));
            }
        }
    }
    Ok(breaches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(path: &str, text: &str) -> usize {
        let source = Source { path: path.into(), text: text.into() };
        file_breaches(&source, &["/srv/checkout".to_owned()]).len()
    }

    #[test]
    fn unsafe_code_has_its_places() {
        let block = concat!("let x = un", "safe { f() };");
        let attribute = concat!("#[un", "safe(no_mangle)]");
        for (path, text, expected) in [
            ("crates/cofferdam/src/lib.rs", block, 1),
            ("crates/cofferdam/src/lib.rs", attribute, 1),
            ("crates/cofferdam/src/lib.rs", "#![forbid(unsafe_code)] // unsafe { is forbidden }", 0),
            ("crates/cofferdam-process/src/sys/entry.rs", block, 0),
            ("crates/cofferdam-linux/src/spawn.rs", block, 0),
        ] {
            assert_eq!(breaches(path, text), expected, "{path}: {text}");
        }
    }

    #[test]
    fn unaccepted_snapshots_are_breaches() {
        assert_eq!(breaches("tests/.usage.rs.pending-snap", "{}"), 1);
        assert_eq!(breaches("tests/usage.snap.new", "x"), 1);
        assert_eq!(breaches("tests/usage.snap", "x"), 0);
    }

    #[test]
    fn long_and_unfinished_files_are_breaches() {
        assert_eq!(breaches("a.rs", &"x\n".repeat(MAX_LINES)), 0);
        assert_eq!(breaches("a.rs", &"x\n".repeat(MAX_LINES + 1)), 1);
        assert_eq!(breaches("a.md", &"x\n".repeat(MAX_LINES + 1)), 0);
        for word in UNFINISHED {
            assert_eq!(breaches("a.md", word), 1, "{word}");
        }
        assert_eq!(breaches("a.md", "METHODOLOGY"), 0);
    }

    #[test]
    fn host_specific_paths_are_breaches() {
        assert_eq!(breaches("a.md", "see /srv/checkout/x"), 1);
        assert_eq!(breaches("a.md", concat!("see /ho", "me/jane/x")), 1);
        assert_eq!(breaches("a.md", "see /home/user/x, /home and /home/…"), 0);
    }
}
