//! Runs the table's cases, each under a deadline and in a task of its own, so that neither a hang nor a panic of a
//! backend ends the run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::Capability;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::case::{Case, Context, Stop, Verdict};
use crate::cases::{CASES, undeclared};
use crate::report::Outcome;
use crate::{CaseInfo, CaseResult, Options, Report, Target};

const CENSUS: CaseInfo = CaseInfo { name: "host/nothing-left-behind", requirement: "K6", needs: &[] };
/// Maximum wait for the background cleanup of sandboxes that were dropped rather than closed.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for closing the sandboxes that a case left open.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns every case of the suite, in the order of execution.
pub fn cases() -> impl Iterator<Item = CaseInfo> {
    CASES.iter().map(|case| case.info).chain([CENSUS])
}

/// Runs the suite on a target. Needs a tokio runtime with time and IO enabled.
pub async fn run(target: &Target, options: &Options) -> Report {
    let before = baseline(target).await;
    let chosen: Vec<&'static Case> = CASES.iter().filter(|case| selected(&case.info, options)).collect();
    let mut results: Vec<Option<CaseResult>> = chosen.iter().map(|_| None).collect();
    let mut running = JoinSet::new();
    let mut waiting = chosen.into_iter().enumerate();
    loop {
        while running.len() < options.parallelism.max(1) {
            let Some((index, case)) = waiting.next() else { break };
            let (target, options) = (target.clone(), options.clone());
            running.spawn(async move { (index, run_case(case, &target, &options).await) });
        }
        match running.join_next().await {
            Some(Ok((index, result))) => results[index] = Some(result),
            // `run_case` catches panics, and the suite's tasks are cancelled only with the runtime.
            Some(Err(_)) => {}
            None => break,
        }
    }
    let mut cases: Vec<CaseResult> = results.into_iter().flatten().collect();
    if selected(&CENSUS, options) {
        let start = Instant::now();
        let verdict = compare_census(target, before).await;
        cases.push(report(&CENSUS, verdict, start, options));
    }
    Report { backend: target.backend.name().to_owned(), cases }
}

fn selected(info: &CaseInfo, options: &Options) -> bool {
    options.filter.as_ref().is_none_or(|filter| info.name.contains(filter.as_str()) || info.requirement == filter)
}

async fn run_case(case: &'static Case, target: &Target, options: &Options) -> CaseResult {
    let start = Instant::now();
    let context = Context::new(target, options);
    let mut verdict = guarded(options.deadline, body(case, context.clone())).await;
    let cleaner = context.clone();
    let cleaned = guarded(CLOSE_TIMEOUT, async move { cleaner.close_all().await }).await;
    if !matches!(verdict, Err(Stop::Fail(_))) && cleaned.is_err() {
        verdict = cleaned;
    }
    report(&case.info, verdict, start, options)
}

/// Runs the case itself, or the test of an undeclared capability.
async fn body(case: &'static Case, context: Context) -> Verdict {
    let missing: Vec<Capability> = case.info.needs.iter().copied().filter(|need| !context.declares(*need)).collect();
    if missing.is_empty() {
        return (case.run)(context).await;
    }
    for capability in &missing {
        undeclared::probe(&context, *capability).await?;
    }
    let names: Vec<String> = missing.iter().map(|capability| undeclared::name(*capability)).collect();
    Err(Stop::skip(format!("the backend does not declare {}", names.join(", "))))
}

async fn guarded(deadline: Duration, future: impl Future<Output = Verdict> + Send + 'static) -> Verdict {
    let mut task = JoinSet::new();
    task.spawn(future);
    match timeout(deadline, task.join_next()).await {
        Ok(Some(Ok(verdict))) => verdict,
        Ok(Some(Err(error))) => Err(Stop::fail(format!("panicked: {}", panic_message(error)))),
        Ok(None) => Err(Stop::fail("the case was dropped")),
        Err(_) => {
            task.shutdown().await;
            Err(Stop::fail(format!("did not end within {} s", deadline.as_secs_f64())))
        }
    }
}

fn panic_message(error: tokio::task::JoinError) -> String {
    let Ok(payload) = error.try_into_panic() else { return "the task was cancelled".to_owned() };
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

fn report(info: &CaseInfo, verdict: Verdict, start: Instant, options: &Options) -> CaseResult {
    let result = CaseResult {
        name: info.name.to_owned(),
        requirement: info.requirement.to_owned(),
        outcome: match verdict {
            Ok(()) => Outcome::Passed,
            Err(Stop::Fail(message)) => Outcome::Failed(message),
            Err(Stop::Skip(reason)) => Outcome::Skipped(reason),
        },
        duration: start.elapsed(),
    };
    if let Some(progress) = &options.progress {
        progress(&result);
    }
    result
}

/// Returns the census before the cases. Creates and closes a sandbox first, so that processes that a backend starts
/// once and keeps, such as a helper, do not count as left behind.
async fn baseline(target: &Target) -> Option<BTreeSet<String>> {
    let census = target.census.as_ref()?;
    let (backend, spec) = (Arc::clone(&target.backend), target.spec.clone());
    // The cases test whether this succeeds.
    let warm_up = async move { Ok(backend.create(spec).await?.close().await?) };
    let _ = guarded(CLOSE_TIMEOUT, warm_up).await;
    Some(census())
}

async fn compare_census(target: &Target, before: Option<BTreeSet<String>>) -> Verdict {
    let (Some(census), Some(before)) = (&target.census, before) else {
        return Err(Stop::skip("no census of the host was provided"));
    };
    let census = Arc::clone(census);
    let start = Instant::now();
    loop {
        let left: Vec<String> = census().difference(&before).cloned().collect();
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > SETTLE_TIMEOUT {
            let shown = left.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
            return Err(Stop::fail(format!("{} objects were left behind: {shown}", left.len())));
        }
        sleep(Duration::from_millis(200)).await;
    }
}
