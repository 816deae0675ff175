//! The compiler and its engine, created with the first module; and the ticker that interrupts running guests at regular
//! intervals so that their limits are checked.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use cofferdam_wasm_supply::Language;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use wasmtime::{Config, Engine, Linker, Module, WasmBacktraceDetails};

use crate::WasmConfig;
use crate::component::{self, is_component};
use crate::instrument::{Instrumented, Layout, instrument};
use crate::languages::{PreparedInterpreter, Preparing, names, prepare};
use crate::program::Program;
use crate::screen::{check_module, not_executable};
use crate::sys::{Image, Slots};
use crate::wasi::{Host, add_to};

/// The interval between two checks of a running guest.
const TICK_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum bytes of modules whose compiled code is cached.
const KEPT_BYTES: usize = 128 << 20;
/// Stack of a compiler thread. The validator bounds nesting, and the compiler recurses little.
const COMPILER_STACK: usize = 8 << 20;

/// Compilations that continue after their callers gave up, besides those that have a compile slot.
const MAX_ABANDONED: usize = 4;

/// An interpreter that is prepared once for all concurrent callers.
type OncePrepared = Arc<OnceCell<Arc<PreparedInterpreter>>>;

/// The engines of a backend: one for guests at full speed, one for guests with metered execution.
#[derive(Debug)]
pub(crate) struct Engines {
    config: WasmConfig,
    plain: OnceLock<Arc<WasmEngine>>,
    metered: OnceLock<Arc<WasmEngine>>,
    compilers: Arc<Semaphore>,
    abandoned: Arc<Semaphore>,
    interpreters: Mutex<HashMap<(Language, bool), OncePrepared>>,
}

impl Engines {
    pub(crate) fn new(config: WasmConfig) -> Self {
        let compilers = Arc::new(Semaphore::new(config.compilers.max(1)));
        let abandoned = Arc::new(Semaphore::new(MAX_ABANDONED));
        let (plain, metered) = (OnceLock::new(), OnceLock::new());
        Self { config, plain, metered, compilers, abandoned, interpreters: Mutex::default() }
    }

    fn engine(&self, metered: bool) -> Result<Arc<WasmEngine>> {
        let cell = if metered { &self.metered } else { &self.plain };
        if let Some(engine) = cell.get() {
            return Ok(Arc::clone(engine));
        }
        let engine = Arc::new(WasmEngine::new(&self.config, metered).map_err(unavailable)?);
        // Another thread may have been faster.
        Ok(Arc::clone(cell.get_or_init(|| engine)))
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
        let cached = engine.cache().find(tenant, &bytes);
        if let Some(program) = cached {
            return Ok((program, engine));
        }
        let max_time = max_time.min(self.config.compile_time);
        let compiled = timeout(max_time, self.compile(Arc::clone(&engine), bytes.clone())).await;
        let program = compiled.map_err(|_| {
            let message = format!("compiling the module took longer than {} s", max_time.as_secs_f64());
            Error::new(ErrorKind::ResourceExhausted, "start", message)
        })??;
        engine.cache().insert(tenant.clone(), bytes, Arc::clone(&program), self.config.kept_modules);
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
        let prepared = cell.get_or_try_init(|| self.make_interpreter(language, metered, |_| {}));
        timeout(max_time, prepared).await.map_err(late)?.map(Arc::clone)
    }

    /// Prepares an interpreter on its own thread, which continues if the caller stops waiting.
    pub(crate) async fn make_interpreter(
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

/// Runs work on a thread with a compiler's stack.
pub(crate) async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("wasm-compiler".to_owned()).stack_size(COMPILER_STACK);
    // The receiver may be gone.
    let work = move || drop(sender.send(work()));
    thread.spawn(work).map_err(|error| {
        Error::new(ErrorKind::ResourceExhausted, "start", "cannot start a compiler thread").with_source(error)
    })?;
    receiver.await.map_err(|_| not_executable("the compiler panicked on the module"))?
}

/// A wasmtime engine with the host functions of its guests.
pub(crate) struct WasmEngine {
    pub(crate) inner: Engine,
    /// True if execution is metered by fuel.
    pub(crate) metered: bool,
    linker: Linker<Host>,
    ticker: Arc<Mutex<Ticker>>,
    cache: Mutex<ModuleCache>,
}

impl fmt::Debug for WasmEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WasmEngine").finish_non_exhaustive()
    }
}

impl WasmEngine {
    fn new(config: &WasmConfig, metered: bool) -> wasmtime::Result<Self> {
        let inner = Engine::new(&settings(config, metered))?;
        let mut linker = Linker::new(&inner);
        add_to(&mut linker)?;
        Ok(Self { inner, metered, linker, ticker: Arc::default(), cache: Mutex::default() })
    }

