//! A plot of one series: each contestant's median relative to bare.

use anyhow::{Result, ensure};

use super::Contestant;
use super::measure::{Alone, Series};
use crate::plot::{self, Bar, Chart, Side};

/// The start of the bars: below 1, so that bare has one too.
const START: f64 = 0.5;

/// Draws a series as SVG.
pub fn draw(series: &Series) -> Result<String> {
    ensure!(series.bare().is_finite(), "cannot draw the plot: bare was not measured");
    let title = format!("{}, one at a time", series.workload.title());
    let chart = Chart { title: &title, scale: "median relative to bare; whisker: p99", start: START };
    plot::draw(chart, &bars(&series.results, series.bare()))
}

fn bars(rows: &[Alone], bare: f64) -> Vec<Bar> {
    let others = |contestant| matches!(contestant, Contestant::Peer(_) | Contestant::Bare);
    let bar = |row: &Alone| Bar {
        name: row.contestant.name().to_owned(),
        side: if others(row.contestant) { Side::Others } else { Side::Ours },
        median: row.latency.median() / bare,
        p99: row.latency.p99() / bare,
    };
    rows.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Workload;
    use super::super::peer::Peer;
    use super::*;
    use crate::plot::tests::unbalanced;
    use crate::sample::Sample;

    fn series(contestants: &[(Contestant, u64)]) -> Series {
        let alone = |(contestant, micros): &(Contestant, u64)| Alone {
            contestant: *contestant,
            latency: Sample::new(vec![Duration::from_micros(*micros), Duration::from_micros(micros * 3)]),
            phases: None,
        };
        Series { workload: Workload::Python, results: contestants.iter().map(alone).collect(), unavailable: Vec::new() }
    }

    #[test]
    fn plot_is_well_formed_and_names_each_contestant() {
        let all: Vec<(Contestant, u64)> = Contestant::all().into_iter().zip((1..).map(|step| step * 500)).collect();
        let svg = draw(&series(&all)).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert_eq!(unbalanced(&svg), Vec::<String>::new());
        for (contestant, _) in all {
            assert!(svg.contains(contestant.name()), "{contestant:?}");
        }
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn plot_without_its_baseline_is_refused() {
        assert!(draw(&series(&[(Contestant::Peer(Peer::Runc), 9)])).is_err());
    }
}
