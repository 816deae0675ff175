//! Prepared interpreters: started once, frozen, and resumed from that state by each run.
//!
//! ```text
//! memory --missing--> cache on disk (hashed) --missing or damaged--> install --> compile, start, freeze --> cache
//! ```
//!
//! A run's request reaches the interpreter by a descriptor that only prepared runs have; see [`request`].

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Access, Error, ErrorKind, Result, Spec};
use cofferdam_util::sha256;
use cofferdam_wasm_runtimes::{Cache, Entry as InterpreterEntry, Interpreter, Language, Runtimes, Stack};
use serde::{Deserialize, Serialize};

use crate::account::Account;
use crate::engine::{WasmEngine, on_thread};
use crate::environment::plain_environment;
use crate::files::Files;
use crate::fs::{Base, Ino, OpenHow, ROOT, Tree};
use crate::guest::{self, Guest};
use crate::guest_control::{GuestControl, Input};
use crate::instrument::{EntryPoint, Instrumented, Layout, instrument};
use crate::limiter::Limiter;
use crate::output::Output;
use crate::policy::Policy;
use crate::program::{Entry, Frozen, Program, Value};
use crate::sys::{Image, Verified};
use crate::termination::Termination;
use crate::wasi::{Host, HostParts, Preopen, Run};

/// The version of the cache file format.
const FORMAT: u32 = 4;
const FILES: [&str; 2] = ["code", "state"];
/// The wall time limit of an interpreter's start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum length of a cache file's header.
const MAX_HEADER: u32 = 1 << 20;

/// An interpreter that was started and is ready for runs.
pub(crate) struct PreparedInterpreter {
    pub(crate) engine: Arc<WasmEngine>,
    pub(crate) program: Arc<Program>,
    pub(crate) initial: Frozen,
    pub(crate) entry: Entry,
    /// The nanoseconds that its monotonic clock has advanced.
    pub(crate) passed: u64,
    /// The recipe of its source, independent of the compiled code.
    pub(crate) source: String,
}

impl std::fmt::Debug for PreparedInterpreter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreparedInterpreter").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The header before the memory in a cache file.
#[derive(Serialize, Deserialize)]
struct State {
    /// The name of the cache entry. An entry under another name belongs to another program.
    key: String,
    layout: Layout,
    globals: Vec<Value>,
    tables: Vec<Vec<Option<u32>>>,
    argument: Option<i32>,
    passed: u64,
    size: u64,
    start: u64,
}

/// A step of [`WasmBackend::prepare`](crate::WasmBackend::prepare) or [`obtain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preparing {
    /// The interpreter is being obtained.
    Runtimes(cofferdam_wasm_runtimes::Step),
    /// The interpreter is being compiled for this host, which takes some seconds.
    Compile,
    /// The interpreter is being started once, and frozen.
    Freeze,
}

impl std::fmt::Display for Preparing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Runtimes(step) => step.fmt(f),
            Self::Compile => f.write_str("compiling the interpreter for this host"),
            Self::Freeze => f.write_str("starting the interpreter once"),
        }
    }
}

/// Installs an interpreter if it is not in the cache: fetches or builds it, and verifies it. Runs on its own thread,
/// which continues if the caller stops waiting.
///
/// # Errors
///
/// `Unavailable` with a remedy, if it cannot be installed.
pub async fn obtain(
    cache: &Path,
    language: Language,
    mut progress: impl FnMut(Preparing) + Send + 'static,
) -> Result<Interpreter> {
    let runtimes = Runtimes::new(cache);
    let work = move || runtimes.obtain(language, |step| progress(Preparing::Runtimes(step))).map_err(setup_error);
    on_thread(work).await
}

/// Returns the cache key of an interpreter for this version, these settings and this processor.
fn key(engine: &WasmEngine, language: Language) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    engine.inner.precompile_compatibility_hash().hash(&mut hasher);
    (FORMAT, engine.metered).hash(&mut hasher);
    format!("ready-{}-{:016x}", Runtimes::recipe(language), hasher.finish())
}

