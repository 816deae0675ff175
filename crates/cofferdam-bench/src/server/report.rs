//! The results of a run, as tables, as JSON and as a plot.

use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::idle::Idle;
use super::load::{CLIENTS, Load, WAYS};
use super::queue::Queue;
use crate::host::facts::Facts;
use crate::plot::{self, Bar, Chart, Side};
use crate::sample::{hundredths, tenths};
use crate::target::{Bound, Row, json_of, render};

/// The number of clients of the target on latency.
const TARGET_CLIENTS: usize = CLIENTS[1];
/// The maximum of the server's median at that number, as a multiple of the library's.
const MAX_RATIO: f64 = 1.3;
/// The maximum of the server's memory for a request that waits, in KiB.
const MAX_QUEUED_KIB: f64 = 64.0;

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    /// The load, by number of clients and contestant.
    pub loads: Vec<Load>,
    /// The resident memory of the server in KiB, before the load and after.
    pub resident: [Option<u64>; 2],
    /// The queued requests.
    pub queue: Queue,
    /// The idle sandboxes.
    pub idle: Idle,
}

/// Returns the growth of memory for each of `count` objects, in KiB.
fn each(before: Option<u64>, after: Option<u64>, count: usize) -> Option<f64> {
    Some((after? as f64 - before? as f64) / count as f64)
}

fn kib(value: Option<u64>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| format!("{value:.1}"))
}

impl Report {
    /// Returns the median of the server as a multiple of the library's.
    fn ratio(&self, clients: usize) -> Option<f64> {
        let median =
            |way| Some(self.loads.iter().find(|load| load.clients == clients && load.way == way)?.times.median());
        Some(median(WAYS[0])? / median(WAYS[1])?)
    }

    fn targets(&self) -> Vec<Row> {
        let Queue { requests, resident: [before, waiting, _], .. } = self.queue;
        vec![
            Row {
                what: format!("median with {TARGET_CLIENTS} clients, server / library"),
                bound: Bound::AtMost(MAX_RATIO),
                measured: self.ratio(TARGET_CLIENTS),
            },
            Row {
                what: "KiB of the server for a request that waits".to_owned(),
                bound: Bound::AtMost(MAX_QUEUED_KIB),
                measured: each(before, waiting, requests),
            },
        ]
    }

    /// Formats the tables.
    pub fn table(&self, facts: &Facts) -> String {
        let mut text = format!("{}\n\n{:24}", facts.line(), "one-shot runs of true");
        let heads = ["n", "requests/s", "median us", "p99 us", "p99.9 us", "x library"];
        heads.iter().for_each(|head| text.push_str(&format!(" {head:>11}")));
        for Load { clients, way, times, per_second } in &self.loads {
            let _ = write!(text, "\n{:24} {:11}", format!("{clients} clients, {way}"), times.len());
            for value in [*per_second, times.median(), times.p99(), times.p999()] {
                let _ = write!(text, " {value:11.0}");
            }
            if let Some(ratio) = self.ratio(*clients).filter(|_| *way == WAYS[0]) {
                let _ = write!(text, " {ratio:11.2}");
            }
        }
        let [before, after] = self.resident;
        let _ = writeln!(text, "\n\nserver's RSS: {} KiB before, {} KiB after", kib(before), kib(after));
        let Queue { requests, drained, resident: [before, waiting, after] } = self.queue;
        let seconds = drained.as_secs_f64();
        let _ = writeln!(
            text,
            "\n{requests} queued requests ran in order in {seconds:.1} s, {:.0} a second\nserver's RSS: {} KiB before, \
             {} KiB with all waiting, {} KiB after; {} KiB for each",
            requests as f64 / seconds,
            kib(before),
            kib(waiting),
            kib(after),
            shown(each(before, waiting, requests)),
        );
        let Idle { held, creates, deletes, runs: [alone, beside], resident: [before, full, after] } = &self.idle;
        let _ = writeln!(
            text,
            "\n{held} idle sandboxes: nothing is left\nserver's RSS: {} KiB before, {} KiB with all, {} KiB after; {} KiB \
             for each\n\n{:24} {:>11} {:>11} {:>11}",
            kib(*before),
            kib(*full),
            kib(*after),
            shown(each(*before, *full, *held)),
            "",
            "n",
            "median us",
            "p99 us",
        );
        for (name, sample) in
            [("create", creates), ("delete", deletes), ("run without them", alone), ("run beside them", beside)]
        {
            let _ = writeln!(text, "{name:24} {:11} {:11.0} {:11.0}", sample.len(), sample.median(), sample.p99());
        }
        text + &render(&self.targets())
    }

