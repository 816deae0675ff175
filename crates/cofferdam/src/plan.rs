//! Conversion of arguments and settings into a spec and a request. Reads FILE or standard input; starts nothing.

mod mounts;
mod own;

use std::env::VarError;
use std::io::{IsTerminal, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cofferdam::registry::{self, MODULE_BACKEND};
use cofferdam::{
    Access, ByteSize, Command, Error, ErrorKind, ExecRequest, Result, RootFs, Script, Spec, Stdin, TerminalSize,
    WORKSPACE_PATH, Workspace,
};
use cofferdam_contract::DirectoryId;
use cofferdam_linux::named::{Directory, UntrustedLink};

use crate::args::RunArgs;
use crate::images;
use crate::settings::{Settings, names_module};
use cofferdam::code::{CodeRequest, Contents, MODULE, Secret, Secrets};

/// Maximum size of FILE, as the contract bounds a script.
const MAX_FILE: ByteSize = ByteSize::from_mebibytes(16);
/// The name of standard input in place of FILE.
pub const STANDARD_INPUT: &str = "-";
/// The language if neither an option nor a file's extension names one.
const DEFAULT_LANGUAGE: &str = "python";
/// Maximum output that is buffered for a terminal or pipe that is slower than the code. Output beyond it can be lost.
const MAX_BUFFER: ByteSize = ByteSize::from_mebibytes(256);

/// A sandbox to create and an exec to run in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The sandbox to create.
    pub spec: Spec,
    /// The exec to run.
    pub request: ExecRequest,
    /// The same exec as code, if it is code in a language.
    pub code: Option<Code>,
    /// The variables of the request that are secrets.
    pub secrets: Secrets,
}

/// Code in a language.
#[derive(Debug, Clone, PartialEq)]
pub struct Code {
    /// The code and its settings.
    pub request: CodeRequest,
    /// True if the code runs from its own path in the workspace, with its own name and neighbouring files.
    pub in_place: bool,
}

impl Plan {
    /// Returns the spec of a sandbox for a command that runs no words of the command line in it.
    pub fn sandbox_spec(args: &RunArgs, settings: &Settings) -> Result<Spec> {
        let workspace = args.sandbox.workspace.as_deref().map(workspace).transpose()?;
        spec(args, settings, workspace)
    }

    /// Plans a run. `terminal` is the size of the host terminal if the code gets a terminal.
    pub fn new(args: &RunArgs, settings: &Settings, terminal: Option<TerminalSize>) -> Result<Self> {
        let workspace = args.sandbox.workspace.as_deref().map(workspace).transpose()?;
        let (command, code) = command(args, settings, workspace.as_ref())?;
        if code.is_none() && args.file_contents {
            return Err(Error::invalid("run", "--file-contents needs code in a language, but a command is given")
                .with_remedy("leave it out, or pass a FILE in a language, or --lang and --code"));
        }
        let secrets = secrets(args)?;
        let code = code.map(|code| with_surroundings(code, args, &secrets));
        let request = request(args, settings, command, &secrets, terminal)?;
        Ok(Self { spec: spec(args, settings, workspace)?, request, code, secrets })
    }
}

/// Returns the spec of every sandbox of a server.
#[cfg(feature = "mcp")]
pub fn sandbox(args: &RunArgs, settings: &Settings) -> Result<Spec> {
    let named = args.sandbox.workspace.as_deref();
    if named.is_some_and(|named| ![":ro", ":rw", ":cow"].iter().any(|mode| named.ends_with(mode))) {
        let message = "the workspace of a server needs a mode, since its clients decide on changes without you";
        return Err(Error::invalid("mcp", message).with_remedy(
            "write DIR:cow to keep changes for `cofferdam changes`, DIR:rw if clients may change the directory, or DIR:ro",
        ));
    }
    spec(args, settings, named.map(workspace).transpose()?)
}

/// A workspace as named on the command line, and its open directory.
struct HostWorkspace {
    named: PathBuf,
    opened: Directory,
    mode: WorkspaceMode,
}

