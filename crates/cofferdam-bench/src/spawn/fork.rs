//! A Python that waits and is forked for each request, for the contestant that has a fork take over.
//!
//! One zygote serves all turns, as it would in use: it forks the next ones by itself while others are measured, but for
//! a pause after each of its own turns.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cofferdam_contract::{Backend, Command, Completed, ExecRequest, Limits, Script, Spec, collect};
use cofferdam_interpreter::{InterpreterConfig, Zygote, ZygoteConfig};
use cofferdam_process::ProcessBackend;

/// Forks that wait: enough for one turn.
const READY: u32 = 8;
/// Time in which used ones are replaced.
const PAUSE: Duration = Duration::from_millis(150);

/// A zygote, and what its forks run.
#[derive(Debug)]
pub struct ForkedPython {
    zygote: Zygote,
    command: Vec<String>,
    code: &'static str,
}

impl ForkedPython {
    /// One started by `command`, whose forks run `code`.
    pub async fn new(backend: &Arc<ProcessBackend>, command: &[&str], code: &'static str) -> Result<Self> {
        let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let interpreter = InterpreterConfig { command: command.clone(), ..InterpreterConfig::python() };
        let config = ZygoteConfig { ready: READY, max_forks: 1 << 20, ..ZygoteConfig::of(interpreter) };
        let limits = Limits::default();
        let pids = limits.pids.map(|count| count + config.extra_processes());
        // One sandbox serves the whole benchmark.
        let spec = Spec::builder().limits(Limits { pids, cpu_time: None, ..limits }).build()?;
        let sandbox = backend.create(spec).await?;
        Ok(Self { zygote: Zygote::warm(sandbox, config).await?, command, code })
    }

    /// Lets it fork the next ones.
    pub async fn rest(&self) {
        tokio::time::sleep(PAUSE).await;
    }

    /// Has a fork run the code.
    pub async fn run(&self) -> Result<Completed> {
        let script = Script {
            interpreter: self.command.clone(),
            name: "main.py".to_owned(),
            contents: self.code.as_bytes().into(),
            args: Vec::new(),
        };
        let request = ExecRequest::builder(Command::Script(script)).build()?;
        Ok(collect(self.zygote.start(request).await?).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ours;
    use crate::spawn::warm::python_with;

    #[tokio::test]
    async fn forks_run_one_after_the_other() {
        let python = python_with("json").expect("Python has it");
        let backend = ours::backend().await.unwrap();
        let forked = ForkedPython::new(&backend, &[python.to_str().unwrap(), "-u"], "print(1)").await.unwrap();
        for _ in 0..READY + 2 {
            ours::check(&forked.run().await.unwrap(), "1\n").unwrap();
        }
        forked.rest().await;
    }
}