    fn cache(&self) -> MutexGuard<'_, ModuleCache> {
        self.cache.lock()
    }

    fn compile(&self, bytes: &[u8]) -> Result<Arc<Program>> {
        if is_component(bytes) {
            return component::compile(&self.inner, bytes).and_then(Program::of_component).map(Arc::new);
        }
        check_module(bytes)?;
        let Instrumented { module, layout, image } = instrument(bytes, None)?;
        let module = Module::from_binary(&self.inner, &module)
            .map_err(|error| not_executable(format!("cannot compile the module: {}", reason(&error))))?;
        self.program(&module, layout, image).map(Arc::new)
    }

    pub(crate) fn program(&self, module: &Module, layout: Layout, image: Arc<Image>) -> Result<Program> {
        Program::new(&self.linker, module, layout, image)
            .map_err(|error| not_executable(format!("the module has an unknown import: {}", reason(&error))))
    }

    /// Starts the periodic checks of guests, which run while the returned value lives.
    pub(crate) fn tick(self: &Arc<Self>) -> std::io::Result<Ticking> {
        let mut ticker = self.ticker.lock();
        if !ticker.runs {
            let (engine, shared) = (self.inner.clone(), Arc::clone(&self.ticker));
            std::thread::Builder::new().name("wasm-ticker".to_owned()).spawn(move || tick(&engine, &shared))?;
            ticker.runs = true;
        }
        ticker.guests += 1;
        Ok(Ticking(Arc::clone(&self.ticker)))
    }
}

/// Returns the error as one line.
fn reason(error: &wasmtime::Error) -> String {
    let text = format!("{error:#}");
    let line: String = text.lines().next().unwrap_or_default().chars().take(300).collect();
    line.escape_debug().to_string()
}

fn unavailable(error: wasmtime::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "start", format!("this host cannot run WebAssembly: {}", reason(&error)))
}

/// Creates the compiler settings. Every proposal that is not needed is disabled: each one is more compiler code that
/// hostile modules could reach.
fn settings(limits: &WasmConfig, metered: bool) -> Config {
    let mut config = Config::new();
    config
        .wasm_bulk_memory(true)
        .wasm_multi_value(true)
        .wasm_simd(true)
        .wasm_reference_types(true)
        .wasm_extended_const(true)
        .wasm_relaxed_simd(false)
        // Generated adapters between two components copy from one memory to another. A guest's own modules have at most
        // one memory, which the static analysis ensures.
        .wasm_multi_memory(true)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false)
        .wasm_threads(false)
        .wasm_shared_everything_threads(false)
        .wasm_function_references(false)
        .wasm_gc(false)
        .wasm_exceptions(false)
        .wasm_stack_switching(false)
        .gc_support(false)
        .shared_memory(false)
        .epoch_interruption(true)
        .consume_fuel(metered)
        .cranelift_nan_canonicalization(metered)
        .max_wasm_stack(usize::try_from(limits.stack.as_bytes()).unwrap_or(usize::MAX))
        .with_host_memory(Arc::new(Slots))
        .memory_init_cow(false)
        .wasm_backtrace_max_frames(None)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .generate_address_map(false);
    config
}

#[derive(Debug, Default)]
struct Ticker {
    guests: usize,
    runs: bool,
}

/// Advances the engine's epoch at regular intervals, and ends when no guest runs.
fn tick(engine: &Engine, shared: &Mutex<Ticker>) {
    loop {
        std::thread::sleep(TICK_INTERVAL);
        engine.increment_epoch();
        let mut ticker = shared.lock();
        if ticker.guests == 0 {
            ticker.runs = false;
            return;
        }
    }
}

/// A guest that is checked periodically.
#[derive(Debug)]
pub(crate) struct Ticking(Arc<Mutex<Ticker>>);

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.lock().guests -= 1;
    }
}

/// Compiled modules, the most recently used last. Modules are compared byte by byte, so that none can pass for another.
#[derive(Default)]
struct ModuleCache(VecDeque<(TenantId, Bytes, Arc<Program>)>);

impl ModuleCache {
    fn find(&mut self, tenant: &TenantId, bytes: &Bytes) -> Option<Arc<Program>> {
        let index = self.0.iter().position(|(owner, cached, _)| owner == tenant && cached == bytes)?;
        let found = self.0.remove(index)?;
        let program = Arc::clone(&found.2);
        self.0.push_back(found);
        Some(program)
    }

    fn insert(&mut self, tenant: TenantId, bytes: Bytes, program: Arc<Program>, max_entries: usize) {
        if bytes.len() > KEPT_BYTES || self.find(&tenant, &bytes).is_some() {
            return;
        }
        self.0.push_back((tenant, bytes, program));
        while self.0.len() > max_entries || self.0.iter().map(|(_, bytes, _)| bytes.len()).sum::<usize>() > KEPT_BYTES {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_compilation_frees_its_place_as_long_as_few_are_abandoned() {
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