/// The access to a workspace of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkspaceMode {
    ReadOnly,
    ReadWrite,
    CopyOnWrite,
}

fn workspace(text: &str) -> Result<HostWorkspace> {
    let (named, mode) = match text.rsplit_once(':') {
        Some((named, "ro")) => (named, WorkspaceMode::ReadOnly),
        Some((named, "rw")) => (named, WorkspaceMode::ReadWrite),
        Some((named, "cow")) => (named, WorkspaceMode::CopyOnWrite),
        _ => (text, WorkspaceMode::CopyOnWrite),
    };
    let access = match mode {
        WorkspaceMode::ReadWrite => Access::ReadWrite,
        WorkspaceMode::ReadOnly | WorkspaceMode::CopyOnWrite => Access::ReadOnly,
    };
    Ok(HostWorkspace { named: named.into(), opened: directory("--workspace", Path::new(named), access)?, mode })
}

/// Opens a directory that an option names, for this access to the host's files. Later changes of the path do not change
/// the opened directory.
fn directory(option: &str, named: &Path, access: Access) -> Result<Directory> {
    let shown = named.display().to_string();
    let bad = |why: String| {
        Error::invalid("run", format!("{option} '{shown}' {why}")).with_remedy("use a directory that exists")
    };
    let opened = Directory::open(named).map_err(|error| match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, "run", format!("{option} '{shown}' cannot be used: {link}"))
            .with_remedy(UntrustedLink::REMEDY),
        None if error.kind() == std::io::ErrorKind::NotADirectory => bad("is not a directory".to_owned()),
        None => bad(format!("cannot be used: {}", reason(&error))),
    })?;
    own::check(option, &shown, opened.path(), access)?;
    Ok(opened)
}

/// Returns the path and the identity of a directory for a sandbox of this user's server.
#[cfg(feature = "server")]
pub fn served_workspace(text: &str) -> Result<(PathBuf, DirectoryId)> {
    let HostWorkspace { opened, mode, .. } = workspace(text)?;
    match mode {
        WorkspaceMode::CopyOnWrite => Ok(recorded(opened)),
        WorkspaceMode::ReadOnly | WorkspaceMode::ReadWrite => {
            Err(Error::unsupported("create", "a server shows directories copy-on-write only")
                .with_remedy("leave out the mode: `cofferdam diff` shows and applies the changes"))
        }
    }
}

/// Returns the path of an open directory, and its identity for a spec.
///
/// The directory stays open until this process exits, so that no other directory gets its inode number.
fn recorded(opened: Directory) -> (PathBuf, DirectoryId) {
    let (device, inode) = opened.identity();
    let path = opened.path().to_owned();
    std::mem::forget(OwnedFd::from(opened));
    (path, DirectoryId { device, inode })
}

fn spec(args: &RunArgs, settings: &Settings, workspace: Option<HostWorkspace>) -> Result<Spec> {
    let mut builder = Spec::builder().limits(settings.limits.clone()).tenant(settings.tenant.clone());
    if let Some(HostWorkspace { opened, mode, .. }) = workspace {
        let (path, id) = recorded(opened);
        builder = builder.directory(&path, id).workspace(match mode {
            WorkspaceMode::ReadOnly => Workspace::HostDir { path, access: Access::ReadOnly },
            WorkspaceMode::ReadWrite => Workspace::HostDir { path, access: Access::ReadWrite },
            WorkspaceMode::CopyOnWrite => Workspace::CopyOnWrite { path },
        });
    }
    if let Some(root) = &args.sandbox.root {
        let (path, id) = recorded(directory("--root", root, Access::ReadOnly)?);
        builder = builder.directory(&path, id).root(RootFs::Directory { path });
    }
    if let Some(reference) = &args.sandbox.image {
        builder = builder.root(RootFs::Image { reference: reference.clone() });
    }
    builder = mounts::add(builder, &args.sandbox.mounts)?;
    builder = builder.network(settings.network.clone());
    for (key, value) in &args.sandbox.label {
        builder = builder.label(key, value);
    }
    for (name, value) in registry::attributes(settings.backend.name, &settings.setup)? {
        builder = builder.attribute(name, value);
    }
    for protection in &settings.allow_weaker {
        builder = builder.allow_weaker(*protection);
    }
    builder.build()
}

