//! Plots of times: a bar for each median on a logarithmic scale, with a whisker to the 99th percentile.

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of the plot, in pixels.
const WIDTH: u32 = 960;
/// Height of a bar's row, in pixels.
const ROW: u32 = 28;
/// Height of everything except the bars, in pixels.
const REST: u32 = 110;
/// Width of the names, in pixels.
const NAMES: u32 = 250;
const OURS: RGBColor = RGBColor(31, 119, 180);
const OTHERS: RGBColor = RGBColor(160, 160, 160);
const FONT: &str = "sans-serif";

/// The common settings of all bars.
#[derive(Debug, Clone, Copy)]
pub struct Chart<'a> {
    /// The title above the bars.
    pub title: &'a str,
    /// The label of the scale.
    pub scale: &'a str,
    /// The start of the bars, below every median, so that each bar is visible.
    pub start: f64,
}

/// A bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// The name beside the bar.
    pub name: String,
    /// The owner of the bar.
    pub side: Side,
    /// The end of the bar.
    pub median: f64,
    /// The end of the whisker.
    pub p99: f64,
}

/// The owner of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Cofferdam.
    Ours,
    /// An alternative.
    Others,
}

/// Draws bars as SVG, the first at the top.
pub fn draw(chart: Chart<'_>, bars: &[Bar]) -> Result<String> {
    let mut svg = String::new();
    draw_into(&mut svg, chart, bars).context("cannot draw the plot")?;
    Ok(svg)
}

fn draw_into(svg: &mut String, Chart { title, scale, start }: Chart<'_>, bars: &[Bar]) -> Result<()> {
    let highest = bars.iter().map(|bar| bar.p99).fold(start * 4.0, f64::max);
    let size = (WIDTH, REST + ROW * u32::try_from(bars.len())?);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 22))
        .margin(12)
        .margin_right(80)
        .set_label_area_size(LabelAreaPosition::Left, NAMES)
        .set_label_area_size(LabelAreaPosition::Bottom, 40)
        .build_cartesian_2d((start..highest * 1.1).log_scale(), 0.0..bars.len() as f64)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh().disable_y_axis().label_style((FONT, 14)).x_desc(scale).draw()?;
    for (index, bar) in bars.iter().enumerate() {
        // The middle of the row, counted from the bottom.
        let middle = (bars.len() - index) as f64 - 0.5;
        let colour = if bar.side == Side::Ours { OURS } else { OTHERS };
        let body = [(start, middle - 0.32), (bar.median.max(start), middle + 0.32)];
        let whisker = vec![(bar.median, middle), (bar.p99, middle)];
        let end = vec![(bar.p99, middle - 0.15), (bar.p99, middle + 0.15)];
        chart.draw_series([Rectangle::new(body, colour.filled())])?;
        chart.draw_series([whisker, end].map(|line| PathElement::new(line, BLACK.stroke_width(1))))?;
        let (x, y) = chart.backend_coord(&(start, middle));
        area.draw(&Text::new(bar.name.as_str(), (x - 8, y), anchored(HPos::Right)))?;
        let (x, y) = chart.backend_coord(&(bar.p99.max(bar.median), middle));
        area.draw(&Text::new(format!("{:.2}", bar.median), (x + 6, y), anchored(HPos::Left)))?;
    }
    area.present()?;
    Ok(())
}

fn anchored(side: HPos) -> TextStyle<'static> {
    TextStyle::from((FONT, 16).into_font()).pos(Pos::new(side, VPos::Center))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns names of elements that are not closed in the right order.
    pub(crate) fn unbalanced(svg: &str) -> Vec<String> {
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
    fn checker_finds_unbalanced_elements() {
        assert_eq!(unbalanced("<svg><g/></svg>"), Vec::<String>::new());
        assert_eq!(unbalanced("<svg><g></svg>"), ["svg"]);
        assert_eq!(unbalanced("<svg><g></g>"), ["svg"]);
    }

    #[test]
    fn every_bar_is_drawn_with_its_name_however_short() {
        let bar = |name: &str, median| Bar { name: name.to_owned(), side: Side::Ours, median, p99: median * 2.0 };
        let chart = Chart { title: "title", scale: "scale", start: 0.1 };
        let svg = draw(chart, &[bar("short", 0.2), bar("long", 40_000.0)]).unwrap();
        assert_eq!(unbalanced(&svg), Vec::<String>::new());
        for expected in ["title", "scale", "short", "long", "0.20", "40000.00"] {
            assert!(svg.contains(expected), "{expected} is not in {svg}");
        }
    }
}
