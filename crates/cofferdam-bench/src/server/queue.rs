//! Requests of several tenants that wait for the room of one sandbox: each is answered, and those of a tenant in the
//! order of their arrival.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cofferdam_server::client::{Client, Content, Method, Transfer};
use cofferdam_server::rest::views::OutputView;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::load::run;
use super::process::ServerHome;

/// The tenants whose requests wait.
const TENANTS: usize = 4;
/// The requests of one connection. The server allows 256.
const STREAMS: usize = 250;
/// Options of the server. Its bounds on requests are those of [`super::ServerOptions::queued`] with some room.
const OPTIONS: [&str; 6] = ["--max-sandboxes", "1", "--queue-time", "2h", "--max-requests", "20000"];
/// Time for a request to reach the queue.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// The results.
#[derive(Debug)]
pub struct Queue {
    /// The requests that waited at once.
    pub requests: usize,
    /// The time until all were answered.
    pub drained: Duration,
    /// The resident memory of the server in KiB: before, with all requests waiting, and after.
    pub resident: [Option<u64>; 3],
}

/// An answered request: its tenant, its place among those of the tenant, and the time of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answered {
    tenant: usize,
    turn: usize,
    nanos: u128,
}

/// Queues requests, lets them run, and checks order and completeness.
pub async fn measure(program: &Path, requests: usize) -> Result<Queue> {
    let turns = requests.div_ceil(TENANTS);
    let home = ServerHome::create(program)?;
    let admin = home.key("operator", &["admin", "sandboxes:write", "runs"]).await?;
    let mut keys = Vec::new();
    for tenant in 0..TENANTS {
        keys.push(home.key(&format!("tenant-{tenant}"), &["runs", "usage:read"]).await?);
    }
    let server = home.start(&OPTIONS).await?;
    let admin = server.client(Some(&admin))?;
    run(&admin, &["true"]).await?;
    let before = server.resident();
    // It takes the only room until all requests wait.
    let holder: Value = admin.call(Method::POST, "/v1/sandboxes", Some(&json!({}))).await?;
    let mut tasks: JoinSet<Result<Answered>> = JoinSet::new();
    let mut clients = Vec::new();
    for turn in 0..turns {
        if turn % STREAMS == 0 {
            clients = keys.iter().map(|key| server.client(Some(key))).collect::<Result<Vec<_>>>()?;
        }
        for (tenant, client) in clients.iter().enumerate() {
            let client = client.clone();
            tasks.spawn(async move { answered(&client, tenant, turn).await });
        }
        arrival(&admin, (turn + 1) * TENANTS, &mut tasks).await?;
    }
    let waiting = server.resident();
    let begun = Instant::now();
    let id = holder["id"].as_str().context("the sandbox has no id")?;
    admin.send(Method::DELETE, &format!("/v1/sandboxes/{id}"), Content::None).await?;
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.push(done??);
    }
    let drained = begun.elapsed();
    in_order(&all, turns)?;
    for key in &keys {
        let usage: Value = server.client(Some(key))?.call(Method::GET, "/v1/usage", None::<&()>).await?;
        let rows = usage["usage"].as_array().context("the server reports no usage")?;
        let execs: u64 = rows.iter().filter_map(|row| row["execs"].as_u64()).sum();
        ensure!(execs == turns as u64, "{execs} execs of a tenant are recorded, {turns} were answered");
    }
    let after = server.resident();
    drop((admin, clients));
    server.stop().await?;
    Ok(Queue { requests: turns * TENANTS, drained, resident: [before, waiting, after] })
}

/// Runs a command that prints the time. With room for one sandbox, times are in the order of admission.
async fn answered(client: &Client, tenant: usize, turn: usize) -> Result<Answered> {
    let result = run(client, &["date", "+%s%N"]).await?;
    let OutputView::Text(printed) = result.stdout else { bail!("the command printed no text") };
    Ok(Answered { tenant, turn, nanos: printed.trim().parse().context("the command printed no time")? })
}

/// Waits until so many requests wait.
async fn arrival(admin: &Client, expected: usize, tasks: &mut JoinSet<Result<Answered>>) -> Result<()> {
    let deadline = Instant::now() + ARRIVAL_TIMEOUT;
    loop {
        let waiting = waiting(admin).await?;
        if waiting == expected {
            return Ok(());
        }
        if let Some(early) = tasks.try_join_next() {
            bail!("a request did not wait for room: {:?}", early?);
        }
        ensure!(Instant::now() < deadline, "{waiting} requests wait instead of {expected}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn waiting(admin: &Client) -> Result<usize> {
    let mut answer = Transfer::of(admin.send(Method::GET, "/v1/metrics", Content::None).await?);
    let mut text = Vec::new();
    while let Some(bytes) = answer.next().await? {
        text.extend_from_slice(&bytes);
    }
    let text = String::from_utf8(text)?;
    let line = text.lines().find_map(|line| line.strip_prefix("cofferdam_waiting "));
    Ok(line.context("the server does not report waiting requests")?.parse()?)
}

/// Checks that each request was answered once, and those of each tenant in the order of their arrival.
fn in_order(all: &[Answered], turns: usize) -> Result<()> {
    for tenant in 0..TENANTS {
        let mut own: Vec<_> = all.iter().filter(|answered| answered.tenant == tenant).collect();
        own.sort_by_key(|answered| answered.nanos);
        ensure!(own.len() == turns, "{} of {turns} requests of a tenant were answered", own.len());
        for (expected, answered) in own.iter().enumerate() {
            let turn = answered.turn;
            ensure!(turn == expected, "request {turn} of tenant {tenant} ran in place {expected} of {turns}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(turns: usize) -> Vec<Answered> {
        let one = |index: usize| Answered { tenant: index % TENANTS, turn: index / TENANTS, nanos: index as u128 };
        (0..turns * TENANTS).map(one).collect()
    }

    /// Promise (Measurements and structure): The benchmark of the server fails if queued requests of a tenant do not run
    /// in the order of their arrival, or if one is not answered.
    #[test]
    fn order_and_completeness_are_checked() {
        let mut all = answers(9);
        all.reverse();
        in_order(&all, 9).unwrap();
        let swapped = all.iter().position(|answered| answered.tenant == 1 && answered.turn == 4).unwrap();
        all[swapped].nanos = 1_000_000;
        assert!(in_order(&all, 9).unwrap_err().to_string().contains("of tenant 1 ran in place 4 of 9"));
        let mut all = answers(9);
        all.pop();
        assert!(in_order(&all, 9).unwrap_err().to_string().contains("8 of 9"));
    }
}
