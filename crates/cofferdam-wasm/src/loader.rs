//! Loading of programs: modules are compiled once for each tenant, interpreters are prepared once for all.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use cofferdam_wasm_runtimes::Language;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::analysis::not_executable;
use crate::config::WasmConfig;
use crate::engine::{WasmEngine, on_thread};
use crate::languages::{PreparedInterpreter, Preparing, names, prepare};
use crate::program::Program;

/// The maximum bytes of modules whose compiled code is cached.
const MAX_CACHED_BYTES: usize = 128 << 20;
/// The maximum number of compilations that continue after their callers gave up, besides those that have a compile
/// slot.
const MAX_ABANDONED: usize = 4;

/// An interpreter that is prepared once for all concurrent callers.
type OncePrepared = Arc<OnceCell<Arc<PreparedInterpreter>>>;

/// The programs of a backend, in two engines: one for guests at full speed, one for guests with metered execution. Each
/// engine is created with its first program.
#[derive(Debug)]
pub(crate) struct Loader {
    config: WasmConfig,
    plain: OnceLock<Arc<WasmEngine>>,
    metered: OnceLock<Arc<WasmEngine>>,
    plain_modules: Mutex<ModuleCache>,
    metered_modules: Mutex<ModuleCache>,
    compilers: Arc<Semaphore>,
    abandoned: Arc<Semaphore>,
    interpreters: Mutex<HashMap<(Language, bool), OncePrepared>>,
}

impl Loader {
    pub(crate) fn new(config: WasmConfig) -> Self {
        let compilers = Arc::new(Semaphore::new(config.compilers.max(1)));
        let abandoned = Arc::new(Semaphore::new(MAX_ABANDONED));
        Self {
            config,
            plain: OnceLock::new(),
            metered: OnceLock::new(),
            plain_modules: Mutex::default(),
            metered_modules: Mutex::default(),
            compilers,
            abandoned,
            interpreters: Mutex::default(),
        }
    }

    fn engine(&self, metered: bool) -> Result<Arc<WasmEngine>> {
        let cell = if metered { &self.metered } else { &self.plain };
        if let Some(engine) = cell.get() {
            return Ok(Arc::clone(engine));
        }
        let engine = Arc::new(WasmEngine::new(&self.config, metered)?);
        // Another thread may have been faster.
        Ok(Arc::clone(cell.get_or_init(|| engine)))
    }

    /// Returns the compiled modules of an engine.
    fn cache(&self, metered: bool) -> MutexGuard<'_, ModuleCache> {
        if metered { self.metered_modules.lock() } else { self.plain_modules.lock() }
    }

    /// Returns a compiled module, from the cache or after compiling it.
    ///
    /// Compiled modules are cached per tenant, so that a tenant cannot learn from the start time whether another tenant
    /// ran the same module.
    pub(crate) async fn program(
        &self,
        bytes: Bytes,
        tenant: &TenantId,
        metered: bool,
        max_time: Duration,
    ) -> Result<(Arc<Program>, Arc<WasmEngine>)> {
        if bytes.len() as u64 > self.config.module_size.as_bytes() {
            return Err(not_executable(format!("the module is larger than {}", self.config.module_size)));
        }
        let engine = self.engine(metered)?;
        let cached = self.cache(metered).find(tenant, &bytes);
        if let Some(program) = cached {
            return Ok((program, engine));
        }
        let max_time = max_time.min(self.config.compile_time);
        let compiled = timeout(max_time, self.compile(Arc::clone(&engine), bytes.clone())).await;
        let program = compiled.map_err(|_| {
            let message = format!("compiling the module took longer than {} s", max_time.as_secs_f64());
            Error::new(ErrorKind::ResourceExhausted, "start", message)
        })??;
        self.cache(metered).insert(tenant.clone(), bytes, Arc::clone(&program), self.config.cached_modules);
        Ok((program, engine))
    }

    /// Returns a prepared interpreter. Concurrent callers share one preparation.
    pub(crate) async fn interpreter(
        &self,
        language: Language,
        metered: bool,
        max_time: Duration,
    ) -> Result<Arc<PreparedInterpreter>> {
        let cell = {
            let mut interpreters = self.interpreters.lock();
            Arc::clone(interpreters.entry((language, metered)).or_default())
        };
        if let Some(prepared) = cell.get() {
            return Ok(Arc::clone(prepared));
        }
        let late = |_| {
            let message = format!("preparing {} took longer than {} s", names(language).0, max_time.as_secs_f64());
            Error::new(ErrorKind::ResourceExhausted, "start", message).with_remedy(format!(
                "allow more time, or prepare it in advance: cofferdam setup {}",
                names(language).1
            ))
        };
        let prepared = cell.get_or_try_init(|| self.prepare_interpreter(language, metered, |_| {}));
        timeout(max_time, prepared).await.map_err(late)?.map(Arc::clone)
    }

    /// Prepares an interpreter on its own thread, which continues if the caller stops waiting.
    pub(crate) async fn prepare_interpreter(
        &self,
        language: Language,
        metered: bool,
        mut progress: impl FnMut(Preparing) + Send + 'static,
    ) -> Result<Arc<PreparedInterpreter>> {
        let cache = self.config.cache.clone().ok_or_else(|| {
            Error::unsupported("start", "no cache directory for interpreters is configured")
                .with_remedy("set HOME or XDG_CACHE_HOME, or WasmConfig::cache in your own program")
        })?;
        let engine = self.engine(metered)?;
        on_thread(move || prepare(&engine, &cache, language, &mut progress).map(Arc::new)).await
    }

    /// Compiles on its own thread. A compilation continues after its caller gives up, since a compiler cannot be
    /// stopped. It then frees its compile slot for others, unless [`MAX_ABANDONED`] such compilations run.
    async fn compile(&self, engine: Arc<WasmEngine>, bytes: Bytes) -> Result<Arc<Program>> {
        let closed = |_| Error::new(ErrorKind::Internal, "start", "the compile slots are closed");
        let permit = Arc::clone(&self.compilers).acquire_owned().await.map_err(closed)?;
        let slot = CompileSlot(Arc::new(Mutex::new(Some(permit))));
        let mut waiting = Waiting { slot: slot.clone(), abandoned: Arc::clone(&self.abandoned), ended: false };
        let result = on_thread(move || {
            let result = engine.compile(&bytes);
            slot.set(None);
            result
        })
        .await;
        waiting.ended = true;
        result
    }
}