fn request(
    args: &RunArgs,
    settings: &Settings,
    command: Command,
    secrets: &Secrets,
    terminal: Option<TerminalSize>,
) -> Result<ExecRequest> {
    let mut builder = ExecRequest::builder(command)
        .max_output(settings.max_output)
        .output_buffer(settings.max_output.min(MAX_BUFFER))
        .working_dir(args.start.working_dir.clone().unwrap_or_default());
    if let Some(size) = terminal {
        // Programs need a terminal type, which is not inherited either.
        builder = builder.terminal(size).env("TERM", "xterm");
    }
    if args.output.stdin || terminal.is_some() {
        builder = builder.stdin(Stdin::Stream);
    }
    for (key, value) in &args.start.env {
        builder = builder.env(key, value);
    }
    for (key, secret) in secrets {
        builder = builder.env(key, secret.reveal());
    }
    builder.build()
}

/// Returns the variables that are passed as secrets. Errors name the variables, never their values.
fn secrets(args: &RunArgs) -> Result<Secrets> {
    let bad = |name: &str, why: &str, remedy: &str| {
        Error::invalid("run", format!("the secret '{name}' {why}")).with_remedy(remedy.to_owned())
    };
    let one = |name: &String| {
        if args.start.env.iter().any(|(key, _)| key == name) {
            return Err(bad(name, "is also given with --env", "leave out one of them"));
        }
        match std::env::var(name) {
            Ok(value) => Ok((name.clone(), Secret::new(value))),
            Err(VarError::NotPresent) => {
                Err(bad(name, "is not in the environment", "export the variable, or leave out --secret"))
            }
            Err(VarError::NotUnicode(_)) => Err(bad(name, "is not UTF-8", "encode it, for example as base64")),
        }
    };
    args.start.secret.iter().map(one).collect()
}

/// Adds the environment, secrets and directory of the run to code.
fn with_surroundings(mut code: Code, args: &RunArgs, secrets: &Secrets) -> Code {
    code.request.contents = if args.file_contents { Contents::Carry } else { Contents::Leave };
    code.request.secrets = secrets.clone();
    code.request.env = args.start.env.iter().cloned().collect();
    code.request.working_dir = args.start.working_dir.clone().unwrap_or_default();
    code
}

/// The command to run, and the code if it is code in a language.
type Requested = (Command, Option<Code>);

fn command(args: &RunArgs, settings: &Settings, workspace: Option<&HostWorkspace>) -> Result<Requested> {
    let lang = args.lang.as_deref().unwrap_or(DEFAULT_LANGUAGE);
    if args.sandbox.entrypoint {
        if !args.words.is_empty() && !args.separated || args.code.is_some() || args.lang.is_some() {
            return Err(Error::invalid("run", "--entrypoint takes arguments after --, and no code or file")
                .with_remedy("write cofferdam run --image NAME --entrypoint -- ARGS"));
        }
        return Ok((Command::Argv(images::entrypoint(args.sandbox.image.as_deref(), &args.words, settings)?), None));
    }
    if let Some(code) = &args.code {
        return code_command(code.clone().into_bytes(), lang, &args.words, settings);
    }
    let Some((first, rest)) = args.words.split_first() else {
        // A language alone selects piped code. A terminal is read only on explicit request.
        if args.lang.is_some() && !std::io::stdin().is_terminal() {
            return code_command(read_standard_input(args)?, lang, &[], settings);
        }
        return Err(Error::invalid("run", "there is nothing to run").with_remedy(
            "pass a FILE, --code, '-' for code on standard input, or a command after --; see cofferdam run --help",
        ));
    };
    if first == STANDARD_INPUT && !args.separated {
        return code_command(read_standard_input(args)?, lang, rest, settings);
    }
    let for_modules = settings.backend.name == MODULE_BACKEND;
    if names_module(args) && !for_modules {
        let message = format!("the backend '{}' does not run WebAssembly modules", settings.backend.name);
        return Err(Error::unsupported("run", message)
            .with_remedy(format!("use --backend {MODULE_BACKEND} if isolation level wasm is sufficient")));
    }
    // Sandboxes of the module backend contain no modules, so a command names a module of the host.
    if !args.separated || (for_modules && first.to_ascii_lowercase().ends_with(".wasm")) {
        return file_command(Path::new(first), rest, args.lang.as_deref(), settings, workspace);
    }
    if args.lang.is_some() {
        return Err(Error::invalid("run", "--lang cannot be used with a command after --")
            .with_remedy("leave out --lang, or pass code with --code"));
    }
    Ok((Command::Argv(args.words.clone()), None))
}

