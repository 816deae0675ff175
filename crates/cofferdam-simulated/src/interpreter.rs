//! Executes the steps of a program under simulated limits.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{
    Access, ErrorKind, ExecDriver, ExecRequest, LimitKind, OutputStream, SandboxPath, TerminalSize,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::exec::{End, SIGKILL, environment, repeated};
use crate::fault::ExecFault;
use crate::state::{Shared, Signal};
use crate::tree::{Parents, Tree, TreeError, inside};
use crate::{OnTerm, Step};

/// Simulated CPU time of one step.
const STEP_COST: Duration = Duration::from_micros(10);
/// Time slice of simulated computing.
const SLICE: Duration = Duration::from_millis(10);
/// Maximum size of one write.
const CHUNK: usize = 8 << 10;

type Input = Box<dyn AsyncRead + Send + Unpin>;
type Flow = Result<(), End>;

#[derive(Debug, Default)]
struct Counters {
    on_term: OnTerm,
    limits_hit: BTreeSet<LimitKind>,
    memory: u64,
    processes: u32,
    cpu: Duration,
}

/// State shared by the program of an exec and its daemons.
pub(crate) struct Process {
    shared: Arc<Shared>,
    driver: ExecDriver,
    env: BTreeMap<String, String>,
    working_dir: SandboxPath,
    terminal: Option<watch::Receiver<TerminalSize>>,
    counters: Mutex<Counters>,
    output_closed: AtomicBool,
    chunks: AtomicU64,
    faults: Vec<ExecFault>,
    /// All tasks beside the main program. `None` after they were stopped.
    tasks: AsyncMutex<Option<JoinSet<()>>>,
}

