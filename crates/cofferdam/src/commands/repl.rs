//! `cofferdam repl`: an interactive interpreter in a sandbox.

mod line;

use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::code::{BackendProfile, CodeRequest, CodeResult, CodeSession, Executor, Sessions};
use cofferdam::registry;
use cofferdam::volumes::VolumeMount;
use cofferdam::{Chunk, Error, ErrorKind, OutputStream, Result, Sandbox, Spec};
use cofferdam_util::private;
use parking_lot::Mutex;
use reedline::{
    FileBackedHistory, Prompt, PromptEditMode, PromptHistorySearch, Reedline, Signal, ValidationResult, Validator,
};

use tokio::time::timeout;

use super::review::{self, Review};
use super::run::{no_signals, signal_status, warn_of};
use super::{block_on, volume};
use crate::args::{ReplArgs, ReviewArgs};
use crate::interrupts::Interrupts;
use crate::plan::Plan;
use crate::report::{self, Form};
use crate::settings::{Environment, Settings};
use crate::style::Tone;
use crate::terminal::TerminalFilter;

/// Maximum number of entries in the history.
const MAX_HISTORY: usize = 1000;
/// Timeout for interrupted code to stop.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum length of a line from an input that is not a terminal.
const MAX_LINE: u64 = 8 << 20;

/// Reads code, runs it and prints the results until the input ends.
pub fn main(args: ReplArgs, config: Option<PathBuf>) -> u8 {
    let (run, history, no_history) = args.into_run();
    let prepared = crate::config::load(config, |name| std::env::var_os(name)).and_then(|file| {
        let environment = Environment::read(|name| std::env::var_os(name))?;
        let settings = Settings::resolve(&run, &environment, &file)?;
        let spec = Plan::sandbox_spec(&run, &settings)?;
        review::check(&ReviewArgs::default(), &spec)?;
        Ok((spec, settings))
    });
    let language = run.lang.clone().unwrap_or_default();
    let history = if no_history { None } else { history.or_else(|| default_history(&language)) };
    let volumes = run.volumes.volume;
    let outcome = prepared.and_then(|(spec, settings)| block_on(repl(&language, spec, settings, volumes, history)));
    report::finish(outcome, Form::Text)
}

fn default_history(language: &str) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("cofferdam").join(format!("history-{language}")))
}

async fn repl(
    language: &str,
    spec: Spec,
    settings: Settings,
    volumes: Vec<VolumeMount>,
    history: Option<PathBuf>,
) -> Result<u8> {
    let backend = registry::backend_forked(settings.backend.name, None, &settings.setup, Arc::new(|_| {}))?;
    let backend = volume::around(backend, volumes, "cofferdam repl")?;
    let executor = Executor::new(settings.code.clone())?;
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let sandbox = tokio::select! {
        created = backend.create(spec) => executor.record_network(created?).await?,
        number = interrupts.next() => return Ok(signal_status(number)),
    };
    let repl = Repl {
        language,
        profile: BackendProfile::of(&*backend),
        sandbox: Arc::clone(&sandbox),
        sessions: Sessions::new(executor),
    };
    let outcome = repl.run(history.as_deref(), &mut interrupts).await;
    repl.sessions.shutdown().await;
    let options = Review { args: &ReviewArgs::default(), form: Form::Text, quiet: false };
    if let Err(error) = review::review(&*sandbox, options, 0).await {
        report::remark(&format!("the changes of the workspace are lost: {error}"), Tone::Bad);
    }
    sandbox.close().await?;
    outcome
}

/// The state of the interpreter after a piece of code.
enum State {
    /// Alive, with all definitions.
    Alive,
    /// Dead, with all definitions lost.
    Lost,
    /// Exited by the code, with this status.
    Exited(u8),
}

/// A read-eval-print loop and the sandbox that evaluates.
struct Repl<'a> {
    language: &'a str,
    profile: BackendProfile,
    sandbox: Arc<dyn Sandbox>,
    sessions: Sessions,
}

