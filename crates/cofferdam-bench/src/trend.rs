//! Growth of a series of samples: a fitted line and the significance of its slope.

/// Minimum ratio of a slope to its standard error.
const SURE: f64 = 3.0;

/// A line through points, by least squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// The change of y for each step of x.
    pub slope: f64,
    /// The standard error of the slope.
    pub error: f64,
}

/// Returns the line through these points. Returns `None` for fewer than three, or if all have the same x.
pub fn fit(points: &[(f64, f64)]) -> Option<Line> {
    let count = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if spread == 0.0 {
        return None;
    }
    let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
    let missed: f64 = points.iter().map(|point| (point.1 - y - slope * (point.0 - x)).powi(2)).sum();
    Some(Line { slope, error: (missed / (count - 2.0) / spread).sqrt() })
}

/// Returns true if the samples grew: the line rises significantly and by at least `least` over the points, and the
/// `settled` value stays that much above the first. A series that levels off, such as the memory of an allocator, does
/// not grow: the second half must rise proportionally too.
pub fn grew(points: &[(f64, f64)], settled: f64, least: f64) -> bool {
    let (Some(line), Some(first), Some(last)) = (fit(points), points.first(), points.last()) else { return false };
    let rise = line.slope * (last.0 - first.0);
    let half = &points[points.len() / 2..];
    let late = fit(half).map_or(rise / 2.0, |line| line.slope * (last.0 - half[0].0));
    rise >= least && late >= least / 2.0 && line.slope > SURE * line.error && settled - first.1 >= least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..=10).map(|x| (f64::from(x), of(f64::from(x)))).collect()
    }

    #[test]
    fn a_line_is_found_again() {
        let line = fit(&points(|x| 3.0 * x + 7.0)).unwrap();
        assert!((line.slope - 3.0).abs() < 1e-9 && line.error < 1e-9, "{line:?}");
        assert_eq!(fit(&points(|_| 5.0)).unwrap().slope, 0.0);
        assert_eq!(fit(&[(0.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(fit(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
    }

    #[test]
    fn growth_is_distinguished_from_noise_and_recovery() {
        let noisy = |x: f64| if (x as u32).is_multiple_of(2) { 40.0 } else { 0.0 };
        for (name, points, settled, expected) in [
            ("a leak", points(|x| 10.0 * x), 100.0, true),
            ("a leak with noise", points(|x| 100.0 * x + noisy(x)), 1000.0, true),
            ("noise", points(noisy), 40.0, false),
            ("nothing", points(|_| 3.0), 3.0, false),
            ("a backlog that drains", points(|x| 10.0 * x), 0.0, false),
            ("a start that levels off", points(|x| 10.0 * x.min(4.0)), 40.0, false),
            ("less than counts", points(|x| 0.01 * x), 0.1, false),
            ("a fall", points(|x| -10.0 * x), -100.0, false),
        ] {
            assert_eq!(grew(&points, settled, 1.0), expected, "{name}");
        }
    }
}