impl Process {
    pub(crate) fn new(
        shared: Arc<Shared>,
        driver: ExecDriver,
        request: &ExecRequest,
        terminal: Option<watch::Receiver<TerminalSize>>,
        faults: Vec<ExecFault>,
    ) -> Self {
        Self {
            shared,
            driver,
            env: environment(request),
            working_dir: request.working_dir().clone(),
            terminal,
            counters: Mutex::new(Counters { processes: 1, ..Counters::default() }),
            output_closed: AtomicBool::new(false),
            chunks: AtomicU64::new(0),
            faults,
            tasks: AsyncMutex::new(Some(JoinSet::new())),
        }
    }

    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock()
    }

    pub(crate) fn on_term(&self) -> OnTerm {
        self.counters().on_term
    }

    pub(crate) fn cpu(&self) -> Duration {
        self.counters().cpu
    }

    pub(crate) fn peak_memory(&self) -> u64 {
        self.shared.lock().peak_memory
    }

    pub(crate) fn limits_hit(&self) -> Vec<LimitKind> {
        self.counters().limits_hit.iter().copied().collect()
    }

    /// Returns the memory and the processes to release.
    pub(crate) fn held(&self) -> (u64, u32) {
        let counters = self.counters();
        (counters.memory, counters.processes)
    }

    pub(crate) fn failed_exit(&self) -> Option<ErrorKind> {
        self.faults.iter().find_map(|fault| match fault {
            ExecFault::FailExit(kind) => Some(*kind),
            _ => None,
        })
    }

    pub(crate) fn into_driver(self) -> ExecDriver {
        self.driver
    }

    /// Runs a task until the exec ends.
    pub(crate) async fn beside(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = self.tasks.lock().await.as_mut() {
            tasks.spawn(while_not_paused(self.shared.paused(), task));
        }
    }

    /// Stops all tasks beside the main program, and returns when none of them runs.
    pub(crate) async fn stop_all(&self) {
        let tasks = self.tasks.lock().await.take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
    }

    /// Writes a chunk to a stream.
    fn publish(&self, stream: OutputStream, data: Bytes) -> Flow {
        if self.output_closed.load(Ordering::Relaxed) || data.is_empty() {
            return Ok(());
        }
        let stream = if self.terminal.is_some() { OutputStream::Stdout } else { stream };
        let number = self.chunks.fetch_add(1, Ordering::Relaxed) + 1;
        let dropped =
            self.faults.iter().any(|fault| matches!(fault, ExecFault::DropOutputAfterChunks(last) if number > *last));
        if !dropped {
            self.driver.publisher().publish(stream, data);
        }
        for fault in &self.faults {
            match fault {
                ExecFault::KillAfterChunks(last) if number >= *last => return Err(End::signal(SIGKILL)),
                ExecFault::LoseSandboxAfterChunks(last) if number >= *last => {
                    let mut state = self.shared.lock();
                    state.lost = true;
                    self.shared.signal_all(&state, Signal::Lose);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn charge_cpu(&self, time: Duration) -> Flow {
        self.shared.lock().cpu += time;
        let mut counters = self.counters();
        counters.cpu += time;
        match self.shared.spec.limits().cpu_time {
            Some(limit) if counters.cpu >= limit => Err(End::limit(LimitKind::Cpu)),
            _ => Ok(()),
        }
    }

    fn allocate(&self, bytes: u64) -> Flow {
        let mut state = self.shared.lock();
        let limit = self.shared.spec.limits().memory.map_or(u64::MAX, |limit| limit.as_bytes());
        let wanted = state.memory.saturating_add(bytes);
        if wanted > limit {
            state.peak_memory = limit;
            drop(state);
            self.counters().limits_hit.insert(LimitKind::Memory);
            return Err(End::limit(LimitKind::Memory));
        }
        state.memory = wanted;
        state.peak_memory = state.peak_memory.max(wanted);
        drop(state);
        self.counters().memory += bytes;
        Ok(())
    }

    /// Adds up to `count` processes. Returns the number that the limit allowed.
    fn add_processes(&self, count: u32) -> u32 {
        let mut state = self.shared.lock();
        let limit = self.shared.spec.limits().single_threaded_processes().unwrap_or(u32::MAX);
        let added = count.min(limit - state.processes);
        state.processes += added;
        drop(state);
        let mut counters = self.counters();
        counters.processes += added;
        if added < count {
            counters.limits_hit.insert(LimitKind::Pids);
        }
        added
    }

    fn remove_processes(&self, count: u32) {
        self.shared.lock().processes -= count;
        self.counters().processes -= count;
    }

    /// Converts a guest's path to a path of the tree.
    fn path(&self, path: &str) -> Result<String, TreeError> {
        match path.strip_prefix('/') {
            Some(_) => inside(path).map(str::to_owned).ok_or(TreeError::NotFound),
            None => Ok(format!("{}/{path}", self.working_dir.as_str())),
        }
    }
}

/// A thread of steps, and its input.
pub(crate) struct Interpreter {
    process: Arc<Process>,
    stdin: AsyncMutex<Input>,
}

impl Interpreter {
    pub(crate) fn new(process: Arc<Process>, stdin: Input) -> Self {
        Self { process, stdin: AsyncMutex::new(stdin) }
    }

    /// Executes steps. Returns the end if one of them ends the program.
    pub(crate) async fn run(&self, steps: &[Step]) -> Option<End> {
        self.steps(steps).await.err()
    }

    fn steps<'a>(&'a self, steps: &'a [Step]) -> Pin<Box<dyn Future<Output = Flow> + Send + 'a>> {
        Box::pin(async move {
            for step in steps {
                self.process.charge_cpu(STEP_COST)?;
                self.step(step).await?;
                // Yield after each step, so that a program of any length can be ended.
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    }

    async fn step(&self, step: &Step) -> Flow {
        match step {
            Step::Print { stream, text } => self.print(*stream, text.as_bytes()).await,
            Step::PrintBytes(bytes) => self.print(OutputStream::Stdout, bytes).await,
            Step::PrintRepeated { text, total } => self.print_repeated(text, *total).await,
            Step::PrintEnvironment => {
                let variables = self.process.env.iter().map(|(name, value)| format!("{name}={value}\0"));
                self.print_text(variables.collect::<String>()).await
            }
            Step::PrintWorkingDirectory => self.print_text(format!("{}\n", self.process.working_dir.inside())).await,
            Step::Exit(code) => Err(End::code(*code)),
            Step::Die(signal) => Err(End::signal(*signal)),
            Step::Sleep { millis } => {
                sleep(Duration::from_millis(*millis)).await;
                Ok(())
            }
            Step::SleepForever => std::future::pending().await,
            Step::OnTerm(action) => {
                self.process.counters().on_term = *action;
                Ok(())
            }
            Step::CloseOutput => {
                self.process.output_closed.store(true, Ordering::Relaxed);
                Ok(())
            }
            Step::CopyInput | Step::CountInput | Step::ReadLine => self.input(step).await,
            Step::WriteFile { .. }
            | Step::AppendFile { .. }
            | Step::ReadFile { .. }
            | Step::MakeDirectory { .. }
            | Step::MakeSymlink { .. }
            | Step::MakeFifo { .. }
            | Step::FillDisk { .. } => self.file(step).await,
            Step::Allocate { bytes } => self.process.allocate(*bytes),
            Step::AllocateInChild { bytes } => {
                let status = if self.process.allocate(*bytes).is_ok() { 0 } else { -SIGKILL };
                self.print_text(format!("child {status}\n")).await
            }
            Step::Spin { processes } => self.spin(*processes).await,
            Step::Fork { count } => {
                let forked = self.process.add_processes(*count);
                self.print_text(format!("forked {forked}\n")).await?;
                self.process.remove_processes(forked);
                Ok(())
            }
            Step::WatchTerminal => self.watch_terminal().await,
            Step::CountProcesses => {
                let count = self.process.shared.lock().processes;
                self.print_text(format!("{count}\n")).await
            }
            Step::Repeat { times, steps } => self.repeat(*times, steps).await,
            Step::Daemon(steps) => self.daemon(steps.clone()).await,
        }
    }

    async fn print_text(&self, text: String) -> Flow {
        self.print(OutputStream::Stdout, text.as_bytes()).await
    }

    async fn print(&self, stream: OutputStream, bytes: &[u8]) -> Flow {
        for chunk in bytes.chunks(CHUNK) {
            self.process.publish(stream, Bytes::copy_from_slice(chunk))?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn print_repeated(&self, text: &str, total: u64) -> Flow {
        let mut at = 0;
        while at < total && !text.is_empty() {
            let size = usize::try_from(total - at).unwrap_or(CHUNK).min(CHUNK);
            self.process.publish(OutputStream::Stdout, repeated(text, at, size))?;
            at += size as u64;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn input(&self, step: &Step) -> Flow {
        let mut stdin = self.stdin.lock().await;
        let mut buffer = vec![0; CHUNK];
        let mut count = 0u64;
        // A line is read byte by byte, to leave the rest for the next step.
        let max = if *step == Step::ReadLine { 1 } else { CHUNK };
        while let Ok(size @ 1..) = stdin.read(&mut buffer[..max]).await {
            count += size as u64;
            match step {
                Step::CopyInput => self.print(OutputStream::Stdout, &buffer[..size]).await?,
                Step::ReadLine if buffer[0] == b'\n' => return Ok(()),
                _ => tokio::task::yield_now().await,
            }
        }
        if *step == Step::CountInput { self.print_text(format!("{count}\n")).await } else { Ok(()) }
    }

    async fn file(&self, step: &Step) -> Flow {
        match step {
            Step::ReadFile { path } => {
                let contents = self.process.path(path).and_then(|path| self.process.shared.lock().tree.read(&path));
                match contents {
                    Ok(contents) => self.print(OutputStream::Stdout, &contents).await,
                    Err(error) => self.fail(path, error.message()).await,
                }
            }
            Step::WriteFile { path, contents } => {
                self.change(path, |tree, at| tree.write(at, contents.clone().into_bytes(), Parents::MustExist)).await
            }
            Step::AppendFile { path, contents } => {
                self.change(path, |tree, at| tree.append(at, contents.as_bytes())).await
            }
            Step::MakeDirectory { path } => self.change(path, Tree::make_directory).await,
            Step::MakeFifo { path } => self.change(path, Tree::make_fifo).await,
            Step::MakeSymlink { path, target, replace } => {
                self.change(path, |tree, at| tree.make_symlink(at, target, *replace)).await
            }
            Step::FillDisk { path, bytes } => {
                let mut stored = 0;
                self.change(path, |tree, at| {
                    stored = tree.free_bytes().min(*bytes);
                    tree.write(at, vec![0; stored as usize], Parents::MustExist)
                })
                .await?;
                self.print_text(format!("stored {stored}\n")).await?;
                if stored == *bytes {
                    return Ok(());
                }
                self.process.counters().limits_hit.insert(LimitKind::Disk);
                Err(End::code(28))
            }
            _ => Ok(()),
        }
    }

    /// Changes the workspace, unless it is read-only for the guest.
    async fn change(&self, path: &str, change: impl FnOnce(&mut Tree, &str) -> Result<(), TreeError>) -> Flow {
        if self.process.shared.spec.workspace().access() == Access::ReadOnly {
            return self.fail(path, "the workspace is read-only").await;
        }
        let result = self.process.path(path).and_then(|at| change(&mut self.process.shared.lock().tree, &at));
        match result {
            Ok(()) => Ok(()),
            Err(error) => {
                if error == TreeError::Full {
                    self.process.counters().limits_hit.insert(LimitKind::Disk);
                }
                self.fail(path, error.message()).await
            }
        }
    }

    async fn fail(&self, path: &str, message: &str) -> Flow {
        self.print(OutputStream::Stderr, format!("sim: {path}: {message}\n").as_bytes()).await?;
        Err(End::code(1))
    }

    async fn spin(&self, processes: u32) -> Flow {
        let added = self.process.add_processes(processes.saturating_sub(1));
        let share = self.process.shared.spec.limits().cpus.map(|cpus| f64::from(cpus.as_millis()) / 1000.0);
        let busy = share.unwrap_or(f64::INFINITY).min(f64::from(added + 1));
        loop {
            sleep(SLICE).await;
            self.process.charge_cpu(SLICE.mul_f64(busy))?;
        }
    }

    async fn watch_terminal(&self) -> Flow {
        let Some(mut terminal) = self.process.terminal.clone() else {
            self.print_text("no tty\n".to_owned()).await?;
            return std::future::pending().await;
        };
        loop {
            let size = *terminal.borrow_and_update();
            self.print_text(format!("tty {} {}\r\n", size.rows, size.columns)).await?;
            if terminal.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn repeat(&self, times: Option<u64>, steps: &[Step]) -> Flow {
        let mut round = 0u64;
        while times.is_none_or(|times| round < times) {
            self.process.charge_cpu(STEP_COST)?;
            self.steps(steps).await?;
            tokio::task::yield_now().await;
            round = round.wrapping_add(1);
        }
        Ok(())
    }

    async fn daemon(&self, steps: Vec<Step>) -> Flow {
        if self.process.add_processes(1) == 0 {
            return self.fail("fork", "no more processes").await;
        }
        let interpreter = Self::new(Arc::clone(&self.process), Box::new(tokio::io::empty()));
        self.process
            .beside(async move {
                // A daemon's end is not reported.
                let _ = interpreter.run(&steps).await;
            })
            .await;
        Ok(())
    }
}

/// Polls a program's work only while its sandbox is not paused.
pub(crate) async fn while_not_paused<T>(mut paused: watch::Receiver<bool>, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    loop {
        // The sender lives as long as the sandbox. If it is gone, nothing is paused.
        let _ = paused.wait_for(|paused| !paused).await;
        tokio::select! {
            biased;
            Ok(_) = paused.wait_for(|paused| *paused) => {}
            end = &mut work => return end,
        }
    }
}
