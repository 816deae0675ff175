//! Tests of the posture's claims on this host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_contract::{
    Backend, ByteSize, Command, Completed, ExecRequest, Finding, FindingState, LimitKind, Limits, Result, Script, Spec,
};
use cofferdam_wasm_runtimes::{Language, Runtimes};

use crate::languages::names;
use crate::termination::SIGSEGV;
use crate::{INTERPRETER, WasmBackend};

const LOOP: &str = r#"(module (func (export "_start") (loop (br 0))))"#;
const GROW: &str = r#"(module (memory 1)
  (func (export "_start") (if (i32.ne (memory.grow (i32.const 1024)) (i32.const -1)) (then (loop (br 0))))))"#;
const RECURSE: &str = r#"(module (func $deeper (export "_start") (call $deeper)))"#;

/// Runs small modules that misbehave, and reports the results.
pub async fn doctor(cache: Option<PathBuf>) -> Vec<Finding> {
    let looped = Limits { wall_time: Duration::from_millis(200), ..Limits::default() };
    let spun = Limits { cpu_time: Some(Duration::from_millis(100)), ..Limits::default() };
    let grown = Limits { memory: Some(ByteSize::from_mebibytes(16)), ..Limits::default() };
    let mut findings = vec![
        finding("wall time", "an endless loop was interrupted", trial(LOOP, looped).await, |done| done.exit.timed_out),
        finding("CPU time", "an endless loop was interrupted", trial(LOOP, spun).await, |done| {
            done.exit.killed_by == Some(LimitKind::Cpu)
        }),
        finding(
            "memory",
            "an allocation of 64 MiB was refused under a limit of 16 MiB",
            trial(GROW, grown).await,
            |done| done.exit.success() && done.exit.limits_hit == [LimitKind::Memory],
        ),
        finding("stack", "an endless recursion was stopped", trial(RECURSE, Limits::default()).await, |done| {
            done.exit.signal == Some(SIGSEGV)
        }),
    ];
    findings.extend([Language::Python, Language::JavaScript].map(|language| installed(cache.as_deref(), language)));
    findings
}

/// Checks that an interpreter is installed, and verifies the hash of every file.
fn installed(cache: Option<&Path>, language: Language) -> Finding {
    let (name, word) = names(language);
    let found = cache.map(|cache| Runtimes::new(cache).find(language));
    let (holds, detail) = match found {
        Some(Ok(Some(found))) => (true, format!("{} is installed and verified", found.version)),
        Some(Ok(None)) => (false, "not installed: its scripts do not run at this level".to_owned()),
        Some(Err(error)) => (false, error.to_string()),
        None => (false, "no cache directory is configured".to_owned()),
    };
    match holds {
        true => Finding::new(name, FindingState::Ok, detail, None),
        false => Finding::new(name, FindingState::Missing, detail, Some(&format!("cofferdam setup {word}"))),
    }
}

fn finding(name: &str, good: &str, seen: Result<Completed>, holds: impl FnOnce(&Completed) -> bool) -> Finding {
    let (state, detail) = match seen {
        Err(error) => (FindingState::Missing, error.to_string()),
        Ok(done) if holds(&done) => (FindingState::Ok, good.to_owned()),
        Ok(done) => (FindingState::Missing, format!("unexpected exit: {:?}", done.exit)),
    };
    Finding::new(name, state, detail, None)
}

async fn trial(text: &str, limits: Limits) -> Result<Completed> {
    let contents = wat::parse_str(text).unwrap_or_default().into();
    let script =
        Script { interpreter: vec![INTERPRETER.to_owned()], name: "trial.wasm".to_owned(), contents, args: Vec::new() };
    let request = ExecRequest::builder(Command::Script(script)).timeout(limits.wall_time).build()?;
    let spec = Spec::builder().limits(limits).build()?;
    WasmBackend::default().run(spec, request).await.map(|(done, _)| done)
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::FindingState;

    #[tokio::test]
    async fn everything_holds() {
        let findings = super::doctor(None).await;
        assert!(findings[..4].iter().all(|finding| finding.state == FindingState::Ok), "{findings:?}");
        let is_missing = |state, remedy: &Option<String>| state == FindingState::Missing && remedy.is_some();
        assert!(findings[4..].iter().all(|finding| is_missing(finding.state, &finding.remedy)), "{findings:?}");
    }
}
