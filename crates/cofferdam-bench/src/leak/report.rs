//! The samples of a run, and the figures that grew.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::reading::{FIGURES, Reading};
use crate::host::facts::Facts;
use crate::sample::tenths;
use crate::trend::{self, fit};

/// A sample.
#[derive(Debug, Clone, Copy)]
pub struct Sampled {
    /// Number of sandboxes before the sample.
    pub done: u64,
    /// The values.
    pub reading: Reading,
}

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    /// The time of all sandboxes together.
    pub took: Duration,
    /// The time until the kernel had settled afterwards.
    pub settling: Duration,
    /// The samples at the start and after each tenth.
    pub sampled: Vec<Sampled>,
    /// The sample after the kernel had settled.
    pub settled: Reading,
}

impl Report {
    /// Formats a table, and the figures that grew.
    pub fn table(&self, facts: &Facts) -> String {
        let mut text = format!(
            "{}\n{} sandboxes in {:.1} s; the kernel settled {:.1} s later\n\n{:10}",
            facts.line(),
            self.sampled.last().map_or(0, |last| last.done),
            self.took.as_secs_f64(),
            self.settling.as_secs_f64(),
            "sandboxes"
        );
        for (name, _) in FIGURES {
            let _ = write!(text, " {:>width$}", name, width = width(name));
        }
        let rows = self.sampled.iter().map(|sampled| (sampled.done.to_string(), sampled.reading));
        for (done, Reading(values)) in rows.chain([("settled".to_owned(), self.settled)]) {
            let _ = write!(text, "\n{done:10}");
            for ((name, _), value) in FIGURES.iter().zip(values) {
                let shown = value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
                let _ = write!(text, " {shown:>width$}", width = width(name));
            }
        }
        text.push_str("\nmemory in KiB\n\n");
        self.verdict(&mut text);
        text
    }

    fn verdict(&self, text: &mut String) {
        let grown: Vec<usize> = (0..FIGURES.len()).filter(|index| self.grew(*index)).collect();
        if grown.is_empty() {
            text.push_str("nothing grew\n");
        }
        for index in grown {
            let (name, unit) = FIGURES[index];
            let slope = self.per_thousand(index).unwrap_or_default();
            let _ = writeln!(text, "GREW: {name} by {slope:.1}{} for each 1000 sandboxes", unit.text());
        }
        for (index, (name, _)) in FIGURES.iter().enumerate() {
            if self.settled.0[index].is_none() {
                let _ = writeln!(text, "not readable by this user: {name}");
            }
        }
    }

    /// Returns the figure by thousands of sandboxes.
    fn points(&self, index: usize) -> Vec<(f64, f64)> {
        let point = |sampled: &Sampled| Some((sampled.done as f64 / 1000.0, sampled.reading.0[index]?));
        self.sampled.iter().filter_map(point).collect()
    }

    fn per_thousand(&self, index: usize) -> Option<f64> {
        fit(&self.points(index)).map(|line| line.slope)
    }

    fn grew(&self, index: usize) -> bool {
        let min_growth = FIGURES[index].1.min_growth();
        self.settled.0[index].is_some_and(|settled| trend::grew(&self.points(index), settled, min_growth))
    }

    /// Returns the results as JSON.
    pub fn json(&self, facts: &Facts) -> Value {
        let figures = FIGURES.iter().enumerate().map(|(index, (name, unit))| {
            json!({
                "name": name,
                "unit": unit.text().trim(),
                "samples": self.sampled.iter().map(|sampled| sampled.reading.0[index]).collect::<Vec<_>>(),
                "settled": self.settled.0[index],
                "per_1000": self.per_thousand(index).map(tenths),
                "grew": self.grew(index),
            })
        });
        json!({
            "benchmark": "leak",
            "machine": facts.json(),
            "sandboxes": self.sampled.iter().map(|sampled| sampled.done).collect::<Vec<_>>(),
            "seconds": tenths(self.took.as_secs_f64()),
            "settling_seconds": tenths(self.settling.as_secs_f64()),
            "figures": figures.collect::<Vec<_>>(),
        })
    }
}

fn width(name: &str) -> usize {
    name.len().max(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::facts;

    /// Returns a run in which the launcher leaks one descriptor for every 100 sandboxes, and nothing else changes.
    fn leaky() -> Report {
        let reading = |done: u64| {
            let mut reading = Reading([Some(500.0); FIGURES.len()]);
            reading.0[3] = Some(20.0 + done as f64 / 100.0);
            reading.0[10] = None;
            reading
        };
        let sampled = (0..=10).map(|part| Sampled { done: part * 1000, reading: reading(part * 1000) }).collect();
        Report { took: Duration::from_secs(20), settling: Duration::from_secs(4), sampled, settled: reading(10_000) }
    }

    #[test]
    fn growth_is_reported() {
        let text = leaky().table(&facts::collect());
        assert!(text.contains("GREW: launcher fds by 10.0 for each 1000 sandboxes\n"), "{text}");
        assert_eq!(text.matches("GREW").count(), 1, "{text}");
        assert!(text.contains("not readable by this user: host net ns"), "{text}");
        let json = leaky().json(&facts::collect());
        assert_eq!(json["figures"][3]["grew"], true);
        assert_eq!(json["figures"][3]["per_1000"], 10.0);
        assert_eq!(json["figures"][0]["grew"], false);
    }

    #[test]
    fn usage_released_after_settling_is_no_growth() {
        let mut report = leaky();
        report.settled = report.sampled[0].reading;
        assert!(report.table(&facts::collect()).contains("nothing grew"));
    }
}
