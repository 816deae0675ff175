//! Rules for the words of code, comments and documents: the usual terms, and the actor by name.

use std::path::Path;

use super::Source;

/// Prefixes of constants for bounds. The usual ones are `MAX_` and `MIN_`.
const BOUND_PREFIXES: &[&str] = &["MOST_", "LONGEST_", "FEWEST_"];
/// Identifiers that have a usual name, and that name.
const IDENTIFIERS: &[(&str, &str)] = &[
    ("PATIENCE", "a name with _TIMEOUT"),
    ("leash", "guest control"),
    ("mould", "template"),
    ("furniture", "template"),
    ("lay_ground", "enter_namespaces"),
    ("settle_in", "mount_workspace"),
    ("hand_over", "handoff"),
    ("lent", "mounted"),
    ("lends", "mounts"),
    ("shelf", "slots"),
    ("judge", "enforcer or evaluate"),
    ("told", "reported"),
    ("tell", "report"),
    ("anew", "recreated"),
    ("thickness", "isolation level"),
    ("kit", "conformance suite"),
    ("lend", "mount"),
    ("stock", "namespace pool"),
    ("made_for", "is_compatible"),
    ("wish", "stop request"),
    ("allowance", "exec limits"),
    ("attend", "tick"),
    ("owed", "reservations"),
    ("tread", "noisy neighbours"),
    ("hogs", "noisy neighbours"),
    ("churn", "leak test"),
    ("monitors", "VMMs"),
    ("monitor", "VMM"),
    ("place", "directory, location, slot or another exact name"),
    ("places", "directories, locations, slots or another exact name"),
    ("Place", "Fixture, Location or another exact name"),
    ("PLACE", "DIRECTORY or another exact name"),
    ("wall", "wall_time or timeout"),
    ("fits", "is_valid, is_match or is_compatible"),
    ("made", "created or prepared"),
    ("kept", "retained, stored or prepared"),
    ("absent", "missing or unavailable"),
    ("there", "exists or another exact name"),
    ("most", "max"),
    ("thicker", "isolation level"),
    ("face", "frontend"),
    ("rooms", "handles"),
    ("ground", "base"),
    ("adopt", "reattach"),
    ("renew", "reseed"),
    ("supply", "runtimes"),
    ("keeper", "refiller or init"),
    ("maker", "worker"),
    ("strength", "isolation level"),
    ("mend", "repair"),
];
/// Words in names of functions that hide the actor or are not the usual term. Tests are named after their behaviour.
const NAME_WORDS: &[&str] = &["what", "who", "told", "tells", "lent", "lends", "kit", "strangers", "theirs"];
/// Pronouns that hide the actor. Written in two parts, so that this file does not contain them.
const PRONOUNS: &[&str] =
    &[concat!("no", "body"), concat!("some", "body"), concat!("who", "ever"), concat!("any", "body")];
/// First words of doc comments that are clauses, not descriptions.
const CLAUSES: &[&str] = &["What", "Who", "Whether", "How", "Where", "Which"];
/// Documents that quote other projects or record past decisions.
const QUOTING: &[&str] = &["docs/past-escapes.md", "docs/adr"];
/// Lines that name a Unix user: a file, and a part of the line.
const UNIX_USERS: &[(&str, &str)] = &[
    ("cofferdam-image/src/debian/skeleton.rs", "etc/passwd"),
    ("cofferdam-image/tests/debian/real.rs", "getent passwd"),
    ("cofferdam-process/src/launcher/template.rs", "etc/passwd"),
];

/// Returns breaches in Rust files and Markdown documents.
pub fn check(sources: &[Source]) -> Vec<String> {
    sources.iter().flat_map(breaches).collect()
}

fn breaches(source: &Source) -> Vec<String> {
    if source.is("rs") {
        rust(source)
    } else if source.is("md") && !is_below(&source.path, QUOTING) {
        let lines = source.text.lines().enumerate();
        lines.filter_map(|(index, line)| pronoun(source, index + 1, line, line)).collect()
    } else {
        Vec::new()
    }
}

