//! The compiler and its engine, made when the first module comes and not before; and the clock that lets every running
//! guest be looked at again and again.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use cofferdam_wasm_supply::Language;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use wasmtime::{Config, Engine, Linker, Module, WasmBacktraceDetails};

use crate::WasmConfig;
use crate::component::{self, is_component};
use crate::instrument::{Instrumented, Layout, instrument};
use crate::languages::{Preparing, Warm, names, warm};
use crate::program::Program;
use crate::screen::{not_executable, screen};
use crate::sys::{Image, Slots};
use crate::wasi::{Host, add_to};

/// Between two looks at a running guest.
const TICK: Duration = Duration::from_millis(10);
/// Bytes of modules that are kept compiled.
const KEPT_BYTES: usize = 128 << 20;
/// Stack of a thread that compiles. Nesting is bounded by the validator, and the compiler recurses little.
const COMPILER_STACK: usize = 8 << 20;

/// Compilations that run on after their callers gave up, besides those that have a place among the compilers.
const MAX_ABANDONED: usize = 4;

/// An interpreter that is made once, however many wait for it.
type OnceMade = Arc<OnceCell<Arc<Warm>>>;

/// The engines of a backend: one for guests at full speed, one for guests whose steps are counted.
#[derive(Debug)]
pub(crate) struct Engines {
    config: WasmConfig,
    plain: OnceLock<Arc<Machine>>,
    metered: OnceLock<Arc<Machine>>,
    compilers: Arc<Semaphore>,
    abandoned: Arc<Semaphore>,
    interpreters: Mutex<HashMap<(Language, bool), OnceMade>>,
}

impl Engines {
    pub(crate) fn new(config: WasmConfig) -> Self {
        let compilers = Arc::new(Semaphore::new(config.compilers.max(1)));
        let abandoned = Arc::new(Semaphore::new(MAX_ABANDONED));
        let (plain, metered) = (OnceLock::new(), OnceLock::new());
        Self { config, plain, metered, compilers, abandoned, interpreters: Mutex::default() }
    }

    fn machine(&self, metered: bool) -> Result<Arc<Machine>> {
        let place = if metered { &self.metered } else { &self.plain };
        if let Some(machine) = place.get() {
            return Ok(Arc::clone(machine));
        }
        let machine = Arc::new(Machine::new(&self.config, metered).map_err(unavailable)?);
        // Another may have been faster.
        Ok(Arc::clone(place.get_or_init(|| machine)))
    }

    /// The module compiled, and the machine that it was compiled for.
    ///
    /// Compiled modules are kept for their tenant alone: that a module was seen before is nobody else's to know.
    pub(crate) async fn program(
        &self,
        bytes: Bytes,
        tenant: &TenantId,
        metered: bool,
        most: Duration,
    ) -> Result<(Arc<Program>, Arc<Machine>)> {
        if bytes.len() as u64 > self.config.module_size.as_bytes() {
            return Err(not_executable(format!("the module is larger than {}", self.config.module_size)));
        }
        let machine = self.machine(metered)?;
        let kept = machine.kept().find(tenant, &bytes);
        if let Some(program) = kept {
            return Ok((program, machine));
        }
        let most = most.min(self.config.compile_time);
        let compiled = timeout(most, self.compile(Arc::clone(&machine), bytes.clone())).await;
        let program = compiled.map_err(|_| {
            let message = format!("compiling the module took longer than {} s", most.as_secs_f64());
            Error::new(ErrorKind::ResourceExhausted, "start", message)
        })??;
        machine.kept().keep(tenant.clone(), bytes, Arc::clone(&program), self.config.kept_modules);
        Ok((program, machine))
    }

    /// An interpreter that waits for what it is to run. Made once, however many ask for it.
    pub(crate) async fn interpreter(&self, language: Language, metered: bool, most: Duration) -> Result<Arc<Warm>> {
        let cell = {
            let mut interpreters = self.interpreters.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(interpreters.entry((language, metered)).or_default())
        };
        if let Some(warm) = cell.get() {
            return Ok(Arc::clone(warm));
        }
        let late = |_| {
            let message = format!("making {} ready took longer than {} s", names(language).0, most.as_secs_f64());
            Error::new(ErrorKind::ResourceExhausted, "start", message).with_remedy(format!(
                "allow more time, or have it made ready once: cofferdam setup {}",
                names(language).1
            ))
        };
        let made = cell.get_or_try_init(|| self.make_interpreter(language, metered, |_| {}));
        timeout(most, made).await.map_err(late)?.map(Arc::clone)
    }

