//! A plot of one guest: each contestant's median.

use anyhow::Result;

use super::contestant::Contestant;
use super::measure::Series;
use crate::plot::{self, Bar, Chart, Side};

/// Draws a series as SVG.
pub fn draw(series: &Series) -> Result<String> {
    let bars: Vec<Bar> = series
        .results
        .iter()
        .map(|(contestant, sample)| Bar {
            name: contestant.name(series.guest),
            side: if matches!(contestant, Contestant::Native | Contestant::Wasmtime) {
                Side::Others
            } else {
                Side::Ours
            },
            median: sample.median(),
            p99: sample.p99(),
        })
        .collect();
    let shortest = bars.iter().map(|bar| bar.median).fold(f64::INFINITY, f64::min);
    let chart =
        Chart { title: series.guest.title(), scale: "microseconds; bar: median; whisker: p99", start: shortest / 2.0 };
    plot::draw(chart, &bars)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::guest::Guest;
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn each_contestant_has_a_bar() {
        let sample = |index| Sample::new(vec![Duration::from_micros(2u64 << (2 * index)); 3]);
        let results = Contestant::ALL.into_iter().enumerate().map(|(index, contestant)| (contestant, sample(index)));
        let series = Series { guest: Guest::Null, results: results.collect(), unavailable: Vec::new() };
        let svg = draw(&series).unwrap();
        assert_eq!(crate::plot::tests::unbalanced(&svg), Vec::<String>::new());
        assert!(!svg.contains("NaN"));
        for contestant in Contestant::ALL {
            assert!(svg.contains(&contestant.name(Guest::Null)), "{contestant:?}");
        }
    }
}
