//! Execution of rows: the attack in a sandbox, its control outside, and its effects on the host.

use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cofferdam::engine::{PoolConfig, PooledBackend};
use cofferdam_contract::{
    Access, Backend, ByteSize, Capability, Completed, ExecRequest, Level, Protection, Result, Sandbox, SandboxPath,
    Spec, TerminalSize, Workspace, collect,
};
use cofferdam_process::{ProcessBackend, ProcessConfig};
use parking_lot::{Mutex, MutexGuard};

use super::guests::{Guests, open_temporary_directory};
use super::host::{Host, SECRET_VARIABLE};
use super::host_memory::HostMemory;
use super::row::{Control, Expect, Row, WorkspaceKind};
use crate::census::{census, left_behind};

/// The exit codes of `tests/guests/guest.h`.
const ESCAPED: i32 = 42;
const COULD_NOT_TRY: i32 = 43;
/// Maximum recorded output of an attack; the output bomb must exceed it.
const MAX_OUTPUT: ByteSize = ByteSize::from_mebibytes(1);
/// Timeout for teardown after a close, including other tests' sandboxes.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a row that did not fail.
pub enum Outcome {
    Held,
    NotTried(String),
}

/// Creates the backend under attack.
pub fn backend() -> Arc<dyn Backend> {
    Arc::new(ProcessBackend::new(ProcessConfig::default()).expect("the process backend starts on this host"))
}

/// Runs an async test on one thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Locks the turn of a group: bombs would starve other groups, whose sandboxes would look left behind. Other tests that
/// start many busy processes take a turn too.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Runs all rows, fails with every failed row and its output, then checks for leaks.
pub fn run(rows: Vec<Row>) {
    let _turn = turn();
    // The backend's launcher lives as long as the process and must not count as a leak of this group.
    block_on(warm_up());
    let before = census();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.guest).collect();
    let guests = Guests::compile(&names);
    let host = Host::new();
    let mut failures = Vec::new();
    block_on(async {
        let backend = backend();
        for row in &rows {
            match measured_attack(backend.as_ref(), &guests, &host, row).await {
                Ok(Outcome::Held) => {}
                Ok(Outcome::NotTried(why)) => println!("SKIP hostile: {}: {why}", row.name),
                Err(why) => failures.push(format!("{}: {why}", row.name)),
            }
            if let Err(why) = control(&guests, &host, row) {
                failures.push(format!("{}: control: {why}", row.name));
            }
        }
    });
    drop(host);
    drop(guests);
    report(rows.len(), failures, &before);
}

/// Runs rows like [`run`] in sandboxes of a pool, which prepares one for each attack if the backend prepares any. Runs
/// no controls outside.
pub fn run_pooled(rows: Vec<Row>) {
    let _turn = turn();
    block_on(warm_up());
    let before = census();
    let guests = Guests::compile(&rows.iter().map(|row| row.guest).collect());
    let host = Host::new();
    let mut failures = Vec::new();
    block_on(async {
        let inner = backend();
        let ahead = inner.capabilities().contains(&Capability::Warm);
        let pooled = PooledBackend::new(inner, Spec::default(), PoolConfig::default()).expect("a pool");
        for row in &rows {
            let deadline = tokio::time::Instant::now() + TEARDOWN_TIMEOUT;
            while ahead && pooled.pool().metrics().warm == 0 && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if let Err(why) = attack(&pooled, &guests, &host, row).await {
                failures.push(format!("{}: {why}", row.name));
            }
        }
        let claims = pooled.pool().metrics().claims;
        if ahead && claims.warm == 0 {
            failures.push(format!("no attack was made in a sandbox made ahead: {claims:?}"));
        }
        failures.extend(pooled.pool().shutdown(TEARDOWN_TIMEOUT).await.err().map(|error| error.to_string()));
    });
    drop(host);
    drop(guests);
    report(rows.len(), failures, &before);
}

/// Runs rows like [`run`], each as the single command that is requested together with its sandbox, for programs that
/// need no installation. Runs no controls outside.
pub fn run_single(mut rows: Vec<Row>) {
    let _turn = turn();
    block_on(warm_up());
    let before = census();
    rows.retain(|row| matches!(row.workspace, WorkspaceKind::Mounted | WorkspaceKind::Shared));
    assert!(rows.len() > 20, "hardly any row can be tried so");
    let guests = Guests::compile(&rows.iter().map(|row| row.guest).collect());
    let host = Host::new();
    let mut failures = Vec::new();
    block_on(async {
        for row in &rows {
            // Uses a new backend for each: a launcher measures its first sandbox, and compares later ones.
            let backend = backend();
            for _ in 0..2 {
                if let Err(why) = attack_as_single(backend.as_ref(), &guests, &host, row).await {
                    failures.push(format!("{}: {why}", row.name));
                }
            }
        }
    });
    drop(host);
    drop(guests);
    report(rows.len(), failures, &before);
}

