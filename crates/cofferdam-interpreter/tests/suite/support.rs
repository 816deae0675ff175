//! Sandboxes, prepared interpreters and requests for tests.

use std::sync::Arc;

use cofferdam_contract::{
    Backend, Command, Completed, ExecRequest, ExecRequestBuilder, Limits, OutputEvent, OutputSubscription, Result,
    Sandbox, Script, Spec,
};
use cofferdam_interpreter::{EXTRA_PROCESSES, InterpreterConfig, Runtime, WarmInterpreter};
use cofferdam_process::{ProcessBackend, ProcessConfig};

/// Runs the body of a test.
pub fn block_on<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(body)
}

/// Returns a backend.
pub fn backend() -> ProcessBackend {
    ProcessBackend::new(ProcessConfig::default()).expect("a backend")
}

/// Creates a sandbox as for a cold start. Node needs more than ten processes in some scripts.
pub async fn sandbox(backend: &ProcessBackend, extra: u32) -> Arc<dyn Sandbox> {
    let limits = Limits { pids: Some(20 + extra), ..Limits::default() };
    let spec = Spec::builder().limits(limits).build().expect("valid");
    backend.create(spec).await.expect("a sandbox")
}

/// Prepares an interpreter in a sandbox of its own.
pub async fn warm(backend: &ProcessBackend, config: &InterpreterConfig) -> WarmInterpreter {
    try_warm(backend, config).await.expect("it becomes warm")
}

/// Tries to prepare an interpreter in a sandbox of its own.
pub async fn try_warm(backend: &ProcessBackend, config: &InterpreterConfig) -> Result<WarmInterpreter> {
    WarmInterpreter::prepare(sandbox(backend, EXTRA_PROCESSES).await, config.clone()).await
}

/// Creates a request for a piece of code.
pub fn code(config: &InterpreterConfig, name: &str, text: &str) -> ExecRequestBuilder {
    code_with_args(config, name, text, &[])
}

/// Creates a request for a piece of code with arguments.
pub fn code_with_args(config: &InterpreterConfig, name: &str, text: &str, args: &[&str]) -> ExecRequestBuilder {
    ExecRequest::builder(Command::Script(Script {
        interpreter: config.command.clone(),
        name: name.to_owned(),
        contents: text.as_bytes().to_vec().into(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
    }))
}

/// Creates a request for a piece of Python code, in a file with the usual name.
pub fn python(text: &str) -> ExecRequest {
    code(&InterpreterConfig::python(), "main.py", text).build().expect("valid")
}

/// Returns standard output as text.
pub fn stdout(completed: &Completed) -> String {
    String::from_utf8_lossy(&completed.stdout).into_owned()
}

/// Returns all output of an exec, for messages.
pub fn printed(completed: &Completed) -> String {
    format!("{:?}\n{}\n{}", completed.exit, stdout(completed), String::from_utf8_lossy(&completed.stderr))
}

/// Returns true if the interpreter is installed; prints a message if not.
pub async fn has(backend: &ProcessBackend, test: &str, config: &InterpreterConfig) -> bool {
    let probe = [config.command[0].as_str(), "--version"];
    let found = sandbox(backend, 0).await.exec(ExecRequest::argv(probe).build().expect("valid")).await;
    let works = found.is_ok_and(|completed| completed.exit.success());
    if !works {
        println!("SKIP {test}: {} cannot be run here", config.command[0]);
    }
    works
}

/// Returns the file extension of a runtime's scripts.
pub fn main_file(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Python => "main.py",
        Runtime::Node => "main.js",
    }
}

/// Returns the first Python of this machine that has a module; prints a message if there is none.
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

/// Returns the output up to the end of a line. An unbuffered program writes it in pieces.
pub async fn read_line(output: &mut OutputSubscription) -> String {
    let mut line = String::new();
    while !line.ends_with('\n') {
        let Some(OutputEvent::Chunk(chunk)) = output.next().await else { panic!("it ended after {line:?}") };
        line.push_str(&String::from_utf8_lossy(&chunk.data));
    }
    line
}
