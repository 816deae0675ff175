//! The results of a run as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::contestant::Contestant;
use super::idle::{self, Idle};
use super::measure::Series;
use super::target::{self, Findings};
use super::threads::{Rates, THREADS};
use crate::host::facts::{self, Facts};
use crate::sample::{Sample, hundredths, tenths};
use crate::target::{json_of, render};

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    /// The host before the run.
    pub before: Facts,
    /// Results one at a time, by guest.
    pub series: Vec<Series>,
    /// Runs per second.
    pub rates: Vec<Rates>,
    /// Idle sessions.
    pub idle: Vec<Idle>,
    /// Kinds of sessions that could not be held, and the reasons.
    pub not_idle: Vec<idle::Unavailable>,
}

impl Report {
    /// Creates an empty report.
    pub fn new(before: Facts) -> Self {
        Self { before, series: Vec::new(), rates: Vec::new(), idle: Vec::new(), not_idle: Vec::new() }
    }

    /// Formats a table. Times are in microseconds.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", self.before.line());
        for series in &self.series {
            series_table(&mut text, series);
        }
        self.rates_table(&mut text);
        self.idle_table(&mut text);
        text.push_str("\nof fewer than 100 runs, p99 is the slowest\n");
        for (who, reason) in self.unavailable() {
            let _ = writeln!(text, "not measured: {who}: {reason}");
        }
        for (kind, reason) in self.idle.iter().filter_map(|idle| Some((idle.kind, idle.stopped.as_ref()?))) {
            let _ = writeln!(text, "fewer sessions, {}: {reason}", kind.name());
        }
        text + &render(&target::rows(&self.findings()))
    }

    fn rates_table(&self, text: &mut String) {
        if !self.rates.is_empty() {
            let _ = writeln!(
                text,
                "\n{:52} {:>9} {:>9} {:>7}",
                "runs/s, restored instances", "1 thread", "2 threads", "ratio"
            );
        }
        for rates in &self.rates {
            let [one, two] = rates.per_second;
            let _ = writeln!(text, "{:52} {one:9.0} {two:9.0} {:7.2}", rates.guest.title(), rates.gain);
        }
    }

    fn idle_table(&self, text: &mut String) {
        if !self.idle.is_empty() {
            let names = ["RSS", "PSS", "private", "tables"].map(|name| format!("{name:>8}")).join(" ");
            let _ = writeln!(text, "\n{:44} {:>6} {names}", "idle sessions, KiB of each", "held");
        }
        for Idle { kind, held, each, .. } in &self.idle {
            let idle::Each { resident, proportional, own, tables } = each;
            let figures = [resident, proportional, own, tables].map(|value| format!("{value:8.1}")).join(" ");
            let _ = writeln!(text, "{:44} {held:6} {figures}", kind.name());
        }
    }

    /// Returns the results as JSON.
    pub fn json(&self) -> Value {
        let rates = self.rates.iter().map(|rates| {
            let per_second = rates.per_second.map(tenths);
            json!({ "guest": rates.guest.slug(), "threads": THREADS, "per_second": per_second, "gain": hundredths(rates.gain) })
        });
        let idle = self.idle.iter().map(|idle| {
            let idle::Each { resident, proportional, own, tables } = idle.each;
            json!({
                "kind": idle.kind.name(),
                "held": idle.held,
                "stopped": idle.stopped,
                "rss_kib": tenths(resident),
                "pss_kib": tenths(proportional),
                "private_kib": tenths(own),
                "page_tables_kib": tenths(tables),
            })
        });
        json!({
            "benchmark": "wasm",
            "machine": self.before.json(),
            "node": facts::version("node"),
            "one_at_a_time": self.series.iter().map(series_json).collect::<Vec<_>>(),
            "rates": rates.collect::<Vec<_>>(),
            "idle_sessions": idle.collect::<Vec<_>>(),
            "absent": self.unavailable().map(|(who, why)| json!({ "name": who, "reason": why })).collect::<Vec<_>>(),
            "targets": json_of(&target::rows(&self.findings())),
        })
    }

    fn unavailable(&self) -> impl Iterator<Item = (String, &str)> {
        let runs = self.series.iter().flat_map(|series| {
            let named = |who: Contestant| format!("{}: {}", series.guest.title(), who.name(series.guest));
            series.unavailable.iter().map(move |(who, reason)| (named(*who), reason.as_str()))
        });
        let idle = self.not_idle.iter();
        runs.chain(idle.map(|(kind, reason)| (format!("idle sessions, {}", kind.name()), reason.as_str())))
    }

    fn findings(&self) -> Findings {
        let mut found = Findings::default();
        for series in &self.series {
            let medians = series.results.iter().map(|(who, sample)| ((series.guest, *who), sample.median()));
            found.medians.extend(medians);
        }
        found.gains = self.rates.iter().map(|rates| (rates.guest, rates.gain)).collect();
        found
    }
}

