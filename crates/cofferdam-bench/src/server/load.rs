//! One-shot runs of `true` by many clients at once, through the server and through the library in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cofferdam::resident::ServeSettings;
use cofferdam_contract::{Backend, Spec};
use cofferdam_engine::{InterpretersConfig, PreparedBackend};
use cofferdam_server::client::{Client, Method};
use cofferdam_server::rest::views::{RunResult, StartExec, StartRun};
use tokio::task::JoinSet;

use super::process::Server;
use crate::process_backend;
use crate::sample::Sample;

/// The numbers of clients.
pub const CLIENTS: [usize; 4] = [1, 8, 64, 256];
/// The contestants, in the order of their turns.
pub const WAYS: [&str; 2] = ["server", "library"];
/// The turns of each contestant with each number of clients.
const TURNS: usize = 4;
/// The runs of a turn that are not counted.
const WARM_UP: usize = 16;

/// The results of a contestant with one number of clients.
#[derive(Debug)]
pub struct Load {
    /// The number of clients.
    pub clients: usize,
    /// The contestant, of [`WAYS`].
    pub way: &'static str,
    /// The times of requests.
    pub times: Sample,
    /// Requests a second.
    pub per_second: f64,
}

/// A client of the server, or a caller of the library.
#[derive(Clone)]
enum Caller {
    Client(Client),
    Library(Arc<PreparedBackend>),
}

impl Caller {
    /// Runs `true` in a sandbox of its own, and returns when nothing of it is left.
    async fn run(&self) -> Result<()> {
        match self {
            Self::Client(client) => run(client, &["true"]).await.map(drop),
            Self::Library(backend) => {
                let (completed, _) = backend.run(Spec::default(), process_backend::request(&["true"])?).await?;
                process_backend::check(&completed, "")
            }
        }
    }
}

/// Runs a command by a server, and checks that it succeeds.
pub async fn run(client: &Client, argv: &[&str]) -> Result<RunResult> {
    let argv = Some(argv.iter().map(|&word| word.to_owned()).collect());
    let request = StartRun { exec: StartExec { argv, ..StartExec::default() }, ..StartRun::default() };
    let result: RunResult = client.call(Method::POST, "/v1/runs", Some(&request)).await?;
    ensure!(result.exit.success(), "the command failed: {:?}", result.exit);
    Ok(result)
}

/// Measures so many requests of each contestant with each number of clients.
pub async fn measure(server: &Server, requests: usize) -> Result<Vec<Load>> {
    let library = library().await?;
    let mut found = Vec::new();
    for clients in CLIENTS {
        let connected = (0..clients).map(|_| server.client(None).map(Caller::Client)).collect::<Result<Vec<_>>>()?;
        let callers = [connected, vec![Caller::Library(Arc::clone(&library)); clients]];
        let mut all = [(Vec::new(), Duration::ZERO), (Vec::new(), Duration::ZERO)];
        for _ in 0..TURNS {
            for (callers, (times, total)) in callers.iter().zip(&mut all) {
                // The first requests connect, and make the pool grow.
                burst(callers, WARM_UP.max(clients)).await?;
                let (more, time) = burst(callers, requests.div_ceil(TURNS)).await?;
                times.extend(more);
                *total += time;
            }
        }
        for (way, (times, total)) in WAYS.into_iter().zip(all) {
            let per_second = times.len() as f64 / total.as_secs_f64();
            found.push(Load { clients, way, times: Sample::new(times), per_second });
        }
    }
    library.shutdown(Duration::ZERO).await?;
    Ok(found)
}

/// Returns the backend as the server has it.
async fn library() -> Result<Arc<PreparedBackend>> {
    let (backend, pool) = (process_backend::backend().await?, ServeSettings::default().pool());
    let interpreters = InterpretersConfig::new(Vec::new());
    Ok(Arc::new(PreparedBackend::new(backend, Spec::default(), pool, interpreters)?))
}

/// Runs requests, each caller one at a time. Returns the time of each, and of all.
async fn burst(callers: &[Caller], requests: usize) -> Result<(Vec<Duration>, Duration)> {
    let (started, begun) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let mut tasks = JoinSet::new();
    for caller in callers {
        let (caller, started) = (caller.clone(), Arc::clone(&started));
        tasks.spawn(async move {
            let mut times = Vec::new();
            while started.fetch_add(1, Ordering::Relaxed) < requests {
                let start = Instant::now();
                caller.run().await?;
                times.push(start.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    let time = begun.elapsed();
    ensure!(times.len() == requests, "{} of {requests} requests were answered", times.len());
    Ok((times, time))
}