fn code_command(code: Vec<u8>, lang: &str, args: &[String], settings: &Settings) -> Result<Requested> {
    let language = settings.code.languages.by_name(lang)?;
    let as_code = match lang == MODULE {
        true => None,
        false => text(&code, settings)?.map(|text| new_code(lang, text, None, args, InPlace::No)),
    };
    let script = Script {
        interpreter: language.command(),
        name: language.file_name(),
        contents: code.into(),
        args: args.to_vec(),
    };
    Ok((Command::Script(script), as_code))
}

/// Reads code from standard input until its end.
fn read_standard_input(args: &RunArgs) -> Result<Vec<u8>> {
    if args.output.stdin || args.output.tty {
        return Err(Error::invalid("run", "standard input contains the code, so the code cannot read it as input")
            .with_remedy("leave out --stdin and --tty, or pass a FILE"));
    }
    read_code(std::io::stdin().lock(), "standard input")
        .map_err(|error| Error::new(ErrorKind::Io, "run", "cannot read standard input").with_source(error))?
}

/// Reads code up to the maximum size. The inner error reports larger code.
fn read_code(from: impl Read, shown: &str) -> std::io::Result<Result<Vec<u8>>> {
    let mut contents = Vec::new();
    from.take(MAX_FILE.as_bytes() + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MAX_FILE.as_bytes() {
        return Ok(Err(Error::invalid("run", format!("{shown} is larger than the {MAX_FILE} limit of a program"))
            .with_remedy("put large data into a directory and mount it with --workspace")));
    }
    Ok(Ok(contents))
}

/// The location of code: its own path in the workspace, or a private file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InPlace {
    Yes,
    No,
}

fn new_code(language: &str, code: String, name: Option<String>, args: &[String], in_place: InPlace) -> Code {
    let mut request = CodeRequest::new(language, code);
    (request.args, request.file_name) = (args.to_vec(), name);
    Code { request, in_place: in_place == InPlace::Yes }
}

/// Returns code as text, for screening and full results. Returns `None` if it is not UTF-8 and need not be.
fn text(contents: &[u8], settings: &Settings) -> Result<Option<String>> {
    match std::str::from_utf8(contents) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) if settings.watched => {
            Err(Error::invalid("run", "the code is not UTF-8, so it cannot be screened, logged or bounded as code")
                .with_remedy("encode it as UTF-8"))
        }
        Err(_) => Ok(None),
    }
}

fn file_command(
    file: &Path,
    args: &[String],
    lang: Option<&str>,
    settings: &Settings,
    workspace: Option<&HostWorkspace>,
) -> Result<Requested> {
    let (file, canonical) = find_file(file, workspace)?;
    let file = &*file;
    let inside = workspace.map(|workspace| path_inside(file, &canonical, workspace)).transpose()?.flatten();
    // An unreadable file is reported before an unknown extension.
    let contents = read_file(file, &canonical)?;
    let languages = &settings.code.languages;
    let (name, language) = match lang {
        Some(name) => (name, languages.by_name(name)?),
        None => languages.by_extension(file)?,
    };
    let interpreter = language.command();
    let in_place = if inside.is_some() { InPlace::Yes } else { InPlace::No };
    let own_name = file.file_name().and_then(|name| name.to_str()).unwrap_or("main").to_owned();
    let code = match name == MODULE {
        true => None,
        false => text(&contents, settings)?.map(|text| new_code(name, text, Some(own_name.clone()), args, in_place)),
    };
    if let Some(path) = inside {
        return Ok((Command::Argv(interpreter.into_iter().chain([path]).chain(args.iter().cloned()).collect()), code));
    }
    let name = own_name;
    Ok((Command::Script(Script { interpreter, name, contents: contents.into(), args: args.to_vec() }), code))
}

