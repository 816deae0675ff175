//! Prepared interpreters in process sandboxes of a pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam::engine::{
    InterpreterConfig, InterpreterMetrics, InterpreterTimes, Interpreters, InterpretersConfig, PoolConfig,
    PooledBackend, PreparedInterpreter,
};
use cofferdam::{
    Access, Backend, ByteSize, Command, ExecRequest, Limits, Protection, Script, Spec, SpecBuilder, TenantId,
    Workspace, collect, registry,
};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

struct Fixture {
    pool: Arc<PooledBackend>,
    interpreters: Interpreters,
}

/// Returns a spec that accepts the protections that may be unavailable on the host of an unprivileged user.
fn spec() -> SpecBuilder {
    use Protection as P;
    [P::Memory, P::CpuTime, P::Processes, P::Disk]
        .into_iter()
        .fold(Spec::builder(), |spec, item| spec.allow_weaker(item))
}

fn keep(interpreter: InterpreterConfig, times: InterpreterTimes) -> Fixture {
    let backend = registry::backend("process").expect("the backend starts");
    let template = spec().build().expect("valid");
    let pool = Arc::new(PooledBackend::new(backend, template.clone(), PoolConfig::default()).expect("a pool"));
    let fixture = PreparedInterpreter { name: "python".to_owned(), interpreter, ready: 1 };
    let config = InterpretersConfig { times, ..InterpretersConfig::new([fixture]) };
    let interpreters = Interpreters::new(Arc::clone(&pool) as Arc<dyn Backend>, template, config).expect("a pool");
    Fixture { pool, interpreters }
}

