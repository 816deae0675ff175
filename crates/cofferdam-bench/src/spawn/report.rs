//! The results of a run as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::{AtOnce, Contestant, Series, Unavailable};
use crate::host::facts::{self, Facts};
use crate::sample::{Sample, hundredths, tenths};
use crate::target::{self, Findings};

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    /// The host before the run.
    pub before: Facts,
    /// Results one at a time, by workload.
    pub series: Vec<Series>,
    /// Results with several at once.
    pub at_once: Vec<AtOnce>,
    /// Missing contestants, and the reasons.
    pub unavailable: Vec<Unavailable>,
    /// Contestants with weaker isolation than usual, and the difference.
    pub weaker: Vec<(Contestant, &'static str)>,
    /// Further notes.
    pub notes: Vec<String>,
}

impl Report {
    /// Creates an empty report.
    pub fn new(before: Facts) -> Self {
        Self {
            before,
            series: Vec::new(),
            at_once: Vec::new(),
            unavailable: Vec::new(),
            weaker: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Formats a table. Times are in microseconds.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", self.before.line());
        for series in &self.series {
            heading(&mut text, &format!("{}, one at a time", series.workload.title()), "");
            let bare = series.bare();
            for row in &series.results {
                line(&mut text, row.contestant.name(), &row.latency, bare, None);
                for (name, sample) in ["create", "exec", "close"].iter().zip(row.phases.iter().flatten()) {
                    line(&mut text, &format!("  {name}"), sample, bare, None);
                }
            }
        }
        for crowd in &self.at_once {
            heading(&mut text, &format!("/bin/true, {} at once", crowd.tasks), "   runs/s");
            for row in &crowd.results {
                line(&mut text, row.contestant.name(), &row.latency, crowd.bare(), Some(row.throughput));
            }
        }
        text.push_str("\nof fewer than 100 runs, p99 is the slowest\n");
        for (who, reason) in self.all_unavailable() {
            let _ = writeln!(text, "not measured: {}: {reason}", who.name());
        }
        for (who, weaker) in &self.weaker {
            let _ = writeln!(text, "weaker: {}: {weaker}", who.name());
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text + &target::table(&self.findings())
    }

    /// Returns the results as JSON.
    pub fn json(&self) -> Value {
        let unavailable = self.all_unavailable().map(|(who, reason)| json!({ "name": who.slug(), "reason": reason }));
        let weaker = self.weaker.iter().map(|(who, weaker)| json!({ "name": who.slug(), "weaker": weaker }));
        json!({
            "benchmark": "spawn",
            "machine": self.before.json(),
            "versions": self.versions(),
            "one_at_a_time": self.series.iter().map(Series::json).collect::<Vec<_>>(),
            "at_once": self.at_once.iter().map(AtOnce::json).collect::<Vec<_>>(),
            "absent": unavailable.collect::<Vec<_>>(),
            "weaker": weaker.collect::<Vec<_>>(),
            "notes": self.notes,
            "targets": target::json(&self.findings()),
        })
    }

    fn all_unavailable(&self) -> impl Iterator<Item = &Unavailable> {
        self.unavailable.iter().chain(self.series.iter().flat_map(|series| &series.unavailable))
    }

    /// Returns the version of each measured peer.
    fn versions(&self) -> BTreeMap<&'static str, String> {
        let rows = self.series.iter().flat_map(|series| &series.results);
        let peers = rows.filter(|row| matches!(row.contestant, Contestant::Peer(_)));
        let mut versions = BTreeMap::new();
        for peer in peers.map(|row| row.contestant.slug()) {
            versions.entry(peer).or_insert_with(|| facts::version(peer));
        }
        versions
    }

    fn findings(&self) -> Findings {
        let mut found = Findings::default();
        for series in &self.series {
            for row in &series.results {
                let key = (series.workload, row.contestant.slug());
                found.latency.insert(key, (row.latency.median(), row.latency.p99()));
            }
        }
        for crowd in &self.at_once {
            for row in &crowd.results {
                found.per_second.insert((crowd.tasks, row.contestant.slug()), row.throughput);
            }
        }
        found
    }
}

impl Series {
    /// Returns true if this contestant has results.
    pub fn ran(&self, contestant: Contestant) -> bool {
        self.results.iter().any(|row| row.contestant == contestant)
    }

