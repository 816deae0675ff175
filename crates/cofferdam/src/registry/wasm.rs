//! The WebAssembly backend's entry in the registry, and the installation of its interpreters.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "conformance")]
use cofferdam_conformance::Target;
use cofferdam_contract::configuration::{Bound, Human};
use cofferdam_contract::{Backend, Error, ErrorKind, Result};
#[cfg(feature = "conformance")]
use cofferdam_wasm::WasmPrograms;
use cofferdam_wasm::{Seed, WasmBackend, WasmConfig, WasmSettings};
use serde::Serialize;

use super::table::{Creation, Examination, Implementation};
use super::{Setup, cache_directory};

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    attributes: |setup| setup.wasm.attributes().collect(),
    #[cfg(feature = "conformance")]
    target: |backend| Target::new(backend, WasmPrograms),
    ..Implementation::new(create, examine)
};

/// Does not start the compiler, which the first module does.
fn create(_: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(backend()))
}

fn examine(_: &Setup) -> Examination<'_> {
    Box::pin(cofferdam_wasm::doctor(wasm_cache()))
}

fn backend() -> WasmBackend {
    WasmBackend::new(WasmConfig { cache: wasm_cache(), ..WasmConfig::default() })
}

/// Returns the settings in command-line options.
pub(super) fn settings((seed, fuel): (Option<String>, Option<Bound<NonZeroU64>>)) -> WasmSettings {
    WasmSettings { deterministic: seed.map(|seed| Human(Seed(seed))), fuel }
}

/// Returns the directory of this user's WebAssembly interpreters: `cofferdam/wasm` in the user's cache directory.
/// Returns `None` for a user without a cache directory.
pub fn wasm_cache() -> Option<PathBuf> {
    cache_directory("wasm")
}

/// An installed WebAssembly interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installed {
    /// The language, as `--lang` names it.
    pub language: &'static str,
    /// The version of its implementation.
    pub version: &'static str,
    /// Its module.
    pub module: PathBuf,
    /// The module's SHA-256.
    pub sha256: String,
    /// The licences of its components.
    pub licence: &'static str,
}

/// The languages that can be installed.
pub const WASM_LANGUAGES: [&str; 2] = ["python", "javascript"];

/// Installs a WebAssembly interpreter: downloads or builds it, checks it, compiles it for this host and starts it once.
/// Keeps an interpreter that is already installed. Reports each step to `progress`.
///
/// # Errors
///
/// Returns `InvalidInput` for another language, and `Unavailable` with a remedy if the interpreter cannot be obtained.
pub async fn install(language: &str, progress: impl Fn(String) + Clone + Send + 'static) -> Result<Installed> {
    use cofferdam_wasm::Language;
    let (name, language) = match language {
        "python" => (WASM_LANGUAGES[0], Language::Python),
        "javascript" => (WASM_LANGUAGES[1], Language::JavaScript),
        other => {
            let what = format!("there is no WebAssembly interpreter for '{}'", other.escape_debug());
            return Err(Error::invalid("setup", what).with_remedy("use python or javascript"));
        }
    };
    let cache = wasm_cache().ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "setup", "this user has no cache directory")
            .with_remedy("set HOME or XDG_CACHE_HOME")
    })?;
    let on_step = progress.clone();
    let found = cofferdam_wasm::obtain(&cache, language, move |step| on_step(step.to_string())).await?;
    backend().prepare(language, move |step| progress(step.to_string())).await?;
    let cofferdam_wasm::Interpreter { version, module, sha256, licence, .. } = found;
    Ok(Installed { language: name, version, module, sha256, licence })
}