    /// Makes an interpreter ready on a thread of its own, which goes on if nobody waits any more.
    pub(crate) async fn make_interpreter(
        &self,
        language: Language,
        metered: bool,
        mut progress: impl FnMut(Preparing) + Send + 'static,
    ) -> Result<Arc<Warm>> {
        let cache = self.config.cache.clone().ok_or_else(|| {
            Error::unsupported("start", "this WebAssembly backend has no directory to keep interpreters in")
                .with_remedy("set HOME or XDG_CACHE_HOME; a program of your own gives it WasmConfig::cache")
        })?;
        let machine = self.machine(metered)?;
        on_thread(move || warm(&machine, &cache, language, &mut progress).map(Arc::new)).await
    }

    /// Compiles on a thread of its own. A compilation whose caller gives up runs on, as a compiler cannot be stopped. It gives
    /// its place to others, unless [`MAX_ABANDONED`] such compilations run.
    async fn compile(&self, machine: Arc<Machine>, bytes: Bytes) -> Result<Arc<Program>> {
        let closed = |_| Error::new(ErrorKind::Internal, "start", "the compilers are gone");
        let permit = Arc::clone(&self.compilers).acquire_owned().await.map_err(closed)?;
        let place = Place(Arc::new(Mutex::new(Some(permit))));
        let mut waiting = Waiting { place: place.clone(), abandoned: Arc::clone(&self.abandoned), ended: false };
        let result = on_thread(move || {
            let result = machine.compile(&bytes);
            place.put(None);
            result
        })
        .await;
        waiting.ended = true;
        result
    }
}

/// The place of a compilation: among the compilers, later among those that were abandoned.
#[derive(Debug, Clone)]
struct Place(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Place {
    /// Replaces the place, if the compilation has not ended.
    fn exchange(&self, permit: OwnedSemaphorePermit) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            *place = Some(permit);
        }
    }

    fn put(&self, permit: Option<OwnedSemaphorePermit>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }
}

/// The caller of a compilation. Dropped before its end, it frees the place among the compilers, if there is another.
struct Waiting {
    place: Place,
    abandoned: Arc<Semaphore>,
    ended: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(permit) = Arc::clone(&self.abandoned).try_acquire_owned()
        {
            self.place.exchange(permit);
        }
    }
}

/// Has work done on a thread with a compiler's stack.
pub(crate) async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("wasm-compiler".to_owned()).stack_size(COMPILER_STACK);
    // Whoever asked may have gone.
    let work = move || drop(sender.send(work()));
    thread.spawn(work).map_err(|error| {
        Error::new(ErrorKind::ResourceExhausted, "start", "no thread to compile on").with_source(error)
    })?;
    receiver.await.map_err(|_| not_executable("the compiler failed on the module"))?
}

/// An engine with the calls that its guests can make.
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    /// Whether its guests' steps are counted.
    pub(crate) metered: bool,
    linker: Linker<Host>,
    ticker: Arc<Mutex<Ticker>>,
    kept: Mutex<Kept>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

