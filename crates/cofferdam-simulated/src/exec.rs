//! One exec: its program, and the events that can end it from outside.
//!
//! ```text
//! running --(steps end | limit | signal | cancel | time-out | lost)--> tree stopped --> exit reported
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{
    Capability, Command, Error, ErrorKind, ExecControl, ExecDriver, ExecHandle, ExecId, ExecRequest, Exit, LimitKind,
    Result, Stdin, StdinWriter, TerminalSize, Usage,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::fault::ExecFault;
use crate::interpreter::{Interpreter, Process, while_not_paused};
use crate::state::{Shared, Signal};
use crate::{OnTerm, PROGRAM, Program};

const SIGINT: i32 = 2;
pub(crate) const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Size of the buffer for input that a program has not read.
const PIPE: usize = 64 << 10;

/// The end of a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct End {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) killed_by: Option<LimitKind>,
    pub(crate) timed_out: bool,
    pub(crate) cancelled: bool,
    pub(crate) lost: bool,
}

impl End {
    pub(crate) fn code(code: i32) -> Self {
        Self { code, ..Self::default() }
    }

    pub(crate) fn signal(signal: i32) -> Self {
        Self { code: -1, signal: Some(signal), ..Self::default() }
    }

    pub(crate) fn limit(limit: LimitKind) -> Self {
        Self { killed_by: Some(limit), ..Self::signal(SIGKILL) }
    }
}

struct Control {
    signals: mpsc::UnboundedSender<Signal>,
    terminal: Option<watch::Sender<TerminalSize>>,
}

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        // Fails if the exec has ended, which needs no signal.
        let _ = self.signals.send(Signal::Cancel(grace));
    }

    fn kill(&self) {
        let _ = self.signals.send(Signal::Kill);
    }

    fn resize(&self, size: TerminalSize) -> Result<()> {
        let terminal = self.terminal.as_ref();
        let terminal = terminal.ok_or_else(|| Error::unsupported("resize", "the exec has no terminal"))?;
        terminal.send_replace(size);
        Ok(())
    }
}

/// Starts an exec.
pub(crate) fn start(shared: &Arc<Shared>, request: ExecRequest, faults: Vec<ExecFault>) -> Result<ExecHandle> {
    request.validate()?;
    let program = parse(shared, &request)?;
    check_capabilities(shared, &request)?;
    check_working_dir(shared, &request)?;
    let (signals, inbox) = mpsc::unbounded_channel();
    let id = shared.enter(signals.clone())?;
    let (terminal, size) = request.terminal().map(watch::channel).unzip();
    let (writer, input) = match request.stdin() {
        Stdin::Empty => (None, Input::plain(tokio::io::empty())),
        Stdin::Bytes(bytes) => (None, Input::plain(std::io::Cursor::new(bytes.clone()))),
        Stdin::Stream => {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let input = match size {
                Some(_) => Input::Terminal(theirs),
                None => Input::plain(theirs),
            };
            (Some(StdinWriter::new(ours)), input)
        }
    };
    let control = Arc::new(Control { signals: signals.clone(), terminal });
    let (handle, driver) = ExecHandle::new(ExecId(id), &request, writer, control);
    let process = Process::new(Arc::clone(shared), driver, &request, size, faults);
    let supervisor = Supervisor {
        id,
        shared: Arc::clone(shared),
        inbox,
        signals,
        deadline: Instant::now() + request.timeout().unwrap_or(shared.spec.limits().wall_time),
    };
    tokio::spawn(supervisor.run(process, program, input));
    Ok(handle)
}

fn parse(shared: &Shared, request: &ExecRequest) -> Result<Program> {
    let Command::Argv(argv) = request.command() else {
        return Err(Error::unsupported("start", "simulated guests have no shell and no interpreters"));
    };
    let (name, args) = argv.split_first().ok_or_else(|| Error::invalid("start", "the command is empty"))?;
    if name == PROGRAM {
        return Program::parse(args);
    }
    let exists = crate::tree::inside(name).is_some_and(|path| shared.lock().tree.read(path).is_ok());
    let (kind, message) = match exists {
        true => (ErrorKind::NotExecutable, "simulated guests run only 'sim'"),
        false => (ErrorKind::NotFound, "no such program; simulated guests have only 'sim'"),
    };
    Err(Error::new(kind, "start", message).with_context("program", name.escape_debug().to_string()))
}

fn check_capabilities(shared: &Shared, request: &ExecRequest) -> Result<()> {
    let has = |capability| shared.host.config.capabilities.contains(&capability);
    if request.terminal().is_some() && !has(Capability::Terminal) {
        return Err(Error::unsupported("start", "this backend has no terminals"));
    }
    if *request.stdin() == Stdin::Stream && !has(Capability::StreamingStdin) {
        return Err(Error::unsupported("start", "this backend takes no streaming input"));
    }
    Ok(())
}

fn check_working_dir(shared: &Shared, request: &ExecRequest) -> Result<()> {
    let path = request.working_dir().as_str();
    match shared.lock().tree.is_directory(path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::new(ErrorKind::NotFound, "start", "the working directory does not exist")
            .with_context("path", path.escape_debug().to_string())),
        Err(error) => Err(error.into_error("start", path)),
    }
}

/// The source of a program's input.
enum Input {
    Plain(Box<dyn AsyncRead + Send + Unpin>),
    /// Bytes typed at a terminal, in which control characters are signals.
    Terminal(DuplexStream),
}

