//! A shell tool for agents: it runs a command line and answers with one text (K5, C8).
//!
//! Each line runs in a process of its own, so that a line that hangs or crashes does not affect the next one. Only the
//! working directory carries over to the next line. The answer keeps the beginning and the end of output of any length.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Error, ErrorKind, Result, Sandbox, SandboxId, SandboxPath, Spec};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::head_tail::{HeadTail, Text};
use crate::result::limit_name;
use crate::{BackendProfile, CodeRequest, CodeResult, Executor};

/// The most sandboxes whose working directory is remembered.
const MAX_DIRECTORIES: usize = 256;
/// The notice in an answer after the default sandbox was recreated.
const RECREATED: &str = "[the sandbox had ended; this ran in a new one, and the contents of the old one are lost]\n";

/// The configuration of the tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BashConfig {
    /// The shell, one of the languages. Default: `bash`.
    pub shell: String,
    /// Maximum number of characters of an answer, not counting remarks of the tool. Default: 30,000.
    pub max_answer: usize,
}

impl Default for BashConfig {
    fn default() -> Self {
        Self { shell: "bash".to_owned(), max_answer: 30_000 }
    }
}

/// A shell tool that runs lines in the sandbox of its context, or in a default sandbox that it creates on first use.
#[derive(Debug, Clone)]
pub struct BashTool {
    executor: Executor,
    config: BashConfig,
    default: Arc<Fallback>,
    /// The working directory of each sandbox in which it is not the workspace itself.
    directories: Arc<Mutex<VecDeque<(SandboxId, SandboxPath)>>>,
}

#[derive(Debug)]
struct Fallback {
    backend: Arc<dyn Backend>,
    spec: Spec,
    created: tokio::sync::Mutex<Option<Arc<dyn Sandbox>>>,
}

impl BashTool {
    /// Creates a tool. Its default sandbox is created from `spec` by `backend` when a line comes without a context.
    pub fn new(executor: Executor, config: BashConfig, backend: Arc<dyn Backend>, spec: Spec) -> Result<Self> {
        executor.config().languages.by_name(&config.shell)?;
        if config.max_answer < 200 {
            return Err(Error::invalid("configure", "max_answer of the bash tool must be at least 200"));
        }
        let default = Arc::new(Fallback { backend, spec, created: tokio::sync::Mutex::new(None) });
        Ok(Self { executor, config, default, directories: Arc::default() })
    }

    /// Runs a line and returns one text, even if the line could not be run.
    ///
    /// `context` is the sandbox of the conversation, if there is one.
    pub async fn call(
        &self,
        context: Option<(&BackendProfile, &Arc<dyn Sandbox>)>,
        line: &str,
        timeout: Option<Duration>,
    ) -> String {
        match self.run_bounded(context, line, timeout).await {
            Ok((result, shown)) => answer(&result, shown, self.config.max_answer),
            Err(error) => failure(&error),
        }
    }

    /// Runs a line like [`Self::call`] and returns the full result, with output up to the bounds of a call.
    pub async fn run(
        &self,
        context: Option<(&BackendProfile, &Arc<dyn Sandbox>)>,
        line: &str,
        timeout: Option<Duration>,
    ) -> Result<CodeResult> {
        self.run_bounded(context, line, timeout).await.map(|(result, _)| result)
    }

    async fn run_bounded(
        &self,
        context: Option<(&BackendProfile, &Arc<dyn Sandbox>)>,
        line: &str,
        timeout: Option<Duration>,
    ) -> Result<(CodeResult, Shown)> {
        if let Some((profile, sandbox)) = context {
            return self.run_in(profile, &**sandbox, line, timeout).await;
        }
        let profile = BackendProfile::of(&*self.default.backend);
        let sandbox = self.default.sandbox(&self.executor).await?;
        let result = self.run_in(&profile, &*sandbox, line, timeout).await;
        if !matches!(&result, Err(error) if error.kind() == ErrorKind::Closed) {
            return result;
        }
        self.move_to(sandbox.id(), SandboxPath::default());
        self.default.forget(&sandbox).await;
        let sandbox = self.default.sandbox(&self.executor).await?;
        let (mut result, mut shown) = self.run_in(&profile, &*sandbox, line, timeout).await?;
        result.stderr = bytes::Bytes::from([RECREATED.as_bytes(), result.stderr.bytes()].concat()).into();
        shown.0[1].head.splice(..0, RECREATED.bytes());
        Ok((result, shown))
    }