/// Returns a prepared interpreter from the cache, or prepares an installed one.
pub(crate) fn prepare(
    engine: &Arc<WasmEngine>,
    cache: &Path,
    language: Language,
    progress: &mut dyn FnMut(Preparing),
) -> Result<PreparedInterpreter> {
    let key = key(engine, language);
    let store = Cache::new(cache.to_owned());
    if let Some(prepared) = from_cache(engine, &store, &key, language)? {
        return Ok(prepared);
    }
    let found = Runtimes::new(cache).find(language).map_err(cache_error)?.ok_or_else(|| missing(language))?;
    store.prepare().map_err(cache_error)?;
    let _lock = store.lock(&key, || ()).map_err(cache_error)?;
    if let Some(prepared) = from_cache(engine, &store, &key, language)? {
        return Ok(prepared);
    }
    let started = compile_and_start(engine, &found, progress)?;
    save(&store, &key, &started)?;
    from_cache(engine, &store, &key, language)?
        .ok_or_else(|| broken(language, "the entry that was just written to the cache is missing"))
}

fn missing(language: Language) -> Error {
    let (name, word) = names(language);
    Error::new(ErrorKind::Unavailable, "start", format!("{name} for WebAssembly is not installed"))
        .with_remedy(format!("install it with 'cofferdam setup {word}'"))
}

pub(crate) fn names(language: Language) -> (&'static str, &'static str) {
    match language {
        Language::Python => ("Python", "python"),
        Language::JavaScript => ("JavaScript", "javascript"),
    }
}

fn setup_error(error: cofferdam_wasm_runtimes::RuntimesError) -> Error {
    Error::new(ErrorKind::Unavailable, "setup", error.to_string())
}

pub(crate) fn cache_error(error: cofferdam_wasm_runtimes::RuntimesError) -> Error {
    Error::new(ErrorKind::Unavailable, "start", error.to_string())
}

fn broken(language: Language, what: impl std::fmt::Display) -> Error {
    let message = format!("cannot start {} for WebAssembly: {what}", names(language).0);
    Error::new(ErrorKind::Unavailable, "start", message)
}

fn unreadable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "start", "cannot use the interpreter cache").with_source(error)
}

/// Loads an entry of the cache. An entry that is damaged, truncated or of another program counts as missing.
fn from_cache(
    engine: &Arc<WasmEngine>,
    cache: &Cache,
    key: &str,
    language: Language,
) -> Result<Option<PreparedInterpreter>> {
    let Some(files) = cache.open(key, &FILES).map_err(cache_error)? else { return Ok(None) };
    let [(_, code), (_, state)] =
        <[_; 2]>::try_from(files).map_err(|_| unreadable(std::io::ErrorKind::Other.into()))?;
    let Some((state, image)) = read_state(state)?.filter(|(state, _)| state.key == key) else { return Ok(None) };
    let code = Verified::new(code).ok_or_else(|| broken(language, "its code is not sealed"))?;
    let Ok(module) = crate::sys::load(&engine.inner, code) else { return Ok(None) };
    let initial = Frozen { image, globals: state.globals.into(), tables: state.tables.into() };
    let program = engine.program(&module, state.layout, Arc::clone(&initial.image))?;
    let (entry, passed) = (Entry::Prepared(state.argument), state.passed);
    let source = Runtimes::recipe(language);
    Ok(Some(PreparedInterpreter {
        engine: Arc::clone(engine),
        program: Arc::new(program),
        initial,
        entry,
        passed,
        source,
    }))
}

