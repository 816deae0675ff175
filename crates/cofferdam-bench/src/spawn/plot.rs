//! A picture of one series: a bar for each contestant's median relative to bare, on a logarithmic scale, and a whisker to
//! the 99th percentile.

use anyhow::{Context, Result, anyhow, ensure};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::measure::{Alone, Series};
use super::{Contestant, Workload};

/// Pixels from left to right.
const WIDTH: u32 = 960;
/// Height of one bar's place, in pixels.
const ROW: u32 = 28;
/// Height of everything that is no bar, in pixels.
const REST: u32 = 110;
/// Place for names, in pixels.
const NAMES: u32 = 230;
/// Where bars begin: below 1, so that bare has one, too.
const START: f64 = 0.5;
const OURS: RGBColor = RGBColor(31, 119, 180);
const OTHERS: RGBColor = RGBColor(160, 160, 160);
const FONT: &str = "sans-serif";

/// One bar, placed.
struct Bar {
    name: &'static str,
    colour: RGBColor,
    median: f64,
    p99: f64,
    /// The middle of its place, counted from the bottom.
    y: f64,
}

/// Draws a series as SVG.
pub fn draw(series: &Series) -> Result<String> {
    ensure!(series.bare().is_finite(), "cannot draw the plot: bare was not measured");
    let mut svg = String::new();
    draw_into(&mut svg, &bars(&series.results, series.bare()), series.workload).context("cannot draw the plot")?;
    Ok(svg)
}

fn bars(rows: &[Alone], bare: f64) -> Vec<Bar> {
    let place = |(index, row): (usize, &Alone)| Bar {
        name: row.contestant.name(),
        colour: if matches!(row.contestant, Contestant::Peer(_) | Contestant::Bare) { OTHERS } else { OURS },
        median: row.latency.median() / bare,
        p99: row.latency.p99() / bare,
        y: (rows.len() - index) as f64 - 0.5,
    };
    rows.iter().enumerate().map(place).collect()
}

fn draw_into(svg: &mut String, bars: &[Bar], workload: Workload) -> Result<()> {
    let highest = bars.iter().map(|bar| bar.p99).fold(2.0, f64::max);
    let size = (WIDTH, REST + ROW * u32::try_from(bars.len())?);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{}, one at a time", workload.title()), (FONT, 22))
        .margin(12)
        .margin_right(80)
        .set_label_area_size(LabelAreaPosition::Left, NAMES)
        .set_label_area_size(LabelAreaPosition::Bottom, 40)
        .build_cartesian_2d((START..highest * 1.1).log_scale(), 0.0..bars.len() as f64)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh()
        .disable_y_axis()
        .label_style((FONT, 14))
        .x_desc("median relative to bare; whisker: p99")
        .draw()?;
    for bar in bars {
        let (low, high) = (bar.y - 0.32, bar.y + 0.32);
        let body = Rectangle::new([(START, low), (bar.median.max(START), high)], bar.colour.filled());
        let whisker = PathElement::new(vec![(bar.median, bar.y), (bar.p99, bar.y)], BLACK.stroke_width(1));
        let end = PathElement::new(vec![(bar.p99, bar.y - 0.15), (bar.p99, bar.y + 0.15)], BLACK.stroke_width(1));
        chart.draw_series([body])?;
        chart.draw_series([whisker, end])?;
        let (x, y) = chart.backend_coord(&(START, bar.y));
        area.draw(&Text::new(bar.name, (x - 8, y), anchored(HPos::Right)))?;
        let (x, y) = chart.backend_coord(&(bar.p99.max(bar.median), bar.y));
        area.draw(&Text::new(format!("{:.2}", bar.median), (x + 6, y), anchored(HPos::Left)))?;
    }
    area.present()?;
    Ok(())
}

fn anchored(side: HPos) -> TextStyle<'static> {
    TextStyle::from((FONT, 16).into_font()).pos(Pos::new(side, VPos::Center))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::peer::Peer;
    use super::*;
    use crate::sample::Sample;

    fn series(contestants: &[(Contestant, u64)]) -> Series {
        let alone = |(contestant, micros): &(Contestant, u64)| Alone {
            contestant: *contestant,
            latency: Sample::new(vec![Duration::from_micros(*micros), Duration::from_micros(micros * 3)]),
            phases: None,
        };
        Series { workload: Workload::Python, results: contestants.iter().map(alone).collect(), absent: Vec::new() }
    }

    /// Names of elements that are opened and not closed in the right order.
    fn unbalanced(svg: &str) -> Vec<String> {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).filter_map(|rest| rest.split_once('>').map(|(tag, _)| tag)) {
            let name = tag.split([' ', '\n', '/']).find(|name| !name.is_empty()).unwrap_or_default().to_owned();
            if tag.starts_with('/') {
                if open.last() == Some(&name) {
                    open.pop();
                } else {
                    return vec![name];
                }
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                open.push(name);
            }
        }
        open
    }

    #[test]
    fn a_plot_is_well_formed_and_names_everybody() {
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
    fn the_checker_finds_what_is_not_well_formed() {
        assert_eq!(unbalanced("<svg><g/></svg>"), Vec::<String>::new());
        assert_eq!(unbalanced("<svg><g></svg>"), ["svg"]);
        assert_eq!(unbalanced("<svg><g></g>"), ["svg"]);
    }

    #[test]
    fn nothing_is_drawn_without_what_it_is_relative_to() {
        assert!(draw(&series(&[(Contestant::Peer(Peer::Runc), 9)])).is_err());
    }
}
