//! A wrapper around the code that runs it as its interpreter would, and captures results besides the output.
//!
//! Code and wrapper form one file. The code is a literal in it, so that it appears on no command line and keeps its
//! line numbers.

use crate::Results;

const PYTHON: &str = include_str!("bootstrap/python.py");
const JAVASCRIPT: &str = include_str!("bootstrap/javascript.js");

/// The parameters of the wrapper.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// The code. Empty for a session.
    pub code: &'a str,
    /// The file name of the code in tracebacks.
    pub name: &'a str,
    /// The path of the file for results; `None` to discard them.
    pub results_path: Option<&'a str>,
    /// Maximum size of the results in bytes.
    pub max_results: u64,
    /// True to serve one piece of code after the other.
    pub session: bool,
}

/// Returns the wrapped code and its file name, for languages that have a wrapper.
pub fn wrap(results: Results, parameters: Parameters<'_>) -> Option<(String, &'static str)> {
    // A JSON literal is valid in Python and in JavaScript.
    let text = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let (code, name, max) = (text(parameters.code), text(parameters.name), parameters.max_results);
    match results {
        Results::None => None,
        Results::Python => {
            let path = parameters.results_path.map_or_else(|| "None".to_owned(), text);
            let session = if parameters.session { "True" } else { "False" };
            let call = format!("__cofferdam__({code}, {name}, {path}, {max}, {session})\n");
            Some((format!("{PYTHON}{call}"), "cofferdam.py"))
        }
        Results::JavaScript | Results::TypeScript => {
            let path = parameters.results_path.map_or_else(|| "null".to_owned(), text);
            let (session, typescript) = (parameters.session, results == Results::TypeScript);
            let call = format!("({code}, {name}, {path}, {max}, {session}, {typescript});\n");
            Some((format!("{}{call}", JAVASCRIPT.trim_end()), "cofferdam.js"))
        }
    }
}
