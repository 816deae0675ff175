//! The backends, their live sandboxes and sessions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use cofferdam::registry::{self, ContainerSettings, MakePolicy, Setup, VM_BACKEND, VmSettings};
use cofferdam_code::{BackendProfile, CodeConfig, CodeRequest, CodeResult, CodeSession, Executor, Sessions};
use cofferdam_contract::{Backend, Limits, Sandbox, Spec};

use super::{BACKENDS, BackendName, Lang, Way};
use crate::options::CodeOptions;
use crate::program::{self, Keep};

/// Process limit, because Node starts more threads than a sandbox may have by default.
const PROCESSES: u32 = 32;

/// The state for the turns of one backend.
struct BackendState {
    name: BackendName,
    /// The backend, or the reason why it is missing.
    backend: Result<Arc<dyn Backend>, String>,
    live: Option<(BackendProfile, Arc<dyn Sandbox>)>,
    sessions: Vec<(Lang, Arc<CodeSession>)>,
}

/// The state for all turns.
pub struct Field {
    executor: Executor,
    sessions: Sessions,
    /// The interpreters of this host.
    bare: Vec<(Lang, String)>,
    backends: Vec<BackendState>,
}

impl Field {
    /// Creates the backends. Sandboxes are created on demand.
    pub async fn prepare(options: &CodeOptions) -> Result<Self> {
        let mut setup = Setup::from_environment()?;
        let host = options.host.clone().or_else(|| std::env::var("COFFERDAM_TEST_DOCKER").ok());
        setup.containers = ContainerSettings { host: host.or(setup.containers.host), ..setup.containers };
        setup.vms = VmSettings { build: Some(MakePolicy::Missing), ..setup.vms };
        let executor = Executor::new(CodeConfig::default())?;
        let mut backends = Vec::new();
        for name in BACKENDS {
            let backend = match name.0 {
                VM_BACKEND if !options.vm => Err("--vm includes it".to_owned()),
                name => registry::backend_with(name, &setup).map_err(|error| error.to_string()),
            };
            backends.push(BackendState { name, backend, live: None, sessions: Vec::new() });
        }
        let mut bare = Vec::new();
        for lang in Lang::ALL {
            let [interpreter, option] = lang.bare();
            let output = tokio::process::Command::new(interpreter).args([option, lang.path_code()]).output().await;
            if let Ok(output) = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
                && !output.is_empty()
            {
                bare.push((lang, output));
            }
        }
        Ok(Self { sessions: Sessions::new(executor.clone()), executor, bare, backends })
    }

    /// Creates the live sandbox or session, if it is needed and missing.
    pub async fn prepare_turn(&mut self, lang: Lang, way: Way) -> Result<()> {
        let name = match way {
            Way::Bare | Way::New(_) => return Ok(()),
            Way::Live(name) | Way::Session(name) => name,
        };
        let state = self.backends.iter_mut().find(|state| state.name == name).context("no such backend")?;
        let backend = state.backend.as_ref().map_err(|why| anyhow!("{why}"))?;
        if state.live.is_none() {
            let sandbox = backend.create(spec()?).await?;
            state.live = Some((BackendProfile::of(&**backend), sandbox));
        }
        if let (Way::Session(_), Some((profile, sandbox))) = (way, &state.live) {
            let session = self.sessions.open(profile, sandbox, lang.name()).await?;
            state.sessions.push((lang, session));
        }
        Ok(())
    }

    /// Runs one turn.
    pub async fn turn(&self, lang: Lang, way: Way) -> Result<Duration> {
        let begun = Instant::now();
        let request = || CodeRequest::new(lang.name(), lang.code());
        let result = match way {
            Way::Bare => {
                let (_, interpreter) =
                    self.bare.iter().find(|(of, _)| *of == lang).context("no interpreter on this host")?;
                let line = [interpreter.as_str(), lang.bare()[1], lang.code()];
                program::run(&line, "1\n", Keep::Output).await.map_err(anyhow::Error::msg)?;
                return Ok(begun.elapsed());
            }
            Way::New(name) => {
                let backend = self.state(name)?.backend.as_ref().map_err(|why| anyhow!("{why}"))?;
                self.executor.run(&**backend, spec()?, request()).await?
            }
            Way::Live(name) => {
                let (profile, sandbox) = self.state(name)?.live.as_ref().context("no live sandbox")?;
                self.executor.execute(profile, &**sandbox, request()).await?
            }
            Way::Session(name) => {
                let sessions = &self.state(name)?.sessions;
                let session = sessions.iter().find(|(of, _)| *of == lang).context("no session")?;
                session.1.call(request()).await?
            }
        };
        let took = begun.elapsed();
        check(&result)?;
        Ok(took)
    }

    fn state(&self, name: BackendName) -> Result<&BackendState> {
        self.backends.iter().find(|state| state.name == name).context("no such backend")
    }

    /// Closes all sandboxes and sessions.
    pub async fn end(self) -> Result<()> {
        self.sessions.shutdown().await;
        for (_, sandbox) in self.backends.into_iter().filter_map(|state| state.live) {
            sandbox.close().await?;
        }
        Ok(())
    }
}

fn spec() -> Result<Spec> {
    Ok(Spec::builder().limits(Limits { pids: Some(PROCESSES), ..Limits::default() }).build()?)
}

fn check(result: &CodeResult) -> Result<()> {
    let right = result.success() && result.stdout.text() == "1\n";
    ensure!(right, "the code failed with {}: {}{}", result.exit_code, result.stdout.text(), result.stderr.text());
    Ok(())
}
