//! Interpreters that are warm: started once, frozen, and begun from there by each run.
//!
//! ```text
//! memory --missing--> cache on disk (hashed) --missing or damaged--> supply --> compiled, started, frozen --> cache
//! ```
//!
//! What a run is to do reaches the interpreter by a descriptor that only warm runs have; see [`request`].

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Access, Error, ErrorKind, Result, Spec};
use cofferdam_wasm_supply::{Cache, Entry as WarmEntry, Interpreter, Language, Stack, Supply};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::account::Account;
use crate::ending::Ending;
use crate::engine::Machine;
use crate::fs::{Base, Ino, OpenHow, ROOT, Tree};
use crate::guest::{self, Guest};
use crate::instrument::{EntryPoint, Instrumented, Layout, instrument};
use crate::leash::{Input, Leash};
use crate::limiter::Limiter;
use crate::output::Output;
use crate::policy::Policy;
use crate::program::{Entry, Frozen, Program, Value};
use crate::state::Files;
use crate::sys::{Image, Verified};
use crate::wasi::{Host, HostParts, Preopen, Run};

/// Changes with what the files of the cache hold.
const FORMAT: u32 = 4;
const FILES: [&str; 2] = ["code", "state"];
/// Real time that an interpreter may take to start.
const START_TIME: Duration = Duration::from_secs(60);
/// The longest description in a file of the cache.
const MAX_HEADER: u32 = 1 << 20;

/// An interpreter that has started, and waits for what it is to run.
pub(crate) struct Warm {
    pub(crate) machine: Arc<Machine>,
    pub(crate) program: Arc<Program>,
    pub(crate) beginning: Frozen,
    pub(crate) entry: Entry,
    /// Nanoseconds that its monotonic clock has seen.
    pub(crate) passed: u64,
    /// Names what it was made from, wherever it was compiled.
    pub(crate) source: String,
}

impl std::fmt::Debug for Warm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Warm").field("source", &self.source).finish_non_exhaustive()
    }
}

/// What stands before the memory in a file of the cache.
#[derive(Serialize, Deserialize)]
struct State {
    /// The name of the entry: an entry under another name is another program's.
    key: String,
    layout: Layout,
    globals: Vec<Value>,
    tables: Vec<Vec<Option<u32>>>,
    argument: Option<i32>,
    passed: u64,
    size: u64,
    start: u64,
}

/// What [`WasmBackend::prepare`](crate::WasmBackend::prepare) and [`obtain`] are doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preparing {
    /// The interpreter is obtained.
    Supply(cofferdam_wasm_supply::Step),
    /// It is compiled for this machine, which takes some seconds.
    Compile,
    /// It is started once, and frozen.
    Freeze,
}

impl std::fmt::Display for Preparing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Supply(step) => step.fmt(f),
            Self::Compile => f.write_str("compiling it for this machine"),
            Self::Freeze => f.write_str("starting it once"),
        }
    }
}

/// Obtains an interpreter, if the cache does not have it: fetches or builds it, and checks it. On a thread of its own,
/// which goes on if nobody waits any more.
///
/// # Errors
///
/// `Unavailable` if it cannot be had, with what to do.
pub async fn obtain(
    cache: &Path,
    language: Language,
    mut progress: impl FnMut(Preparing) + Send + 'static,
) -> Result<Interpreter> {
    let supply = Supply::new(cache);
    let work = move || supply.obtain(language, |step| progress(Preparing::Supply(step))).map_err(no_setup);
    crate::engine::on_thread(work).await
}

/// Names an interpreter compiled by this version, for these settings and this processor.
fn key(machine: &Machine, language: Language) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    machine.engine.precompile_compatibility_hash().hash(&mut hasher);
    (FORMAT, machine.metered).hash(&mut hasher);
    format!("ready-{}-{:016x}", Supply::recipe(language), hasher.finish())
}

/// The interpreter from the cache, else made now from what the supply has.
pub(crate) fn warm(
    machine: &Arc<Machine>,
    cache: &Path,
    language: Language,
    progress: &mut dyn FnMut(Preparing),
) -> Result<Warm> {
    let key = key(machine, language);
    let kept = Cache::new(cache.to_owned());
    if let Some(warm) = from_cache(machine, &kept, &key, language)? {
        return Ok(warm);
    }
    let found = Supply::new(cache).find(language).map_err(no_supply)?.ok_or_else(|| missing(language))?;
    kept.prepare().map_err(no_supply)?;
    let _lock = kept.lock(&key, || ()).map_err(no_supply)?;
    if let Some(warm) = from_cache(machine, &kept, &key, language)? {
        return Ok(warm);
    }
    let made = make(machine, &found, progress)?;
    save(&kept, &key, &made)?;
    from_cache(machine, &kept, &key, language)?
        .ok_or_else(|| broken(language, "what was written to the cache is not there"))
}

