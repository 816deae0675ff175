//! The targets and the measured values. A missed target fails nothing, because a busy host misses them all.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::sample::hundredths;
use crate::spawn::Workload;

// Contestants of the targets. A target finds its figures by these short names.
const POOL: &str = "pool";
const POOL_AT_ONCE: &str = "pool-run";
const WARM: &str = "warm";
const WARM_PANDAS: &str = "warm-pandas";
const COLD_PANDAS: &str = "bare-pandas";

/// The measured values that targets refer to.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Median and 99th percentile, by workload and the contestant's short name.
    pub latency: BTreeMap<(Workload, &'static str), (f64, f64)>,
    /// Runs per second, by the number at once and the contestant's short name.
    pub per_second: BTreeMap<(usize, &'static str), f64>,
    /// Size of a pooled, idle sandbox without an interpreter, in KiB.
    pub pooled_kib: Option<f64>,
}

impl Findings {
    fn medians(&self, workload: Workload, contestant: &'static str, base: &'static str) -> Option<f64> {
        Some(self.latency.get(&(workload, contestant))?.0 / self.latency.get(&(workload, base))?.0)
    }

    fn tail(&self, contestant: &'static str) -> Option<f64> {
        self.latency.get(&(Workload::True, contestant)).map(|(median, p99)| p99 / median)
    }

    fn throughputs(&self, tasks: usize, contestant: &'static str, base: &'static str) -> Option<f64> {
        Some(self.per_second.get(&(tasks, contestant))? / self.per_second.get(&(tasks, base))?)
    }
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// An upper bound.
    AtMost(f64),
    /// A lower bound.
    AtLeast(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(bound) => format!("<= {bound}"),
            Self::AtLeast(bound) => format!(">= {bound}"),
        }
    }
}

/// A target and the measured value.
#[derive(Debug, Clone)]
pub struct Row {
    /// The name of the figure.
    pub what: String,
    /// The bound.
    pub bound: Bound,
    /// The measured value. `None` if it was not measured.
    pub measured: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Target {
    what: &'static str,
    bound: Bound,
    measured: fn(&Findings) -> Option<f64>,
}

const TARGETS: &[Target] = &[
    Target {
        what: "exec in a live sandbox / bare",
        bound: Bound::AtMost(1.10),
        measured: |found| found.medians(Workload::True, "exec", "bare"),
    },
    Target {
        what: "claim from the pool, run, exit reported / bare",
        bound: Bound::AtMost(1.25),
        measured: |found| found.medians(Workload::True, POOL, "bare"),
    },
    Target {
        what: "create on request, run, destroy / bare",
        bound: Bound::AtMost(1.8),
        measured: |found| found.medians(Workload::True, "run", "bare"),
    },
    Target {
        what: "create on request, run, destroy: p99 / its median",
        bound: Bound::AtMost(3.0),
        measured: |found| found.tail("run"),
    },
    Target {
        what: "one-shot command line / bwrap",
        bound: Bound::AtMost(0.75),
        measured: |found| found.medians(Workload::True, "cli", "bwrap"),
    },
    Target {
        what: "runs a second, 2 at once, on request / bwrap",
        bound: Bound::AtLeast(2.5),
        measured: |found| found.throughputs(2, "run", "bwrap"),
    },
    Target {
        what: "runs a second, 8 at once, pooled / bare",
        bound: Bound::AtLeast(0.6),
        measured: |found| found.throughputs(8, POOL_AT_ONCE, "bare"),
    },
    Target {
        what: "print(1) in a warm interpreter / cold, bare",
        bound: Bound::AtMost(0.10),
        measured: |found| found.medians(Workload::Python, WARM, "bare"),
    },
    Target {
        what: "the same with pandas imported / cold, bare",
        bound: Bound::AtMost(0.02),
        measured: |found| found.medians(Workload::Python, WARM_PANDAS, COLD_PANDAS),
    },
];

/// The target of `bench memory`.
const MEMORY: Target = Target {
    what: "KiB of a pooled, idle sandbox (bench memory)",
    bound: Bound::AtMost(300.0),
    measured: |found| found.pooled_kib,
};

/// Formats a table of all targets.
pub fn table(found: &Findings) -> String {
    render(&all(found))
}

/// Formats a table of the targets of `bench memory`.
pub fn memory_table(found: &Findings) -> String {
    render(&[MEMORY.row(found)])
}

/// Returns all targets as JSON.
pub fn json(found: &Findings) -> Value {
    json_of(&all(found))
}

fn all(found: &Findings) -> Vec<Row> {
    TARGETS.iter().chain([&MEMORY]).map(|target| target.row(found)).collect()
}

impl Target {
    fn row(&self, found: &Findings) -> Row {
        Row { what: self.what.to_owned(), bound: self.bound, measured: (self.measured)(found) }
    }
}

/// Formats a table of these targets.
pub fn render(rows: &[Row]) -> String {
    let mut text = format!("\n{:52} {:>8} {:>13}\n", "target", "bound", "measured");
    for Row { what, bound, measured } in rows {
        let shown = measured.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.2}"));
        let verdict = match measured {
            Some(value) if bound.holds(*value) => "met",
            Some(_) => "missed",
            None => "",
        };
        let line = format!("{what:52} {:>8} {shown:>13} {verdict}", bound.text());
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Returns these targets as JSON.
pub fn json_of(rows: &[Row]) -> Value {
    let rows = rows.iter().map(|row| {
        json!({
            "target": row.what,
            "bound": row.bound.text(),
            "measured": row.measured.map(hundredths),
            "met": row.measured.map(|value| row.bound.holds(value)),
        })
    });
    Value::Array(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(found: &Findings, start: &str) -> String {
        table(found).lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned()
    }

    #[test]
    fn values_without_a_measurement_are_reported_as_such() {
        let text = table(&Findings::default());
        assert_eq!(text.matches("not measured").count(), TARGETS.len() + 1);
        assert_eq!(memory_table(&Findings::default()).matches("not measured").count(), 1);
        assert!(!text.contains("met") && !text.contains("missed"), "{text}");
    }

    #[test]
    fn ratios_stand_beside_their_bounds() {
        let mut found = Findings::default();
        found.latency.insert((Workload::True, "bare"), (600.0, 1000.0));
        found.latency.insert((Workload::True, "exec"), (630.0, 1000.0));
        found.latency.insert((Workload::True, "run"), (1200.0, 3000.0));
        found.per_second.insert((2, "run"), 1000.0);
        found.per_second.insert((2, "bwrap"), 300.0);
        assert!(row(&found, "exec in a live").ends_with("1.05 met"));
        assert!(row(&found, "create on request, run, destroy / bare").ends_with("2.00 missed"));
        assert!(row(&found, "create on request, run, destroy: p99").ends_with("2.50 met"));
        assert!(row(&found, "runs a second, 2").ends_with("3.33 met"));
        assert!(row(&found, "claim from").ends_with("not measured"));
        // The values of another workload and of another number at once.
        assert!(row(&found, "print(1)").ends_with("not measured"));
        let json = json(&found);
        assert_eq!(json[0]["met"], true);
        assert_eq!(json[1]["measured"], Value::Null);
        assert_eq!(json[2]["measured"], 2.0);
    }
}
