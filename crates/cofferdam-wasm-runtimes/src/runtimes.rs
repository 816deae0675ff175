//! `Runtimes`: finds interpreters in the cache, and obtains those that are missing.

use std::path::PathBuf;

use crate::cache::Cache;
use crate::error::{Result, RuntimesError, io};
use crate::preparation::{Entry, Preparation, Stack};
use crate::recipe;
use crate::step::Step;
use crate::tools::Tools;
use crate::{javascript, python};

/// A language that has an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// CPython, with its standard library inside the module.
    Python,
    /// QuickJS-NG.
    JavaScript,
}

/// A file that must be in the guest's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// The path on the host.
    pub host: PathBuf,
    /// Its absolute path in the guest.
    pub guest: String,
    /// Its SHA-256.
    pub sha256: String,
}

/// An interpreter whose files were hashed just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    /// The language it runs.
    pub language: Language,
    /// A WASI preview 1 command. Run it as `NAME SCRIPT [ARGUMENT...]`.
    pub module: PathBuf,
    /// The files that it needs in the guest, mounted read-only.
    pub files: Vec<GuestFile>,
    /// Environment variables that it needs, set before those of the request.
    pub environment: Vec<(String, String)>,
    /// The version of the language's implementation.
    pub version: &'static str,
    /// The SHA-256 of the module. Read the module once and compare: the file can have changed since it was hashed.
    pub sha256: String,
    /// The licences of the module's parts.
    pub licence: &'static str,
    /// The entry points for a start from prepared memory.
    pub preparation: Preparation,
}

/// The interpreters in one cache directory.
pub struct Runtimes {
    cache: Cache,
    tools: Tools,
}

impl Runtimes {
    /// Creates the runtimes that keep interpreters in `cache`. The directory is created when it is first needed.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self::with_tools(cache, Tools::default())
    }

    /// Creates the runtimes that run other programs than the default ones.
    pub fn with_tools(cache: impl Into<PathBuf>, tools: Tools) -> Self {
        Self { cache: Cache::new(cache.into()), tools }
    }

    /// Returns the recipe's name, which changes with every input of the interpreter.
    pub fn recipe(language: Language) -> String {
        name(language)
    }

    /// Returns the interpreter if it is in the cache. Needs no network and no tool.
    ///
    /// Hashes every file. An entry that is damaged, or that another user could have changed, is removed and not
    /// returned.
    ///
    /// # Errors
    ///
    /// [`RuntimesError::UntrustedCache`] if the cache directory itself does not belong to this user alone;
    /// [`RuntimesError::Io`] if a file cannot be read. The entry then stays.
    pub fn find(&self, language: Language) -> Result<Option<Interpreter>> {
        let name = name(language);
        let Some(hashes) = self.cache.verified(&name, files(language))? else { return Ok(None) };
        let pinned = match language {
            Language::Python => Some(recipe::python::MODULE_SHA256),
            Language::JavaScript => javascript::pinned_module(),
        };
        if pinned.is_some_and(|pinned| pinned != hashes[0]) {
            let entry = self.cache.entry(&name);
            std::fs::remove_dir_all(&entry).map_err(io("remove a foreign cache entry", entry))?;
            return Ok(None);
        }
        Ok(Some(self.interpreter(language, &hashes)))
    }

    /// Returns the interpreter from the cache, else fetches, verifies and builds it, which takes up to some minutes.
    /// Concurrent calls do the work once.
    ///
    /// # Errors
    ///
    /// Any [`RuntimesError`]; the cache is then unchanged.
    pub fn obtain(&self, language: Language, mut progress: impl FnMut(Step)) -> Result<Interpreter> {
        if let Some(found) = self.find(language)? {
            return Ok(found);
        }
        self.cache.prepare()?;
        let name = name(language);
        let _lock = self.cache.lock(&name, || progress(Step::Wait))?;
        if let Some(found) = self.find(language)? {
            return Ok(found);
        }
        let scratch = self.cache.scratch(&name)?;
        let staged = scratch.path().join("staged");
        std::fs::create_dir(&staged).map_err(io("create", &staged))?;
        let work = scratch.path().join("work");
        std::fs::create_dir(&work).map_err(io("create", &work))?;
        match language {
            Language::Python => python::make(&self.tools, &work, &staged, &mut progress)?,
            Language::JavaScript => javascript::make(&self.tools, &work, &staged, &mut progress)?,
        }
        self.cache.publish(&staged, &name, files(language))?;
        self.find(language)?.ok_or_else(|| RuntimesError::UntrustedCache {
            path: self.cache.root().to_owned(),
            reason: "the entry that was just written is missing".to_owned(),
        })
    }

    fn interpreter(&self, language: Language, hashes: &[String]) -> Interpreter {
        let entry = self.cache.entry(&name(language));
        let module = entry.join(files(language)[0]);
        let sha256 = hashes[0].clone();
        match language {
            Language::Python => {
                let directory = recipe::python::STARTUP_DIRECTORY;
                let script = python::FILES[2];
                let file = |(name, sha256): (&&str, &String)| GuestFile {
                    host: entry.join(name),
                    guest: format!("{directory}/{name}"),
                    sha256: sha256.clone(),
                };
                let files = python::FILES.iter().zip(hashes).skip(1).map(file).collect();
                let environment = vec![("PYTHONPATH".to_owned(), directory.to_owned())];
                let args = vec!["python".to_owned(), format!("{directory}/{script}")];
                let entry = Entry::Function { index: recipe::python::STEP_FUNCTION };
                let stack = Some(Stack { bytes: recipe::python::STACK_BYTES, pointer: 0 });
                let preparation = Preparation { args, entry, stack, recipe: name(language) };
                let (version, licence) = (recipe::python::VERSION, recipe::python::LICENCE);
                Interpreter { language, module, files, environment, version, sha256, licence, preparation }
            }
            Language::JavaScript => {
                let args = vec!["javascript".to_owned(), "--freeze".to_owned()];
                let entry = Entry::Export { name: "cofferdam_run" };
                let preparation = Preparation { args, entry, stack: None, recipe: name(language) };
                let (version, licence) = (recipe::javascript::VERSION, recipe::javascript::LICENCE);
                Interpreter {
                    language,
                    module,
                    files: vec![],
                    environment: vec![],
                    version,
                    sha256,
                    licence,
                    preparation,
                }
            }
        }
    }
}

fn files(language: Language) -> &'static [&'static str] {
    match language {
        Language::Python => &python::FILES,
        Language::JavaScript => &javascript::FILES,
    }
}

/// Returns the entry's name, which changes with every input of the entry.
fn name(language: Language) -> String {
    match language {
        Language::Python => {
            use recipe::python::{MODULE_SHA256, PREPARE, STARTUP};
            format!("python-{}", recipe::name_of(&[MODULE_SHA256, STARTUP, PREPARE]))
        }
        Language::JavaScript => {
            use recipe::javascript::{COMPILERS, FLAGS, MAIN, PATCH, PRELUDE, REGEXP, REQUESTS, SOURCES};
            let mut parts = vec![MAIN, REQUESTS, PRELUDE, REGEXP, PATCH.0, PATCH.1];
            parts.extend(FLAGS);
            parts.extend(SOURCES.iter().map(|(_, sha256)| *sha256));
            parts.extend(COMPILERS.iter().map(|compiler| compiler.sha256));
            format!("javascript-{}", recipe::name_of(&parts))
        }
    }
}
