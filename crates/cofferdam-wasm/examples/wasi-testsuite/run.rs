//! One test, from its files to its outcome.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Command, Completed, ExecRequest, Limits, Sandbox, SandboxPath, Script, Spec};
use cofferdam_wasm::{INTERPRETER, WasmBackend};
use serde_json::{Map, Value};

use crate::find::Test;
use crate::specification::Specification;

/// The default variables of an environment.
const DEFAULT_VARIABLES: [&str; 4] = ["HOME", "LANG", "PATH", "PWD"];
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The first bytes of a component.
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
/// Parts of a test's path, with the reason for which tests below them are skipped.
const UNSUPPORTED: [(&str, &str); 2] =
    [("wasi-threads", "a module has one thread"), ("wasi-http", "a module has no network")];

/// The outcome of a test.
pub enum Outcome {
    /// The test ended as specified.
    Passed,
    /// The test ended differently.
    Failed(String),
    /// The test was skipped, for this reason.
    Skipped(String),
}

/// Runs a test.
pub async fn run(test: &Test) -> Outcome {
    if let Some((_, reason)) = UNSUPPORTED.iter().find(|(part, _)| test.name.split('/').any(|found| found == *part)) {
        return Outcome::Skipped((*reason).to_owned());
    }
    let module = match std::fs::read(&test.module) {
        Ok(module) if module.starts_with(COMPONENT) => {
            return Outcome::Skipped("it is a component, not a module of preview 1".to_owned());
        }
        Ok(module) => module,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let specification = match Specification::read(&test.module) {
        Ok(specification) => specification,
        Err(reason) => return Outcome::Skipped(reason),
    };
    match execute(test, module, &specification).await {
        Ok(done) => compare(&done, &specification).map_or(Outcome::Passed, Outcome::Failed),
        Err(reason) => Outcome::Failed(reason),
    }
}

async fn execute(test: &Test, module: Vec<u8>, specification: &Specification) -> Result<Completed, String> {
    let shown = |error: cofferdam_contract::Error| error.to_string();
    let sandbox = sandbox(test, specification).await?;
    let script = Script {
        interpreter: vec![INTERPRETER.to_owned()],
        name: test.module.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        contents: module.into(),
        args: specification.args.clone(),
    };
    let mut request = ExecRequest::builder(Command::Script(script));
    for name in DEFAULT_VARIABLES {
        request = request.unset_env(name);
    }
    for (name, value) in &specification.env {
        request = request.env(name, value);
    }
    sandbox.exec(request.build().map_err(shown)?).await.map_err(shown)
}

/// Creates a sandbox with copies of the test's directories, under the names that the test expects.
async fn sandbox(test: &Test, specification: &Specification) -> Result<Arc<dyn Sandbox>, String> {
    let shown = |error: cofferdam_contract::Error| error.to_string();
    let paths = || (0..).map(|number| format!("given/{number}"));
    let names: Map<String, Value> =
        specification.directories.iter().zip(paths()).map(|((name, _), path)| (name.clone(), path.into())).collect();
    let limits = Limits { wall_time: TEST_TIMEOUT, ..Limits::default() };
    let spec = Spec::builder().limits(limits).attribute("wasm.directories", Value::Object(names));
    let sandbox = WasmBackend::default().create(spec.build().map_err(shown)?).await.map_err(shown)?;
    for ((_, from), to) in specification.directories.iter().zip(paths()) {
        copy(&sandbox, &test.directory().join(from), &to).await?;
    }
    Ok(sandbox)
}

async fn copy(sandbox: &Arc<dyn Sandbox>, from: &Path, to: &str) -> Result<(), String> {
    let shown = |error: cofferdam_contract::Error| error.to_string();
    let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", from.display());
    let mut pending = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = pending.pop() {
        // Directories are created with the files in them. For an empty one a temporary file is written and removed.
        let keep = SandboxPath::new(format!("{to}/.keep")).map_err(shown)?;
        sandbox.write_bytes(&keep, "").await.map_err(shown)?;
        sandbox.remove(&keep).await.map_err(shown)?;
        for entry in from.read_dir().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let inside = format!("{to}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().map_err(unreadable)?.is_dir() {
                pending.push((entry.path(), inside));
            } else {
                let bytes = std::fs::read(entry.path()).map_err(unreadable)?;
                sandbox.write_bytes(&SandboxPath::new(inside).map_err(shown)?, bytes).await.map_err(shown)?;
            }
        }
    }
    Ok(())
}

/// Returns the difference between the result and the specification.
fn compare(done: &Completed, specification: &Specification) -> Option<String> {
    let stderr = String::from_utf8_lossy(&done.stderr);
    let exit = &done.exit;
    if exit.signal.is_some() || exit.timed_out || i64::from(exit.code) != specification.exit_code {
        return Some(format!(
            "exit code {} (signal {:?}, timed out {}) instead of {}: {}",
            exit.code,
            exit.signal,
            exit.timed_out,
            specification.exit_code,
            stderr.trim()
        ));
    }
    let differs = |what: &str, got: &[u8], wanted: &Option<String>| {
        let wanted = wanted.as_ref().filter(|wanted| wanted.as_bytes() != got)?;
        Some(format!("{what} is {:?} instead of {wanted:?}", String::from_utf8_lossy(got)))
    };
    differs("standard output", &done.stdout, &specification.stdout)
        .or_else(|| differs("standard error", &done.stderr, &specification.stderr))
}
