//! Static analysis of code before anything is started, and the decision about its findings.

use cofferdam_contract::{Error, ErrorKind, Fault, Result};
use cofferdam_screen::{AnalysisError, Analyzer, Language, Mode, Rules};
use serde::{Deserialize, Serialize};

use crate::{Results, Screened, error};

pub use cofferdam_screen::Mode as ScreeningMode;

/// Static analysis of code by rules: the table `[screening]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScreeningConfig {
    /// The action on findings. Default `off`: the sandbox is the isolation boundary.
    pub mode: Mode,
    /// The action on syntax errors. Default `block`, so that a syntax error is reported before anything starts; `off`
    /// in a build without the parsers.
    pub syntax: Mode,
    /// The rules.
    pub rules: Rules,
}

impl Default for ScreeningConfig {
    fn default() -> Self {
        let syntax = if Analyzer::is_built() { Mode::SYNTAX_DEFAULT } else { Mode::Off };
        Self { mode: Mode::Off, syntax, rules: Rules::default() }
    }
}

/// The decision about code.
#[derive(Debug)]
pub enum Verdict {
    /// The code runs, with the findings if it was analyzed.
    Runs(Option<Screened>),
    /// The code does not run. The reason for the log names rules and locations, and nothing of the code.
    Refused { error: Error, reason: String },
}

/// Analyzes code on a blocking thread.
///
/// # Errors
///
/// Fails in a build without the parsers, unless the configuration is `off`.
pub async fn screen(config: &ScreeningConfig, results: Results, code: &str) -> Result<Verdict> {
    let language = match results {
        Results::None => return Ok(Verdict::Runs(None)),
        Results::Python => Language::Python,
        Results::JavaScript => Language::JavaScript,
        Results::TypeScript => Language::TypeScript,
    };
    if config.mode == Mode::Off && config.syntax == Mode::Off {
        return Ok(Verdict::Runs(None));
    }
    require_parsers(Analyzer::is_built())?;
    let (config, code) = (config.clone(), code.to_owned());
    tokio::task::spawn_blocking(move || evaluate(&config, language, &code)).await.map_err(|_| error::task("screen"))
}

/// Refuses to continue without the parsers, so that no code runs unscreened.
fn require_parsers(is_built: bool) -> Result<()> {
    if is_built {
        return Ok(());
    }
    let problem = AnalysisError::NotBuilt;
    let remedy = format!("{}; or set mode and syntax of [screening] to \"off\"", problem.remedy());
    Err(Error::new(ErrorKind::Unsupported, "screen", problem.to_string()).with_remedy(remedy))
}

fn evaluate(config: &ScreeningConfig, language: Language, code: &str) -> Verdict {
    match Analyzer::new(config.rules.clone()).check(language, code) {
        Ok(_) if config.mode == Mode::Off => Verdict::Runs(None),
        Ok(report) if config.mode == Mode::Block && (report.truncated || !report.findings.is_empty()) => {
            let shown: Vec<String> = report.findings.iter().take(10).map(ToString::to_string).collect();
            let more = if shown.len() < report.findings.len() || report.truncated { "; and more findings" } else { "" };
            let named = report.findings.iter().take(5);
            let reason: Vec<String> =
                named.map(|found| format!("{} at {}:{}", found.rule, found.line, found.column)).collect();
            let error = Error::new(
                ErrorKind::Denied,
                "screen",
                format!("screening rejected the code: {}{more}", shown.join("; ")),
            )
            .with_remedy("change the code; the table [screening] of the configuration sets the rules");
            Verdict::Refused { error, reason: format!("screening: {}", reason.join(", ")) }
        }
        Ok(report) => {
            Verdict::Runs(Some(Screened { findings: report.findings, truncated: report.truncated, not_screened: None }))
        }
        Err(problem) => unscreened(config, problem),
    }
}