fn rust(source: &Source) -> Vec<String> {
    let name = source.path.display();
    let mut breaches = Vec::new();
    let mut above = None;
    let mut state = State::Code;
    for (number, whole) in source.text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let line = Line::split(whole, &mut state);
        for word in words(&line.code) {
            if BOUND_PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
                breaches.push(format!("{name}:{number}: {word}; begin the name with MAX_ or MIN_"));
            }
            if let Some((_, usual)) = IDENTIFIERS.iter().find(|(unusual, _)| *unusual == word) {
                breaches.push(format!("{name}:{number}: {word}; use {usual}"));
            }
        }
        let mut names = words(&line.code).skip_while(|word| *word != "fn").skip(1).take(1);
        if let Some(function) = names.find(|name| name.split('_').any(|word| NAME_WORDS.contains(&word))) {
            breaches.push(format!("{name}:{number}: {function}; name the behaviour and the actor"));
        }
        breaches.extend(pronoun(source, number, &line.text, whole));
        let doc = line.doc();
        let is_first = doc.map(|(marker, _)| marker) != above;
        if let Some(clause) = doc.filter(|_| is_first).and_then(|(_, text)| first_word(text))
            && CLAUSES.contains(&clause)
        {
            let remedy = "begin with a verb or a noun phrase";
            breaches.push(format!("{name}:{number}: a doc comment begins with '{clause}'; {remedy}"));
        }
        above = doc.map(|(marker, _)| marker);
    }
    breaches
}

/// Returns a breach if a text contains a pronoun, unless its line names a Unix user.
fn pronoun(source: &Source, number: usize, text: &str, line: &str) -> Option<String> {
    let is_user = |(file, part): &(&str, &str)| source.path.ends_with(file) && line.contains(part);
    let found = words(text).find(|word| PRONOUNS.iter().any(|pronoun| word.eq_ignore_ascii_case(pronoun)))?;
    let breach = || format!("{}:{number}: '{found}'; name the actor", source.path.display());
    (!UNIX_USERS.iter().any(is_user)).then(breach)
}

fn is_below(path: &Path, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn first_word(text: &str) -> Option<&str> {
    text.trim_start().split(|c: char| !c.is_alphabetic()).next()
}

/// The lexical state between two characters of a Rust file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    /// In this many nested block comments.
    Comment(usize),
    String,
    /// In a raw string that ends with this many hashes.
    RawString(usize),
}

/// A line of Rust. Code and text have the line's width: blanks take the place of the other.
#[derive(Debug)]
struct Line {
    /// The line without comments and string literals.
    code: String,
    /// The comments and string literals.
    text: String,
    /// True if the whole line is a line comment.
    is_comment: bool,
}

impl Line {
    fn split(line: &str, state: &mut State) -> Self {
        let is_comment = *state == State::Code && line.trim_start().starts_with("//");
        let mut split = Self { code: String::new(), text: String::new(), is_comment };
        let mut rest = line;
        let mut follows_word = false;
        while !rest.is_empty() {
            let (length, is_text, next) = step(rest, *state, follows_word);
            let (token, left) = rest.split_at(length);
            let blanks = " ".repeat(token.chars().count());
            let (code, text) = if is_text { (blanks.as_str(), token) } else { (token, blanks.as_str()) };
            split.code.push_str(code);
            split.text.push_str(text);
            follows_word = token.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            (rest, *state) = (left, next);
        }
        split
    }

    /// Returns the marker and the text of a doc comment.
    fn doc(&self) -> Option<(&'static str, &str)> {
        let comment = self.is_comment.then(|| self.text.trim_start())?;
        let outer = comment.strip_prefix("///").filter(|text| !text.starts_with('/')).map(|text| ("///", text));
        outer.or_else(|| comment.strip_prefix("//!").map(|text| ("//!", text)))
    }
}

/// Returns the length of the next token, whether it is text, and the state after it.
fn step(rest: &str, state: State, follows_word: bool) -> (usize, bool, State) {
    let one = rest.chars().next().map_or(0, char::len_utf8);
    match state {
        State::Code if rest.starts_with("//") => (rest.len(), true, state),
        State::Code if rest.starts_with("/*") => (2, true, State::Comment(1)),
        State::Code if rest.starts_with('"') => (1, true, State::String),
        State::Code => match raw_string(rest).filter(|_| !follows_word) {
            Some((length, hashes)) => (length, true, State::RawString(hashes)),
            None => (character(rest).unwrap_or(one), false, state),
        },
        State::Comment(depth) if rest.starts_with("/*") => (2, true, State::Comment(depth + 1)),
        State::Comment(depth) if rest.starts_with("*/") => {
            (2, true, if depth == 1 { State::Code } else { State::Comment(depth - 1) })
        }
        State::String if rest.starts_with('\\') => (rest.chars().take(2).map(char::len_utf8).sum(), true, state),
        State::String if rest.starts_with('"') => (1, true, State::Code),
        State::RawString(hashes) if rest.strip_prefix('"').is_some_and(|end| leading_hashes(end) >= hashes) => {
            (1 + hashes, true, State::Code)
        }
        _ => (one, true, state),
    }
}

