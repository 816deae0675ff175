//! The interpreters for tests, installed once and stored below the target directory. Without a network and without a
//! cache, tests that need them are skipped.
#![expect(clippy::print_stderr, reason = "a skip is printed with its reason")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cofferdam_contract::{Backend, Command, Completed, ExecRequest, ExecRequestBuilder, Script, Spec};
use cofferdam_wasm::{Language, WasmBackend, WasmConfig};
use cofferdam_wasm_runtimes::Runtimes;

pub(crate) const BOTH: [Language; 2] = [Language::Python, Language::JavaScript];

/// Returns the caches that may have them already.
fn existing_caches() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = of("HOME").map(|home| home.join(".cache"));
    let users = of("XDG_CACHE_HOME").or(home).map(|cache| cache.join("cofferdam/wasm"));
    [of("COFFERDAM_TEST_WASM_CACHE"), users].into_iter().flatten().collect()
}

/// Returns a cache with both interpreters, and installs them if necessary; else the reason why that failed.
fn cache() -> Result<PathBuf, String> {
    let has = |cache: &PathBuf, language| Runtimes::new(cache).find(language).is_ok_and(|found| found.is_some());
    if let Some(found) = existing_caches().into_iter().find(|cache| BOTH.iter().all(|language| has(cache, *language))) {
        return Ok(found);
    }
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wasm-cache");
    for language in BOTH {
        Runtimes::new(&own).obtain(language, |_| {}).map_err(|error| format!("{language:?}: {error}"))?;
    }
    Ok(own)
}

/// Returns the directory of the cache, or prints why there is none.
pub(crate) fn cache_for(what: &str) -> Option<&'static Path> {
    static CACHE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match CACHE.get_or_init(cache) {
        Ok(cache) => Some(cache),
        Err(reason) => {
            eprintln!("SKIPPED {what}: no interpreters: {reason}");
            None
        }
    }
}

/// Returns one backend for all tests, so that a process prepares each interpreter once.
pub(crate) fn backend(what: &str) -> Option<&'static WasmBackend> {
    static BACKEND: OnceLock<WasmBackend> = OnceLock::new();
    let cache = cache_for(what)?.to_owned();
    Some(BACKEND.get_or_init(|| WasmBackend::new(WasmConfig { cache: Some(cache), ..WasmConfig::default() })))
}

/// Returns a spec with enough time to compile an interpreter without optimisation.
pub(crate) fn patient() -> Spec {
    crate::support::limited(|limits| {
        limits.wall_time = std::time::Duration::from_secs(600);
        limits.cpu_time = None;
    })
}

pub(crate) fn source(language: Language, name: &str, text: &str) -> ExecRequestBuilder {
    let interpreter = match language {
        Language::Python => "python3",
        Language::JavaScript => "javascript",
    };
    ExecRequest::builder(Command::Script(Script {
        interpreter: vec![interpreter.to_owned()],
        name: name.to_owned(),
        contents: text.to_owned().into(),
        args: vec!["one".to_owned(), "two words".to_owned()],
    }))
}

/// Runs a piece of source text as a program.
pub(crate) async fn run(backend: &WasmBackend, language: Language, text: &str) -> Completed {
    let name = if language == Language::Python { "main.py" } else { "main.js" };
    let request = source(language, name, text).build().unwrap();
    backend.run(patient(), request).await.unwrap().0
}
