//! A plot of the times: each figure's median.

use anyhow::Result;

use super::figure::Figure;
use crate::plot::{self, Bar, Chart, Side};
use crate::sample::Sample;

/// Draws the plot as SVG, in milliseconds.
pub fn draw(results: &[(Figure, Sample)]) -> Result<String> {
    let bars: Vec<Bar> = results
        .iter()
        .map(|(figure, sample)| Bar {
            name: figure.name().to_owned(),
            side: if figure.is_ours() { Side::Ours } else { Side::Others },
            median: sample.median() / 1e3,
            p99: sample.p99() / 1e3,
        })
        .collect();
    // A difference of times may be zero, which does not exist on a logarithmic scale.
    let shortest = bars.iter().map(|bar| bar.median).filter(|median| *median > 0.0).fold(f64::INFINITY, f64::min);
    let start = if shortest.is_finite() { shortest / 2.0 } else { 0.1 };
    let bars: Vec<Bar> =
        bars.into_iter().map(|bar| Bar { median: bar.median.max(start), p99: bar.p99.max(start), ..bar }).collect();
    plot::draw(Chart { title: "virtual machines", scale: "milliseconds; bar: median; whisker: p99", start }, &bars)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_figure_has_a_bar_even_one_of_no_time() {
        let results = Figure::ALL.map(|figure| {
            let millis = if figure == Figure::SnapshotBeside { 0 } else { 2 };
            (figure, Sample::new(vec![Duration::from_millis(millis); 3]))
        });
        let svg = draw(&results).unwrap();
        assert_eq!(crate::plot::tests::unbalanced(&svg), Vec::<String>::new());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for figure in Figure::ALL {
            assert!(svg.contains(figure.name()), "{figure:?}");
        }
    }
}
