//! The interpreters for tests, obtained once and kept below the target directory. Without a network and without a cache
//! there are none, and what needs them is skipped.
#![expect(clippy::print_stderr, reason = "a skip is printed with its reason")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cofferdam_contract::{Backend, Command, Completed, ExecRequest, ExecRequestBuilder, Script, Spec};
use cofferdam_wasm::{Language, WasmBackend, WasmConfig};
use cofferdam_wasm_supply::Supply;

pub(crate) const BOTH: [Language; 2] = [Language::Python, Language::JavaScript];

/// Where they are kept already, if anywhere.
fn places() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = of("HOME").map(|home| home.join(".cache"));
    let users = of("XDG_CACHE_HOME").or(home).map(|cache| cache.join("cofferdam"));
    [of("COFFERDAM_TEST_WASM_CACHE"), users].into_iter().flatten().collect()
}

/// The directory with both of them, obtained if it must be; else why there is none.
fn cache() -> Result<PathBuf, String> {
    let has = |place: &PathBuf, language| Supply::new(place).find(language).is_ok_and(|found| found.is_some());
    if let Some(found) = places().into_iter().find(|place| BOTH.iter().all(|language| has(place, *language))) {
        return Ok(found);
    }
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wasm-cache");
    for language in BOTH {
        Supply::new(&own).obtain(language, |_| {}).map_err(|error| format!("{language:?}: {error}"))?;
    }
    Ok(own)
}

/// The directory of the cache, or nothing after it was said why.
pub(crate) fn cache_for(what: &str) -> Option<&'static Path> {
    static CACHE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match CACHE.get_or_init(cache) {
        Ok(cache) => Some(cache),
        Err(why) => {
            eprintln!("SKIPPED {what}: no interpreters: {why}");
            None
        }
    }
}

/// One backend for all tests: a process makes an interpreter ready once.
pub(crate) fn backend(what: &str) -> Option<&'static WasmBackend> {
    static BACKEND: OnceLock<WasmBackend> = OnceLock::new();
    let cache = cache_for(what)?.to_owned();
    Some(BACKEND.get_or_init(|| WasmBackend::new(WasmConfig { cache: Some(cache), ..WasmConfig::default() })))
}

/// A spec whose time is enough to compile an interpreter without optimisation.
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
