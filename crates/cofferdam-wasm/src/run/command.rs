//! Conversion of an exec request into a module with its arguments and environment.

use bytes::Bytes;
use cofferdam_contract::{Command, Error, ErrorKind, ExecRequest, Result, SandboxPath, Stdin, WORKSPACE_PATH};

use cofferdam_wasm_runtimes::Language;

use crate::analysis::{is_wasm, not_executable};
use crate::directories;
use crate::environment::base_environment;
use crate::fs::{Base, Contents, FsError, Ino, Kind, LastLink, ROOT};
use crate::program::Program;
use crate::state::Shared;
use crate::wasi::Preopen;

/// The interpreter name by which a script selects the engine itself.
pub(crate) const INTERPRETER: &str = "wasm";

/// The program of a request.
#[derive(Debug)]
pub(crate) enum ProgramSource {
    Module(Bytes),
    Script(Language, Bytes),
}

/// A program with its arguments and environment.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) source: ProgramSource,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(crate) working_dir: Ino,
    /// The working directory as a path.
    pub(crate) cwd: String,
}

/// The parts of a request that do not depend on the program.
#[derive(Debug)]
pub(crate) struct ExecContext {
    pub(crate) env: Vec<String>,
    pub(crate) working_dir: Ino,
    /// The working directory as a path.
    pub(crate) cwd: String,
}

/// Reads the parts of a request that do not depend on the program, and rejects unsupported features.
pub(crate) fn check(shared: &Shared, request: &ExecRequest) -> Result<ExecContext> {
    request.validate()?;
    if request.terminal().is_some() {
        return Err(Error::unsupported("start", "WebAssembly guests do not support terminals"));
    }
    if shared.policy.seed.is_some() && *request.stdin() == Stdin::Stream {
        let what = "a deterministic exec does not support streaming input: its arrival times are not reproducible";
        return Err(Error::unsupported("start", what).with_remedy("give the input as bytes"));
    }
    let working_dir = directory(shared, request.working_dir())?;
    Ok(ExecContext { env: environment(request), working_dir, cwd: request.working_dir().inside() })
}

/// Reads a request, and rejects unsupported features.
pub(crate) fn read(shared: &Shared, request: &ExecRequest) -> Result<Invocation> {
    let ExecContext { env, working_dir, cwd } = check(shared, request)?;
    let (source, args) = match request.command() {
        Command::Shell(_) => return Err(Error::unsupported("start", "a WebAssembly sandbox has no shell")),
        Command::Argv(argv) => named(shared, request.working_dir(), argv)?,
        Command::Script(script) => {
            let args = [script.name.clone()].into_iter().chain(script.args.iter().cloned()).collect();
            let source = match language(&script.interpreter)? {
                Some(language) => ProgramSource::Script(language, script.contents.clone()),
                None => ProgramSource::Module(script.contents.clone()),
            };
            (source, args)
        }
    };
    match &source {
        ProgramSource::Module(module) if !is_wasm(module) => {
            Err(not_executable("the file is not a WebAssembly module").with_context("program", shown(&args)))
        }
        _ => Ok(Invocation { source, args, env, working_dir, cwd }),
    }
}

/// Returns the language of an interpreter command with its options. `None` is the engine itself.
pub(crate) fn language(interpreter: &[String]) -> Result<Option<Language>> {
    let (program, options) = interpreter.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let name = program.rsplit('/').next().unwrap_or_default();
    let (language, ignored): (_, &[&str]) = match name {
        INTERPRETER if options.is_empty() => return Ok(None),
        // Output is always unbuffered, and there is no user directory.
        _ if name.starts_with("python") => (Language::Python, &["-u", "-B", "-I", "-s", "-S", "-E"]),
        "node" | "javascript" | "qjs" => (Language::JavaScript, &["--v8-pool-size=2"]),
        _ => {
            let what = format!("a WebAssembly sandbox has no interpreter '{}'", program.escape_debug());
            return Err(Error::unsupported("start", what)
                .with_remedy("use Python or JavaScript, or use level process for other languages"));
        }
    };
    match options.iter().find(|option| !ignored.contains(&option.as_str())) {
        None => Ok(Some(language)),
        Some(option) => {
            let what = format!("interpreters for WebAssembly do not support the option '{}'", option.escape_debug());
            Err(Error::unsupported("start", what).with_remedy("omit the option, or use level process"))
        }
    }
}

/// Checks that a module is a command. Every component that compiles is one.
pub(super) fn check_command(program: &Program) -> Result<()> {
    if program.is_command() {
        return Ok(());
    }
    Err(not_executable("the module is not a command: it exports no function _start without arguments"))
}

