//! `cofferdam repl`: an interpreter in a sandbox, a line at a time.

mod line;

use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam::code::{CodeRequest, CodeResult, CodeSession, Executor, Place, Sessions};
use cofferdam::registry;
use cofferdam::{Chunk, Error, ErrorKind, OutputStream, Result, Sandbox, Spec};
use reedline::{
    FileBackedHistory, Prompt, PromptEditMode, PromptHistorySearch, Reedline, Signal, ValidationResult, Validator,
};

use tokio::time::timeout;

use super::block_on;
use super::run::{no_signals, signal_status, warn_of};
use crate::args::ReplArgs;
use crate::interrupts::Interrupts;
use crate::plan::Plan;
use crate::report::{self, Form};
use crate::settings::{Environment, Settings};
use crate::style::Tone;
use crate::terminal::TerminalFilter;

/// Entries of the history.
const MAX_HISTORY: usize = 1000;
/// How long code may take to stop once it is interrupted.
const INTERRUPT_GRACE: Duration = Duration::from_secs(3);
/// The longest line that is read from what is no terminal.
const MAX_LINE: u64 = 8 << 20;

/// Reads, runs and shows until the input ends.
pub fn main(args: ReplArgs, config: Option<PathBuf>) -> u8 {
    let (run, history, no_history) = args.into_run();
    let prepared = crate::config::load(config, |name| std::env::var_os(name)).and_then(|file| {
        let environment = Environment::read(|name| std::env::var_os(name))?;
        let settings = Settings::resolve(&run, &environment, &file)?;
        let spec = Plan::place(&run, &settings)?;
        Ok((spec, settings))
    });
    let language = run.lang.clone().unwrap_or_default();
    let history = if no_history { None } else { history.or_else(|| default_history(&language)) };
    let outcome = prepared.and_then(|(spec, settings)| block_on(repl(&language, spec, settings, history)));
    outcome.unwrap_or_else(|error| report::error(&error, Form::Text))
}

fn default_history(language: &str) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("cofferdam").join(format!("history-{language}")))
}

async fn repl(language: &str, spec: Spec, settings: Settings, history: Option<PathBuf>) -> Result<u8> {
    let backend = registry::backend_forked(settings.backend.name, None, &settings.setup, Arc::new(|_| {}))?;
    let executor = Executor::new(settings.code.clone())?;
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let made = tokio::select! {
        made = backend.create(spec) => made?,
        number = interrupts.next() => return Ok(signal_status(number)),
    };
    let talk =
        Talk { language, place: Place::of(&*backend), sandbox: Arc::clone(&made), sessions: Sessions::new(executor) };
    let outcome = talk.go_on(history.as_deref(), &mut interrupts).await;
    talk.sessions.shutdown().await;
    made.close().await?;
    outcome
}

/// What a piece of code leaves behind.
enum After {
    /// The interpreter, with all that was defined.
    Goes,
    /// Nothing: the interpreter is gone.
    Lost,
    /// Nothing: the code ended the interpreter, with this status.
    Exited(u8),
}

/// What somebody types into, and what answers.
struct Talk<'a> {
    language: &'a str,
    place: Place,
    sandbox: Arc<dyn Sandbox>,
    sessions: Sessions,
}