pub fn report(rows: usize, mut failures: Vec<String>, before: &BTreeSet<String>) {
    failures.extend(left_behind(before, TEARDOWN_TIMEOUT).into_iter().map(|what| format!("left behind: {what}")));
    assert!(failures.is_empty(), "{} of {rows} rows failed\n\n{}", failures.len(), failures.join("\n\n"));
}

pub async fn warm_up() {
    let sandbox = backend().create(Spec::builder().build().expect("defaults are valid")).await.expect("a sandbox");
    sandbox.close().await.expect("it closes");
}

fn spec(backend: &dyn Backend, guests: &Guests, row: &Row, shared: &Path) -> Result<Spec> {
    let workspace = match row.workspace {
        WorkspaceKind::Mounted => Workspace::HostDir { path: guests.directory().to_owned(), access: Access::ReadOnly },
        WorkspaceKind::Private => Workspace::default(),
        WorkspaceKind::Shared => Workspace::HostDir { path: shared.to_owned(), access: Access::ReadWrite },
    };
    let mut spec = Spec::builder().workspace(workspace).limits(row.limits.clone());
    // A writable host directory has no size limit, and on cgroup v1 only root can bound the socket buffers of a
    // container. The other rows accept no weaker protections.
    if row.workspace == WorkspaceKind::Shared {
        spec = spec.allow_weaker(Protection::Disk);
    }
    if backend.level() == Level::Container
        && !rustix::process::geteuid().is_root()
        && Path::new("/sys/fs/cgroup/memory").is_dir()
    {
        spec = spec.allow_weaker(Protection::Memory);
    }
    spec.build()
}

fn request(row: &Row, host: &Host) -> Result<ExecRequest> {
    let argv = std::iter::once(format!("/workspace/{}", row.guest)).chain((row.args)(host));
    let request = ExecRequest::argv(argv).timeout(row.timeout).max_output(MAX_OUTPUT);
    let size = TerminalSize { rows: 25, columns: 80 };
    if row.terminal { request.terminal(size) } else { request }.build()
}

async fn attack_as_single(
    backend: &dyn Backend,
    guests: &Guests,
    host: &Host,
    row: &Row,
) -> std::result::Result<Outcome, String> {
    let shared = open_temporary_directory(0o777);
    if row.workspace == WorkspaceKind::Shared {
        fs::copy(guests.path(row.guest), shared.path().join(row.guest)).expect("the shared workspace is ours");
    }
    let started =
        async { backend.start_one(spec(backend, guests, row, shared.path())?, request(row, host)?).await }.await;
    let (sandbox, handle) = started.map_err(|error| format!("cannot start: {error}"))?;
    let completed = collect(handle).await;
    sandbox.close().await.map_err(|error| format!("cannot close: {error}"))?;
    verdict(row, host, &completed.map_err(|error| format!("cannot run: {error}"))?)
}

/// Returns the result of an attack for itself and for the host.
pub fn verdict(row: &Row, host: &Host, completed: &Completed) -> std::result::Result<Outcome, String> {
    let outcome = evaluate(row, completed)?;
    let damage = host.damage();
    if damage.is_empty() { Ok(outcome) } else { Err(format!("{}\n{}", damage.join(", "), output(completed))) }
}

/// Attacks like [`attack`], and checks the host's memory if the row bounds it.
pub async fn measured_attack(
    backend: &dyn Backend,
    guests: &Guests,
    host: &Host,
    row: &Row,
) -> std::result::Result<Outcome, String> {
    let Some(slack) = row.host_memory else { return attack(backend, guests, host, row).await };
    let limit = row.limits.memory.map_or(0, |limit| limit.as_bytes() >> 20) + slack;
    let mut taken = Vec::new();
    // Other programs use memory of the host too, but not at the same moment repeatedly.
    while taken.len() < 3 {
        let watch = HostMemory::watch();
        let outcome = attack(backend, guests, host, row).await?;
        let peak = watch.taken_mebibytes();
        if peak <= limit {
            return Ok(outcome);
        }
        taken.push(peak);
    }
    Err(format!("the host had {taken:?} MiB less to give while it ran; {limit} MiB may be taken"))
}

pub async fn attack(
    backend: &dyn Backend,
    guests: &Guests,
    host: &Host,
    row: &Row,
) -> std::result::Result<Outcome, String> {
    let shared = open_temporary_directory(0o777);
    let spec = spec(backend, guests, row, shared.path());
    let sandbox = async { backend.create(spec?).await }.await.map_err(|error| format!("cannot create: {error}"))?;
    let result = attack_in(&sandbox, guests, host, row, shared.path()).await;
    let usable = still_usable(&sandbox, row).await;
    let closed = sandbox.close().await;

    let completed = result.map_err(|error| format!("cannot run: {error}"))?;
    let outcome = verdict(row, host, &completed)?;
    usable.map_err(|why| format!("{why}\n{}", output(&completed)))?;
    closed.map_err(|error| format!("cannot close: {error}"))?;
    Ok(outcome)
}

