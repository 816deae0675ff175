//! The benefit of prepared interpreters: medians of one interleaved run. No test asserts a time.

use std::time::{Duration, Instant};

use cofferdam_contract::{Backend, Completed, ExecHandle, ExecRequest, OutputEvent, Spec};
use cofferdam_interpreter::InterpreterConfig;
use cofferdam_process::ProcessBackend;

use crate::support::{self, backend, block_on, code, has, main_file, python_with, stdout, warm};

const ROUNDS: usize = 60;

/// Run it alone, on a machine that does nothing else, in a release build:
/// `cargo test --release -p cofferdam-interpreter --test suite -- --ignored --nocapture measure`
#[test]
#[ignore = "a measurement, not a test"]
fn measure() {
    block_on(async {
        let backend = backend();
        let python = InterpreterConfig::python();
        // A shim in front of the interpreter would be measured too.
        let found = warm(&backend, &python).await.run(support::python("import sys\nprint(sys.executable)")).await;
        let found = stdout(&found.expect("it runs"));
        let program = found.trim();
        measure_one(&backend, "python print(1)", &python, "print(1)", &[program, "-I", "-S", "-c", "print(1)"]).await;
        for module in ["numpy", "pandas"] {
            if let Some(python) = python_with(&backend, "measure", module).await {
                let text = format!("import {module}\nprint(1)");
                let bare = [if python.command[0] == "python3" { program } else { &python.command[0] }, "-c", &text];
                measure_one(&backend, module, &python.clone().with_modules([module]), &text, &bare).await;
            }
        }
        let node = InterpreterConfig::node();
        if has(&backend, "measure", &node).await {
            measure_one(&backend, "node", &node, "console.log(1)", &["node", "-e", "console.log(1)"]).await;
        }
    });
}

async fn measure_one(backend: &ProcessBackend, what: &str, config: &InterpreterConfig, text: &str, bare: &[&str]) {
    let request = || code(config, main_file(config.runtime), text).build().expect("valid");
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let output = std::process::Command::new(bare[0]).args(&bare[1..]).output().expect("it runs");
        times[0].push(begun.elapsed());
        assert_eq!(output.stdout, b"1\n");

        let begun = Instant::now();
        let (completed, _) = backend.run(Spec::default(), request()).await.expect("it runs");
        times[1].push(begun.elapsed());
        check(&completed);

        let waiting = warm(backend, config).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = Instant::now();
        let handle = waiting.start(request()).await.expect("it starts");
        let [first, whole] = until_the_end(handle, begun).await;
        times[2].push(first);
        times[3].push(whole);
    }
    let [bare, cold, first, whole] = times.map(|mut times| {
        times.sort();
        times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64) * 1e3
    });
    println!("{what}: bare {bare:.2} ms, cold in a sandbox {cold:.2} ms");
    println!("    waiting, to the first output {first:.3} ms = {:.3} x bare", first / bare);
    println!("    waiting, to the exit         {whole:.3} ms = {:.3} x bare", whole / bare);
    let waiting = warm(backend, config).await;
    let used = waiting.sandbox().usage().await.expect("it is reported").memory_bytes.unwrap_or(0);
    println!("    memory of one that waits     {:.1} MiB", used as f64 / f64::from(1 << 20));
}

/// Returns the times to the first output and to the exit.
async fn until_the_end(handle: ExecHandle, begun: Instant) -> [Duration; 2] {
    let (mut output, mut first) = (handle.output(), None);
    while let Some(OutputEvent::Chunk(_)) = output.next().await {
        first.get_or_insert(begun.elapsed());
    }
    assert!(handle.exit().await.expect("it ends").success());
    [first.expect("it prints"), begun.elapsed()]
}

fn check(completed: &Completed) {
    assert!(completed.exit.success(), "{completed:?}");
}

/// A request of [`measure_one`] is served.
#[test]
fn measured_request_is_served() {
    let config = InterpreterConfig::python();
    let request: ExecRequest = code(&config, main_file(config.runtime), "print(1)").build().expect("valid");
    assert!(config.accepts(&request).is_ok());
}