    async fn run_in(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        line: &str,
        timeout: Option<Duration>,
    ) -> Result<(CodeResult, Shown)> {
        let request = |directory| {
            let mut request = CodeRequest::new(self.config.shell.clone(), line);
            (request.timeout, request.working_dir) = (timeout, directory);
            request
        };
        let keep = self.config.max_answer.saturating_mul(4);
        let begins = self.directory(sandbox.id());
        let ran = match self.executor.run_line(profile, sandbox, request(begins.clone()), keep, &|_| {}).await {
            // The directory may have been removed.
            Err(error) if error.kind() == ErrorKind::InvalidInput && !begins.is_workspace() => {
                self.move_to(sandbox.id(), SandboxPath::default());
                self.executor.run_line(profile, sandbox, request(SandboxPath::default()), keep, &|_| {}).await?
            }
            ran => ran?,
        };
        if let Some(directory) = ran.directory {
            self.move_to(sandbox.id(), directory);
        }
        Ok((ran.result, Shown([ran.stdout, ran.stderr])))
    }

    /// Returns the working directory of the next line in this sandbox.
    pub fn directory(&self, sandbox: &SandboxId) -> SandboxPath {
        let directories = self.directories.lock();
        directories.iter().find(|(id, _)| id == sandbox).map(|(_, directory)| directory.clone()).unwrap_or_default()
    }

    /// Closes the default sandbox, if it exists. A later line creates a new one, and its answer reports that.
    pub async fn close(&self) -> Result<()> {
        let created = self.default.created.lock().await.clone();
        match created {
            Some(sandbox) => sandbox.close().await,
            None => Ok(()),
        }
    }

    fn move_to(&self, sandbox: &SandboxId, directory: SandboxPath) {
        let mut directories = self.directories.lock();
        directories.retain(|(id, _)| id != sandbox);
        if !directory.is_workspace() {
            directories.truncate(MAX_DIRECTORIES - 1);
            directories.push_front((sandbox.clone(), directory));
        }
    }
}

impl Fallback {
    async fn sandbox(&self, executor: &Executor) -> Result<Arc<dyn Sandbox>> {
        let mut created = self.created.lock().await;
        if let Some(sandbox) = &*created {
            return Ok(Arc::clone(sandbox));
        }
        let sandbox = executor.record_network(self.backend.create(self.spec.clone()).await?).await?;
        *created = Some(Arc::clone(&sandbox));
        Ok(sandbox)
    }

    /// Removes a sandbox that has ended, unless it was already replaced.
    async fn forget(&self, ended: &Arc<dyn Sandbox>) {
        let mut created = self.created.lock().await;
        if created.as_ref().is_some_and(|created| created.id() == ended.id()) {
            *created = None;
        }
        drop(created);
        // The sandbox has already ended. This only frees its remains.
        let _ = ended.close().await;
    }
}

/// The shown parts of standard output and standard error: beginning, number of omitted characters, end.
struct Shown([HeadTail; 2]);

