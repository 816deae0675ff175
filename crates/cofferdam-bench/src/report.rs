//! One run's results, for people and for files.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::contestant::Contestant;
use crate::machine::Facts;
use crate::measure::{Alone, AtOnce};
use crate::sample::{Sample, round};

/// Everything that one run found out.
#[derive(Debug)]
pub struct Report {
    /// The machine, as it was before.
    pub before: Facts,
    /// The load averages afterwards.
    pub load_after: String,
    /// One at a time.
    pub one_at_a_time: Vec<Alone>,
    /// Several at once.
    pub at_once: Vec<AtOnce>,
}

impl Report {
    /// A table for people; times in microseconds.
    pub fn table(&self) -> String {
        let facts = &self.before;
        let mut text = format!(
            "{}, {} cores, Linux {}, {}; load {} before, {} after\n",
            facts.processor,
            facts.cores,
            facts.kernel,
            if facts.root { "root" } else { "ordinary user" },
            facts.load,
            self.load_after,
        );
        let bare = median(self.one_at_a_time.iter().map(|row| (row.contestant, &row.latency)));
        text.push_str("\none at a time                       n   median us      p99 us   x bare\n");
        for row in &self.one_at_a_time {
            line(&mut text, row.contestant.name(), &row.latency, bare, None);
            for (name, sample) in ["create", "exec", "close"].iter().zip(row.phases.iter().flatten()) {
                line(&mut text, &format!("  {name}"), sample, bare, None);
            }
        }
        for AtOnce { tasks, results } in &self.at_once {
            let bare = median(results.iter().map(|row| (row.contestant, &row.latency)));
            let _ = writeln!(
                text,
                "\n{tasks} at once                           n   median us      p99 us   x bare   runs/s"
            );
            for row in results {
                line(&mut text, row.contestant.name(), &row.latency, bare, Some(row.throughput));
            }
        }
        text
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let bare = median(self.one_at_a_time.iter().map(|row| (row.contestant, &row.latency)));
        let alone = self.one_at_a_time.iter().map(|row| {
            let mut value = row.latency.json();
            value["name"] = json!(row.contestant.name());
            value["ratio_to_bare"] = json!(ratio(&row.latency, bare));
            if let Some([create, exec, close]) = &row.phases {
                value["phases"] = json!({ "create": create.json(), "exec": exec.json(), "close": close.json() });
            }
            value
        });
        let crowds = self.at_once.iter().map(|AtOnce { tasks, results }| {
            let bare = median(results.iter().map(|row| (row.contestant, &row.latency)));
            let rows = results.iter().map(|row| {
                let mut value = row.latency.json();
                value["name"] = json!(row.contestant.name());
                value["ratio_to_bare"] = json!(ratio(&row.latency, bare));
                value["per_second"] = json!(round(row.throughput));
                value
            });
            json!({ "at_once": tasks, "results": rows.collect::<Vec<_>>() })
        });
        json!({
            "benchmark": "spawn",
            "machine": self.before.json(),
            "load_before": self.before.load,
            "load_after": self.load_after,
            "one_at_a_time": alone.collect::<Vec<_>>(),
            "at_once": crowds.collect::<Vec<_>>(),
        })
    }
}

fn median<'a>(rows: impl Iterator<Item = (Contestant, &'a Sample)>) -> f64 {
    let mut rows = rows;
    rows.find(|(contestant, _)| *contestant == Contestant::Bare).map_or(f64::NAN, |(_, sample)| sample.median())
}

fn ratio(sample: &Sample, bare: f64) -> f64 {
    (sample.median() / bare * 100.0).round() / 100.0
}

fn line(text: &mut String, name: &str, sample: &Sample, bare: f64, throughput: Option<f64>) {
    let _ = write!(
        text,
        "{name:30} {:6} {:11.0} {:11.0} {:8.2}",
        sample.len(),
        sample.median(),
        sample.p99(),
        ratio(sample, bare)
    );
    if let Some(throughput) = throughput {
        let _ = write!(text, " {throughput:8.0}");
    }
    text.push('\n');
}
