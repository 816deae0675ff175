//! Fuzz target for static analysis: every report arrives in time, is bounded, and contains only characters that a
//! terminal can print.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cofferdam_screen::{AnalysisError, Analyzer, Language};
use fastrand::Rng;

use crate::cases::damaged;
use crate::drive::Outcome;
use crate::watch;

/// Maximum time to analyse a case, on a busy machine.
const LATE: Duration = Duration::from_secs(20);
const LANGUAGES: [Language; 3] = [Language::Python, Language::JavaScript, Language::TypeScript];
/// Maximum size of a case that repeats a piece of code.
const MAX_CASE: usize = 64 << 10;

/// Seed programs, which contain a little of everything.
const SAMPLES: &[&str] = &[
    "import os as o\nfrom sys import modules\n@d\nasync def f(a, *b, c=eval, **d) -> int:\n    async with a as b: await c\n    \
     return [x async for x in y if not z]\n",
    "class A(B, metaclass=C):\n    x: int = lambda a, b=1: a if b else -a ** 2\n    def f(self): exec('im' + f'port {\"os\"}')\n",
    "try:\n    match x:\n        case {'a': [1, *b], **c} if d: getattr(__builtins__, 'ev' + 'al')\nexcept* E as e:\n    raise e from None\n",
    "type X[T] = list[T]\nwhile (n := ''.join(chr(c) for c in [111, 115])[::-1]): __import__('%s' % n)\n",
    "import a, { b as c } from 'fs'\nexport * from 'net'\nconst { d = 1, ...e } = require(`f${'s'}`)\nfor await (const [f] of g) {}\n",
    "class A extends B { #c = (0, eval)('1'); static { x.y[z] ??= w?.[/[/(]/g] } get [k]() { return a => ({ a }) } }\n",
    "label: for (;;) { if (a) break label; else if (b) do c(); while (d) }\nnew Function('a', 'return require(\"fs\")')()\n",
    "enum E { A = 1 }\nimport fs = require('fs')\nfunction f<T extends keyof U>(x: T): x is V { return <any>x as W }\n",
];
const PIECES: &[&str] = &[
    "(", "[", "{", ")", "]", "}", "'", "\"", "`", "${", "/", "\\", "\n", "not ", "-", "lambda:", "a=>", "if(a)",
    "else ", ":", "?", "<", "f'{", "'''", "//", "/*", "#", ".a", "+a", "()", "\u{2028}", "\0", "\u{202e}",
];

/// An analyser of code that checks the properties of every report.
#[derive(Debug)]
pub struct Screens {
    screen: Analyzer,
}

impl Screens {
    /// Creates a target with the default rules.
    pub fn new() -> Self {
        watch::keep_panics();
        Self { screen: Analyzer::default() }
    }

    /// Generates the case of a seed and analyses it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let mut rng = Rng::with_seed(seed);
        let code = code(&mut rng);
        let begin: String = code.chars().take(60).collect();
        self.check(&code).with_context(|| format!("{} bytes of code, {begin:?} …", code.len()))
    }

    /// Analyses bytes as code of every language. An error is a finding.
    pub fn check(&mut self, code: &str) -> Result<Outcome> {
        let mut outcome = Outcome::Refused;
        for language in LANGUAGES {
            let start = Instant::now();
            let answer = self.screen.check(language, code);
            ensure!(start.elapsed() < LATE, "{language} took {:?}", start.elapsed());
            let panics = watch::panics();
            ensure!(panics.is_empty(), "{language} panicked: {}", panics.join("; "));
            match answer {
                Ok(report) => {
                    outcome = Outcome::Ended;
                    ensure!(
                        report.findings.len() <= self.screen.rules().max_findings,
                        "{language} reported too many findings"
                    );
                    let lines = code.len() + 1;
                    let good = report.findings.iter().all(|found| {
                        (1..=lines).contains(&found.line) && found.column >= 1 && is_shown(&found.to_string())
                    });
                    ensure!(good, "{language} reported malformed findings {:?}", report.findings);
                }
                Err(AnalysisError::Parser(message) | AnalysisError::Host(message)) => {
                    anyhow::bail!("{language} failed: {message}")
                }
                Err(error) => {
                    ensure!(is_shown(&error.to_string()), "{language} returned an unprintable error {error:?}")
                }
            }
        }
        Ok(outcome)
    }
}

impl Default for Screens {
    fn default() -> Self {
        Self::new()
    }
}

fn is_shown(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() || c == '\u{202e}')
}

fn code(rng: &mut Rng) -> String {
    let mut bytes = Vec::new();
    for _ in 0..1 + rng.usize(..3) {
        bytes.extend_from_slice(rng.choice(SAMPLES).copied().unwrap_or_default().as_bytes());
    }
    if rng.u8(..4) > 0 {
        bytes = damaged(rng, bytes);
    }
    let mut code = String::from_utf8_lossy(&bytes).into_owned();
    for _ in 0..rng.usize(..4) {
        let piece = rng.choice(PIECES).copied().unwrap_or_default();
        let times = 1 << rng.u32(..17);
        let mut at = rng.usize(..=code.len());
        while !code.is_char_boundary(at) {
            at -= 1;
        }
        code.insert_str(at, &piece.repeat(times.min(MAX_CASE / piece.len().max(1))));
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_a_program_with_findings_or_a_type() {
        let screen = Analyzer::default();
        for sample in SAMPLES {
            let read = LANGUAGES.iter().filter(|language| screen.check(**language, sample).is_ok()).count();
            assert!(read > 0, "{sample}");
        }
    }

    #[test]
    fn a_seed_is_always_the_same_case() {
        for seed in 0..50 {
            assert_eq!(code(&mut Rng::with_seed(seed)), code(&mut Rng::with_seed(seed)));
        }
    }
}