pub async fn attack_in(
    sandbox: &Arc<dyn Sandbox>,
    guests: &Guests,
    host: &Host,
    row: &Row,
    shared: &Path,
) -> Result<Completed> {
    match row.workspace {
        WorkspaceKind::Mounted => {}
        WorkspaceKind::Private => install(sandbox, guests, row.guest).await?,
        WorkspaceKind::Shared => {
            fs::copy(guests.path(row.guest), shared.join(row.guest)).expect("the shared workspace is ours");
        }
    }
    sandbox.exec(request(row, host)?).await
}

/// Installs an executable program in a workspace with the file API.
pub async fn install(sandbox: &Arc<dyn Sandbox>, guests: &Guests, name: &str) -> Result<()> {
    let program = fs::read(guests.path(name)).expect("it was compiled");
    sandbox.write_bytes(&SandboxPath::new(name)?, program).await?;
    sandbox.exec(ExecRequest::shell(format!("chmod 755 {name}")).build()?).await?;
    Ok(())
}

/// Checks that the attack did not break the sandbox's own init. A limit may end the whole sandbox.
pub async fn still_usable(sandbox: &Arc<dyn Sandbox>, row: &Row) -> std::result::Result<(), String> {
    if matches!(row.expect, Expect::ContainedOrLimit(_) | Expect::Limit(_)) {
        return Ok(());
    }
    let request = ExecRequest::shell("echo alive").build().expect("a valid request");
    match sandbox.exec(request).await {
        Ok(done) if done.exit.success() && done.stdout.starts_with(b"alive") => Ok(()),
        Ok(done) => Err(format!("the sandbox is broken afterwards: {:?}", done.exit)),
        Err(error) => Err(format!("the sandbox is dead afterwards: {error}")),
    }
}

pub fn evaluate(row: &Row, completed: &Completed) -> std::result::Result<Outcome, String> {
    let exit = &completed.exit;
    let text = String::from_utf8_lossy(&completed.stdout);
    let failed = |why: &str| Err(format!("{why}: {exit:?}\n{}", output(completed)));
    if exit.code == ESCAPED || text.contains("ESCAPED: ") {
        return failed("the attack worked");
    }
    if exit.code == COULD_NOT_TRY {
        return Ok(Outcome::NotTried(text.lines().last().unwrap_or("no reason given").to_owned()));
    }
    let killed_by = exit.killed_by;
    let held = match row.expect {
        Expect::Contained => exit.success(),
        Expect::ContainedOrSignal(signal) => exit.success() || exit.signal == Some(signal),
        Expect::ContainedOrLimit(limit) => exit.success() || killed_by == Some(limit),
        Expect::Limit(limit) => killed_by == Some(limit),
        Expect::Truncated => {
            let retained = (completed.stdout.len() + completed.stderr.len()) as u64;
            exit.success() && exit.truncated && retained <= MAX_OUTPUT.as_bytes()
        }
    };
    if held { Ok(Outcome::Held) } else { failed("it did not end as it must") }
}

/// Runs the same program outside, where it must report an escape.
fn control(guests: &Guests, host: &Host, row: &Row) -> std::result::Result<(), String> {
    if let Control::None(_) = row.control {
        return Ok(());
    }
    let mut command = Command::new(guests.path(row.guest));
    command.args((row.control_args)(host)).env_clear().current_dir(guests.directory()).stdin(Stdio::null());
    if let Ok(secret) = std::env::var(SECRET_VARIABLE) {
        command.env(SECRET_VARIABLE, secret);
    }
    if row.control_in_root {
        command.stdin(fs::File::open("/").expect("the root directory opens"));
    }
    let result = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&result.stdout);
    match (result.status.code(), &row.control) {
        (Some(ESCAPED), _) => Ok(()),
        (_, Control::SucceedsWhereAllowed) => {
            let last = text.lines().last().unwrap_or("no output");
            println!("NOTE hostile: {}: this host refuses it outside as well: {last}", row.name);
            Ok(())
        }
        (code, _) => Err(format!("outside the sandbox it must succeed, but ended with {code:?}\n{text}")),
    }
}

pub fn output(completed: &Completed) -> String {
    const SHOWN: usize = 4000;
    let text = [&completed.stdout[..], &completed.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).escape_debug().to_string().replace("\\n", "\n    ");
    // Escapes may be at the end too, so the end contains the verdict.
    let skipped = text.chars().count().saturating_sub(SHOWN);
    let tail: String = text.chars().skip(skipped).collect();
    format!("    {}{tail}", if skipped > 0 { "...\n    " } else { "" })
}
