//! The results of a run, as tables and as JSON.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::contestant::LANGUAGES;
use super::idle::Idle;
use super::{AT_ONCE, STREAMS};
use crate::host::facts::Facts;
use crate::sample::{Sample, hundredths, tenths};
use crate::target::{Bound, Row, json_of, render};

/// The maximum of a call's round trip, as a multiple of the program without an SDK.
const MAX_RATIO: f64 = 1.5;

/// The calls of one contestant.
#[derive(Debug)]
pub struct Calls {
    /// The contestant.
    pub name: String,
    /// The times of calls one at a time.
    pub times: Vec<Duration>,
    /// Calls a second in each turn: one at a time, and many.
    pub rates: [Vec<f64>; 2],
    /// Items a second in each turn, of each size.
    pub streams: [Vec<f64>; 2],
}

impl Calls {
    /// Creates empty results.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), times: Vec::new(), rates: Default::default(), streams: Default::default() }
    }

    /// Returns the medians: calls a second one at a time and many, then items a second of each size.
    fn rates(&self) -> [f64; 4] {
        let [one, many] = &self.rates;
        let [small, large] = &self.streams;
        [one, many, small, large].map(|rates| median(rates))
    }
}

/// The times to a first result.
#[derive(Debug)]
pub struct Starts {
    /// The contestant.
    pub name: String,
    /// The times.
    pub times: Vec<Duration>,
}

impl Starts {
    /// Creates empty results.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), times: Vec::new() }
    }
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Calls and streams.
    pub calls: Vec<Calls>,
    /// Starts.
    pub starts: Vec<Starts>,
    /// Idle plugins.
    pub idle: Vec<Idle>,
    /// The reasons why a contestant is missing.
    pub unavailable: Vec<String>,
}

impl Report {
    /// Returns the ratio of a language's round trip to that of its program without an SDK.
    fn ratio(&self, language: &str) -> Option<f64> {
        let median = |kind: &str| {
            let name = format!("{language} {kind}");
            Some(Sample::new(self.calls.iter().find(|calls| calls.name == name)?.times.clone()).median())
        };
        Some(median("plugin")? / median("pipe")?)
    }

    fn targets(&self) -> Vec<Row> {
        let row = |language: &str| Row {
            what: format!("{language}: round trip of a call / bare pipe"),
            bound: Bound::AtMost(MAX_RATIO),
            measured: self.ratio(language),
        };
        LANGUAGES.iter().map(|language| row(language.name)).collect()
    }

    /// Formats the tables.
    pub fn table(&self, facts: &Facts) -> String {
        let mut text = format!("{}\n\n", facts.line());
        let heads = ["median us", "p99 us", "calls/s", &format!("{AT_ONCE} at once")].map(str::to_owned);
        let sizes = STREAMS.iter().map(|(size, _)| format!("{} KiB: /s", size >> 10));
        let sizes = sizes.zip(std::iter::repeat("MB/s".to_owned())).flat_map(|(items, bytes)| [items, bytes]);
        let _ = write!(text, "{:18}", "");
        heads.into_iter().chain(sizes).for_each(|head| text.push_str(&format!(" {head:>11}")));
        text.push('\n');
        for calls in &self.calls {
            let sample = Sample::new(calls.times.clone());
            let [one, many, small, large] = calls.rates();
            let bytes = |rate: f64, at: usize| rate * STREAMS[at].0 as f64 / 1e6;
            let values = [sample.median(), sample.p99(), one, many, small, bytes(small, 0), large, bytes(large, 1)];
            let _ = write!(text, "{:18}", calls.name);
            values.iter().for_each(|value| text.push_str(&format!(" {value:11.0}")));
            text.push('\n');
        }
        let _ = writeln!(text, "\n{:24} {:>11} {:>11}", "until the first result", "median ms", "p99 ms");
        for Starts { name, times } in &self.starts {
            let sample = Sample::new(times.clone());
            let _ = writeln!(text, "{name:24} {:11.1} {:11.1}", sample.median() / 1000.0, sample.p99() / 1000.0);
        }
        for idle in &self.idle {
            let _ = writeln!(text, "\n{} idle plugins of {} ({}), KiB each", idle.held, idle.wanted, idle.kind);
            for (name, each) in idle.rows {
                let each = each.map_or_else(|| "unknown".to_owned(), |each| format!("{each:.0}"));
                let _ = writeln!(text, "{name:36} {each:>8}");
            }
        }
        self.unavailable.iter().for_each(|why| text.push_str(&format!("not measured: {why}\n")));
        text + &render(&self.targets())
    }

    /// Returns the results as JSON.
    pub fn json(&self, facts: &Facts) -> Value {
        let calls = self.calls.iter().map(|calls| {
            let [one, many, small, large] = calls.rates().map(tenths);
            json!({
                "contestant": calls.name,
                "round_trip": Sample::new(calls.times.clone()).json(),
                "calls_per_second": {"1": one, AT_ONCE.to_string(): many},
                "items_per_second": {STREAMS[0].0.to_string(): small, STREAMS[1].0.to_string(): large},
            })
        });
        let starts = self
            .starts
            .iter()
            .map(|starts| json!({"contestant": starts.name, "first_result": Sample::new(starts.times.clone()).json()}));
        json!({
            "benchmark": "plugins",
            "machine": facts.json(),
            "calls": calls.collect::<Vec<_>>(),
            "starts": starts.collect::<Vec<_>>(),
            "idle": self.idle.iter().map(Idle::json).collect::<Vec<_>>(),
            "ratios": LANGUAGES.map(|language| self.ratio(language.name).map(hundredths)),
            "absent": self.unavailable,
            "targets": json_of(&self.targets()),
        })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::facts;

    fn calls(name: &str, micros: u64) -> Calls {
        let mut calls = Calls::new(name);
        calls.times = vec![Duration::from_micros(micros); 3];
        calls.streams[1] = vec![1000.0, 10.0, 2000.0];
        calls
    }

    #[test]
    fn a_plugin_is_compared_with_the_pipe_of_its_language() {
        let rows = [("host process, PSS", Some(12.0)), ("a", None), ("b", None)];
        let report = Report {
            calls: vec![calls("python pipe", 100), calls("python plugin", 140), calls("node plugin", 10)],
            starts: vec![Starts { name: "gRPC".to_owned(), times: vec![Duration::from_millis(7)] }],
            idle: vec![Idle { kind: "shell", held: 9, wanted: 10, rows }],
            unavailable: Vec::new(),
        };
        let text = report.table(&facts::collect());
        let row = |start: &str| text.lines().rfind(|line| line.starts_with(start)).unwrap_or_default();
        assert!(row("python: round trip").ends_with("1.40 met"), "{text}");
        assert!(row("node: round trip").ends_with("not measured"), "{text}");
        assert!(row("python pipe").ends_with(" 66"), "{text}");
        assert!(row("gRPC").contains("7.0"), "{text}");
        assert!(text.contains("9 idle plugins of 10 (shell)") && row("host process").ends_with("12"), "{text}");
        assert_eq!(report.json(&facts::collect())["ratios"], json!([1.4, null]));
    }
}