impl Fixture {
    async fn until(&self, holds: impl Fn(&InterpreterMetrics) -> bool) -> InterpreterMetrics {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let metrics = self.interpreters.metrics().remove(0);
            if holds(&metrics) {
                return metrics;
            }
            assert!(Instant::now() < deadline, "{metrics:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) {
        self.interpreters.shutdown().await.expect("they end");
        self.pool.pool().shutdown(Duration::from_secs(1)).await.expect("it ends");
        let metrics = self.pool.pool().metrics();
        assert_eq!((metrics.claimed, metrics.warm, metrics.making, metrics.closing), (0, 0, 0, 0), "{metrics:?}");
    }
}

fn python(code: &'static str) -> ExecRequest {
    let contents = code.as_bytes().to_vec().into();
    let interpreter = vec!["python3".to_owned(), "-u".to_owned()];
    let script = Script { interpreter, name: "main.py".to_owned(), contents, args: vec![] };
    ExecRequest::builder(Command::Script(script)).build().expect("valid")
}

/// Promise (Server): A warm interpreter serves one request and is replaced.
#[tokio::test]
async fn warm_interpreter_is_used_once_and_replaced() {
    let fixture = keep(InterpreterConfig::python(), InterpreterTimes::default());
    let tenant = TenantId::new("acme").expect("valid");
    let requested = spec().tenant(tenant.clone()).label("job", "7").build().expect("valid");
    let mut seen = Vec::new();
    for _ in 0..3 {
        fixture.until(|metrics| metrics.waiting == 1).await;
        let taken =
            fixture.interpreters.take(&requested, &python("import os; print(os.urandom(8).hex())")).expect("it waits");
        let (handle, sandbox) = taken.start().await.expect("it starts");
        assert_eq!((sandbox.spec().tenant(), sandbox.spec().limits().pids), (&tenant, Some(256)));
        assert_eq!(sandbox.spec().labels().len(), 1);
        let done = collect(handle).await.expect("it ends");
        assert!(done.exit.success(), "{done:?}");
        seen.push((sandbox.id().clone(), done.stdout));
        sandbox.close().await.expect("it closes");
    }
    assert!((1..3).all(|one| seen[..one].iter().all(|other| other.0 != seen[one].0 && other.1 != seen[one].1)));
    let metrics = fixture.until(|metrics| metrics.waiting == 1).await;
    assert_eq!((metrics.taken, metrics.missed, metrics.failures), (3, 0, 0));
    fixture.end().await;
}

/// Promise (Server): A request without a compatible warm interpreter starts a cold one.
#[tokio::test]
async fn incompatible_request_starts_cold() {
    let fixture = keep(InterpreterConfig::python(), InterpreterTimes::default());
    fixture.until(|metrics| metrics.waiting == 1).await;
    let default = || spec().build().expect("valid");
    let mounted = Workspace::HostDir { path: "/tmp".into(), access: Access::ReadOnly };
    let memory = Limits { memory: Some(ByteSize::from_mebibytes(64)), ..Limits::default() };
    let strict = Spec::default();
    let request = python("print(1)");
    for requested in
        [spec().workspace(mounted).build().expect("valid"), spec().limits(memory).build().expect("valid"), strict]
    {
        assert!(fixture.interpreters.take(&requested, &request).is_none(), "{requested:?}");
    }
    for request in [
        request.to_builder().env("PYTHONHASHSEED", "1").build().expect("valid"),
        request.to_builder().max_output(ByteSize::from_mebibytes(100)).build().expect("valid"),
        // A longer time than the interpreter lives.
        request.to_builder().timeout(Duration::from_secs(7200)).build().expect("valid"),
        ExecRequest::argv(["python3", "-c", "1"]).build().expect("valid"),
    ] {
        assert!(fixture.interpreters.take(&default(), &request).is_none(), "{request:?}");
    }
    let short =
        spec().limits(Limits { wall_time: Duration::from_millis(300), ..Limits::default() }).build().expect("valid");
    let taken = fixture.interpreters.take(&short, &python("import time; time.sleep(60)")).expect("it waits still");
    let (handle, sandbox) = taken.start().await.expect("it starts");
    let row = sandbox.posture().get(Protection::WallTime).expect("a row").mechanism.clone();
    assert!(row.contains("0.3 s"), "{row}");
    assert!(collect(handle).await.expect("it ends").exit.timed_out);
    drop(sandbox);
    fixture.end().await;
}

/// Promise (Server): Old and dead warm interpreters are replaced.
#[tokio::test]
async fn the_old_and_the_dead_are_replaced() {
    let check_every = Duration::from_millis(50);
    let old = InterpreterTimes { max_age: Duration::from_millis(300), check_every, ..InterpreterTimes::default() };
    let fixture = keep(InterpreterConfig::python(), old);
    fixture.until(|metrics| metrics.expired >= 2 && metrics.created >= 2).await;
    fixture.end().await;
    let mortal = InterpreterConfig {
        warm_limit: Duration::from_secs(3),
        lifetime: Duration::from_millis(3100),
        ..InterpreterConfig::python()
    };
    let fixture = keep(mortal, InterpreterTimes { check_every, ..InterpreterTimes::default() });
    fixture.until(|metrics| metrics.died >= 1 && metrics.created >= 2 && metrics.waiting == 1).await;
    fixture.end().await;
}

/// Promise (Server): A failed preparation is retried with increasing delays.
#[tokio::test]
async fn failed_preparation_is_retried_with_backoff() {
    let missing = InterpreterConfig { command: vec!["no-such-python".to_owned()], ..InterpreterConfig::python() };
    let first = Duration::from_millis(50);
    let fixture = keep(missing, InterpreterTimes { first_backoff: first, ..InterpreterTimes::default() });
    let begun = Instant::now();
    let metrics = fixture.until(|metrics| metrics.failures >= 4).await;
    // Waits at least half of 50, 100 and 200 ms between them.
    assert!(begun.elapsed() >= Duration::from_millis(175));
    assert!(metrics.last_error.is_some_and(|error| error.contains("no-such-python")));
    fixture.end().await;
}

/// Promise (Server): A dropped pool closes its warm interpreters.
#[tokio::test]
async fn dropped_interpreters_are_closed() {
    let fixture = keep(InterpreterConfig::python(), InterpreterTimes::default());
    fixture.until(|metrics| metrics.waiting == 1).await;
    let taken = fixture.interpreters.take(&spec().build().expect("valid"), &python("1")).expect("it waits");
    let Fixture { pool, interpreters } = fixture;
    drop((taken, interpreters));
    pool.pool().shutdown(TEST_TIMEOUT).await.expect("it ends");
    assert_eq!(pool.pool().metrics().close_failures, 0);
}
