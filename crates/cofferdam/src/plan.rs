//! From words and settings to what the contract needs: a spec and a request. Reads FILE or standard input; starts nothing.

use std::env::VarError;
use std::io::{IsTerminal, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cofferdam::registry::MODULE_BACKEND;
use cofferdam::{
    Access, ByteSize, Command, Error, ErrorKind, ExecRequest, Result, RootFs, Script, Spec, Stdin, TerminalSize,
    WORKSPACE_PATH, Workspace,
};
use cofferdam_contract::DirectoryId;
use cofferdam_linux::named::{Directory, UntrustedLink};

use crate::args::RunArgs;
use crate::resident;
use crate::settings::{Settings, names_module};
use cofferdam::code::{CodeRequest, Contents, MODULE, Secret, Secrets};

/// The largest FILE that is read, as the contract bounds a script.
const MAX_FILE: ByteSize = ByteSize::from_mebibytes(16);
/// What stands in place of FILE for code that comes on standard input.
pub const STANDARD_INPUT: &str = "-";
/// The language of code that neither an option nor a file's extension names.
const DEFAULT_LANGUAGE: &str = "python";
/// The most output kept for a terminal or pipe that is slower than the code; beyond it output can be lost.
const MAX_BUFFER: ByteSize = ByteSize::from_mebibytes(256);

/// What to make and what to run in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What to make.
    pub spec: Spec,
    /// What to run.
    pub request: ExecRequest,
    /// The same as code in a language, where it is that.
    pub code: Option<Code>,
    /// Which of the request's variables are secrets.
    pub secrets: Secrets,
}

/// Code in a language.
#[derive(Debug, Clone, PartialEq)]
pub struct Code {
    /// The code, and how it runs.
    pub request: CodeRequest,
    /// Whether it runs from its place in the workspace, where its own name and neighbours are.
    pub in_place: bool,
}

impl Plan {
    /// What to make, for who runs no words of the command line in it.
    pub fn place(args: &RunArgs, settings: &Settings) -> Result<Spec> {
        let workspace = args.place.workspace.as_deref().map(workspace).transpose()?;
        spec(args, settings, workspace)
    }

    /// Plans a run; `terminal` is the size of our terminal when the code gets one of its own.
    pub fn new(args: &RunArgs, settings: &Settings, terminal: Option<TerminalSize>) -> Result<Self> {
        let workspace = args.place.workspace.as_deref().map(workspace).transpose()?;
        let (command, code) = command(args, settings, workspace.as_ref())?;
        if code.is_none() && args.file_contents {
            return Err(Error::invalid("run", "--file-contents is for code in a language, and this is none")
                .with_remedy("leave it out, or name a FILE in a language or give --lang and --code"));
        }
        let secrets = secrets(args)?;
        let code = code.map(|code| with_surroundings(code, args, &secrets));
        let request = request(args, settings, command, &secrets, terminal)?;
        Ok(Self { spec: spec(args, settings, workspace)?, request, code, secrets })
    }
}

/// What every sandbox of a server is made from.
#[cfg(feature = "mcp")]
pub fn sandbox(args: &RunArgs, settings: &Settings) -> Result<Spec> {
    spec(args, settings, args.place.workspace.as_deref().map(workspace).transpose()?)
}

/// A workspace as named on the command line, and where it is.
struct HostWorkspace {
    named: PathBuf,
    opened: Directory,
    access: Access,
}

fn workspace(text: &str) -> Result<HostWorkspace> {
    let (named, access) = match (text.strip_suffix(":ro"), text.strip_suffix(":rw")) {
        (Some(named), _) => (named, Access::ReadOnly),
        (_, Some(named)) => (named, Access::ReadWrite),
        _ => (text, Access::ReadWrite),
    };
    Ok(HostWorkspace { named: named.into(), opened: directory("--workspace", Path::new(named))?, access })
}

