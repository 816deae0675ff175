//! The compiler and its engine, and the ticker that interrupts running guests at regular intervals so that their limits
//! are checked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use wasmtime::{Config, Engine, Linker, Module, WasmBacktraceDetails};

use crate::analysis::{check_module, not_executable};
use crate::component::{self, is_component};
use crate::config::WasmConfig;
use crate::instrument::{Instrumented, Layout, instrument};
use crate::program::Program;
use crate::sys::{Image, Slots};
use crate::wasi::{Host, add_to};

/// The interval between two checks of a running guest.
const TICK_INTERVAL: Duration = Duration::from_millis(10);
/// Stack of a compiler thread. The validator bounds nesting, and the compiler recurses little.
const COMPILER_STACK: usize = 8 << 20;

/// A wasmtime engine with the host functions of its guests.
pub(crate) struct WasmEngine {
    pub(crate) inner: Engine,
    /// True if execution is metered by fuel.
    pub(crate) metered: bool,
    linker: Linker<Host>,
    ticker: Arc<Mutex<Ticker>>,
}

impl fmt::Debug for WasmEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WasmEngine").finish_non_exhaustive()
    }
}

impl WasmEngine {
    /// Creates an engine.
    ///
    /// # Errors
    ///
    /// `Unavailable` if this host cannot run WebAssembly.
    pub(crate) fn new(config: &WasmConfig, metered: bool) -> Result<Self> {
        Self::create(config, metered).map_err(unavailable)
    }

    fn create(config: &WasmConfig, metered: bool) -> wasmtime::Result<Self> {
        let inner = Engine::new(&settings(config, metered))?;
        let mut linker = Linker::new(&inner);
        add_to(&mut linker)?;
        Ok(Self { inner, metered, linker, ticker: Arc::default() })
    }

    /// Compiles a module or component. Blocks the thread.
    pub(crate) fn compile(&self, bytes: &[u8]) -> Result<Arc<Program>> {
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
