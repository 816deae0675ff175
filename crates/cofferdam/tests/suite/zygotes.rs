//! Zygotes of several tenants, in process sandboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam::engine::{InterpreterConfig, ZygoteConfig, ZygoteMetrics, Zygotes, ZygotesConfig};
use cofferdam::{
    Command, ErrorKind, ExecRequest, Limits, OutputEvent, Protection, Script, Spec, TenantId, collect, registry,
};

use crate::census;

const PATIENCE: Duration = Duration::from_secs(60);
/// Says whose sandbox this is: whoever came first wrote the name.
const WHOSE: &str = "import os, sys\npath = '/workspace/owner'\nif not os.path.exists(path):\n    open(path, 'w').write(sys.argv[1])\nprint(open(path).read())";

/// What an ordinary user's host may be unable to enforce is no matter here.
fn of(tenant: &str) -> Spec {
    use Protection as P;
    [P::Memory, P::CpuTime, P::Processes, P::Disk]
        .into_iter()
        .fold(Spec::builder(), |spec, item| spec.allow_weaker(item))
        .tenant(TenantId::new(tenant).expect("valid"))
        .build()
        .expect("valid")
}

fn python(text: &str, args: &[&str]) -> ExecRequest {
    ExecRequest::builder(Command::Script(Script {
        interpreter: InterpreterConfig::python().command,
        name: "main.py".to_owned(),
        contents: text.as_bytes().to_vec().into(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
    }))
    .build()
    .expect("valid")
}

fn config() -> ZygotesConfig {
    ZygotesConfig::new(ZygoteConfig { ready: 1, most_running: 3, ..ZygoteConfig::python() })
}

fn keep(config: ZygotesConfig) -> Zygotes {
    Zygotes::new(registry::backend("process").expect("the backend starts"), config).expect("a keeper")
}

async fn until(zygotes: &Zygotes, holds: impl Fn(&ZygoteMetrics) -> bool) -> ZygoteMetrics {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = zygotes.metrics();
        if holds(&metrics) {
            return metrics;
        }
        assert!(Instant::now() < deadline, "{metrics:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn told(zygotes: &Zygotes, spec: &Spec, text: &str, args: &[&str]) -> String {
    let (completed, _) = zygotes.run(spec, python(text, args)).await.expect("it runs");
    assert!(completed.exit.success(), "{completed:?}");
    String::from_utf8_lossy(&completed.stdout).into_owned()
}

/// Starts something that runs until its handle is dropped.
async fn running(zygotes: &Zygotes, spec: &Spec) -> cofferdam::engine::Forked {
    let forked = zygotes
        .start(spec, python("print(1, flush=True)\nimport time\ntime.sleep(100)", &[]))
        .await
        .expect("it starts");
    assert!(matches!(forked.handle.output().next().await, Some(OutputEvent::Chunk(_))));
    forked
}

async fn end(zygotes: Zygotes) {
    zygotes.shutdown(Duration::ZERO).await.expect("they end");
    let metrics = zygotes.metrics();
    assert_eq!((metrics.live, metrics.making, metrics.closing, metrics.running), (0, 0, 0, 0), "{metrics:?}");
    let error = zygotes.start(&of("late"), python("", &[])).await.expect_err("it is shut down");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

/// Requests of several tenants and specs in an order by chance, with fewer places than there are of them.
#[tokio::test]
async fn no_tenant_meets_another() {
    let before = census::census();
    let zygotes = keep(ZygotesConfig { max: 2, ..config() });
    let mut sandboxes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut chance = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..40 {
        // A fixed sequence, so that a failure comes again.
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let tenant = ["a", "b", "c"][(chance >> 33) as usize % 3];
        let spec = of(tenant);
        let small = Limits { wall_time: Duration::from_secs(7), ..Limits::default() };
        let (name, spec) = match chance >> 40 & 1 {
            0 => (tenant.to_owned(), spec),
            _ => (format!("{tenant}-small"), spec.to_builder().limits(small).build().expect("valid")),
        };
        let forked = zygotes.start(&spec, python(WHOSE, &[&name])).await.expect("it starts");
        assert!(forked.posture.items().len() > 5);
        let sandbox = forked.sandbox.to_string();
        let completed = collect(forked.handle).await.expect("it ends");
        assert_eq!(String::from_utf8_lossy(&completed.stdout), format!("{name}\n"));
        sandboxes.entry(sandbox).or_default().insert(name);
    }
    assert!(sandboxes.values().all(|names| names.len() == 1), "{sandboxes:?}");
    let metrics = zygotes.metrics();
    assert!(metrics.evicted > 3 && metrics.served == 40 && metrics.live <= 2, "{metrics:?}");
    end(zygotes).await;
    assert_eq!(census::left_behind(&before, PATIENCE), BTreeSet::new());
}

#[tokio::test]
async fn those_who_come_at_once_wait_for_one_zygote() {
    let zygotes = keep(config());
    let spec = of("a");
    let (a, b, c) = tokio::join!(
        told(&zygotes, &spec, "print(1)", &[]),
        told(&zygotes, &spec, "print(2)", &[]),
        told(&zygotes, &spec, "print(3)", &[])
    );
    assert_eq!([a, b, c], ["1\n", "2\n", "3\n"]);
    assert_eq!(zygotes.metrics().made, 1);
    end(zygotes).await;
}

#[tokio::test]
async fn zygotes_in_use_are_not_given_up_for_others() {
    let zygotes = keep(ZygotesConfig { max: 1, ..config() });
    let forked = running(&zygotes, &of("a")).await;
    let error = zygotes.start(&of("b"), python("", &[])).await.expect_err("the place is taken");
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    let (two, three) = (running(&zygotes, &of("a")).await, running(&zygotes, &of("a")).await);
    let error = zygotes.start(&of("a"), python("", &[])).await.expect_err("enough run");
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert_eq!(zygotes.metrics().refused, 2);
    for forked in [forked, two, three] {
        forked.handle.close().await.expect("it ends");
    }
    assert_eq!(told(&zygotes, &of("b"), WHOSE, &["b"]).await, "b\n");
    let metrics = zygotes.metrics();
    assert_eq!((metrics.live, metrics.evicted, metrics.made), (1, 1, 2), "{metrics:?}");
    end(zygotes).await;
}

#[tokio::test]
async fn what_is_idle_or_used_up_ends_and_is_made_anew() {
    let times =
        ZygotesConfig { idle_timeout: Duration::from_millis(300), check_every: Duration::from_millis(20), ..config() };
    let zygotes = keep(times);
    assert_eq!(told(&zygotes, &of("a"), "print(1)", &[]).await, "1\n");
    let metrics = until(&zygotes, |metrics| metrics.live == 0 && metrics.closing == 0).await;
    assert_eq!((metrics.made, metrics.ended), (1, 1), "{metrics:?}");
    assert_eq!(told(&zygotes, &of("a"), "print(2)", &[]).await, "2\n");
    end(zygotes).await;

    let zygote = ZygoteConfig { max_forks: 2, ..config().zygote };
    let zygotes = keep(ZygotesConfig { zygote, check_every: Duration::from_millis(20), ..config() });
    for _ in 0..5 {
        assert_eq!(told(&zygotes, &of("a"), "print(1)", &[]).await, "1\n");
    }
    let metrics = until(&zygotes, |metrics| metrics.live == 1 && metrics.closing == 0).await;
    assert_eq!(metrics.made, 3, "{metrics:?}");
    end(zygotes).await;
}

#[tokio::test]
async fn what_cannot_be_forked_is_told_so_and_leaves_nothing() {
    let before = census::census();
    let zygotes = keep(config());
    let cold = ExecRequest::argv(["python3", "-V"]).build().expect("valid");
    let error = zygotes.start(&of("a"), cold).await.expect_err("that has to start cold");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!((zygotes.metrics().unsupported, zygotes.metrics().made), (1, 0));
    end(zygotes).await;

    let missing = ZygoteConfig::of(InterpreterConfig::python().with_modules(["no_such_module"]));
    let zygotes = keep(ZygotesConfig { zygote: missing, ..config() });
    let error = zygotes.start(&of("a"), python("", &[])).await.expect_err("a module is missing");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let metrics = zygotes.metrics();
    assert!(metrics.failures == 1 && metrics.live + metrics.making == 0 && metrics.last_error.is_some(), "{metrics:?}");
    end(zygotes).await;

    let simulated = registry::backend("simulated").expect("it is built in");
    let zygotes = Zygotes::new(simulated, config()).expect("a keeper");
    let error = zygotes.start(&Spec::default(), python("", &[])).await.expect_err("there is no Python in it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    end(zygotes).await;
    assert_eq!(census::left_behind(&before, PATIENCE), BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_leaves_nothing_half_made() {
    let before = census::census();
    let zygotes = keep(config());
    let given_up = tokio::time::timeout(Duration::from_millis(5), zygotes.start(&of("a"), python("", &[]))).await;
    assert!(given_up.is_err(), "that was too fast to be given up");
    let metrics = until(&zygotes, |metrics| metrics.making == 0).await;
    assert_eq!((metrics.live, metrics.running, metrics.made), (1, 0, 1), "{metrics:?}");
    assert_eq!(told(&zygotes, &of("a"), "print(1)", &[]).await, "1\n");
    drop(zygotes);
    assert_eq!(census::left_behind(&before, PATIENCE), BTreeSet::new());
}

#[tokio::test]
async fn a_shutdown_waits_for_what_runs_and_then_does_not() {
    let zygotes = Arc::new(keep(config()));
    let slow = python("print(1, flush=True)\nimport time\ntime.sleep(0.3)\nprint(2)", &[]);
    let forked = zygotes.start(&of("a"), slow).await.expect("it starts");
    zygotes.shutdown(PATIENCE).await.expect("they end");
    assert!(forked.handle.exit().await.expect("it ends").success());

    let zygotes = keep(config());
    let forked = running(&zygotes, &of("a")).await;
    zygotes.shutdown(Duration::from_millis(50)).await.expect("they end");
    assert_eq!(forked.handle.exit().await.expect_err("it was ended").kind(), ErrorKind::Closed);
}