/// Finds FILE in the current directory, or a relative path that is not there in the workspace. Returns its named and
/// its canonical path.
fn find_file(file: &Path, workspace: Option<&HostWorkspace>) -> Result<(PathBuf, PathBuf)> {
    let error = match file.canonicalize() {
        Ok(canonical) => return Ok((file.to_owned(), canonical)),
        Err(error) => error,
    };
    let inside = workspace.filter(|_| file.is_relative() && error.kind() == std::io::ErrorKind::NotFound);
    let Some(workspace) = inside else { return Err(file_error(file, &error)) };
    let inside = workspace.opened.path().join(file);
    match inside.canonicalize() {
        Ok(canonical) => Ok((inside, canonical)),
        Err(_) => Err(file_error(file, &error).with_context("also looked in", workspace.named.display().to_string())),
    }
}

/// Returns the sandbox path of a file in the workspace, or `None` for a file elsewhere.
///
/// Refuses a path in the workspace that leaves it through a symlink: the workspace may be an untrusted repository, and
/// its links must not select which host files are read.
fn path_inside(file: &Path, canonical: &Path, workspace: &HostWorkspace) -> Result<Option<String>> {
    if let Ok(relative) = canonical.strip_prefix(workspace.opened.path()) {
        let text = relative.to_str().ok_or_else(|| {
            Error::invalid("run", "the file's path inside the workspace is not UTF-8").with_remedy("rename it")
        })?;
        return Ok(Some(format!("{WORKSPACE_PATH}/{text}")));
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let named = absolute(file);
    if named.starts_with(absolute(&workspace.named)) || named.starts_with(workspace.opened.path()) {
        return Err(Error::new(ErrorKind::PathEscape, "run", "the file is a symlink that leads out of the workspace")
            .with_context("file", file.display().to_string())
            .with_remedy("pass the path of its target, if you trust it"));
    }
    Ok(None)
}

fn read_file(named: &Path, canonical: &Path) -> Result<Vec<u8>> {
    // Opens without blocking, so that a FIFO is refused below instead of blocking here.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(canonical);
    let file = file.map_err(|error| file_error(named, &error))?;
    let metadata = file.metadata().map_err(|error| file_error(named, &error))?;
    let shown = named.display();
    if metadata.is_dir() {
        return Err(Error::invalid("run", format!("'{shown}' is a directory, not a program"))
            .with_remedy("pass a file; --workspace DIR mounts a directory for the code"));
    }
    if !metadata.is_file() {
        return Err(Error::invalid("run", format!("'{shown}' is not a regular file"))
            .with_remedy("pass a regular file, or pass the code with --lang and --code"));
    }
    // A sandbox that mounts the directory may have replaced the file between the lookup and the open.
    let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if opened.map_err(|error| file_error(named, &error))? != canonical {
        return Err(Error::new(ErrorKind::Conflict, "run", format!("'{shown}' was replaced while it was opened"))
            .with_remedy("retry when no other process changes the directory"));
    }
    read_code(file, &format!("'{shown}'")).map_err(|error| file_error(named, &error))?
}

/// Returns the error of reading FILE. A missing FILE gives exit status 127, like `sh missing.sh`.
fn file_error(file: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::NotExecutable,
        _ => ErrorKind::Io,
    };
    let found = Error::new(kind, "run", format!("cannot read '{}': {}", file.display(), reason(error)));
    if kind == ErrorKind::NotFound {
        return found.with_remedy("check the path; to run a command, put it after --: cofferdam run -- COMMAND");
    }
    found
}

/// Returns the system's message without the number that Rust appends.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests;
