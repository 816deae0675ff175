//! The results as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Line, Way};
use crate::host::facts::Facts;
use crate::sample::hundredths;

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    pub lines: Vec<Line>,
}

impl Report {
    /// Returns the ratio to the interpreter alone.
    fn ratio(&self, line: &Line) -> Option<f64> {
        let bare = self.lines.iter().find(|other| other.lang == line.lang && other.way == Way::Bare)?;
        Some(line.outcome.as_ref().ok()?.median() / bare.outcome.as_ref().ok()?.median())
    }

    /// Formats a table.
    pub fn table(&self, facts: &Facts) -> String {
        let mut text = facts.line();
        let mut lang = None;
        for line in &self.lines {
            let Ok(sample) = &line.outcome else { continue };
            if lang.replace(line.lang) != Some(line.lang) {
                let title = format!("{}, {}", line.lang.name(), line.lang.code());
                let _ = write!(text, "\n\n{title:42} {:>5} {:>12} {:>12} {:>9}", "n", "median us", "p99 us", "x bare");
            }
            let ratio = self.ratio(line).map_or_else(String::new, |ratio| format!("{ratio:.3}"));
            let (median, p99, way) = (sample.median(), sample.p99(), line.way.to_string());
            let _ = write!(text, "\n{way:42} {:5} {median:12.0} {p99:12.0} {ratio:>9}", sample.len());
        }
        text.push_str("\n\nof fewer than 100 runs, p99 is the slowest\n");
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for line in &self.lines {
            let Err(why) = &line.outcome else { continue };
            let name = format!("{} {}", line.lang.name(), line.way.slug());
            match reasons.iter_mut().find(|(reason, _)| reason == why) {
                Some((_, names)) => names.push(name),
                None => reasons.push((why, vec![name])),
            }
        }
        for (why, names) in reasons {
            let _ = writeln!(text, "not measured: {}: {why}", names.join(", "));
        }
        text
    }

    /// Returns the results as JSON. Times are in microseconds.
    pub fn json(&self, facts: &Facts) -> Value {
        let (mut results, mut unavailable) = (Vec::new(), Vec::new());
        for line in &self.lines {
            let (lang, name) = (line.lang.name(), line.way.slug());
            match &line.outcome {
                Ok(sample) => results.push(json!({
                    "language": lang,
                    "name": name,
                    "title": line.way.to_string(),
                    "times": sample.json(),
                    "ratio": self.ratio(line).map(hundredths),
                })),
                Err(why) => unavailable.push(json!({ "language": lang, "name": name, "reason": why })),
            }
        }
        json!({ "benchmark": "code", "machine": facts.json(), "results": results, "absent": unavailable })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{BACKENDS, Lang};
    use super::*;
    use crate::host::facts;
    use crate::sample::Sample;

    #[test]
    fn each_is_compared_with_the_bare_interpreter_of_its_language() {
        let line = |lang, way, millis: u64| Line {
            lang,
            way,
            outcome: Ok(Sample::new(vec![Duration::from_millis(millis); 5])),
        };
        let unavailable = |lang| Line { lang, way: Way::New(BACKENDS[3]), outcome: Err("--vm includes it".to_owned()) };
        let report = Report {
            lines: vec![
                line(Lang::Python, Way::Bare, 10),
                line(Lang::Python, Way::Session(BACKENDS[1]), 1),
                line(Lang::JavaScript, Way::Bare, 40),
                line(Lang::JavaScript, Way::New(BACKENDS[1]), 60),
                unavailable(Lang::Python),
                unavailable(Lang::JavaScript),
            ],
        };
        let text = report.table(&facts::collect());
        let row = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(row("process: a call of a live session").ends_with(" 0.100"), "{text}");
        assert!(row("process: new sandbox").ends_with(" 1.500"), "{text}");
        assert!(text.contains("not measured: python new-vm, javascript new-vm: --vm includes it"), "{text}");
        let json = report.json(&facts::collect());
        assert_eq!((&json["results"][3]["ratio"], &json["absent"][0]["name"]), (&1.5.into(), &"new-vm".into()));
    }
}
