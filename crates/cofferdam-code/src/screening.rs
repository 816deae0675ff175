//! Screening before anything is started: what it says, and what is done about it.

use cofferdam_contract::{Error, ErrorKind, Fault, Result};
use cofferdam_screen::{Language, Mode, Rules, Screen, ScreenError};
use serde::{Deserialize, Serialize};

use crate::{Results, Screened, error};

pub use cofferdam_screen::Mode as ScreeningMode;

/// Whether code is screened, and by which rules: the table `[screening]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScreeningConfig {
    /// What is done about findings. Default `off`: the wall is the sandbox.
    pub mode: Mode,
    /// What is done about code that cannot be read. Default `block`, so that a syntax error is told before anything starts.
    pub syntax: Mode,
    /// What is looked for.
    pub rules: Rules,
}

impl Default for ScreeningConfig {
    fn default() -> Self {
        Self { mode: Mode::Off, syntax: Mode::SYNTAX_DEFAULT, rules: Rules::default() }
    }
}

/// What is to be done about code.
#[derive(Debug)]
pub enum Verdict {
    /// It runs; with what was found, if it was screened.
    Runs(Option<Screened>),
    /// It does not run. The reason for the log names rules and places, and nothing of the code.
    Refused { error: Error, reason: String },
}

/// Screens code on a thread where that may take its time.
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
    let (config, code) = (config.clone(), code.to_owned());
    tokio::task::spawn_blocking(move || judge(&config, language, &code)).await.map_err(|_| error::task("screen"))
}

fn judge(config: &ScreeningConfig, language: Language, code: &str) -> Verdict {
    match Screen::new(config.rules.clone()).check(language, code) {
        Ok(_) if config.mode == Mode::Off => Verdict::Runs(None),
        Ok(report) if config.mode == Mode::Block && (report.truncated || !report.findings.is_empty()) => {
            let shown: Vec<String> = report.findings.iter().take(10).map(ToString::to_string).collect();
            let more = report.findings.len().saturating_sub(shown.len());
            let more = match (more, report.truncated) {
                (0, false) => "",
                _ if shown.is_empty() => "it takes more work to follow than is done",
                _ => "; and more than is shown",
            };
            let named = report.findings.iter().take(5);
            let mut reason: Vec<String> =
                named.map(|found| format!("{} at {}:{}", found.rule, found.line, found.column)).collect();
            if reason.is_empty() {
                reason.push("too much work".to_owned());
            }
            let error = Error::new(
                ErrorKind::Denied,
                "screen",
                format!("screening refuses the code: {}{more}", shown.join("; ")),
            )
            .with_remedy("write it without that; [screening] in the configuration says what is not wanted");
            Verdict::Refused { error, reason: format!("screening: {}", reason.join(", ")) }
        }
        Ok(report) => {
            Verdict::Runs(Some(Screened { findings: report.findings, truncated: report.truncated, not_screened: None }))
        }
        Err(problem) => unscreened(config, problem),
    }
}

/// Code that could not be read: nobody has looked at it.
fn unscreened(config: &ScreeningConfig, problem: ScreenError) -> Verdict {
    let syntax = matches!(problem, ScreenError::Syntax(_));
    let blocks = config.mode == Mode::Block || (syntax && config.syntax == Mode::Block);
    if !blocks {
        let told = config.mode != Mode::Off || (syntax && config.syntax != Mode::Off);
        let note = Screened { findings: Vec::new(), truncated: false, not_screened: Some(problem.to_string()) };
        return Verdict::Runs(told.then_some(note));
    }
    let (kind, reason) = match &problem {
        ScreenError::Syntax(at) => (ErrorKind::InvalidInput, format!("syntax error at {}:{}", at.line, at.column)),
        _ => (ErrorKind::Denied, "screening: the code could not be read".to_owned()),
    };
    let error = Error::new(kind, "screen", problem.to_string()).with_remedy(problem.remedy());
    Verdict::Refused { error: error.with_fault(Fault::Caller), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(mode: Mode, syntax: Mode, code: &str) -> Verdict {
        judge(&ScreeningConfig { mode, syntax, rules: Rules::default() }, Language::Python, code)
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
    fn code_that_nobody_followed_to_its_end_is_refused_with_that_reason() {
        let code = format!("{}[{}]", "lambda b: ".repeat(80), "a, ".repeat(300_000));
        let Verdict::Refused { error, reason } = verdict(Mode::Block, Mode::Block, &code) else { panic!("refused") };
        assert_eq!(error.message(), "screening refuses the code: it takes more work to follow than is done");
        assert_eq!(reason, "screening: too much work");
    }

    #[test]
    fn a_syntax_error_is_told_and_nothing_of_the_code_goes_to_the_log() {
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
        assert!(matches!(verdict(Mode::Block, Mode::Warn, "= ="), Verdict::Refused { .. }), "nobody looked at it");
    }

    #[test]
    fn an_encoding_that_is_another_program_is_refused_told_or_none_of_our_business() {
        let code = "# coding: utf-7\n#+AAo-import os";
        let Verdict::Refused { error, reason } = verdict(Mode::Block, Mode::Block, code) else { panic!("refused") };
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains("line 1 says that the code is in 'utf-7'"), "{error}");
        assert!(!reason.contains("utf-7"), "{reason}");
        let Verdict::Runs(Some(told)) = verdict(Mode::Warn, Mode::Block, code) else { panic!("it runs") };
        assert!(told.not_screened.is_some_and(|why| why.contains("utf-7")));
        // Syntax alone is the interpreter's, whatever the parser makes of these bytes.
        for code in [code, "# coding: utf-7\n+AAo- = ="] {
            assert!(matches!(verdict(Mode::Off, Mode::Block, code), Verdict::Runs(None)), "{code}");
        }
    }
}
