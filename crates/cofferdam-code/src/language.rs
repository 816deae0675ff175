//! The languages that may run, as an explicit list (C7). The extension of a file selects one. A `#!` line is never
//! trusted.
//!
//! The configuration can add languages, change built-in ones, and restrict the list. It cannot make an unknown
//! extension run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind, Result};
use serde::Deserialize;

/// The language of compiled WebAssembly modules, which run on a separate backend.
pub const MODULE: &str = "wasm";
/// The interpreter name of a script whose contents are a WebAssembly module.
pub const MODULE_INTERPRETER: &str = "wasm";
/// The placeholder for the path of the code in a command.
const FILE: &str = "{file}";
/// The placeholder for the path of the compiled program in a command.
const PROGRAM: &str = "{program}";

/// The support for results besides the output, and the parser for static analysis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Results {
    /// No support: the output is the only result, and the code is not analyzed. The default.
    #[default]
    None,
    /// Python 3.
    Python,
    /// JavaScript.
    JavaScript,
    /// TypeScript, run by Node with types stripped.
    TypeScript,
}

/// A language: its extensions and its interpreter or compiler.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// File extensions without the dot, in lower case.
    pub extensions: Vec<String>,
    /// The interpreter and its options, followed by the file. Or a compiler, with `{file}` for the path of the code and
    /// `{program}` for the path of its output.
    pub interpreter: Vec<String>,
    /// The command that runs a compiled program, usually `["{program}"]`. Empty for interpreters.
    #[serde(default)]
    pub run: Vec<String>,
    /// The file name of the code. Default: `main` with the first extension.
    #[serde(default)]
    pub file: Option<String>,
    /// A command that prints the version. Default: none.
    #[serde(default)]
    pub version: Vec<String>,
    /// The minimum version, as numbers separated by dots. Default: none.
    #[serde(default)]
    pub least_version: Option<String>,
    /// The support for results besides the output, and the parser for static analysis. Default: that of the built-in
    /// language with this name, otherwise `none`.
    #[serde(default)]
    pub results: Option<Results>,
}

impl Language {
    /// Returns the support for results besides the output.
    pub fn results(&self) -> Results {
        self.results.unwrap_or_default()
    }

    /// Takes unset fields from the built-in language of the same name. The version command is only taken if the program
    /// is the same.
    fn inherit(mut self, built_in: &Self) -> Self {
        self.results = self.results.or(built_in.results);
        if self.program() == built_in.program() {
            if self.version.is_empty() {
                self.version.clone_from(&built_in.version);
            }
            self.least_version = self.least_version.or_else(|| built_in.least_version.clone());
        }
        self
    }

    /// Returns the file name of the code.
    pub fn file_name(&self) -> String {
        let extension = self.extensions.first().map_or(String::new(), |extension| format!(".{extension}"));
        self.file.clone().unwrap_or_else(|| format!("main{extension}"))
    }

    /// Returns the command before the file: the interpreter, or a shell script that compiles and runs.
    pub fn command(&self) -> Vec<String> {
        let has_placeholder = |word: &String| word.contains(FILE) || word.contains(PROGRAM);
        if self.run.is_empty() && !self.interpreter.iter().any(has_placeholder) {
            return self.interpreter.clone();
        }
        let mut script = String::from("file=$1; shift; ");
        if self.run.iter().chain(&self.interpreter).any(|word| word.contains(PROGRAM)) {
            script += "directory=$(mktemp -d) || exit 125; program=$directory/program; ";
        }
        script += &shell(&self.interpreter);
        if self.run.is_empty() {
            script += " \"$@\"";
        } else {
            script += &format!(" || exit; exec {} \"$@\"", shell(&self.run));
        }
        ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
    }

    /// Returns the program that must exist in the sandbox.
    pub fn program(&self) -> &str {
        self.interpreter.first().map_or("", String::as_str)
    }
}

