//! What stands around the code: it runs it as its interpreter would, and keeps what a person would see besides the output.
//!
//! Code and surroundings are one file. The code stands in it as a literal, so that it is on no command line, and its own
//! lines keep their numbers.

use crate::Results;

const PYTHON: &str = include_str!("bootstrap/python.py");
const JAVASCRIPT: &str = include_str!("bootstrap/javascript.js");

/// What the surroundings are told.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// The code; empty for a session.
    pub code: &'a str,
    /// The name that the code has in tracebacks.
    pub name: &'a str,
    /// Where results are to be written; `None` for nowhere.
    pub place: Option<&'a str>,
    /// The most bytes of them.
    pub most: u64,
    /// Whether it serves one piece of code after the other.
    pub session: bool,
}

/// A file and its name, for languages that have surroundings.
pub fn around(results: Results, told: Told<'_>) -> Option<(String, &'static str)> {
    // A literal of JSON is one of Python and of JavaScript.
    let text = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let (code, name, most) = (text(told.code), text(told.name), told.most);
    match results {
        Results::None => None,
        Results::Python => {
            let place = told.place.map_or_else(|| "None".to_owned(), text);
            let session = if told.session { "True" } else { "False" };
            let call = format!("__cofferdam__({code}, {name}, {place}, {most}, {session})\n");
            Some((format!("{PYTHON}{call}"), "cofferdam.py"))
        }
        Results::JavaScript | Results::TypeScript => {
            let place = told.place.map_or_else(|| "null".to_owned(), text);
            let (session, typescript) = (told.session, results == Results::TypeScript);
            let call = format!("({code}, {name}, {place}, {most}, {session}, {typescript});\n");
            Some((format!("{}{call}", JAVASCRIPT.trim_end()), "cofferdam.js"))
        }
    }
}