/// Returns the length of the beginning of a raw string literal, and the number of its hashes.
fn raw_string(rest: &str) -> Option<(usize, usize)> {
    let prefix = if rest.starts_with(['b', 'c']) { 2 } else { 1 };
    let hashes = leading_hashes(rest.get(prefix..)?);
    let is_raw = rest[..prefix].ends_with('r') && rest[prefix + hashes..].starts_with('"');
    is_raw.then_some((prefix + hashes + 1, hashes))
}

/// Returns the length of a character literal, which may contain a quote. Returns `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        return Some(rest.get(3..)?.find('\'')? + 4);
    }
    let length = 1 + first.len_utf8();
    rest[length..].starts_with('\'').then_some(length + 1)
}

fn leading_hashes(text: &str) -> usize {
    text.len() - text.trim_start_matches('#').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[Source { path: path.into(), text: text.into() }]).len()
    }

    #[test]
    fn unusual_identifiers_are_breaches_in_code_only() {
        for (line, expected) in [
            ("const MOST_BYTES: u64 = 1;", 1),
            ("let bytes = FEWEST_BYTES + LONGEST_NAME;", 2),
            ("const MAX_MOST_BYTES: u64 = 1;", 0),
            ("const PATIENCE: Duration = Duration::ZERO;", 1),
            ("let leash = hand_over(mould);", 3),
            ("let leashed = hand_over_all('\"', \"leash\"); // a mould", 0),
            ("let quote = ('\\'', '\"', leash);", 1),
            ("fn f<'a>(leash: &'a str) {}", 1),
            ("let text = r#\"a \" leash\"#; leash", 1),
            ("let text = b\"\\\" leash\"; leash", 1),
            ("/* leash /* leash */ leash */ leash", 1),
        ] {
            assert_eq!(count("xtask/src/a.rs", line), expected, "{line}");
        }
        assert_eq!(count("xtask/src/a.rs", "let text = \"\nleash\n\";\nleash"), 1);
    }

    #[test]
    fn function_names_with_unusual_words_are_breaches() {
        for (line, expected) in [
            ("fn what_is_no_name_is_refused() {", 1),
            ("async fn an_end_is_told() {", 1),
            ("fn whatever_kits_do() { what_else() }", 0),
            ("let text = \"fn who_waits\"; // fn who_waits", 0),
        ] {
            assert_eq!(count("xtask/src/a.rs", line), expected, "{line}");
        }
    }

    #[test]
    fn pronouns_are_breaches_in_text_only() {
        for word in PRONOUNS {
            assert_eq!(count("xtask/src/a.rs", &format!("// {word} waits")), 1, "{word}");
            assert_eq!(count("xtask/src/a.rs", &format!("f(\"{word}'s\");")), 1, "{word}");
            assert_eq!(
                count("xtask/src/a.rs", &format!("fn {word}() {{ {word}_waits() }} // {word}_waits")),
                0,
                "{word}"
            );
            assert_eq!(count("README.md", &format!("{}.", word.to_uppercase())), 1, "{word}");
            assert_eq!(count("docs/past-escapes.md", word), 0, "{word}");
            assert_eq!(count("docs/adr/0001-x.md", word), 0, "{word}");
            assert_eq!(count("xtask/src/a.py", word), 0, "{word}");
        }
        let line = format!("(\"etc/passwd\", \"{}:x:65534\")", PRONOUNS[0]);
        assert_eq!(count("crates/cofferdam-image/src/debian/skeleton.rs", &line), 0);
        assert_eq!(count("crates/cofferdam-image/src/debian/tree.rs", &line), 1);
    }

    #[test]
    fn doc_comments_that_begin_with_a_clause_are_breaches() {
        for clause in CLAUSES {
            for marker in ["///", "//!"] {
                let doc = format!("{marker} {clause} it is.\n");
                assert_eq!(count("xtask/src/a.rs", &doc), 1, "{doc}");
                assert_eq!(count("xtask/src/a.rs", &format!("    {doc}x\n{doc}")), 2, "{doc}");
                assert_eq!(count("xtask/src/a.rs", &format!("{marker} Returns\n{doc}")), 0, "{doc}");
                assert_eq!(count("xtask/src/a.rs", &format!("{marker} # {clause} to look\n")), 0, "{doc}");
                assert_eq!(count("xtask/src/a.rs", &format!("let text = \"\n{doc}\";")), 0, "{doc}");
            }
            assert_eq!(count("xtask/src/a.rs", &format!("// {clause} it is.\n//// {clause}")), 0, "{clause}");
        }
        assert_eq!(count("xtask/src/a.rs", "//! A module.\n/// What it is."), 1);
        assert_eq!(count("xtask/src/a.rs", "/// Whatever is left."), 0);
    }
}
