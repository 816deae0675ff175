//! Sandboxes, warm interpreters and requests for the tests.

use std::sync::Arc;

use cofferdam_contract::{
    Backend, Command, Completed, ExecRequest, ExecRequestBuilder, Limits, OutputEvent, OutputSubscription, Result,
    Sandbox, Script, Spec,
};
use cofferdam_interpreter::{EXTRA_PROCESSES, InterpreterConfig, Runtime, WaitingInterpreter};
use cofferdam_process::{ProcessBackend, ProcessConfig};

/// Runs a test's body.
pub fn block_on<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(body)
}

/// Makes sandboxes.
pub fn backend() -> ProcessBackend {
    ProcessBackend::new(ProcessConfig::default()).expect("a backend")
}

/// A sandbox as for a run from cold; Node needs more than the default ten processes in some scripts.
pub async fn sandbox(backend: &ProcessBackend, extra: u32) -> Arc<dyn Sandbox> {
    let limits = Limits { pids: Some(20 + extra), ..Limits::default() };
    let spec = Spec::builder().limits(limits).build().expect("valid");
    backend.create(spec).await.expect("a sandbox")
}

/// A warm interpreter in a sandbox of its own.
pub async fn warm(backend: &ProcessBackend, config: &InterpreterConfig) -> WaitingInterpreter {
    try_warm(backend, config).await.expect("it becomes warm")
}

/// Tries to warm an interpreter in a sandbox of its own.
pub async fn try_warm(backend: &ProcessBackend, config: &InterpreterConfig) -> Result<WaitingInterpreter> {
    WaitingInterpreter::warm(sandbox(backend, EXTRA_PROCESSES).await, config.clone()).await
}

/// A request for a piece of code.
pub fn code(config: &InterpreterConfig, name: &str, text: &str) -> ExecRequestBuilder {
    code_with_args(config, name, text, &[])
}

/// A request for a piece of code with arguments.
pub fn code_with_args(config: &InterpreterConfig, name: &str, text: &str, args: &[&str]) -> ExecRequestBuilder {
    ExecRequest::builder(Command::Script(Script {
        interpreter: config.command.clone(),
        name: name.to_owned(),
        contents: text.as_bytes().to_vec().into(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
    }))
}

/// A request for a piece of Python, in a file of the usual name.
pub fn python(text: &str) -> ExecRequest {
    code(&InterpreterConfig::python(), "main.py", text).build().expect("valid")
}

/// Standard output as text.
pub fn stdout(completed: &Completed) -> String {
    String::from_utf8_lossy(&completed.stdout).into_owned()
}

/// Everything that an exec printed, for messages.
pub fn printed(completed: &Completed) -> String {
    format!("{:?}\n{}\n{}", completed.exit, stdout(completed), String::from_utf8_lossy(&completed.stderr))
}

/// Whether the interpreter is there; says so if not.
pub async fn has(backend: &ProcessBackend, test: &str, config: &InterpreterConfig) -> bool {
    let probe = [config.command[0].as_str(), "--version"];
    let found = sandbox(backend, 0).await.exec(ExecRequest::argv(probe).build().expect("valid")).await;
    let there = found.is_ok_and(|completed| completed.exit.success());
    if !there {
        println!("SKIP {test}: {} cannot be run here", config.command[0]);
    }
    there
}

/// The extension of a runtime's scripts.
pub fn main_file(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Python => "main.py",
        Runtime::Node => "main.js",
    }
}

/// A Python that has a module, the first of this machine's; says so if there is none.
pub async fn python_with(backend: &ProcessBackend, test: &str, module: &str) -> Option<InterpreterConfig> {
    for program in ["python3", "/usr/bin/python3"] {
        let config =
            InterpreterConfig { command: vec![program.to_owned(), "-u".to_owned()], ..InterpreterConfig::python() };
        let request = code(&config, "main.py", &format!("import {module}")).build().expect("valid");
        let found = sandbox(backend, 0).await.exec(request).await;
        if found.is_ok_and(|completed| completed.exit.success()) {
            return Some(config);
        }
    }
    println!("SKIP {test}: no Python here has a module '{module}'");
    None
}

/// What is printed until a line ends; an unbuffered program writes it in pieces.
pub async fn read_line(output: &mut OutputSubscription) -> String {
    let mut line = String::new();
    while !line.ends_with('\n') {
        let Some(OutputEvent::Chunk(chunk)) = output.next().await else { panic!("it ended after {line:?}") };
        line.push_str(&String::from_utf8_lossy(&chunk.data));
    }
    line
}