/// Decides about code that was not analyzed.
fn unscreened(config: &ScreeningConfig, problem: AnalysisError) -> Verdict {
    let syntax = matches!(problem, AnalysisError::Syntax(_));
    let blocks = config.mode == Mode::Block || (syntax && config.syntax == Mode::Block);
    if !blocks {
        let reported = config.mode != Mode::Off || (syntax && config.syntax != Mode::Off);
        let note = Screened { findings: Vec::new(), truncated: false, not_screened: Some(problem.to_string()) };
        return Verdict::Runs(reported.then_some(note));
    }
    let (kind, reason) = match &problem {
        AnalysisError::Syntax(at) => (ErrorKind::InvalidInput, format!("syntax error at {}:{}", at.line, at.column)),
        _ => (ErrorKind::Denied, "screening: the code could not be read".to_owned()),
    };
    let error = Error::new(kind, "screen", problem.to_string()).with_remedy(problem.remedy());
    Verdict::Refused { error: error.with_fault(Fault::Caller), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(mode: Mode, syntax: Mode, code: &str) -> Verdict {
        evaluate(&ScreeningConfig { mode, syntax, rules: Rules::default() }, Language::Python, code)
    }

    #[test]
    fn the_mode_decides() {
        let bad = "import os";
        assert!(matches!(verdict(Mode::Off, Mode::Block, bad), Verdict::Runs(None)));
        let Verdict::Runs(Some(warned)) = verdict(Mode::Warn, Mode::Block, bad) else { panic!("it runs") };
        assert_eq!(warned.findings.len(), 1);
        let Verdict::Refused { error, reason } = verdict(Mode::Block, Mode::Block, bad) else { panic!("refused") };
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains("line 1, column 8: os: imports os (import:os)"), "{error}");
        assert_eq!(reason, "screening: import:os at 1:8");
    }

    #[test]
    fn many_findings_are_refused_with_the_first_ten() {
        let code = "import os\n".repeat(12);
        let Verdict::Refused { error, .. } = verdict(Mode::Block, Mode::Block, &code) else { panic!("refused") };
        assert!(error.message().contains("line 10,") && error.message().ends_with("; and more findings"), "{error}");
        assert!(!error.message().contains("line 11,"), "{error}");
    }

    /// Promise (Static analysis and audit log): A build without the parsers runs no code that requires static analysis.
    #[test]
    fn a_build_without_parsers_refuses_to_screen() {
        let error = require_parsers(false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("--features full")), "{error}");
        assert!(require_parsers(true).is_ok());
        let syntax = if Analyzer::is_built() { Mode::Block } else { Mode::Off };
        assert_eq!(ScreeningConfig::default().syntax, syntax);
    }

    #[test]
    fn syntax_error_is_reported_and_code_stays_out_of_the_log() {
        for mode in [Mode::Off, Mode::Warn, Mode::Block] {
            let Verdict::Refused { error, reason } = verdict(mode, Mode::Block, "s3cret = = 1") else {
                panic!("{mode}")
            };
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains("line 1"), "{error}");
            assert!(!reason.contains("s3cret"), "{reason}");
        }
        assert!(matches!(verdict(Mode::Off, Mode::Off, "= ="), Verdict::Runs(None)));
        assert!(matches!(verdict(Mode::Off, Mode::Warn, "= ="), Verdict::Runs(Some(_))));
        assert!(
            matches!(verdict(Mode::Block, Mode::Warn, "= ="), Verdict::Refused { .. }),
            "the code was not analyzed"
        );
    }

    #[test]
    fn declared_encoding_is_blocked_or_reported_by_mode() {
        let code = "# coding: utf-7\n#+AAo-import os";
        let Verdict::Refused { error, reason } = verdict(Mode::Block, Mode::Block, code) else { panic!("refused") };
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains("line 1 declares the encoding 'utf-7'"), "{error}");
        assert!(!reason.contains("utf-7"), "{reason}");
        let Verdict::Runs(Some(reported)) = verdict(Mode::Warn, Mode::Block, code) else { panic!("it runs") };
        assert!(reported.not_screened.is_some_and(|why| why.contains("utf-7")));
        // Syntax alone is left to the interpreter, whatever the parser makes of these bytes.
        for code in [code, "# coding: utf-7\n+AAo- = ="] {
            assert!(matches!(verdict(Mode::Off, Mode::Block, code), Verdict::Runs(None)), "{code}");
        }
    }
}