    /// Returns the results as JSON.
    pub fn json(&self, facts: &Facts) -> Value {
        let loads = self.loads.iter().map(|Load { clients, way, times, per_second }| {
            json!({
                "clients": clients, "way": way, "per_second": tenths(*per_second),
                "times": times.json(), "p999_us": tenths(times.p999()),
            })
        });
        let Idle { held, creates, deletes, runs: [alone, beside], resident } = &self.idle;
        json!({
            "benchmark": "server",
            "host": facts.json(),
            "loads": loads.collect::<Vec<_>>(),
            "resident_kib": self.resident,
            "queue": {
                "requests": self.queue.requests,
                "seconds": hundredths(self.queue.drained.as_secs_f64()),
                "resident_kib": self.queue.resident,
            },
            "idle": {
                "held": held, "resident_kib": resident, "creates": creates.json(), "deletes": deletes.json(),
                "runs_without": alone.json(), "runs_beside": beside.json(),
            },
            "targets": json_of(&self.targets()),
        })
    }

    /// Draws the plot of the load as SVG, in milliseconds.
    pub fn plot(&self) -> Result<String> {
        let bars: Vec<Bar> = self.loads.iter().map(bar).collect();
        let shortest = bars.iter().map(|bar| bar.median).fold(f64::INFINITY, f64::min);
        let title = "one-shot runs of true by a server and by the library";
        plot::draw(Chart { title, scale: "milliseconds; bar: median; whisker: p99", start: shortest / 2.0 }, &bars)
    }
}

fn bar(Load { clients, way, times, .. }: &Load) -> Bar {
    let side = if *way == WAYS[0] { Side::Ours } else { Side::Others };
    let millis = |value: f64| value / 1e3;
    Bar { name: format!("{clients} clients, {way}"), side, median: millis(times.median()), p99: millis(times.p99()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::facts;
    use crate::sample::Sample;

    fn report() -> Report {
        let sample = |millis| Sample::new(vec![Duration::from_millis(millis); 3]);
        let load = |clients, way, millis| Load { clients, way, times: sample(millis), per_second: 1.0 };
        Report {
            loads: vec![load(8, "server", 6), load(8, "library", 4)],
            resident: [Some(1000), Some(2000)],
            queue: Queue { requests: 100, drained: Duration::from_secs(1), resident: [Some(1000), Some(3000), None] },
            idle: Idle {
                held: 10,
                creates: sample(1),
                deletes: sample(1),
                runs: [sample(1), sample(2)],
                resident: [Some(1000), Some(1500), Some(1400)],
            },
        }
    }

    #[test]
    fn ratios_and_memory_are_compared_with_targets() {
        let (report, facts) = (report(), facts::collect());
        let text = report.table(&facts);
        assert!(text.contains("1.50 missed") && text.contains("20.00 met"), "{text}");
        assert!(text.contains("100 queued requests ran in order in 1.0 s, 100 a second"), "{text}");
        assert!(text.contains("10 idle sandboxes: nothing is left") && text.contains("; 50.0 KiB for each"), "{text}");
        assert_eq!(report.json(&facts)["loads"][0]["p999_us"], 6000.0);
        let svg = report.plot().unwrap();
        assert_eq!(plot::tests::unbalanced(&svg), Vec::<String>::new());
        assert!(svg.contains("8 clients, library"), "{svg}");
    }
}
