//! The cache of interpreters, and the remedy if they are missing.

use std::path::PathBuf;

use cofferdam::registry::wasm_cache;
use cofferdam_wasm::{Language, WasmBackend, WasmConfig};
use cofferdam_wasm_runtimes::Runtimes;

/// A cache of interpreters, or none if this user has no directory for it.
#[derive(Debug, Clone)]
pub struct Interpreters {
    cache: Option<PathBuf>,
}

impl Interpreters {
    /// Returns the cache in `directory`, else the cache of the command line.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { cache: directory.or_else(wasm_cache) }
    }

    /// Returns a new backend that uses the cache.
    pub fn backend(&self) -> WasmBackend {
        WasmBackend::new(WasmConfig { cache: self.cache.clone(), ..WasmConfig::default() })
    }

    /// Prepares an interpreter, which takes some seconds on first use. The error is the reason why it cannot run.
    pub async fn prepare(&self, language: Language) -> Result<(), String> {
        let (name, word) = match language {
            Language::Python => ("Python", "python"),
            Language::JavaScript => ("JavaScript", "javascript"),
        };
        let cache = self.cache.as_ref().ok_or("no cache directory: set HOME, or use --cache DIR")?;
        match Runtimes::new(cache).find(language) {
            Err(error) => return Err(error.to_string()),
            Ok(None) => {
                let location = cache.display();
                return Err(format!("{name} is not in {location}: run `cofferdam setup {word}`, or use --cache DIR"));
            }
            Ok(Some(_)) => {}
        }
        let progress = move |step| eprintln!("preparing {name}: {step:?}");
        self.backend().prepare(language, progress).await.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_interpreter_is_reported_with_its_setup_command() {
        let empty = tempfile::tempdir().unwrap();
        let interpreters = Interpreters::new(Some(empty.path().join("none")));
        let reason = interpreters.prepare(Language::JavaScript).await.unwrap_err();
        assert!(reason.contains("cofferdam setup javascript"), "{reason}");
    }
}