impl Repl<'_> {
    async fn run(&self, history: Option<&Path>, interrupts: &mut Interrupts) -> Result<u8> {
        let mut session = self.session().await?;
        let mut input = Input::new(history, self.language)?;
        if matches!(input, Input::Terminal(_)) {
            let backend = &self.profile.backend;
            report::remark(&format!("{} in a sandbox of {backend}; Ctrl-D exits", self.language), Tone::Good);
        }
        let before = rustix::termios::tcgetattr(io::stdin()).ok();
        loop {
            let reading = tokio::task::spawn_blocking({
                move || {
                    let read = input.next();
                    (input, read)
                }
            });
            let (back, read) = tokio::select! {
                read = reading => read.map_err(|_| Error::new(ErrorKind::Internal, "repl", "the prompt ended early"))?,
                number = interrupts.next() => {
                    if let Some(before) = &before {
                        // The line editor may have changed the terminal modes.
                        let _ = rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Now, before);
                    }
                    return Ok(signal_status(number));
                }
            };
            input = back;
            let Some(code) = read? else { break };
            if code.trim().is_empty() {
                continue;
            }
            match self.evaluate(&session, &code, interrupts).await? {
                State::Alive => {}
                State::Lost => {
                    session = self.session().await?;
                    report::remark("started a new interpreter; all definitions are lost", Tone::Warning);
                }
                State::Exited(status) => return Ok(status),
            }
        }
        Ok(0)
    }

    async fn session(&self) -> Result<Arc<CodeSession>> {
        self.sessions.open(&self.profile, &self.sandbox, self.language).await
    }

    /// Runs code and prints its output. The first Ctrl-C interrupts the code. A second one, or code that does not stop,
    /// ends the interpreter.
    async fn evaluate(&self, session: &CodeSession, code: &str, interrupts: &mut Interrupts) -> Result<State> {
        let output = Output::default();
        let show = |chunk: &Chunk| output.show(chunk);
        let mut call = pin!(session.call_live(CodeRequest::new(self.language, code), &show));
        let first = tokio::select! {
            called = &mut call => Ok(called),
            number = interrupts.next() => Err(number),
        };
        let called = match first {
            Ok(called) => Some(called),
            Err(number) if number != rustix::process::Signal::INT.as_raw() => {
                output.finish();
                return Err(Error::new(ErrorKind::Closed, "repl", format!("terminated by signal {number}")));
            }
            Err(_) => {
                let stopped = async {
                    // An interpreter that cannot be interrupted is ended immediately.
                    let (sent, called) = tokio::join!(session.interrupt(), timeout(INTERRUPT_TIMEOUT, &mut call));
                    sent.ok().and(called.ok())
                };
                tokio::select! {
                    called = stopped => called,
                    _ = interrupts.next() => None,
                }
            }
        };
        output.finish();
        match called {
            None => {
                report::remark("interrupted; the interpreter was killed", Tone::Warning);
                Ok(State::Lost)
            }
            Some(Ok(result)) => Ok(self.print(&result)),
            // Only this code failed. The next code can run.
            Some(Err(error)) => {
                report::error(&error, Form::Text);
                Ok(if error.kind() == ErrorKind::Closed { State::Lost } else { State::Alive })
            }
        }
    }

    fn print(&self, result: &CodeResult) -> State {
        result.screening.iter().for_each(warn_of);
        for rich in &result.results {
            let output = Output::default();
            let text = match (rich.data.get("text/plain").and_then(|text| text.as_str()), rich.data.get("image/png")) {
                (Some(text), _) => text.to_owned(),
                (None, Some(_)) => "[an image; `cofferdam run --json` returns it]".to_owned(),
                _ => continue,
            };
            output.show(&Chunk { stream: OutputStream::Stdout, data: format!("{text}\n").into_bytes().into() });
            output.finish();
        }
        for denial in &result.network_denials {
            report::remark(&format!("network: {denial}"), Tone::Warning);
        }
        if result.truncated {
            report::remark(&format!("output beyond {} was dropped", result.meta.max_output), Tone::Warning);
        }
        match result.session.as_ref().map(|state| (state.exited, state.lost.as_ref())) {
            Some((true, _)) => State::Exited(u8::try_from(result.exit_code & 255).unwrap_or(1)),
            Some((false, Some(why))) => {
                report::remark(why, Tone::Warning);
                State::Lost
            }
            _ => State::Alive,
        }
    }
}