/// The slot of a compilation: a compile slot, later one for abandoned compilations.
#[derive(Debug, Clone)]
struct CompileSlot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl CompileSlot {
    /// Replaces the slot, if the compilation has not ended.
    fn exchange(&self, permit: OwnedSemaphorePermit) {
        let mut slot = self.0.lock();
        if slot.is_some() {
            *slot = Some(permit);
        }
    }

    fn set(&self, permit: Option<OwnedSemaphorePermit>) {
        *self.0.lock() = permit;
    }
}

/// The caller of a compilation. If it is dropped before the compilation ends, the compile slot is exchanged for an
/// abandoned slot, if one is free.
struct Waiting {
    slot: CompileSlot,
    abandoned: Arc<Semaphore>,
    ended: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(permit) = Arc::clone(&self.abandoned).try_acquire_owned()
        {
            self.slot.exchange(permit);
        }
    }
}

/// Compiled modules, the most recently used last. Modules are compared byte by byte, so that none can pass for another.
#[derive(Default)]
struct ModuleCache(VecDeque<(TenantId, Bytes, Arc<Program>)>);

impl fmt::Debug for ModuleCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleCache").field("modules", &self.0.len()).finish_non_exhaustive()
    }
}

impl ModuleCache {
    fn find(&mut self, tenant: &TenantId, bytes: &Bytes) -> Option<Arc<Program>> {
        let index = self.0.iter().position(|(owner, cached, _)| owner == tenant && cached == bytes)?;
        let found = self.0.remove(index)?;
        let program = Arc::clone(&found.2);
        self.0.push_back(found);
        Some(program)
    }

    fn insert(&mut self, tenant: TenantId, bytes: Bytes, program: Arc<Program>, max_entries: usize) {
        if bytes.len() > MAX_CACHED_BYTES || self.find(&tenant, &bytes).is_some() {
            return;
        }
        self.0.push_back((tenant, bytes, program));
        while self.0.len() > max_entries
            || self.0.iter().map(|(_, bytes, _)| bytes.len()).sum::<usize>() > MAX_CACHED_BYTES
        {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_compilation_frees_its_slot_unless_too_many_are_abandoned() {
        let (compilers, abandoned) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let begin = || {
            let permit = Arc::clone(&compilers).try_acquire_owned().expect("a free slot");
            let slot = CompileSlot(Arc::new(Mutex::new(Some(permit))));
            (slot.clone(), Waiting { slot, abandoned: Arc::clone(&abandoned), ended: false })
        };
        let (first, waiting) = begin();
        assert_eq!(compilers.available_permits(), 0);
        drop(waiting);
        assert_eq!((compilers.available_permits(), abandoned.available_permits()), (1, 0));
        let (second, waiting) = begin();
        drop(waiting);
        assert_eq!(compilers.available_permits(), 0, "one too many keeps its compile slot");
        first.set(None);
        second.set(None);
        assert_eq!((compilers.available_permits(), abandoned.available_permits()), (1, 1));
        let (ended, waiting) = begin();
        ended.set(None);
        drop(waiting);
        assert_eq!((compilers.available_permits(), abandoned.available_permits()), (1, 1));
    }
}