impl Input {
    fn plain(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self::Plain(Box::new(reader))
    }
}

struct Supervisor {
    id: u64,
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedReceiver<Signal>,
    signals: mpsc::UnboundedSender<Signal>,
    deadline: Instant,
}

impl Supervisor {
    async fn run(mut self, process: Process, program: Program, input: Input) {
        let started = Instant::now();
        let process = Arc::new(process);
        let stdin = match input {
            Input::Plain(reader) => reader,
            Input::Terminal(typed) => {
                let (pump, read) = tokio::io::duplex(PIPE);
                process.beside(line_discipline(typed, pump, self.signals.clone())).await;
                Box::new(read)
            }
        };
        let interpreter = Interpreter::new(Arc::clone(&process), stdin);
        let end = self.wait(&process, interpreter.run(&program.0)).await;
        drop(interpreter);
        // Report the exit only now: nothing of the tree runs any more.
        process.stop_all().await;
        let (memory, processes) = process.held();
        self.shared.leave(self.id, memory, processes);
        report(process, end, started);
    }

    /// Runs the program until it ends or is ended.
    async fn wait(&mut self, process: &Process, program: impl Future<Output = Option<End>>) -> End {
        let mut paused = self.shared.paused();
        let program = while_not_paused(paused.clone(), program);
        tokio::pin!(program);
        let (mut kill_at, mut cancelled) = (None::<Instant>, false);
        let end = loop {
            if *paused.borrow_and_update() {
                let since = Instant::now();
                let _ = paused.wait_for(|paused| !paused).await;
                // The sandbox was paused.
                self.deadline += since.elapsed();
                kill_at = kill_at.map(|at| at + since.elapsed());
            }
            let killed = sleep_until(kill_at.unwrap_or(self.deadline));
            tokio::select! {
                biased;
                Ok(()) = paused.changed() => {}
                Some(signal) = self.inbox.recv() => {
                    if let Some(end) = self.take(signal, process, &mut kill_at, &mut cancelled) {
                        break end;
                    }
                }
                () = killed, if kill_at.is_some() => break End::signal(SIGKILL),
                () = sleep_until(self.deadline) => break End { timed_out: true, ..End::signal(SIGKILL) },
                end = &mut program => break end.unwrap_or_default(),
            }
        };
        End { cancelled: cancelled && !end.timed_out, ..end }
    }

    /// Handles a signal. Returns the end if the signal is one.
    fn take(
        &self,
        signal: Signal,
        process: &Process,
        kill_at: &mut Option<Instant>,
        cancelled: &mut bool,
    ) -> Option<End> {
        match signal {
            Signal::Lose => Some(End { lost: true, ..End::signal(SIGKILL) }),
            Signal::Interrupt => Some(End::signal(SIGINT)),
            Signal::Kill => {
                *cancelled = true;
                Some(End::signal(SIGKILL))
            }
            Signal::Cancel(grace) => {
                *cancelled = true;
                match process.on_term() {
                    OnTerm::Die => Some(End::signal(SIGTERM)),
                    OnTerm::Exit(code) => Some(End::code(code)),
                    OnTerm::Ignore => {
                        let at = Instant::now() + grace;
                        *kill_at = Some(kill_at.map_or(at, |earlier| earlier.min(at)));
                        None
                    }
                }
            }
        }
    }
}

/// Forwards typed bytes. Ctrl-C is SIGINT, Ctrl-D is end-of-file.
async fn line_discipline(mut typed: DuplexStream, mut pump: DuplexStream, signals: mpsc::UnboundedSender<Signal>) {
    let mut buffer = [0; 1024];
    while let Ok(size @ 1..) = typed.read(&mut buffer).await {
        for byte in &buffer[..size] {
            match byte {
                3 => drop(signals.send(Signal::Interrupt)),
                4 => return,
                byte => {
                    if pump.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

fn report(process: Arc<Process>, end: End, started: Instant) {
    let usage = Usage {
        cpu_seconds: process.cpu().as_secs_f64(),
        peak_memory_bytes: Some(process.peak_memory()),
        output_bytes: 0,
    };
    let limits_hit = process.limits_hit();
    let failed = process.failed_exit();
    let Some(driver) = Arc::into_inner(process).map(Process::into_driver) else {
        // Waiters are notified when the driver is dropped.
        return;
    };
    let outcome = match (end.lost, failed) {
        (true, _) => Err(Error::new(ErrorKind::Unavailable, "exit", "the sandbox was lost")),
        (false, Some(kind)) => Err(Error::new(kind, "exit", "a fault was injected")),
        (false, None) => Ok(Exit {
            code: end.code,
            signal: end.signal,
            timed_out: end.timed_out,
            cancelled: end.cancelled,
            truncated: false,
            killed_by: end.killed_by,
            limits_hit,
            duration: started.elapsed(),
            usage,
        }),
    };
    ExecDriver::finish(driver, outcome);
}

/// Returns the environment of a simulated guest.
pub(crate) fn environment(request: &ExecRequest) -> BTreeMap<String, String> {
    let base = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/workspace"), ("LANG", "C.UTF-8")];
    request.env().apply(base).into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns `size` bytes, from offset `at`, of a repeated text.
pub(crate) fn repeated(text: &str, at: u64, size: usize) -> Bytes {
    let text = text.as_bytes();
    let offset = (at % text.len().max(1) as u64) as usize;
    text.iter().copied().cycle().skip(offset).take(size).collect()
}
