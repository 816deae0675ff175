//! A tool for agents: a line for a shell, answered by one text (K5, C8).
//!
//! The directory that a line leaves is the next one's. Everything else ends with the line: each is a process of its own, so
//! that one which hangs or crashes takes nothing with it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_contract::{Backend, Error, ErrorKind, Result, Sandbox, SandboxId, SandboxPath, Spec, WORKSPACE_PATH};
use serde::{Deserialize, Serialize};

use crate::result::limit_name;
use crate::{CodeRequest, CodeResult, Executor, Place, Want};

/// How the directory is told, after all that the line wrote.
const BEFORE: char = '\u{1e}';
/// Sandboxes whose directory is remembered.
const MOST_DIRECTORIES: usize = 256;
/// What is said where the default sandbox had to be made anew.
const ANEW: &str = "[the sandbox had ended; this ran in a new one, and what was in the old one is gone]\n";

/// How the tool answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BashConfig {
    /// The shell, one of the languages. Default `bash`.
    pub shell: String,
    /// Characters of an answer, not counting what it says about itself. Default 30,000.
    pub max_answer: usize,
}

impl Default for BashConfig {
    fn default() -> Self {
        Self { shell: "bash".to_owned(), max_answer: 30_000 }
    }
}

/// Where the tool finds a sandbox: that of its context, else one that it makes when it is first needed.
#[derive(Debug, Clone)]
pub struct BashTool {
    executor: Executor,
    config: BashConfig,
    default: Arc<Fallback>,
    /// Where the next line begins, in those sandboxes where it is not the workspace itself.
    directories: Arc<Mutex<VecDeque<(SandboxId, SandboxPath)>>>,
}

#[derive(Debug)]
struct Fallback {
    backend: Arc<dyn Backend>,
    spec: Spec,
    made: tokio::sync::Mutex<Option<Arc<dyn Sandbox>>>,
}

impl BashTool {
    /// A tool whose default is a sandbox of `backend`, made from `spec` when a line comes without one.
    pub fn new(executor: Executor, config: BashConfig, backend: Arc<dyn Backend>, spec: Spec) -> Result<Self> {
        executor.config().languages.by_name(&config.shell)?;
        if config.max_answer < 200 {
            return Err(Error::invalid("configure", "an answer of the bash tool has at least 200 characters"));
        }
        let default = Arc::new(Fallback { backend, spec, made: tokio::sync::Mutex::new(None) });
        Ok(Self { executor, config, default, directories: Arc::default() })
    }

    /// Runs a line, and answers with one text, also if it could not be run.
    ///
    /// `context` is the sandbox of the conversation, if there is one.
    pub async fn call(
        &self,
        context: Option<(&Place, &Arc<dyn Sandbox>)>,
        line: &str,
        timeout: Option<Duration>,
    ) -> String {
        match self.run(context, line, timeout).await {
            Ok(result) => answer(&result, self.config.max_answer),
            Err(error) => failure(&error),
        }
    }

    /// As [`Self::call`], with all that came of it.
    pub async fn run(
        &self,
        context: Option<(&Place, &Arc<dyn Sandbox>)>,
        line: &str,
        timeout: Option<Duration>,
    ) -> Result<CodeResult> {
        if let Some((place, sandbox)) = context {
            return self.run_in(place, &**sandbox, line, timeout).await;
        }
        let place = Place::of(&*self.default.backend);
        let sandbox = self.default.sandbox().await?;
        let result = self.run_in(&place, &*sandbox, line, timeout).await;
        if !matches!(&result, Err(error) if error.kind() == ErrorKind::Closed) {
            return result;
        }
        self.move_to(sandbox.id(), SandboxPath::default());
        self.default.forget(&sandbox).await;
        let sandbox = self.default.sandbox().await?;
        let mut result = self.run_in(&place, &*sandbox, line, timeout).await?;
        result.stderr = bytes::Bytes::from([ANEW.as_bytes(), result.stderr.bytes()].concat()).into();
        Ok(result)
    }

    async fn run_in(
        &self,
        place: &Place,
        sandbox: &dyn Sandbox,
        line: &str,
        timeout: Option<Duration>,
    ) -> Result<CodeResult> {
        let mark = crate::result::random_id()?;
        let mut request = self.request(line, &mark, timeout);
        request.working_dir = self.directory(sandbox.id());
        let mut result = match self.executor.execute(place, sandbox, request).await {
            // The directory may be gone.
            Err(error) if error.kind() == ErrorKind::InvalidInput && !self.directory(sandbox.id()).is_workspace() => {
                self.move_to(sandbox.id(), SandboxPath::default());
                self.executor.execute(place, sandbox, self.request(line, &mark, timeout)).await?
            }
            result => result?,
        };
        let text = result.stderr.text().into_owned();
        if let Some((before, after)) = text.rsplit_once(&format!("{BEFORE}{mark} ")) {
            let told = after.strip_suffix('\n').unwrap_or(after);
            // Outside of the workspace no exec can begin.
            let inside = told.starts_with(WORKSPACE_PATH).then(|| SandboxPath::new(told).ok()).flatten();
            self.move_to(sandbox.id(), inside.unwrap_or_default());
            result.stderr = bytes::Bytes::from(before.to_owned().into_bytes()).into();
        }
        Ok(result)
    }

    /// The directory that the next line begins in, in this sandbox.
    pub fn directory(&self, sandbox: &SandboxId) -> SandboxPath {
        let directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        directories.iter().find(|(id, _)| id == sandbox).map(|(_, directory)| directory.clone()).unwrap_or_default()
    }