/// Quotes words for a shell and replaces the placeholders.
fn shell(words: &[String]) -> String {
    let quote = |word: &String| {
        let plain = word.replace('\'', r"'\''");
        format!("'{}'", plain.replace(FILE, r#"'"$file"'"#).replace(PROGRAM, r#"'"$program"'"#))
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// The languages that may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Languages(BTreeMap<String, Language>);

/// The definition of a built-in language.
struct Row {
    name: &'static str,
    extensions: &'static [&'static str],
    interpreter: &'static [&'static str],
    version: &'static [&'static str],
    least_version: Option<&'static str>,
    results: Results,
}

/// The built-in languages. Python's `-u` makes output live. Each of V8's worker threads counts as a process, so Node
/// gets only two.
const BUILT_IN: &[Row] = &[
    Row {
        name: "python",
        extensions: &["py"],
        interpreter: &["python3", "-u"],
        version: &["python3", "--version"],
        least_version: None,
        results: Results::Python,
    },
    Row {
        name: "javascript",
        extensions: &["js", "mjs", "cjs"],
        interpreter: &["node", "--v8-pool-size=2"],
        version: &["node", "--version"],
        least_version: None,
        results: Results::JavaScript,
    },
    Row {
        name: "typescript",
        extensions: &["ts", "mts", "cts"],
        interpreter: &["node", "--v8-pool-size=2", "--experimental-strip-types"],
        version: &["node", "--version"],
        least_version: Some("22.6"),
        results: Results::TypeScript,
    },
    Row {
        name: "sh",
        extensions: &["sh"],
        interpreter: &["sh"],
        version: &[],
        least_version: None,
        results: Results::None,
    },
    Row {
        name: "bash",
        extensions: &["bash"],
        interpreter: &["bash"],
        version: &["bash", "--version"],
        least_version: None,
        results: Results::None,
    },
    Row {
        name: MODULE,
        extensions: &["wasm"],
        interpreter: &[MODULE_INTERPRETER],
        version: &[],
        least_version: None,
        results: Results::None,
    },
];

impl Default for Languages {
    fn default() -> Self {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let language = |row: &Row| Language {
            extensions: owned(row.extensions),
            interpreter: owned(row.interpreter),
            version: owned(row.version),
            least_version: row.least_version.map(str::to_owned),
            results: Some(row.results),
            ..Language::default()
        };
        Self(BUILT_IN.iter().map(|row| (row.name.to_owned(), language(row))).collect())
    }
}

impl Languages {
    /// Creates the list: the built-in languages, overridden by `added`, restricted to `allowed`.
    pub fn new(added: &BTreeMap<String, Language>, allowed: Option<&BTreeSet<String>>) -> Result<Self> {
        let (mut languages, built_in) = (Self::default(), Self::default());
        for (name, language) in added {
            let language = match built_in.0.get(name) {
                Some(built_in) => language.clone().inherit(built_in),
                None => language.clone(),
            };
            check(name, &language)?;
            // An extension selects one language. The configured language takes it over.
            for other in languages.0.values_mut() {
                other.extensions.retain(|extension| !language.extensions.contains(extension));
            }
            languages.0.insert(name.clone(), language);
        }
        if let Some(allowed) = allowed {
            if let Some(unknown) = allowed.iter().find(|name| !languages.0.contains_key(*name)) {
                return Err(invalid(format!("languages_allowed names '{unknown}', which is not a language"))
                    .with_remedy(format!("use one of: {}", languages.names())));
            }
            languages.0.retain(|name, _| allowed.contains(name));
        }
        Ok(languages)
    }

    /// Iterates over all languages by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Language)> {
        self.0.iter().map(|(name, language)| (name.as_str(), language))
    }

    /// Returns the language with this name. Fails with `Denied` if it is not in the list.
    pub fn by_name(&self, name: &str) -> Result<&Language> {
        self.0.get(name).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            let message = format!("the language '{}' is not among those that may run", shown.escape_debug());
            denied(message).with_remedy(format!("use one of: {}", self.names()))
        })
    }

    /// Returns the name and the language for the extension of a file. Fails with `Denied` if there is none.
    pub fn by_extension(&self, file: &Path) -> Result<(&str, &Language)> {
        let extension = file.extension().and_then(|text| text.to_str()).map(str::to_ascii_lowercase);
        let found = extension.as_ref().and_then(|extension| {
            self.0.iter().find(|(_, language)| language.extensions.iter().any(|known| known == extension))
        });
        found.map(|(name, language)| (name.as_str(), language)).ok_or_else(|| {
            let shown = file.display().to_string();
            let shown = shown.escape_debug();
            let message = match &extension {
                Some(extension) => format!("no language runs files that end in '.{}'", extension.escape_debug()),
                None => format!("'{shown}' has no file extension, so its language is unknown"),
            };
            denied(message).with_context("file", shown.to_string()).with_remedy(format!(
                "name the language with --lang ({}), use one of the extensions {}, or run it as a command: \
                 cofferdam run -- COMMAND",
                self.names(),
                self.extensions()
            ))
        })
    }

    /// Returns the names of all languages, separated by commas.
    pub fn names(&self) -> String {
        self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    fn extensions(&self) -> String {
        let all = self.0.values().flat_map(|language| &language.extensions);
        all.map(|extension| format!(".{extension}")).collect::<Vec<_>>().join(" ")
    }
}

fn check(name: &str, language: &Language) -> Result<()> {
    let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !plain(name) {
        return Err(invalid(format!("a language's name must be lower-case letters and digits: '{name}'")));
    }
    if language.interpreter.first().is_none_or(String::is_empty) {
        return Err(invalid(format!("languages.{name}.interpreter must name a program")));
    }
    if language.results() != Results::None && language.command() != language.interpreter {
        return Err(invalid(format!("languages.{name}.results is for interpreters, not for compilers"))
            .with_remedy("set it to \"none\"; its code is then not analyzed"));
    }
    if language.least_version.as_ref().is_some_and(|_| language.version.is_empty()) {
        return Err(invalid(format!("languages.{name}.least_version needs languages.{name}.version, a command")));
    }
    if let Some(file) = language.file.as_deref().filter(|file| file.is_empty() || file.contains(['/', '\0'])) {
        return Err(invalid(format!("languages.{name}.file: '{}' is not a file name", file.escape_debug())));
    }
    match language.extensions.iter().find(|extension| !plain(extension)) {
        Some(bad) => {
            let why =
                format!("languages.{name}.extensions: '{bad}' must be lower-case letters and digits without a dot");
            Err(invalid(why))
        }
        None => Ok(()),
    }
}

fn invalid(message: String) -> Error {
    Error::invalid("read configuration", message)
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, "run", message)
}

#[cfg(test)]
#[path = "language_tests.rs"]
mod tests;