/// Returns the median of the native program, or NaN if it did not run.
fn native(series: &Series) -> f64 {
    let row = series.results.iter().find(|(who, _)| *who == Contestant::Native);
    row.map_or(f64::NAN, |(_, sample)| sample.median())
}

fn series_table(text: &mut String, series: &Series) {
    let _ = writeln!(text, "\n{:52} {:>6}   median us      p99 us  native is", series.guest.title(), "n");
    for (who, sample) in &series.results {
        let (median, p99) = (sample.median(), sample.p99());
        let ratio = native(series) / median;
        let shown = if ratio.is_finite() { format!("x {ratio:9.2}") } else { String::new() };
        let line = format!("{:52} {:6} {median:11.2} {p99:11.2} {shown:>11}", who.name(series.guest), sample.len());
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn series_json(series: &Series) -> Value {
    let rows = series.results.iter().map(|(who, sample)| row_json(series, *who, sample));
    json!({ "guest": series.guest.slug(), "results": rows.collect::<Vec<_>>() })
}

fn row_json(series: &Series, who: Contestant, sample: &Sample) -> Value {
    json!({
        "name": who.slug(),
        "title": who.name(series.guest),
        "n": sample.len(),
        "median_us": hundredths(sample.median()),
        "p99_us": hundredths(sample.p99()),
        "native_ratio": hundredths(native(series) / sample.median()),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::guest::Guest;
    use super::super::idle::{Each, Kind};
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(facts::collect());
        let sample = |nanos| Sample::new(vec![Duration::from_nanos(nanos); 200]);
        report.series.push(Series {
            guest: Guest::Null,
            results: vec![(Contestant::Restored, sample(2500)), (Contestant::Native, sample(600_000))],
            unavailable: vec![(Contestant::Wasmtime, "not installed".to_owned())],
        });
        report.rates.push(Rates { guest: Guest::Null, per_second: [400_000.0, 600_000.0], gain: 1.5 });
        let each = Each { resident: 20.0, proportional: 20.5, own: 20.0, tables: 12.0 };
        report.idle.push(Idle { kind: Kind::Module, held: 1000, each, stopped: None });
        report.not_idle.push((Kind::Python, "not installed".to_owned()));
        report
    }

    #[test]
    fn table_names_measured_and_skipped_with_reasons() {
        let text = report().table();
        for expected in [
            "not measured: null module: wasmtime run: not installed",
            "not measured: idle sessions, python: not installed",
            "null module                                             400000    600000    1.50",
            "1000     20.0     20.5     20.0     12.0",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        let row = text.lines().find(|line| line.starts_with("cofferdam, restored instance")).unwrap();
        assert_eq!(row.split_whitespace().skip(3).collect::<Vec<_>>(), ["200", "2.50", "2.50", "x", "240.00"]);
        let target = text.lines().find(|line| line.starts_with("null module: µs")).unwrap();
        assert!(target.ends_with("2.50 met"), "{target}");
    }

    #[test]
    fn json_has_the_values_of_the_report() {
        let json = report().json();
        assert_eq!(json["one_at_a_time"][0]["results"][0]["native_ratio"], 240.0);
        assert_eq!(json["rates"][0]["per_second"][1], 600_000.0);
        assert_eq!(json["idle_sessions"][0]["pss_kib"], 20.5);
        assert_eq!(json["absent"].as_array().unwrap().len(), 2);
        assert_eq!(json["targets"][0]["met"], true);
    }
}
