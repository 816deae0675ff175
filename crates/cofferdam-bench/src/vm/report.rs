//! The results of a run as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::clones::{Found, Held};
use super::field::{About, SnapshotSize};
use super::figure::Figure;
use crate::host::facts::Facts;
use crate::sample::{Sample, hundredths, tenths};
use crate::target::{Bound, Row, json_of, render};

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    /// The environment of the figures.
    pub about: About,
    /// The times.
    pub results: Vec<(Figure, Sample)>,
    /// Missing contestants, and the reasons.
    pub unavailable: Vec<(Figure, String)>,
    /// The memory of clones.
    pub clones: Found,
    /// The size of a VM snapshot.
    pub snapshot: SnapshotSize,
    /// The throughput of two threads at once, relative to one.
    pub together: Option<f64>,
    /// Objects that remain and did not exist before.
    pub left: Vec<String>,
}

impl Report {
    /// Returns the median, in milliseconds.
    fn median(&self, figure: Figure) -> Option<f64> {
        self.results.iter().find(|(other, _)| *other == figure).map(|(_, sample)| sample.median() / 1e3)
    }

    fn ratio(&self, figure: Figure, base: Figure) -> Option<f64> {
        Some(self.median(figure)? / self.median(base)?)
    }

    fn targets(&self) -> Vec<Row> {
        let row = |what: &str, max, measured| Row { what: what.to_owned(), bound: Bound::AtMost(max), measured };
        let last = self.clones.idle.last();
        let clones = last.map_or_else(String::new, |held| format!(", {} live", held.clones));
        vec![
            row("restore to first exec / cold boot", 0.1, self.ratio(Figure::Restore, Figure::Cold)),
            row("warm claim to first exec, ms", 30.0, self.median(Figure::Claim)),
            row("snapshot beside the copy of its RAM, ms", 50.0, self.median(Figure::SnapshotBeside)),
            row(&format!("MiB of an idle clone{clones}"), 16.0, last.map(|held| held.proportional / 1024.0)),
            row("fork of 10 until all have answered, ms", 1000.0, self.median(Figure::ForkAnswered)),
        ]
    }

    /// Formats a table. Times are in milliseconds.
    pub fn table(&self, facts: &Facts) -> String {
        let About { vmm, accelerator, processor, kernel, mebibytes, engine } = &self.about;
        let mut text = format!(
            "{}\n{vmm}, accelerator {accelerator}, VMs of {mebibytes} MiB with one {processor}, Linux {kernel}\n",
            facts.line()
        );
        if !engine.is_empty() {
            let _ = writeln!(text, "container engine {engine}");
        }
        if let Some(together) = self.together {
            let _ = writeln!(text, "two threads at once do {together:.2} times as much as one");
        }
        let _ = writeln!(text, "\n{:36} {:>5} {:>12} {:>12} {:>9}", "", "n", "median ms", "p99 ms", "/ cold");
        for (figure, sample) in &self.results {
            let ratio = self.ratio(*figure, Figure::Cold).map_or_else(String::new, |ratio| format!("{ratio:.3}"));
            let (median, p99) = (sample.median() / 1e3, sample.p99() / 1e3);
            let _ = writeln!(text, "{:36} {:5} {median:12.1} {p99:12.1} {ratio:>9}", figure.name(), sample.len());
        }
        text.push_str("\nof fewer than 100 runs, p99 is the slowest\n");
        for (figure, why) in &self.unavailable {
            let _ = writeln!(text, "not measured: {}: {why}", figure.name());
        }
        self.sizes(&mut text);
        text += &render(&self.targets());
        text.push('\n');
        match &*self.left {
            [] => text.push_str("left behind: nothing\n"),
            left => left.iter().for_each(|left| text += &format!("left behind: {left}\n")),
        }
        text
    }

    fn sizes(&self, text: &mut String) {
        let SnapshotSize { sizes, archive, packing } = &self.snapshot;
        let kib = |bytes: u64| bytes / 1024;
        let _ = writeln!(
            text,
            "\nsnapshot: {} KiB of memory, {} KiB of devices, {} KiB on disk; its archive {} KiB, packed in {:.0} ms",
            kib(sizes.memory),
            kib(sizes.devices),
            kib(sizes.disk),
            kib(*archive),
            packing.as_secs_f64() * 1e3
        );
        let Found { idle, after_exec, stopped } = &self.clones;
        let _ = writeln!(
            text,
            "\n{:28} {:>12} {:>12} {:>16} {:>10}",
            "clones, KiB of each", "PSS, all", "own", "supervisor grew", "processes"
        );
        let idle = idle.iter().map(|held| ("restored, idle", held));
        for (what, held) in idle.chain(after_exec.iter().map(|held| ("after one exec, idle", held))) {
            let Held { clones, proportional, own, supervisor, processes } = held;
            let name = format!("{clones:4} {what}");
            let _ = writeln!(text, "{name:28} {proportional:12.0} {own:12.0} {supervisor:16.0} {processes:10.1}");
        }
        if let Some(why) = stopped {
            let _ = writeln!(text, "stopped: {why}");
        }
    }