    /// Ends the default sandbox, if one was made. A line that comes later gets another, and its answer says so.
    pub async fn close(&self) -> Result<()> {
        let made = self.default.made.lock().await.clone();
        match made {
            Some(sandbox) => sandbox.close().await,
            None => Ok(()),
        }
    }

    fn move_to(&self, sandbox: &SandboxId, directory: SandboxPath) {
        let mut directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        directories.retain(|(id, _)| id != sandbox);
        if !directory.is_workspace() {
            directories.truncate(MOST_DIRECTORIES - 1);
            directories.push_front((sandbox.clone(), directory));
        }
    }

    /// The line, after which the shell tells where it is, however the line ends.
    fn request(&self, line: &str, mark: &str, timeout: Option<Duration>) -> CodeRequest {
        let tell = format!("trap 'status=$?; printf \"\\036{mark} %s\\n\" \"$PWD\" >&2; exit $status' EXIT");
        let mut request = CodeRequest::new(self.config.shell.clone(), format!("{tell}\n{line}\n"));
        request.timeout = timeout;
        request.results = Want::No;
        request.files = Want::No;
        request
    }
}

impl Fallback {
    async fn sandbox(&self) -> Result<Arc<dyn Sandbox>> {
        let mut made = self.made.lock().await;
        if let Some(sandbox) = &*made {
            return Ok(Arc::clone(sandbox));
        }
        let sandbox = self.backend.create(self.spec.clone()).await?;
        *made = Some(Arc::clone(&sandbox));
        Ok(sandbox)
    }

    /// Gives up a sandbox that has ended, unless another one is there by now.
    async fn forget(&self, ended: &Arc<dyn Sandbox>) {
        let mut made = self.made.lock().await;
        if made.as_ref().is_some_and(|made| made.id() == ended.id()) {
            *made = None;
        }
        drop(made);
        // It has ended already: only what is left of it is taken away.
        let _ = ended.close().await;
    }
}

/// What an agent reads of a result: output, then whatever is not as usual, each on a line.
fn answer(result: &CodeResult, most: usize) -> String {
    let (stdout, stderr) = (result.stdout.text(), result.stderr.text());
    let mut text = String::new();
    for part in [&stdout, &stderr] {
        if !text.is_empty() && !text.ends_with('\n') && !part.is_empty() {
            text.push('\n');
        }
        text += part;
    }
    let mut text = cut(text.trim_end_matches('\n'), most);
    let mut say = |line: String| {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &line;
    };
    if result.truncated {
        say(format!("[output beyond {} was dropped]", result.meta.max_output));
    }
    if result.timed_out {
        say(format!("[killed after {:.1} s: the time was over]", result.duration.as_secs_f64()));
    } else if let Some(limit) = result.killed_by {
        say(format!("[killed at the limit {}]", limit_name(limit)));
    } else if let Some(signal) = result.signal {
        say(format!("[ended by signal {signal}]"));
    } else if result.exit_code != 0 {
        say(format!("[exit code {}]", result.exit_code));
    }
    if text.is_empty() { "[no output]".to_owned() } else { text }
}

fn failure(error: &Error) -> String {
    let mut text = format!("[not run: {}", error.message());
    if let Some(remedy) = error.remedy() {
        text += &format!("; {remedy}");
    }
    text + "]"
}

/// Keeps the beginning and the end of a text, and says how much is missing between them. Control characters that move a
/// cursor are made visible.
fn cut(text: &str, most: usize) -> String {
    let safe: String = text
        .chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect();
    let count = safe.chars().count();
    if count <= most {
        return safe;
    }
    let (head, tail) = (most / 2, most - most / 2);
    let first: String = safe.chars().take(head).collect();
    let last: String = safe.chars().skip(count - tail).collect();
    format!("{first}\n[… {} of {count} characters left out …]\n{last}", count - most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::Protection as P;
    use cofferdam_process::{ProcessBackend, ProcessConfig};

    #[tokio::test]
    async fn a_default_sandbox_that_has_ended_is_made_anew_once() {
        let executor = Executor::new(crate::CodeConfig::default()).unwrap();
        let weaker = [P::Memory, P::CpuTime, P::Processes, P::Disk];
        let spec = weaker.into_iter().fold(Spec::builder(), |spec, item| spec.allow_weaker(item)).build().unwrap();
        let backend = Arc::new(ProcessBackend::new(ProcessConfig::default()).unwrap());
        let tool = BashTool::new(executor, BashConfig::default(), backend, spec).unwrap();
        assert_eq!(tool.call(None, "mkdir a; cd a", None).await, "[no output]");
        tool.close().await.unwrap();
        assert_eq!(tool.call(None, "pwd", None).await, format!("/workspace\n{}", ANEW.trim_end()));
        assert_eq!(tool.call(None, "pwd; ls", None).await, "/workspace");
        tool.close().await.unwrap();
    }

    #[test]
    fn head_and_tail_are_kept() {
        assert_eq!(cut("short", 200), "short");
        let text = format!("{}{}", "a".repeat(150), "b".repeat(150));
        let shown = cut(&text, 200);
        assert!(shown.starts_with(&"a".repeat(100)) && shown.ends_with(&"b".repeat(100)), "{shown}");
        assert!(shown.contains("[… 100 of 300 characters left out …]"), "{shown}");
        assert_eq!(cut("a\u{1b}[31mb\r\tc\n", 200), "a\u{fffd}[31mb\u{fffd}\tc\n");
    }
}