/// Standard output and standard error of this process, with a filter for terminals.
#[derive(Default)]
pub(super) struct Output(Mutex<[Option<TerminalFilter>; 2]>);

impl Output {
    pub(super) fn show(&self, chunk: &Chunk) {
        let at = usize::from(chunk.stream == OutputStream::Stderr);
        let terminal = if at == 0 { io::stdout().is_terminal() } else { io::stderr().is_terminal() };
        let mut filters = self.0.lock();
        match terminal {
            true => write(at, filters[at].get_or_insert_default().feed(&chunk.data).as_bytes()),
            false => write(at, &chunk.data),
        }
    }

    pub(super) fn finish(&self) {
        let mut filters = self.0.lock();
        for (at, filter) in filters.iter_mut().enumerate() {
            if let Some(mut filter) = filter.take() {
                write(at, filter.finish().as_bytes());
            }
        }
    }
}

/// Writes data, and ignores a closed stream: the input ends with it, which ends the loop.
fn write(at: usize, data: &[u8]) {
    let _ = match at {
        0 => io::stdout().write_all(data).and_then(|()| io::stdout().flush()),
        _ => io::stderr().write_all(data),
    };
}

/// The source of lines.
enum Input {
    /// A terminal, with line editing and history.
    Terminal(Box<Reedline>),
    /// Any other input, without editing.
    Plain {
        /// The language, which determines the end of code.
        language: String,
    },
}

impl Input {
    fn new(history: Option<&Path>, language: &str) -> Result<Self> {
        let language = language.to_owned();
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Self::Plain { language });
        }
        let mut editor = Reedline::create().with_validator(Box::new(Whole { language }));
        if let Some(path) = history {
            let history = create_history(path)
                .and_then(|()| FileBackedHistory::with_file(MAX_HISTORY, path.to_owned()).map_err(io::Error::other));
            match history {
                Ok(history) => editor = editor.with_history(Box::new(history)),
                Err(error) => {
                    let message = format!("cannot keep a history in {}: {error}", path.display());
                    report::remark(&message, Tone::Warning);
                }
            }
        }
        Ok(Self::Terminal(Box::new(editor)))
    }

    /// Reads the next piece of code. Returns `None` at the end of the input.
    fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Terminal(editor) => loop {
                match editor.read_line(&Arrows).map_err(unreadable)? {
                    Signal::Success(code) => return Ok(Some(code + "\n")),
                    Signal::CtrlD => return Ok(None),
                    // The user discarded the line.
                    _ => {}
                }
            },
            Self::Plain { language } => {
                let mut code = String::new();
                let mut stdin = io::stdin().lock();
                loop {
                    if (&mut stdin).take(MAX_LINE).read_line(&mut code).map_err(unreadable)? == 0 {
                        return Ok((!code.is_empty()).then_some(code));
                    }
                    if code.len() as u64 >= MAX_LINE || !line::is_incomplete(language, &code) {
                        return Ok(Some(code));
                    }
                }
            }
        }
    }
}

/// Creates the history file with access for this user only, before the editor writes to it.
fn create_history(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        private::create_directory(directory)?;
    }
    std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
}

/// A validator that decides whether typed code is complete.
struct Whole {
    language: String,
}

impl Validator for Whole {
    fn validate(&self, code: &str) -> ValidationResult {
        match line::is_incomplete(&self.language, &format!("{code}\n")) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Complete,
        }
    }
}

/// Python's prompt.
struct Arrows;

impl Prompt for Arrows {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _mode: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed(">>> ")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed("... ")
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("(search: {}) ", search.term))
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "repl", format!("cannot read from the terminal: {error}"))
}