    /// Returns the median of bare, or NaN if it did not run.
    pub fn bare(&self) -> f64 {
        median(self.results.iter().map(|row| (row.contestant, &row.latency)))
    }

    fn json(&self) -> Value {
        let rows = self.results.iter().map(|row| {
            let mut value = named(row.contestant, &row.latency, self.bare());
            if let Some([create, exec, close]) = &row.phases {
                value["phases"] = json!({ "create": create.json(), "exec": exec.json(), "close": close.json() });
            }
            value
        });
        json!({ "workload": self.workload.slug(), "results": rows.collect::<Vec<_>>() })
    }
}

impl AtOnce {
    fn bare(&self) -> f64 {
        median(self.results.iter().map(|row| (row.contestant, &row.latency)))
    }

    fn json(&self) -> Value {
        let rows = self.results.iter().map(|row| {
            let mut value = named(row.contestant, &row.latency, self.bare());
            value["per_second"] = json!(tenths(row.throughput));
            value
        });
        json!({ "at_once": self.tasks, "results": rows.collect::<Vec<_>>() })
    }
}

fn named(contestant: Contestant, sample: &Sample, bare: f64) -> Value {
    let mut value = sample.json();
    value["name"] = json!(contestant.slug());
    value["title"] = json!(contestant.name());
    value["ratio_to_bare"] = json!(hundredths(sample.median() / bare));
    value
}

fn median<'a>(mut rows: impl Iterator<Item = (Contestant, &'a Sample)>) -> f64 {
    rows.find(|(contestant, _)| *contestant == Contestant::Bare).map_or(f64::NAN, |(_, sample)| sample.median())
}

fn heading(text: &mut String, title: &str, more: &str) {
    let _ = writeln!(text, "\n{title:44} {:>6}   median us      p99 us   x bare{more}", "n");
}

fn line(text: &mut String, name: &str, sample: &Sample, bare: f64, throughput: Option<f64>) {
    let (median, p99) = (sample.median(), sample.p99());
    let _ = write!(text, "{name:44} {:6} {median:11.0} {p99:11.0} {:8.2}", sample.len(), median / bare);
    if let Some(throughput) = throughput {
        let _ = write!(text, " {throughput:8.0}");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::measure::{Alone, Crowd};
    use super::super::peer::Peer;
    use super::super::workload::Workload;
    use super::*;

    fn sample(micros: u64) -> Sample {
        Sample::new(vec![Duration::from_micros(micros); 200])
    }

    fn report() -> Report {
        let mut report = Report::new(facts::collect());
        let alone = |contestant, micros| Alone { contestant, latency: sample(micros), phases: None };
        report.series.push(Series {
            workload: Workload::True,
            results: vec![alone(Contestant::Bare, 500), alone(Contestant::Run, 1000)],
            unavailable: vec![(Contestant::Peer(Peer::Crun), "fails: half-way".to_owned())],
        });
        let results = vec![Crowd { contestant: Contestant::Bare, latency: sample(600), throughput: 1500.0 }];
        report.at_once.push(AtOnce { tasks: 2, results });
        report.unavailable.push((Contestant::Peer(Peer::Nsjail), "not installed".to_owned()));
        report.weaker.push((Contestant::Peer(Peer::Runsc), "without limits"));
        report
    }

    #[test]
    fn table_names_measured_and_skipped_with_reasons() {
        let text = report().table();
        for expected in [
            "not measured: nsjail: not installed",
            "not measured: crun run: fails: half-way",
            "weaker: runsc run (gVisor): without limits",
            "/bin/true, 2 at once",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        let row = text.lines().find(|line| line.starts_with("cofferdam run (one call)")).unwrap();
        assert_eq!(row.split_whitespace().skip(4).collect::<Vec<_>>(), ["200", "1000", "1000", "2.00"]);
        let target = text.lines().find(|line| line.starts_with("create on request, run, destroy / bare")).unwrap();
        assert!(target.ends_with("2.00 missed"), "{target}");
    }

    #[test]
    fn json_has_the_values_of_the_report() {
        let json = report().json();
        assert_eq!(json["one_at_a_time"][0]["results"][1]["ratio_to_bare"], 2.0);
        assert_eq!(json["at_once"][0]["results"][0]["per_second"], 1500.0);
        assert_eq!(json["absent"].as_array().unwrap().len(), 2);
        assert_eq!(json["targets"][2]["met"], false);
    }
}
