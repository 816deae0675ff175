//! Which languages run, and how: an explicit list (C7). A file's extension picks from it; a `#!` line is never trusted.
//!
//! Configuration can add languages, change built-in ones, and restrict which are allowed. It cannot make an unknown
//! extension run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind, Result};
use serde::Deserialize;

/// The language of compiled WebAssembly modules, which have a backend of their own.
pub const MODULE: &str = "wasm";
/// What a script names as its interpreter whose contents are a WebAssembly module.
pub const MODULE_INTERPRETER: &str = "wasm";
/// Where the file with the code stands in a command.
const FILE: &str = "{file}";
/// Where the program stands that a compiler makes of it.
const PROGRAM: &str = "{program}";

/// How results besides the output are had, and by which parser code is screened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Results {
    /// The output is all, and nothing is screened.
    #[default]
    None,
    /// Python 3.
    Python,
    /// JavaScript.
    JavaScript,
    /// TypeScript, which Node runs without its types.
    TypeScript,
}

/// One language: the extensions that mean it, and what runs it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// Extensions without the dot, in lower case.
    pub extensions: Vec<String>,
    /// The interpreter and its options; the file comes after them. Or a compiler: then `{file}` stands for the file and
    /// `{program}` for what it makes.
    pub interpreter: Vec<String>,
    /// For a compiler: what runs then, usually `["{program}"]`.
    #[serde(default)]
    pub run: Vec<String>,
    /// The file's name; `main` with the first extension where nothing is said.
    #[serde(default)]
    pub file: Option<String>,
    /// A command that tells the version.
    #[serde(default)]
    pub version: Vec<String>,
    /// The least version that will do, as numbers with dots between them.
    #[serde(default)]
    pub least_version: Option<String>,
    /// How results besides the output are had, and by which parser code is screened. Where nothing is said it is that of
    /// the built-in language of this name, else `none`.
    #[serde(default)]
    pub results: Option<Results>,
}

impl Language {
    /// How results besides the output are had, and by which parser code is screened.
    pub fn results(&self) -> Results {
        self.results.unwrap_or_default()
    }

    /// Takes what is not said from the built-in language of the same name; what its program says of its version only where
    /// the program is the same.
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

    /// The name of the file that the code is put into.
    pub fn file_name(&self) -> String {
        let extension = self.extensions.first().map_or(String::new(), |extension| format!(".{extension}"));
        self.file.clone().unwrap_or_else(|| format!("main{extension}"))
    }

    /// What stands before the file on the command line: the interpreter, or a shell that compiles and runs.
    pub fn command(&self) -> Vec<String> {
        let has_place = |word: &String| word.contains(FILE) || word.contains(PROGRAM);
        if self.run.is_empty() && !self.interpreter.iter().any(has_place) {
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

    /// The program that has to be there.
    pub fn program(&self) -> &str {
        self.interpreter.first().map_or("", String::as_str)
    }
}

/// Words as a shell takes them, each as it is but for the places.
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

/// What is built in of a language.
struct Row {
    name: &'static str,
    extensions: &'static [&'static str],
    interpreter: &'static [&'static str],
    version: &'static [&'static str],
    least_version: Option<&'static str>,
    results: Results,
}

/// Python's `-u` makes output live. Each of V8's worker threads counts as a process, so Node gets only two.
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
    /// The built-in languages, with `added` put over them, restricted to `allowed`.
    pub fn new(added: &BTreeMap<String, Language>, allowed: Option<&BTreeSet<String>>) -> Result<Self> {
        let (mut languages, built_in) = (Self::default(), Self::default());
        for (name, language) in added {
            let language = match built_in.0.get(name) {
                Some(built_in) => language.clone().inherit(built_in),
                None => language.clone(),
            };
            check(name, &language)?;
            // An extension means one language: the configured one takes it over.
            for other in languages.0.values_mut() {
                other.extensions.retain(|extension| !language.extensions.contains(extension));
            }
            languages.0.insert(name.clone(), language);
        }
        if let Some(allowed) = allowed {
            if let Some(unknown) = allowed.iter().find(|name| !languages.0.contains_key(*name)) {
                return Err(invalid(format!("languages_allowed names '{unknown}', which is not a language"))
                    .with_remedy(format!("known are {}", languages.names())));
            }
            languages.0.retain(|name, _| allowed.contains(name));
        }
        Ok(languages)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Language)> {
        self.0.iter().map(|(name, language)| (name.as_str(), language))
    }

    /// The language of this name.
    pub fn by_name(&self, name: &str) -> Result<&Language> {
        self.0.get(name).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            let message = format!("the language '{}' is not among those that may run", shown.escape_debug());
            denied(message).with_remedy(format!("use one of: {}", self.names()))
        })
    }

    /// The language that a file's extension means, with its name.
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
                None => format!("'{shown}' has no extension that tells its language"),
            };
            denied(message).with_context("file", shown.to_string()).with_remedy(format!(
                "name the language with --lang ({}), use one of the extensions {}, or run it as a command: \
                 cofferdam run -- COMMAND",
                self.names(),
                self.extensions()
            ))
        })
    }

    /// Their names, for people.
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
        return Err(invalid(format!("a language's name is lower-case letters and digits, not '{name}'")));
    }
    if language.interpreter.first().is_none_or(String::is_empty) {
        return Err(invalid(format!("languages.{name}.interpreter names no program")));
    }
    if language.results() != Results::None && language.command() != language.interpreter {
        return Err(invalid(format!("languages.{name}.results is for interpreters, not for compilers"))
            .with_remedy("set it to \"none\": its code is not screened then"));
    }
    if language.least_version.as_ref().is_some_and(|_| language.version.is_empty()) {
        return Err(invalid(format!("languages.{name}.least_version needs languages.{name}.version, a command")));
    }
    if let Some(file) = language.file.as_deref().filter(|file| file.is_empty() || file.contains(['/', '\0'])) {
        return Err(invalid(format!("languages.{name}.file: '{}' is no name of a file", file.escape_debug())));
    }
    match language.extensions.iter().find(|extension| !plain(extension)) {
        Some(bad) => {
            let why =
                format!("languages.{name}.extensions: '{bad}' is not lower-case letters and digits without a dot");
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
