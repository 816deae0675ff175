//! Idle sandboxes of a server: their memory, requests beside them, and what is left after they are closed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cofferdam_server::client::{Client, Content, Method};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::load::run;
use super::process::{Server, ServerHome};
use crate::census::{self, Census};
use crate::host::tree;
use crate::sample::Sample;

/// The requests that create and delete sandboxes at once.
const AT_ONCE: usize = 8;
/// Time for the processes of deleted sandboxes to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The results.
#[derive(Debug)]
pub struct Idle {
    /// The sandboxes.
    pub held: usize,
    /// The time of each create.
    pub creates: Sample,
    /// The time of each delete.
    pub deletes: Sample,
    /// The times of one-shot runs without idle sandboxes, and beside them.
    pub runs: [Sample; 2],
    /// The resident memory of the server in KiB: before, with all sandboxes, and after.
    pub resident: [Option<u64>; 3],
}

/// Creates sandboxes, runs beside them, deletes them, and checks that nothing is left.
pub async fn measure(program: &Path, held: usize, rounds: usize) -> Result<Idle> {
    // Prepared sandboxes would be counted as left.
    let server = ServerHome::create(program)?.start(&["--without-keys", "--warm", "0"]).await?;
    let client = server.client(None)?;
    run(&client, &["true"]).await?;
    let alone = times(&client, rounds).await?;
    let (processes, before) = (tree::descendants_of(server.pid).len(), server.resident());
    let (ids, creates) = each(&client, vec![String::new(); held], make).await?;
    let full = server.resident();
    let beside = times(&client, rounds).await?;
    ensure!(listed(&client).await? == held, "the server does not list all {held} sandboxes");
    let (_, deletes) = each(&client, ids, remove).await?;
    ensure!(listed(&client).await? == 0, "sandboxes are listed after they were deleted");
    let resident = [before, full, server.resident()];
    ended(&server, processes).await?;
    // Control groups of closed sandboxes are kept for later ones, so only a second time shows what is left.
    let census = Census::of(server.pid);
    let (ids, _) = each(&client, vec![String::new(); held], make).await?;
    each(&client, ids, remove).await?;
    let left = census::left(&census).await;
    ensure!(left.is_empty(), "left after {held} sandboxes: {}", left.join(", "));
    drop(client);
    server.stop().await?;
    Ok(Idle { held, creates, deletes, runs: [alone, beside], resident })
}

/// Waits until the server has no more than so many processes.
async fn ended(server: &Server, processes: usize) -> Result<()> {
    let ended = async {
        while tree::descendants_of(server.pid).len() > processes {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let ended = tokio::time::timeout(END_TIMEOUT, ended).await;
    ended.context("processes are left of sandboxes that were deleted")
}

async fn make(client: Client, _: String) -> Result<String> {
    let created: Value = client.call(Method::POST, "/v1/sandboxes", Some(&json!({}))).await?;
    Ok(created["id"].as_str().context("the sandbox has no id")?.to_owned())
}

async fn remove(client: Client, id: String) -> Result<String> {
    client.send(Method::DELETE, &format!("/v1/sandboxes/{id}"), Content::None).await?;
    Ok(id)
}

async fn times(client: &Client, rounds: usize) -> Result<Sample> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        run(client, &["true"]).await?;
        times.push(start.elapsed());
    }
    Ok(Sample::new(times))
}

/// Counts the sandboxes that the server lists, over all pages.
async fn listed(client: &Client) -> Result<usize> {
    let (mut count, mut path) = (0, "/v1/sandboxes".to_owned());
    loop {
        let page: Value = client.call(Method::GET, &path, None::<&()>).await?;
        count += page["sandboxes"].as_array().context("the server lists no sandboxes")?.len();
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/sandboxes?after={next}"),
            None => return Ok(count),
        }
    }
}

/// Sends a request for each item, some at once. Returns the answers, and the time of each request.
async fn each<F>(
    client: &Client,
    items: Vec<String>,
    send: impl Fn(Client, String) -> F,
) -> Result<(Vec<String>, Sample)>
where
    F: Future<Output = Result<String>> + Send + 'static,
{
    let (mut tasks, mut items) = (JoinSet::new(), items.into_iter());
    let (mut answers, mut times) = (Vec::new(), Vec::new());
    loop {
        while tasks.len() < AT_ONCE
            && let Some(item) = items.next()
        {
            let sending = send(client.clone(), item);
            tasks.spawn(async move {
                let start = Instant::now();
                anyhow::Ok((sending.await?, start.elapsed()))
            });
        }
        let Some(done) = tasks.join_next().await else { return Ok((answers, Sample::new(times))) };
        let (answer, time): (String, Duration) = done??;
        answers.push(answer);
        times.push(time);
    }
}
