//! Prepared Pythons, for the contestants that take over one for a request.
//!
//! Several are prepared between two turns, when none is left. Used ones are closed then. So nothing is created or
//! closed during a measurement.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use cofferdam_contract::{Backend, Command, Completed, ExecRequest, Limits, Sandbox, Script, Spec, collect};
use cofferdam_interpreter::{EXTRA_PROCESSES, InterpreterConfig, WarmInterpreter};
use cofferdam_process::ProcessBackend;
use parking_lot::Mutex;

/// Number of Pythons prepared at once.
const FEW: usize = 4;

/// Prepared Pythons, with or without some modules.
#[derive(Debug)]
pub struct WarmPythons {
    backend: Arc<ProcessBackend>,
    config: InterpreterConfig,
    code: &'static str,
    idle: Mutex<Vec<WarmInterpreter>>,
    used: Mutex<Vec<Arc<dyn Sandbox>>>,
}

impl WarmPythons {
    /// Creates an empty set of Pythons started by `command`, which import `modules` and will run `code`.
    pub fn new(backend: &Arc<ProcessBackend>, command: &[&str], modules: &[&str], code: &'static str) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let config = InterpreterConfig { command, ..InterpreterConfig::python().with_modules(modules.iter().copied()) };
        let (idle, used) = (Mutex::default(), Mutex::default());
        Self { backend: Arc::clone(backend), config, code, idle, used }
    }

    /// Closes used Pythons, and prepares new ones if none is left.
    pub async fn refill(&self) -> Result<()> {
        for sandbox in take(&self.used) {
            sandbox.close().await?;
        }
        if !self.idle.lock().is_empty() {
            return Ok(());
        }
        for _ in 0..FEW {
            let limits = Limits::default();
            let pids = limits.pids.map(|count| count + EXTRA_PROCESSES);
            let spec = Spec::builder().limits(Limits { pids, ..limits }).build()?;
            let sandbox = self.backend.create(spec).await?;
            let created = WarmInterpreter::prepare(sandbox, self.config.clone()).await?;
            self.idle.lock().push(created);
        }
        Ok(())
    }

    /// Runs the code in a prepared Python.
    pub async fn run(&self) -> Result<Completed> {
        let idle = self.idle.lock().pop().context("no prepared Python is left: refill first")?;
        let script = Script {
            interpreter: self.config.command.clone(),
            name: "main.py".to_owned(),
            contents: self.code.as_bytes().into(),
            args: Vec::new(),
        };
        let request = ExecRequest::builder(Command::Script(script)).build()?;
        self.used.lock().push(Arc::clone(idle.sandbox()));
        Ok(collect(idle.start(request).await?).await?)
    }
}

fn take<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *list.lock())
}

/// Returns the path of a Python in the search path that has this module. A version manager's `python3` is only a
/// script.
pub fn python_with(module: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let programs = std::env::split_paths(&path).map(|directory| directory.join("python3"));
    programs.filter(|program| program.is_file()).find_map(|program| {
        let code = format!("import sys, {module}; print(sys.executable)");
        let output = std::process::Command::new(program).args(["-c", &code]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        text.lines().last().map(PathBuf::from).filter(|program| program.is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_backend;

    #[tokio::test]
    async fn each_warm_python_runs_once() {
        let python = python_with("json").expect("Python has this module");
        assert_eq!(python_with("no_such_module_at_all"), None);
        let backend = process_backend::backend().await.unwrap();
        let code = "import sys; print(int('json' in sys.modules))";
        let pythons = WarmPythons::new(&backend, &[python.to_str().unwrap(), "-u"], &["json"], code);
        assert!(pythons.run().await.is_err());
        pythons.refill().await.unwrap();
        for _ in 0..FEW {
            process_backend::check(&pythons.run().await.unwrap(), "1\n").unwrap();
        }
        assert!(pythons.run().await.is_err());
        pythons.refill().await.unwrap();
        assert_eq!((pythons.used.lock().len(), pythons.idle.lock().len()), (0, FEW));
    }
}