    /// Returns the results as JSON.
    pub fn json(&self, facts: &Facts) -> Value {
        let About { vmm, accelerator, processor, kernel, mebibytes, engine } = &self.about;
        let rows = self.results.iter().map(|(figure, sample)| {
            json!({
                "name": figure.slug(),
                "title": figure.name(),
                "times": sample.json(),
                "cold_ratio": self.ratio(*figure, Figure::Cold).map(thousandths),
            })
        });
        let unavailable = self.unavailable.iter().map(|(figure, why)| json!({ "name": figure.slug(), "reason": why }));
        json!({
            "benchmark": "vm",
            "machine": facts.json(),
            "monitor": vmm,
            "accelerator": accelerator,
            "processor": processor,
            "guest_kernel": kernel,
            "guest_mib": mebibytes,
            "engine": engine,
            "results": rows.collect::<Vec<_>>(),
            "absent": unavailable.collect::<Vec<_>>(),
            "snapshot": self.snapshot.sizes_json(),
            "clones": self.clones.idle.iter().map(Held::json).collect::<Vec<_>>(),
            "clones_after_exec": self.clones.after_exec.as_ref().map(Held::json),
            "stopped": self.clones.stopped,
            "two_threads_at_once": self.together.map(hundredths),
            "left": self.left,
            "targets": json_of(&self.targets()),
        })
    }
}

impl Held {
    fn json(&self) -> Value {
        json!({
            "clones": self.clones,
            "pss_kib": tenths(self.proportional),
            "private_kib": tenths(self.own),
            "supervisor_kib": tenths(self.supervisor),
            "processes": hundredths(self.processes),
        })
    }
}

impl SnapshotSize {
    fn sizes_json(&self) -> Value {
        json!({
            "memory_bytes": self.sizes.memory,
            "devices_bytes": self.sizes.devices,
            "disk_bytes": self.sizes.disk,
            "archive_bytes": self.archive,
            "packing_ms": tenths(self.packing.as_secs_f64() * 1e3),
        })
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cofferdam_vm::SnapshotSizes;

    use super::*;
    use crate::host::facts;

    fn report() -> Report {
        let sample = |millis| Sample::new(vec![Duration::from_millis(millis); 5]);
        let held = |clones, proportional| Held { clones, proportional, own: 4096.0, supervisor: 12.0, processes: 1.0 };
        Report {
            about: About {
                vmm: "qemu 7.2.22".to_owned(),
                accelerator: "tcg".to_owned(),
                processor: "Nehalem-v1".to_owned(),
                kernel: "6.1.0".to_owned(),
                mebibytes: 128,
                engine: String::new(),
            },
            results: vec![
                (Figure::Cold, sample(2000)),
                (Figure::Restore, sample(100)),
                (Figure::Claim, sample(40)),
                (Figure::SnapshotBeside, sample(20)),
            ],
            unavailable: vec![(Figure::Docker, "no engine is running".to_owned())],
            clones: Found {
                idle: vec![held(10, 20480.0), held(100, 8192.0)],
                after_exec: Some(held(100, 30720.0)),
                stopped: None,
            },
            snapshot: SnapshotSize {
                sizes: SnapshotSizes { memory: 50 << 20, devices: 40 << 10, disk: 0 },
                archive: 12 << 20,
                packing: Duration::from_millis(90),
            },
            together: Some(1.25),
            left: Vec::new(),
        }
    }

    #[test]
    fn targets_are_about_ratios_times_and_the_most_clones() {
        let text = report().table(&facts::collect());
        let row = |start: &str| text.lines().rfind(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(row("restore to first exec / cold").ends_with("0.05 met"), "{text}");
        assert!(row("warm claim").ends_with("40.00 missed"), "{text}");
        assert!(row("snapshot beside the copy").ends_with("20.00 met"), "{text}");
        assert!(row("MiB of an idle clone, 100 live").ends_with("8.00 met"), "{text}");
        assert!(row("fork of 10 until").ends_with("not measured"), "{text}");
        let words = |start: &str| row(start).split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(" 100 restored"), ["restored,", "idle", "8192", "4096", "12", "1.0"], "{text}");
        assert_eq!(words(" 100 after one exec")[4..], ["30720", "4096", "12", "1.0"], "{text}");
        for part in [
            "qemu 7.2.22, accelerator tcg, VMs of 128 MiB",
            "not measured: docker run --rm, true: no engine is running",
            "51200 KiB of memory, 40 KiB of devices, 0 KiB on disk; its archive 12288 KiB",
            "two threads at once do 1.25 times as much as one",
            "left behind: nothing",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn json_has_the_values_of_the_report() {
        let report = Report { left: vec!["processes: 4 instead of 1".to_owned()], ..report() };
        let json = report.json(&facts::collect());
        assert_eq!(json["results"][1]["cold_ratio"], 0.05);
        assert_eq!(json["clones"][1]["pss_kib"], 8192.0);
        assert_eq!(json["clones_after_exec"]["pss_kib"], 30720.0);
        assert_eq!(json["targets"][1]["met"], false);
        assert_eq!(json["two_threads_at_once"], 1.25);
        assert_eq!(json["left"][0], "processes: 4 instead of 1");
        assert!(report.table(&facts::collect()).contains("left behind: processes: 4 instead of 1"));
    }
}