/// Returns the text that an agent reads: the output, then a line for anything unusual.
fn answer(result: &CodeResult, shown: Shown, max: usize) -> String {
    let (mut text, _) = shown.text().cut(max);
    let mut remark = |line: String| {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &line;
    };
    if result.timed_out {
        remark(format!("[killed after {:.1} s: the time was over]", result.duration.as_secs_f64()));
    } else if let Some(limit) = result.killed_by {
        remark(format!("[killed at the limit {}]", limit_name(limit)));
    } else if let Some(signal) = result.signal {
        remark(format!("[ended by signal {signal}]"));
    } else if result.exit_code != 0 {
        remark(format!("[exit code {}]", result.exit_code));
    }
    for limit in result.limits_hit.iter().filter(|limit| Some(**limit) != result.killed_by) {
        remark(format!("[something was refused or killed at the limit {}]", limit_name(*limit)));
    }
    for denial in &result.network_denials {
        remark(format!("[network: {denial}]"));
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

impl Shown {
    /// Returns both streams as one text, standard output first.
    fn text(self) -> Text {
        let mut text = Text::default();
        for HeadTail { head, between, tail } in self.0 {
            begin_line(&mut text, &head);
            add(&mut text, &head);
            if between > 0 {
                let passed = text.missing.take().map_or(0, |(missing, after)| missing + after.chars().count() as u64);
                text.missing = Some((passed + between, String::new()));
                add(&mut text, &tail);
            }
        }
        let end = text.end();
        end.truncate(end.trim_end_matches('\n').len());
        text
    }
}

/// Starts a new line before `next`, if there is text before and after.
fn begin_line(text: &mut Text, next: &[u8]) {
    let end = text.end();
    if !end.is_empty() && !end.ends_with('\n') && !next.is_empty() {
        end.push('\n');
    }
}

/// Appends bytes as text. Control characters that move a cursor are replaced.
fn add(text: &mut Text, bytes: &[u8]) {
    let more = String::from_utf8_lossy(bytes);
    text.end().extend(more.chars().map(|c| match c {
        '\n' | '\t' => c,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::Protection as P;
    use cofferdam_process::{ProcessBackend, ProcessConfig};

    #[tokio::test]
    async fn ended_default_sandbox_is_recreated_once() {
        let executor = Executor::new(crate::CodeConfig::default()).unwrap();
        let weaker = [P::Memory, P::CpuTime, P::Processes, P::Disk];
        let spec = weaker.into_iter().fold(Spec::builder(), |spec, item| spec.allow_weaker(item)).build().unwrap();
        let backend = Arc::new(ProcessBackend::new(ProcessConfig::default()).unwrap());
        let tool = BashTool::new(executor, BashConfig::default(), backend, spec).unwrap();
        assert_eq!(tool.call(None, "mkdir a; cd a", None).await, "[no output]");
        tool.close().await.unwrap();
        assert_eq!(tool.call(None, "pwd", None).await, format!("/workspace\n{}", RECREATED.trim_end()));
        assert_eq!(tool.call(None, "pwd; ls", None).await, "/workspace");
        tool.close().await.unwrap();
    }

    fn shown(stdout: (&str, u64, &str), stderr: (&str, u64, &str)) -> Shown {
        Shown([stdout, stderr].map(|(head, between, tail)| HeadTail { head: head.into(), between, tail: tail.into() }))
    }

    #[test]
    fn head_and_tail_are_kept() {
        let cut = |text: &str| shown((text, 0, ""), ("", 0, "")).text().cut(200).0;
        assert_eq!(cut("short"), "short");
        let text = format!("{}{}", "a".repeat(150), "b".repeat(150));
        let shortened = cut(&text);
        assert!(shortened.starts_with(&"a".repeat(100)) && shortened.ends_with(&"b".repeat(100)), "{shortened}");
        assert!(shortened.contains("[… 100 of 300 characters left out …]"), "{shortened}");
        assert_eq!(cut("a\u{1b}[31mb\r\tc\n"), "a\u{fffd}[31mb\u{fffd}\tc");
    }

    #[test]
    fn omitted_output_is_counted() {
        let (a, b, c) = ("a".repeat(150), "b".repeat(150), "c".repeat(150));
        let both = shown((&a, 1000, &b), (&c, 500, &a)).text().cut(200).0;
        assert!(both.starts_with(&format!("{}\n[… 1901 of 2101 characters", &a[..100])), "{both}");
        assert!(both.ends_with(&a[..100]), "{both}");
        let errors = shown((&a, 1000, &b), ("oh\n", 0, "")).text().cut(200).0;
        assert!(errors.ends_with("b\noh"), "{errors}");
        let few = shown(("a", 7, "b"), ("", 0, "")).text().cut(200).0;
        assert_eq!(few, "a\n[… 7 of 9 characters left out …]\nb");
    }
}
