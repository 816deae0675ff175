//! Which languages run, and how: an explicit list (C7). A file's extension picks from it; a `#!` line is never trusted.
//!
//! Configuration can add languages, change built-in ones, and restrict which are allowed. It cannot make an unknown
//! extension run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cofferdam::registry::MODULE_INTERPRETER;
use cofferdam::{Error, ErrorKind, Result};
use serde::Deserialize;

/// One language: the extensions that mean it, and the interpreter with its options.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// Extensions without the dot, in lower case.
    pub extensions: Vec<String>,
    /// The interpreter and its options; the file comes after them.
    pub interpreter: Vec<String>,
}

/// The languages that may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Languages(BTreeMap<String, Language>);

/// Name, extensions, interpreter.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Python's `-u` makes output live. Each of V8's worker threads counts as a process, so Node gets only two.
const BUILT_IN: &[Row] = &[
    ("python", &["py"], &["python3", "-u"]),
    ("javascript", &["js", "mjs", "cjs"], &["node", "--v8-pool-size=2"]),
    ("typescript", &["ts", "mts", "cts"], &["node", "--v8-pool-size=2", "--experimental-strip-types"]),
    ("sh", &["sh"], &["sh"]),
    ("bash", &["bash"], &["bash"]),
    (MODULE, &["wasm"], &[MODULE_INTERPRETER]),
];

/// The language of compiled modules, which have a backend of their own.
pub const MODULE: &str = "wasm";

impl Default for Languages {
    fn default() -> Self {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Self(
            BUILT_IN
                .iter()
                .map(|(name, extensions, interpreter)| {
                    let language = Language { extensions: owned(extensions), interpreter: owned(interpreter) };
                    ((*name).to_owned(), language)
                })
                .collect(),
        )
    }
}

impl Languages {
    /// The built-in languages, with `added` put over them, restricted to `allowed`.
    pub fn new(added: &BTreeMap<String, Language>, allowed: Option<&BTreeSet<String>>) -> Result<Self> {
        let mut languages = Self::default();
        for (name, language) in added {
            check(name, language)?;
            // An extension means one language: the configured one takes it over.
            for other in languages.0.values_mut() {
                other.extensions.retain(|extension| !language.extensions.contains(extension));
            }
            languages.0.insert(name.clone(), language.clone());
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

    /// The same for code that agents send.
    pub fn for_code(&self) -> Result<cofferdam_code::Languages> {
        let built_in = cofferdam_code::Languages::default();
        let own = self.0.iter().filter(|(name, _)| *name != MODULE).map(|(name, language)| {
            let known = built_in.by_name(name).ok().filter(|known| known.interpreter == language.interpreter);
            let language = known.cloned().unwrap_or_else(|| cofferdam_code::Language {
                extensions: language.extensions.clone(),
                interpreter: language.interpreter.clone(),
                ..cofferdam_code::Language::default()
            });
            (name.clone(), language)
        });
        let own: BTreeMap<String, cofferdam_code::Language> = own.collect();
        let names = own.keys().cloned().collect();
        cofferdam_code::Languages::new(&own, Some(&names))
    }

    /// The language of this name.
    pub fn by_name(&self, name: &str) -> Result<&Language> {
        self.0.get(name).ok_or_else(|| {
            let message = format!("the language '{}' is not among those that may run", name.escape_debug());
            denied(message).with_remedy(format!("use --lang with one of: {}", self.names()))
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

    fn names(&self) -> String {
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
mod tests {
    use super::*;

    fn name_of(languages: &Languages, file: &str) -> Option<String> {
        languages.by_extension(Path::new(file)).ok().map(|(name, _)| name.to_owned())
    }

    #[test]
    fn the_extension_picks_the_language() {
        let languages = Languages::default();
        for (file, name) in [
            ("a.py", Some("python")),
            ("dir.js/a.PY", Some("python")),
            ("a.js", Some("javascript")),
            ("a.mjs", Some("javascript")),
            ("a.cjs", Some("javascript")),
            ("a.ts", Some("typescript")),
            ("a.sh", Some("sh")),
            ("a.bash", Some("bash")),
            ("a.wasm", Some("wasm")),
            ("a.tar.gz", None),
            ("a.rb", None),
            ("py", None),
            (".py", None),
            ("a.", None),
        ] {
            assert_eq!(name_of(&languages, file).as_deref(), name, "{file}");
        }
    }

    #[test]
    fn configuration_adds_changes_and_restricts() {
        let language = |extension: &str, program: &str| Language {
            extensions: vec![extension.to_owned()],
            interpreter: vec![program.to_owned()],
        };
        let added =
            BTreeMap::from([("ruby".to_owned(), language("rb", "ruby")), ("dash".to_owned(), language("sh", "dash"))]);
        let languages = Languages::new(&added, None).unwrap();
        assert_eq!(name_of(&languages, "a.rb").as_deref(), Some("ruby"));
        assert_eq!(name_of(&languages, "a.sh").as_deref(), Some("dash"));
        let allowed = BTreeSet::from(["ruby".to_owned()]);
        let restricted = Languages::new(&added, Some(&allowed)).unwrap();
        assert_eq!(name_of(&restricted, "a.py"), None);
        assert_eq!(restricted.by_name("python").unwrap_err().kind(), ErrorKind::Denied);
        assert!(Languages::new(&BTreeMap::new(), Some(&allowed)).is_err());
    }

    #[test]
    fn bad_languages_are_refused() {
        for (name, extension, program) in [("Ruby", "rb", "ruby"), ("ruby", ".rb", "ruby"), ("ruby", "rb", "")] {
            let language = Language { extensions: vec![extension.to_owned()], interpreter: vec![program.to_owned()] };
            assert!(Languages::new(&BTreeMap::from([(name.to_owned(), language)]), None).is_err());
        }
    }
}