/// Opens a directory that an option names: whatever its name leads to later, this one is meant.
fn directory(option: &str, named: &Path) -> Result<Directory> {
    let shown = named.display().to_string();
    let bad = |why: String| {
        Error::invalid("run", format!("{option} '{shown}' {why}")).with_remedy("name a directory that exists")
    };
    let opened = Directory::open(named).map_err(|error| match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, "run", format!("{option} '{shown}' cannot be used: {link}"))
            .with_remedy(UntrustedLink::REMEDY),
        None if error.kind() == std::io::ErrorKind::NotADirectory => bad("is not a directory".to_owned()),
        None => bad(format!("cannot be used: {}", reason(&error))),
    })?;
    let daemon = resident::candidates().directory();
    if shows(opened.path(), &daemon.canonicalize().unwrap_or(daemon), option == "--root") {
        return Err(Error::new(
            ErrorKind::Denied,
            "run",
            format!("{option} '{shown}' holds the directory of cofferdam's daemon"),
        )
        .with_remedy("name a directory below it that has nothing of the daemon's, or stop the daemon"));
    }
    Ok(opened)
}

/// Returns the path of an open directory, and what is recorded of it in a spec.
///
/// The directory stays open until this process ends: as long as it is, no other directory gets its number.
fn recorded(opened: Directory) -> (PathBuf, DirectoryId) {
    let (device, inode) = opened.identity();
    let path = opened.path().to_owned();
    std::mem::forget(OwnedFd::from(opened));
    (path, DirectoryId { device, inode })
}

/// Returns whether a sandbox that is shown `path` could reach the daemon's directory: it could then stand in for the daemon.
fn shows(path: &Path, daemon: &Path, as_root: bool) -> bool {
    // A sandbox has directories of its own in place of these.
    let covered = |below: &Path| as_root && ["run", "tmp"].iter().any(|own| below.starts_with(own));
    path.starts_with(daemon) || (daemon.is_dir() && daemon.strip_prefix(path).is_ok_and(|below| !covered(below)))
}