impl Machine {
    fn new(config: &WasmConfig, metered: bool) -> wasmtime::Result<Self> {
        let engine = Engine::new(&settings(config, metered))?;
        let mut linker = Linker::new(&engine);
        add_to(&mut linker)?;
        Ok(Self { engine, metered, linker, ticker: Arc::default(), kept: Mutex::default() })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile(&self, bytes: &[u8]) -> Result<Arc<Program>> {
        if is_component(bytes) {
            return component::compile(&self.engine, bytes).and_then(Program::of_component).map(Arc::new);
        }
        screen(bytes)?;
        let Instrumented { module, layout, image } = instrument(bytes, None)?;
        let module = Module::from_binary(&self.engine, &module)
            .map_err(|error| not_executable(format!("the module cannot be compiled: {}", reason(&error))))?;
        self.program(&module, layout, image).map(Arc::new)
    }

    pub(crate) fn program(&self, module: &Module, layout: Layout, image: Arc<Image>) -> Result<Program> {
        Program::new(&self.linker, module, layout, image)
            .map_err(|error| not_executable(format!("the module asks for what there is not: {}", reason(&error))))
    }

    /// Has the guests looked at while the answer lives.
    pub(crate) fn tick(self: &Arc<Self>) -> std::io::Result<Ticking> {
        let mut ticker = lock(&self.ticker);
        if !ticker.runs {
            let (engine, shared) = (self.engine.clone(), Arc::clone(&self.ticker));
            std::thread::Builder::new().name("wasm-ticker".to_owned()).spawn(move || tick(&engine, &shared))?;
            ticker.runs = true;
        }
        ticker.guests += 1;
        Ok(Ticking(Arc::clone(&self.ticker)))
    }
}

/// What went wrong, in one line.
fn reason(error: &wasmtime::Error) -> String {
    let text = format!("{error:#}");
    let line: String = text.lines().next().unwrap_or_default().chars().take(300).collect();
    line.escape_debug().to_string()
}

fn unavailable(error: wasmtime::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "start", format!("this machine cannot run WebAssembly: {}", reason(&error)))
}

/// Every proposal that is not needed is off: each is more compiler for hostile code to reach.
fn settings(limits: &WasmConfig, metered: bool) -> Config {
    let mut config = Config::new();
    config
        .wasm_bulk_memory(true)
        .wasm_multi_value(true)
        .wasm_simd(true)
        .wasm_reference_types(true)
        .wasm_extended_const(true)
        .wasm_relaxed_simd(false)
        // What is made between two components copies from one memory to another. No module of a guest has more than one:
        // the screen sees to that.
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

fn lock(ticker: &Mutex<Ticker>) -> MutexGuard<'_, Ticker> {
    ticker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when no guest runs any more.
fn tick(engine: &Engine, shared: &Mutex<Ticker>) {
    loop {
        std::thread::sleep(TICK);
        engine.increment_epoch();
        let mut ticker = lock(shared);
        if ticker.guests == 0 {
            ticker.runs = false;
            return;
        }
    }
}

/// A guest that is looked at.
#[derive(Debug)]
pub(crate) struct Ticking(Arc<Mutex<Ticker>>);

impl Drop for Ticking {
    fn drop(&mut self) {
        lock(&self.0).guests -= 1;
    }
}

/// Compiled modules, the one used last at the end. Compared byte by byte, so that no module can pass for another.
#[derive(Default)]
struct Kept(VecDeque<(TenantId, Bytes, Arc<Program>)>);

impl Kept {
    fn find(&mut self, tenant: &TenantId, bytes: &Bytes) -> Option<Arc<Program>> {
        let place = self.0.iter().position(|(whose, kept, _)| whose == tenant && kept == bytes)?;
        let found = self.0.remove(place)?;
        let program = Arc::clone(&found.2);
        self.0.push_back(found);
        Some(program)
    }

    fn keep(&mut self, tenant: TenantId, bytes: Bytes, program: Arc<Program>, most: usize) {
        if bytes.len() > KEPT_BYTES || self.find(&tenant, &bytes).is_some() {
            return;
        }
        self.0.push_back((tenant, bytes, program));
        while self.0.len() > most || self.0.iter().map(|(_, bytes, _)| bytes.len()).sum::<usize>() > KEPT_BYTES {
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
            let permit = Arc::clone(&compilers).try_acquire_owned().expect("a free place");
            let place = Place(Arc::new(Mutex::new(Some(permit))));
            (place.clone(), Waiting { place, abandoned: Arc::clone(&abandoned), ended: false })
        };
        let (first, waiting) = begin();
        assert_eq!(compilers.available_permits(), 0);
        drop(waiting);
        assert_eq!((compilers.available_permits(), abandoned.available_permits()), (1, 0));
        let (second, waiting) = begin();
        drop(waiting);
        assert_eq!(compilers.available_permits(), 0, "one too many keeps its place");
        first.put(None);
        second.put(None);
        assert_eq!((compilers.available_permits(), abandoned.available_permits()), (1, 1));
        let (ended, waiting) = begin();
        ended.put(None);
        drop(waiting);
        assert_eq!((compilers.available_permits(), abandoned.available_permits()), (1, 1));
    }
}