fn missing(language: Language) -> Error {
    let (name, word) = names(language);
    Error::new(ErrorKind::Unavailable, "start", format!("{name} for WebAssembly is not installed"))
        .with_remedy(format!("install it once: cofferdam setup {word}"))
}

pub(crate) fn names(language: Language) -> (&'static str, &'static str) {
    match language {
        Language::Python => ("Python", "python"),
        Language::JavaScript => ("JavaScript", "javascript"),
    }
}

fn no_setup(error: cofferdam_wasm_supply::SupplyError) -> Error {
    Error::new(ErrorKind::Unavailable, "setup", error.to_string())
}

pub(crate) fn no_supply(error: cofferdam_wasm_supply::SupplyError) -> Error {
    Error::new(ErrorKind::Unavailable, "start", error.to_string())
}

fn broken(language: Language, what: impl std::fmt::Display) -> Error {
    let message = format!("{} for WebAssembly could not be started: {what}", names(language).0);
    Error::new(ErrorKind::Unavailable, "start", message)
}

fn unreadable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "start", "the cache of interpreters cannot be used").with_source(error)
}

/// What is damaged, cut off or of another program is as if it were not there.
fn from_cache(machine: &Arc<Machine>, cache: &Cache, key: &str, language: Language) -> Result<Option<Warm>> {
    let Some(files) = cache.open(key, &FILES).map_err(no_supply)? else { return Ok(None) };
    let [(_, code), (_, state)] =
        <[_; 2]>::try_from(files).map_err(|_| unreadable(std::io::ErrorKind::Other.into()))?;
    let Some((state, image)) = read_state(state)?.filter(|(state, _)| state.key == key) else { return Ok(None) };
    let code = Verified::new(code).ok_or_else(|| broken(language, "its code could still be changed"))?;
    let Ok(module) = crate::sys::load(&machine.engine, code) else { return Ok(None) };
    let beginning = Frozen { image, globals: state.globals.into(), tables: state.tables.into() };
    let program = machine.program(&module, state.layout, Arc::clone(&beginning.image))?;
    let (entry, passed) = (Entry::Warm(state.argument), state.passed);
    let source = Supply::recipe(language);
    Ok(Some(Warm { machine: Arc::clone(machine), program: Arc::new(program), beginning, entry, passed, source }))
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

/// Reads a file that was hashed before, and compares the bytes that are used.
fn pinned(found: &Interpreter, path: &Path, sha256: &str) -> Result<Vec<u8>> {
    let contents = fs::read(path).map_err(unreadable)?;
    let hash: String = Sha256::digest(&contents).iter().map(|byte| format!("{byte:02x}")).collect();
    match hash == sha256 {
        true => Ok(contents),
        false => Err(broken(found.language, format!("{} was changed after it had been checked", path.display()))),
    }
}

/// An interpreter that was started just now, and its code.
struct Made {
    code: Vec<u8>,
    layout: Layout,
    frozen: Frozen,
    argument: Option<i32>,
    passed: u64,
}

fn make(machine: &Arc<Machine>, found: &Interpreter, progress: &mut dyn FnMut(Preparing)) -> Result<Made> {
    progress(Preparing::Compile);
    let module = pinned(found, &found.module, &found.sha256)?;
    let entry = match &found.warm.entry {
        WarmEntry::Function { index } => EntryPoint::Function(*index),
        WarmEntry::Export { name } => EntryPoint::Export(name),
    };
    let Instrumented { module, layout, image } = instrument(&module, Some(entry))?;
    let failed = |error: wasmtime::Error| broken(found.language, error);
    let module = wasmtime::Module::from_binary(&machine.engine, &module).map_err(failed)?;
    let code = module.serialize().map_err(failed)?;
    let program = Arc::new(machine.program(&module, layout.clone(), image)?);
    progress(Preparing::Freeze);
    let (frozen, argument, passed) = start(machine, &program, found)?;
    let argument = matches!(found.warm.entry, WarmEntry::Function { .. }).then_some(argument);
    Ok(Made { code, layout, frozen, argument, passed })
}

/// Runs the interpreter up to where it waits; what it prints is the argument to enter it with.
fn start(machine: &Arc<Machine>, program: &Arc<Program>, found: &Interpreter) -> Result<(Frozen, i32, u64)> {
    // What is made to be the same each time begins the same each time.
    let policy = Policy { seed: machine.metered.then_some(0), fuel: None };
    let host = first_host(found, policy)?;
    let ticking = machine.tick().map_err(unreadable)?;
    let mut guest = Guest::new(machine, program, host);
    let ending = guest.run(policy, program.beginning(), &Entry::Command)?;
    drop(ticking);
    let host = guest.store.data_mut();
    let passed = host.clock.passed();
    let said = host.output.collect();
    if ending != Ending::Exit(0) {
        return Err(broken(found.language, String::from_utf8_lossy(&said.stderr).escape_debug()));
    }
    let argument = std::str::from_utf8(&said.stdout).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let argument = argument.ok_or_else(|| broken(found.language, "it did not say how it is entered"))?;
    let frozen = guest.freeze()?.ok_or_else(|| broken(found.language, "it did not begin"))?;
    let frozen = match found.warm.stack {
        Some(stack) => with_stack(frozen, stack, found.language)?,
        None => frozen,
    };
    Ok((frozen, argument.cast_signed(), passed))
}

/// The same with a larger memory, whose last part is the stack. Nothing of the old one is needed any more.
fn with_stack(frozen: Frozen, stack: Stack, language: Language) -> Result<Frozen> {
    let Frozen { image, globals, tables } = frozen;
    let mut globals = globals.to_vec();
    let size = image.size() + stack.bytes;
    let top = u32::try_from(size).map_err(|_| broken(language, "it has no room for a stack"))?;
    match globals.get_mut(stack.pointer) {
        Some(Value::I32(pointer)) => *pointer = top.cast_signed(),
        _ => return Err(broken(language, "it has no pointer to its stack")),
    }
    let image = Image::new(size, [image.contents()].into_iter()).map_err(unreadable)?;
    Ok(Frozen { image, globals: globals.into(), tables })
}

fn first_host(found: &Interpreter, policy: Policy) -> Result<Host> {
    let account = Arc::new(Account::new(None));
    let files = Files::new(&Spec::default(), policy, &account)?;
    let mut preopens = files.preopens(Access::ReadOnly, files.workspace);
    {
        let mut tree = crate::wasi::lock(&files.tree);
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
        args: found.warm.args.clone(),
        env: crate::command::plain_environment().into_iter().chain(environment).collect(),
        preopens,
        files: Arc::clone(&files.tree),
        clock: guest::clock(policy, 0),
        random: guest::random(policy),
        limiter: Limiter::new(account),
        run: Run {
            leash: Arc::new(Leash::default()),
            input: Input::Given(Bytes::new()),
            output: Output::kept(1 << 16, Instant::now()),
            deadline: Instant::now() + START_TIME,
            cpu_limit: None,
            request: None,
        },
    };
    Host::new(parts).map(Host::for_warming).map_err(|error| error.into_error("start", "/"))
}

/// The directory of the guest in which interpreters find files of ours.
const OWN: &str = "cofferdam";

/// Puts a file into the tree, with the directories above it.
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

fn save(cache: &Cache, key: &str, made: &Made) -> Result<()> {
    let scratch = cache.scratch(key).map_err(no_supply)?;
    let directory = scratch.path().join("made");
    fs::create_dir(&directory).map_err(unreadable)?;
    let (start, contents) = made.frozen.image.contents();
    let state = State {
        key: key.to_owned(),
        layout: made.layout.clone(),
        globals: made.frozen.globals.to_vec(),
        tables: made.frozen.tables.to_vec(),
        argument: made.argument,
        passed: made.passed,
        size: made.frozen.image.size() as u64,
        start: start as u64,
    };
    let header = postcard::to_stdvec(&state)
        .map_err(|error| Error::new(ErrorKind::Internal, "start", "the state cannot be written").with_source(error))?;
    let mut bytes = (header.len() as u32).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend_from_slice(contents);
    fs::write(directory.join(FILES[0]), &made.code).map_err(unreadable)?;
    fs::write(directory.join(FILES[1]), bytes).map_err(unreadable)?;
    // What is there is of another program, or it would have been used.
    cache.remove(key).map_err(no_supply)?;
    cache.publish(&directory, key, &FILES).map_err(no_supply)
}

/// How a warm interpreter is to run what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As a program, to its end.
    Script,
    /// As one more piece in what was run before.
    Session,
}

/// What a warm interpreter reads: fields that end in NUL, then the source.
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