impl Talk<'_> {
    async fn go_on(&self, history: Option<&Path>, interrupts: &mut Interrupts) -> Result<u8> {
        let mut session = self.session().await?;
        let mut input = Input::new(history, self.language)?;
        if matches!(input, Input::Terminal(_)) {
            let backend = &self.place.backend;
            report::remark(&format!("{} in a sandbox of {backend}; Ctrl-D ends it", self.language), Tone::Good);
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
                        // What reads lines may have changed the terminal.
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
            match self.answer(&session, &code, interrupts).await? {
                After::Goes => {}
                After::Lost => {
                    session = self.session().await?;
                    report::remark("a new interpreter was started; what was defined is gone", Tone::Warning);
                }
                After::Exited(status) => return Ok(status),
            }
        }
        Ok(0)
    }

    async fn session(&self) -> Result<Arc<CodeSession>> {
        self.sessions.open(&self.place, &self.sandbox, self.language).await
    }

    /// Runs code and shows what comes. The first Ctrl-C interrupts the code; one more, or code that does not stop, ends the
    /// interpreter.
    async fn answer(&self, session: &CodeSession, code: &str, interrupts: &mut Interrupts) -> Result<After> {
        let screen = Screen::default();
        let show = |chunk: &Chunk| screen.show(chunk);
        let mut call = pin!(session.call_live(CodeRequest::new(self.language, code), &show));
        let first = tokio::select! {
            called = &mut call => Ok(called),
            number = interrupts.next() => Err(number),
        };
        let called = match first {
            Ok(called) => Some(called),
            Err(number) if number != rustix::process::Signal::INT.as_raw() => {
                screen.finish();
                return Err(Error::new(ErrorKind::Closed, "repl", format!("ended by signal {number}")));
            }
            Err(_) => {
                let stopped = async {
                    // Code whose interpreter cannot be interrupted is ended at once.
                    let (sent, called) = tokio::join!(session.interrupt(), timeout(INTERRUPT_GRACE, &mut call));
                    sent.ok().and(called.ok())
                };
                tokio::select! {
                    called = stopped => called,
                    _ = interrupts.next() => None,
                }
            }
        };
        screen.finish();
        match called {
            None => {
                report::remark("interrupted; the interpreter was ended", Tone::Warning);
                Ok(After::Lost)
            }
            Some(Ok(result)) => Ok(self.told(&result)),
            // What cannot run says why, and the next line can.
            Some(Err(error)) => {
                report::error(&error, Form::Text);
                Ok(if error.kind() == ErrorKind::Closed { After::Lost } else { After::Goes })
            }
        }
    }

    fn told(&self, result: &CodeResult) -> After {
        warn_of(result.screening.as_ref());
        for rich in &result.results {
            let screen = Screen::default();
            let text = match (rich.data.get("text/plain").and_then(|text| text.as_str()), rich.data.get("image/png")) {
                (Some(text), _) => text.to_owned(),
                (None, Some(_)) => "[an image; `cofferdam run --json` gives it]".to_owned(),
                _ => continue,
            };
            screen.show(&Chunk { stream: OutputStream::Stdout, data: format!("{text}\n").into_bytes().into() });
            screen.finish();
        }
        if result.truncated {
            report::remark(&format!("output beyond {} was dropped", result.meta.max_output), Tone::Warning);
        }
        match result.session.as_ref().map(|state| (state.exited, state.lost.as_ref())) {
            Some((true, _)) => After::Exited(u8::try_from(result.exit_code & 255).unwrap_or(1)),
            Some((false, Some(why))) => {
                report::remark(why, Tone::Warning);
                After::Lost
            }
            _ => After::Goes,
        }
    }
}

/// Our own streams, with a filter where a person's terminal shows them.
#[derive(Default)]
struct Screen(Mutex<[Option<TerminalFilter>; 2]>);

impl Screen {
    fn show(&self, chunk: &Chunk) {
        let at = usize::from(chunk.stream == OutputStream::Stderr);
        let terminal = if at == 0 { io::stdout().is_terminal() } else { io::stderr().is_terminal() };
        let mut filters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match terminal {
            true => write(at, filters[at].get_or_insert_default().feed(&chunk.data).as_bytes()),
            false => write(at, &chunk.data),
        }
    }

    fn finish(&self) {
        let mut filters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, filter) in filters.iter_mut().enumerate() {
            if let Some(mut filter) = filter.take() {
                write(at, filter.finish().as_bytes());
            }
        }
    }
}

/// A reader that went away is told by the end of the input, which is its own, too.
fn write(at: usize, data: &[u8]) {
    let _ = match at {
        0 => io::stdout().write_all(data).and_then(|()| io::stdout().flush()),
        _ => io::stderr().write_all(data),
    };
}

/// Where lines come from.
enum Input {
    /// A person's terminal, with editing and history.
    Terminal(Box<Reedline>),
    /// Anything else: lines as they are.
    Plain {
        /// The language, which says where code ends.
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
            let kept = kept_history(path)
                .and_then(|()| FileBackedHistory::with_file(MAX_HISTORY, path.to_owned()).map_err(io::Error::other));
            match kept {
                Ok(kept) => editor = editor.with_history(Box::new(kept)),
                Err(error) => {
                    report::remark(&format!("no history is kept: {}: {error}", path.display()), Tone::Warning);
                }
            }
        }
        Ok(Self::Terminal(Box::new(editor)))
    }

    /// The next piece of code; `None` at the end.
    fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Terminal(editor) => loop {
                match editor.read_line(&Arrows).map_err(unreadable)? {
                    Signal::Success(code) => return Ok(Some(code + "\n")),
                    Signal::CtrlD => return Ok(None),
                    // The line is given up, and another is asked for.
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
                    if code.len() as u64 >= MAX_LINE || !line::goes_on(language, &code) {
                        return Ok(Some(code));
                    }
                }
            }
        }
    }
}

/// Makes the history's file for this user alone, before anybody writes to it.
fn kept_history(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
}

/// Says whether what was typed is whole.
struct Whole {
    language: String,
}

impl Validator for Whole {
    fn validate(&self, code: &str) -> ValidationResult {
        match line::goes_on(&self.language, &format!("{code}\n")) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Complete,
        }
    }
}

/// The prompt that Python has.
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