fn read_state(mut file: fs::File) -> Result<Option<(State, Arc<Image>)>> {
    let mut length = [0; 4];
    file.read_exact(&mut length).map_err(unreadable)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_HEADER {
        return Ok(None);
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(unreadable)?;
    let Ok(state) = postcard::from_bytes::<State>(&header) else { return Ok(None) };
    let mut contents = Vec::new();
    file.read_to_end(&mut contents).map_err(unreadable)?;
    let (size, start) = (usize::try_from(state.size).ok(), usize::try_from(state.start).ok());
    let (Some(size), Some(start)) = (size, start) else { return Ok(None) };
    let image = Image::new(size, [(start, &contents[..])].into_iter()).map_err(unreadable)?;
    Ok(Some((state, image)))
}

/// Reads a file that was hashed before, and verifies the bytes that are used.
fn pinned(found: &Interpreter, path: &Path, expected: &str) -> Result<Vec<u8>> {
    let contents = fs::read(path).map_err(unreadable)?;
    match sha256::of(&contents) == expected {
        true => Ok(contents),
        false => Err(broken(found.language, format!("{} was changed after it was verified", path.display()))),
    }
}

/// A newly started interpreter with its code.
struct Started {
    code: Vec<u8>,
    layout: Layout,
    frozen: Frozen,
    argument: Option<i32>,
    passed: u64,
}

fn compile_and_start(
    engine: &Arc<WasmEngine>,
    found: &Interpreter,
    progress: &mut dyn FnMut(Preparing),
) -> Result<Started> {
    progress(Preparing::Compile);
    let module = pinned(found, &found.module, &found.sha256)?;
    let entry = match &found.preparation.entry {
        InterpreterEntry::Function { index } => EntryPoint::Function(*index),
        InterpreterEntry::Export { name } => EntryPoint::Export(name),
    };
    let Instrumented { module, layout, image } = instrument(&module, Some(entry))?;
    let failed = |error: wasmtime::Error| broken(found.language, error);
    let module = wasmtime::Module::from_binary(&engine.inner, &module).map_err(failed)?;
    let code = module.serialize().map_err(failed)?;
    let program = Arc::new(engine.program(&module, layout.clone(), image)?);
    progress(Preparing::Freeze);
    let (frozen, argument, passed) = start(engine, &program, found)?;
    let argument = matches!(found.preparation.entry, InterpreterEntry::Function { .. }).then_some(argument);
    Ok(Started { code, layout, frozen, argument, passed })
}

/// Runs the interpreter until it is ready. Its standard output is the argument of its entry.
fn start(engine: &Arc<WasmEngine>, program: &Arc<Program>, found: &Interpreter) -> Result<(Frozen, i32, u64)> {
    // A deterministic interpreter needs the same initial state each time.
    let policy = Policy { seed: engine.metered.then_some(0), fuel: None };
    let host = first_host(found, policy)?;
    let ticking = engine.tick().map_err(unreadable)?;
    let mut guest = Guest::new(engine, program, host);
    let termination = guest.run(policy, program.initial(), &Entry::Command)?;
    drop(ticking);
    let host = guest.store.data_mut();
    let passed = host.clock.passed();
    let output = host.output.collect();
    if termination != Termination::Exit(0) {
        return Err(broken(found.language, String::from_utf8_lossy(&output.stderr).escape_debug()));
    }
    let argument = std::str::from_utf8(&output.stdout).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let argument = argument.ok_or_else(|| broken(found.language, "it did not print its entry argument"))?;
    let frozen = guest.freeze()?.ok_or_else(|| broken(found.language, "it was not instantiated"))?;
    let frozen = match found.preparation.stack {
        Some(stack) => with_stack(frozen, stack, found.language)?,
        None => frozen,
    };
    Ok((frozen, argument.cast_signed(), passed))
}

/// Returns the same state with a larger memory, whose last part is a new stack. The old stack is unused.
fn with_stack(frozen: Frozen, stack: Stack, language: Language) -> Result<Frozen> {
    let Frozen { image, globals, tables } = frozen;
    let mut globals = globals.to_vec();
    let size = image.size() + stack.bytes;
    let top = u32::try_from(size).map_err(|_| broken(language, "its memory has no room for a stack"))?;
    match globals.get_mut(stack.pointer) {
        Some(Value::I32(pointer)) => *pointer = top.cast_signed(),
        _ => return Err(broken(language, "it has no stack pointer")),
    }
    let image = Image::new(size, [image.contents()].into_iter()).map_err(unreadable)?;
    Ok(Frozen { image, globals: globals.into(), tables })
}

fn first_host(found: &Interpreter, policy: Policy) -> Result<Host> {
    let account = Arc::new(Account::new(None));
    let files = Files::new(&Spec::default(), policy, &account)?;
    let mut preopens = files.preopens(Access::ReadOnly, files.workspace);
    {
        let mut tree = files.tree.lock();
        for file in &found.files {
            let contents = pinned(found, &file.host, &file.sha256)?;
            put(&mut tree, &file.guest, &contents).map_err(|error| error.into_error("start", &file.guest))?;
        }
        if let Ok(ino) = tree.lookup(Base { ino: ROOT, name: None }, OWN, crate::fs::LastLink::Keep) {
            let name = format!("/{OWN}");
            preopens.push(Preopen { absolute: Some(name.clone()), name, ino, access: Access::ReadOnly });
        }
    }
    let environment = found.environment.iter().map(|(name, value)| format!("{name}={value}"));
    let parts = HostParts {
        args: found.preparation.args.clone(),
        env: plain_environment().into_iter().chain(environment).collect(),
        preopens,
        files: Arc::clone(&files.tree),
        clock: guest::clock(policy, 0),
        random: guest::random(policy),
        limiter: Limiter::new(account),
        run: Run {
            control: Arc::new(GuestControl::default()),
            input: Input::Given(Bytes::new()),
            output: Output::collected(1 << 16, Instant::now()),
            deadline: Instant::now() + START_TIMEOUT,
            cpu_limit: None,
            request: None,
        },
    };
    Host::new(parts).map(Host::for_preparation).map_err(|error| error.into_error("start", "/"))
}

/// The guest directory of the interpreters' support files.
const OWN: &str = "cofferdam";

/// Adds a file to the tree, with its parent directories.
fn put(tree: &mut Tree, path: &str, contents: &[u8]) -> crate::fs::FsResult<()> {
    let top = Base { ino: ROOT, name: None };
    let path = path.trim_start_matches('/');
    for (at, _) in path.match_indices('/') {
        match tree.make_directory(top, &path[..at], 0) {
            Ok(_) | Err(crate::fs::FsError::Exists) => {}
            Err(error) => return Err(error),
        }
    }
    let how = OpenHow { create: true, writes: true, ..OpenHow::default() };
    let ino: Ino = tree.open(top, path, crate::fs::LastLink::Keep, how, 0)?;
    tree.write(ino, 0, contents, 0).map(drop)
}

fn save(cache: &Cache, key: &str, started: &Started) -> Result<()> {
    let scratch = cache.scratch(key).map_err(cache_error)?;
    let directory = scratch.path().join("staged");
    fs::create_dir(&directory).map_err(unreadable)?;
    let (start, contents) = started.frozen.image.contents();
    let state = State {
        key: key.to_owned(),
        layout: started.layout.clone(),
        globals: started.frozen.globals.to_vec(),
        tables: started.frozen.tables.to_vec(),
        argument: started.argument,
        passed: started.passed,
        size: started.frozen.image.size() as u64,
        start: start as u64,
    };
    let header = postcard::to_stdvec(&state).map_err(|error| {
        Error::new(ErrorKind::Internal, "start", "cannot serialize the interpreter's state").with_source(error)
    })?;
    let mut bytes = (header.len() as u32).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend_from_slice(contents);
    fs::write(directory.join(FILES[0]), &started.code).map_err(unreadable)?;
    fs::write(directory.join(FILES[1]), bytes).map_err(unreadable)?;
    // An existing entry belongs to another program, or it would have been used.
    cache.remove(key).map_err(cache_error)?;
    cache.publish(&directory, key, &FILES).map_err(cache_error)
}

/// The mode in which a prepared interpreter runs a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As a program, until it exits.
    Script,
    /// As the next piece of a session.
    Session,
}

/// Encodes a request for a prepared interpreter: fields that end with NUL, then the source.
pub(crate) fn request(mode: Mode, cwd: &str, args: &[String], env: &[String], source: &[u8]) -> Bytes {
    let mode = match mode {
        Mode::Script => "script",
        Mode::Session => "session",
    };
    let mut bytes = Vec::with_capacity(256 + source.len());
    let mut field = |text: &str| {
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
    };
    field(mode);
    field(cwd);
    for list in [args, env] {
        field(&list.len().to_string());
        list.iter().for_each(|text| field(text));
    }
    bytes.extend_from_slice(source);
    bytes.into()
}