fn spec(args: &RunArgs, settings: &Settings, workspace: Option<HostWorkspace>) -> Result<Spec> {
    let mut builder = Spec::builder().limits(settings.limits.clone()).tenant(settings.tenant.clone());
    if let Some(HostWorkspace { opened, access, .. }) = workspace {
        let (path, id) = recorded(opened);
        builder = builder.directory(&path, id).workspace(Workspace::HostDir { path, access });
    }
    if let Some(root) = &args.place.root {
        let (path, id) = recorded(directory("--root", root)?);
        builder = builder.directory(&path, id).root(RootFs::Directory { path });
    }
    if let Some(reference) = &args.place.image {
        builder = builder.root(RootFs::Image { reference: reference.clone() });
    }
    if let Some(network) = &args.place.net {
        builder = builder.network(network.clone());
    }
    for (key, value) in &args.place.label {
        builder = builder.label(key, value);
    }
    if let Some(seed) = &settings.wasm.seed {
        builder = builder.attribute("wasm.deterministic", seed.clone());
    }
    if let Some(fuel) = settings.wasm.fuel {
        builder = builder.attribute("wasm.fuel", fuel.get());
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
        // Programs need to be told a terminal type; like everything else it is not inherited.
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

/// The variables that are passed on as secrets. Errors name them, and never what they hold.
fn secrets(args: &RunArgs) -> Result<Secrets> {
    let bad = |name: &str, why: &str, remedy: &str| {
        Error::invalid("run", format!("the secret '{name}' {why}")).with_remedy(remedy.to_owned())
    };
    let one = |name: &String| {
        if args.start.env.iter().any(|(key, _)| key == name) {
            return Err(bad(name, "is given with --env, too", "leave one of them out"));
        }
        match std::env::var(name) {
            Ok(value) => Ok((name.clone(), Secret::new(value))),
            Err(VarError::NotPresent) => {
                Err(bad(name, "is not in the environment", "set and export that variable, or leave out --secret"))
            }
            Err(VarError::NotUnicode(_)) => Err(bad(name, "is not UTF-8", "encode it, for example as base64")),
        }
    };
    args.start.secret.iter().map(one).collect()
}

/// Code as it is asked for by itself, with the environment and the directory of the run.
fn with_surroundings(mut code: Code, args: &RunArgs, secrets: &Secrets) -> Code {
    code.request.contents = if args.file_contents { Contents::Carry } else { Contents::Leave };
    code.request.secrets = secrets.clone();
    code.request.env = args.start.env.iter().cloned().collect();
    code.request.working_dir = args.start.working_dir.clone().unwrap_or_default();
    code
}

/// What runs, and the code if it is in a language.
type Asked = (Command, Option<Code>);

fn command(args: &RunArgs, settings: &Settings, workspace: Option<&HostWorkspace>) -> Result<Asked> {
    let lang = args.lang.as_deref().unwrap_or(DEFAULT_LANGUAGE);
    if let Some(code) = &args.code {
        return code_command(code.clone().into_bytes(), lang, &args.words, settings);
    }
    let Some((first, rest)) = args.words.split_first() else {
        // A language alone is for code that is piped in. A terminal is not read without being asked for.
        if args.lang.is_some() && !std::io::stdin().is_terminal() {
            return code_command(read_standard_input(args)?, lang, &[], settings);
        }
        return Err(Error::invalid("run", "there is nothing to run").with_remedy(
            "name a FILE, give --code, pipe code in with '-', or put a command after --; see cofferdam run --help",
        ));
    };
    if first == STANDARD_INPUT && !args.separated {
        return code_command(read_standard_input(args)?, lang, rest, settings);
    }
    let for_modules = settings.backend.name == MODULE_BACKEND;
    if names_module(args) && !for_modules {
        let message = format!("the backend '{}' does not run WebAssembly modules", settings.backend.name);
        return Err(Error::unsupported("run", message)
            .with_remedy(format!("use --backend {MODULE_BACKEND}, if a wall of level wasm is thick enough")));
    }
    // A backend for modules has none of its own, so that a command names a module of ours.
    if !args.separated || (for_modules && first.to_ascii_lowercase().ends_with(".wasm")) {
        return file_command(Path::new(first), rest, args.lang.as_deref(), settings, workspace);
    }
    if args.lang.is_some() {
        return Err(Error::invalid("run", "--lang says how to run code, but what follows -- is a command")
            .with_remedy("leave out --lang, or give the code with --code"));
    }
    Ok((Command::Argv(args.words.clone()), None))
}

fn code_command(code: Vec<u8>, lang: &str, args: &[String], settings: &Settings) -> Result<Asked> {
    let language = settings.code.languages.by_name(lang)?;
    let asked = match lang == MODULE {
        true => None,
        false => text(&code, settings)?.map(|text| asked_code(lang, text, None, args, InPlace::No)),
    };
    let script = Script {
        interpreter: language.command(),
        name: language.file_name(),
        contents: code.into(),
        args: args.to_vec(),
    };
    Ok((Command::Script(script), asked))
}

/// Reads code from our standard input, to its end.
fn read_standard_input(args: &RunArgs) -> Result<Vec<u8>> {
    if args.output.stdin || args.output.tty {
        return Err(Error::invalid("run", "standard input holds the code, so the code cannot read it as well")
            .with_remedy("leave out --stdin and --tty, or name a FILE"));
    }
    read_code(std::io::stdin().lock(), "standard input")
        .map_err(|error| Error::new(ErrorKind::Io, "run", "cannot read standard input").with_source(error))?
}

/// Reads at most as much as a program may have; the inner error is that it is more.
fn read_code(from: impl Read, shown: &str) -> std::io::Result<Result<Vec<u8>>> {
    let mut contents = Vec::new();
    from.take(MAX_FILE.as_bytes() + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MAX_FILE.as_bytes() {
        return Ok(Err(Error::invalid(
            "run",
            format!("{shown} is larger than the {MAX_FILE} that a program may have"),
        )
        .with_remedy("put large data into a directory and pass that with --workspace")));
    }
    Ok(Ok(contents))
}

/// Whether code runs from its place in the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InPlace {
    Yes,
    No,
}

fn asked_code(language: &str, code: String, name: Option<String>, args: &[String], place: InPlace) -> Code {
    let mut request = CodeRequest::new(language, code);
    (request.args, request.file_name) = (args.to_vec(), name);
    Code { request, in_place: place == InPlace::Yes }
}

/// Code as text, for who wants it screened or its whole result; `None` for what is no text.
fn text(contents: &[u8], settings: &Settings) -> Result<Option<String>> {
    match std::str::from_utf8(contents) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) if settings.watched => {
            Err(Error::invalid("run", "the file is not UTF-8, so it cannot be screened, logged or bounded as code")
                .with_remedy("store it as UTF-8"))
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
) -> Result<Asked> {
    let (file, canonical) = find_file(file, workspace)?;
    let file = &*file;
    let inside = workspace.map(|workspace| place_inside(file, &canonical, workspace)).transpose()?.flatten();
    // The file must be one that can be read before its name is worth talking about.
    let contents = read_file(file, &canonical)?;
    let languages = &settings.code.languages;
    let (name, language) = match lang {
        Some(name) => (name, languages.by_name(name)?),
        None => languages.by_extension(file)?,
    };
    let interpreter = language.command();
    let place = if inside.is_some() { InPlace::Yes } else { InPlace::No };
    let own_name = file.file_name().and_then(|name| name.to_str()).unwrap_or("main").to_owned();
    let code = match name == MODULE {
        true => None,
        false => text(&contents, settings)?.map(|text| asked_code(name, text, Some(own_name.clone()), args, place)),
    };
    if let Some(path) = inside {
        return Ok((Command::Argv(interpreter.into_iter().chain([path]).chain(args.iter().cloned()).collect()), code));
    }
    let name = own_name;
    Ok((Command::Script(Script { interpreter, name, contents: contents.into(), args: args.to_vec() }), code))
}

/// Finds FILE: in the current directory, or where it is not there and its name is relative, in the workspace. Returns it as
/// named and as it is on the host.
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

/// Where a file that lies in the workspace appears inside; `None` for one that lies elsewhere.
///
/// A file that is named as part of the workspace but leads out of it through a symlink is refused: the workspace may
/// be an untrusted repository, and its links must not pick which of our files are read.
fn place_inside(file: &Path, canonical: &Path, workspace: &HostWorkspace) -> Result<Option<String>> {
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
            .with_remedy("name the file that it leads to, if you trust it"));
    }
    Ok(None)
}