/// Resolves a command by name: a module in the sandbox, or an interpreter with a script.
fn named(shared: &Shared, working_dir: &SandboxPath, argv: &[String]) -> Result<(ProgramSource, Vec<String>)> {
    let name = argv.first().ok_or_else(|| Error::invalid("start", "the command is empty"))?;
    let no_module = match file(shared, working_dir, name) {
        Ok(module) => return Ok((ProgramSource::Module(module), argv.to_vec())),
        Err(error) => error,
    };
    if name == INTERPRETER || name.contains('/') {
        return Err(no_module);
    }
    let options = argv[1..].iter().take_while(|word| word.starts_with('-') && !inline(name, word) && *word != "-");
    let count = 1 + options.count();
    // The name without options determines whether this is an interpreter.
    let Ok(Some(_)) = language(&argv[..1]) else { return Err(no_module) };
    let Some(language) = language(&argv[..count])? else { return Err(no_module) };
    match &argv[count..] {
        [flag, code, args @ ..] if inline(name, flag) => {
            let shown = if language == Language::Python { "-c" } else { "[eval]" };
            let args = [shown.to_owned()].into_iter().chain(args.iter().cloned()).collect();
            Ok((ProgramSource::Script(language, code.clone().into_bytes().into()), args))
        }
        [script, ..] if script != "-" => {
            Ok((ProgramSource::Script(language, file(shared, working_dir, script)?), argv[count..].to_vec()))
        }
        _ => Err(Error::unsupported("start", "interpreters for WebAssembly do not read programs from standard input")
            .with_remedy("name a file in the workspace, or give the code as an argument")),
    }
}

/// Returns true if the next argument after this option is code.
fn inline(interpreter: &str, option: &str) -> bool {
    if interpreter.starts_with("python") { option == "-c" } else { option == "-e" || option == "--eval" }
}

fn shown(args: &[String]) -> String {
    args.first().map(|name| name.escape_debug().to_string()).unwrap_or_default()
}

fn environment(request: &ExecRequest) -> Vec<String> {
    let inside = request.working_dir().inside();
    request.env().apply(base_environment(&inside)).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Returns the inode of a directory in the workspace.
fn directory(shared: &Shared, path: &SandboxPath) -> Result<Ino> {
    if path.is_workspace() {
        return Ok(shared.workspace);
    }
    let tree = shared.tree("start")?;
    let base = Base { ino: shared.workspace, name: Some(WORKSPACE_PATH) };
    let found = tree.lookup(base, path.as_str(), LastLink::Follow).and_then(|ino| match tree.stat(ino)?.kind {
        Kind::Directory => Ok(ino),
        _ => Err(FsError::NotADirectory),
    });
    found.map_err(|error| error.into_error("start", path.as_str()))
}

/// Returns the preopened directories of a module.
pub(crate) fn preopens(shared: &Shared, invocation: &Invocation) -> Result<Vec<Preopen>> {
    let access = shared.spec.workspace().access();
    let Some(named) = directories::named(&shared.spec)? else {
        return Ok(shared.all_files().preopens(access, invocation.working_dir));
    };
    let open = |(name, path): &(String, SandboxPath)| {
        let ino = directory(shared, path)?;
        // Only links in the workspace itself may have absolute targets in the workspace.
        let absolute = (ino == shared.workspace).then(|| WORKSPACE_PATH.to_owned());
        Ok(Preopen { name: name.clone(), ino, absolute, access })
    };
    named.iter().map(open).collect()
}

/// Returns the bytes of a module in the sandbox.
fn file(shared: &Shared, working_dir: &SandboxPath, name: &str) -> Result<Bytes> {
    let absolute = if name.starts_with('/') { name.to_owned() } else { format!("{}/{name}", working_dir.inside()) };
    let top = Base { ino: ROOT, name: Some("") };
    let contents = shared.tree("start")?.file(top, absolute.trim_start_matches('/'));
    let contents: Contents = contents.map_err(|error| {
        let kind = match error {
            FsError::NotFound | FsError::NotADirectory | FsError::Escape => ErrorKind::NotFound,
            _ => ErrorKind::NotExecutable,
        };
        Error::new(kind, "start", format!("no module of this name in the sandbox: {error}"))
            .with_context("program", name.escape_debug().to_string())
            .with_remedy("put the module into the workspace and give its path")
    })?;
    let limit = shared.common.config.module_size;
    if contents.length() > limit.as_bytes() {
        return Err(not_executable(format!("the module is larger than {limit}")));
    }
    let mut bytes = vec![0; usize::try_from(contents.length()).unwrap_or_default()];
    contents.read(0, &mut bytes);
    Ok(bytes.into())
}
