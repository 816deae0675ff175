//! The backends, their live sandboxes and sessions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use cofferdam::registry::machines::{Build, Machines};
use cofferdam::registry::{self, Containers, MACHINE_BACKEND, Setup};
use cofferdam_code::{CodeConfig, CodeRequest, CodeResult, CodeSession, Executor, Place, Sessions};
use cofferdam_contract::{Backend, Limits, Sandbox, Spec};

use super::{Lang, WALLS, Wall, Way};
use crate::options::CodeOptions;
use crate::program::{self, Keep};

/// Node starts more threads than a sandbox may have by default.
const PROCESSES: u32 = 32;

/// What the turns of one wall need.
struct Post {
    wall: Wall,
    /// Or why there is none.
    backend: Result<Arc<dyn Backend>, String>,
    live: Option<(Place, Arc<dyn Sandbox>)>,
    sessions: Vec<(Lang, Arc<CodeSession>)>,
}

/// Everything that turns need.
pub struct Field {
    executor: Executor,
    sessions: Sessions,
    /// The interpreters of this machine.
    bare: Vec<(Lang, String)>,
    posts: Vec<Post>,
}

impl Field {
    /// Makes the backends; sandboxes come when they are needed.
    pub async fn prepare(options: &CodeOptions) -> Result<Self> {
        let mut setup = Setup::from_environment();
        let host = options.host.clone().or_else(|| std::env::var("COFFERDAM_TEST_DOCKER").ok());
        setup.containers = Containers { host: host.or(setup.containers.host), ..setup.containers };
        setup.machines = Machines { build: Build::Missing, ..setup.machines };
        let executor = Executor::new(CodeConfig::default())?;
        let mut posts = Vec::new();
        for wall in WALLS {
            let backend = match wall.0 {
                MACHINE_BACKEND if !options.vm => Err("--vm includes it".to_owned()),
                name => registry::backend_with(name, &setup).map_err(|error| error.to_string()),
            };
            posts.push(Post { wall, backend, live: None, sessions: Vec::new() });
        }
        let mut bare = Vec::new();
        for lang in Lang::ALL {
            let [interpreter, option] = lang.bare();
            let told = tokio::process::Command::new(interpreter).args([option, lang.place()]).output().await;
            if let Ok(told) = told.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
                && !told.is_empty()
            {
                bare.push((lang, told));
            }
        }
        Ok(Self { sessions: Sessions::new(executor.clone()), executor, bare, posts })
    }

    /// Makes what lives, if it is needed and not there.
    pub async fn ready(&mut self, lang: Lang, way: Way) -> Result<()> {
        let wall = match way {
            Way::Bare | Way::New(_) => return Ok(()),
            Way::Live(wall) | Way::Session(wall) => wall,
        };
        let post = self.posts.iter_mut().find(|post| post.wall == wall).context("there is no such backend")?;
        let backend = post.backend.as_ref().map_err(|why| anyhow!("{why}"))?;
        if post.live.is_none() {
            let sandbox = backend.create(spec()?).await?;
            post.live = Some((Place::of(&**backend), sandbox));
        }
        if let (Way::Session(_), Some((place, sandbox))) = (way, &post.live) {
            let session = self.sessions.open(place, sandbox, lang.name()).await?;
            post.sessions.push((lang, session));
        }
        Ok(())
    }

    /// One turn.
    pub async fn turn(&self, lang: Lang, way: Way) -> Result<Duration> {
        let begun = Instant::now();
        let request = || CodeRequest::new(lang.name(), lang.code());
        let result = match way {
            Way::Bare => {
                let (_, interpreter) = self.bare.iter().find(|(of, _)| *of == lang).context("there is none here")?;
                let line = [interpreter.as_str(), lang.bare()[1], lang.code()];
                program::run(&line, "1\n", Keep::Output).await.map_err(anyhow::Error::msg)?;
                return Ok(begun.elapsed());
            }
            Way::New(wall) => {
                let backend = self.post(wall)?.backend.as_ref().map_err(|why| anyhow!("{why}"))?;
                self.executor.run(&**backend, spec()?, request()).await?
            }
            Way::Live(wall) => {
                let (place, sandbox) = self.post(wall)?.live.as_ref().context("there is no live sandbox")?;
                self.executor.execute(place, &**sandbox, request()).await?
            }
            Way::Session(wall) => {
                let sessions = &self.post(wall)?.sessions;
                let session = sessions.iter().find(|(of, _)| *of == lang).context("there is no session")?;
                session.1.call(request()).await?
            }
        };
        let took = begun.elapsed();
        check(&result)?;
        Ok(took)
    }

    fn post(&self, wall: Wall) -> Result<&Post> {
        self.posts.iter().find(|post| post.wall == wall).context("there is no such backend")
    }

    /// Ends everything that lives.
    pub async fn end(self) -> Result<()> {
        self.sessions.shutdown().await;
        for (_, sandbox) in self.posts.into_iter().filter_map(|post| post.live) {
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