fn read_file(named: &Path, canonical: &Path) -> Result<Vec<u8>> {
    // Not blocking, so that a fifo is refused below instead of waited for.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(canonical);
    let file = file.map_err(|error| file_error(named, &error))?;
    let metadata = file.metadata().map_err(|error| file_error(named, &error))?;
    let shown = named.display();
    if metadata.is_dir() {
        return Err(Error::invalid("run", format!("'{shown}' is a directory, not a program"))
            .with_remedy("name a file; --workspace DIR gives the code a directory to work in"));
    }
    if !metadata.is_file() {
        return Err(Error::invalid("run", format!("'{shown}' is not a plain file"))
            .with_remedy("name a plain file, or give the code with --lang and --code"));
    }
    // What was found before it was opened may have been exchanged since, by a sandbox that has the directory.
    let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if opened.map_err(|error| file_error(named, &error))? != canonical {
        return Err(Error::new(ErrorKind::Conflict, "run", format!("'{shown}' was replaced while it was opened"))
            .with_remedy("try again when nothing else changes the directory"));
    }
    read_code(file, &format!("'{shown}'")).map_err(|error| file_error(named, &error))?
}

/// A missing FILE answers 127 as `sh missing.sh` does.
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

/// What the system says, without the number that Rust adds.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests;
