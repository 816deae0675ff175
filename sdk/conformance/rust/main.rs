//! Plugin of the conformance suite, with the methods of its README.

use std::time::{Duration, Instant};

use cofferdam_plugin_sdk::{Context, Error, Plugin, Result};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Add {
    a: f64,
    b: f64,
}

#[derive(Deserialize)]
struct Fail {
    message: String,
}

#[derive(Deserialize)]
struct Seconds {
    seconds: f64,
}

#[derive(Deserialize)]
struct Count {
    n: u64,
}

#[derive(Deserialize)]
struct Print {
    text: String,
}

#[derive(Deserialize)]
struct Entry {
    key: String,
    value: Value,
}

/// Returns a number as an integer if it is one.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

fn sleep(Seconds { seconds }: Seconds, ctx: &Context) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        ctx.check_cancelled()?;
        std::thread::sleep(Duration::from_millis(10).min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

fn count(Count { n }: Count, ctx: &Context) -> Result<u64> {
    for i in 0..n {
        ctx.stream(i)?;
    }
    Ok(n)
}

fn print(text: &str) {
    // A module of WASI has no descriptors to duplicate.
    if cfg!(target_family = "wasm") {
        eprintln!("{text}");
    } else {
        println!("{text}");
    }
}

fn busy(seconds: f64) {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn main() {
    Plugin::new()
        .method("echo", |input: Value, _| Ok(input))
        .method("add", |Add { a, b }, _| Ok(number(a + b)))
        .method("fail", |Fail { message }, _| Err::<(), _>(Error::from(std::io::Error::other(message))))
        .method("sleep", sleep)
        .method("count", count)
        .method("print", |Print { text }, _| {
            print(&text);
            Ok(())
        })
        .method("kv", |Entry { key, value }, ctx| {
            ctx.kv().set(&key, value)?;
            Ok(ctx.kv().get::<Value>(&key)?.value)
        })
        .method("progress", |_: Value, ctx| [0, 50, 100].iter().try_for_each(|p| ctx.progress(json!({"percent": p}))))
        .method("denied", |_: Value, ctx| Ok(ctx.fs().read("/etc/passwd").err().map(|error| error.kind)))
        .method("correlate", |_: Value, ctx| Ok(ctx.correlation_id().to_owned()))
        .method("busy", |Seconds { seconds }, _| {
            busy(seconds);
            Ok(())
        })
        .run()
}
