//! The targets of level wasm and the measured values. A missed target fails nothing.

use std::collections::BTreeMap;

use super::contestant::Contestant;
use super::guest::Guest;
use crate::target::{Bound, Row};

/// The measured values that targets refer to.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Medians in microseconds.
    pub medians: BTreeMap<(Guest, Contestant), f64>,
    /// Throughput of two threads, relative to one.
    pub gains: BTreeMap<Guest, f64>,
}

/// Maximum time of a run in a restored instance on one thread, in microseconds.
const MAX_MICROS: [(Guest, f64); 4] =
    [(Guest::Null, 3.0), (Guest::Hello, 6.0), (Guest::JavaScript, 15.0), (Guest::Python, 60.0)];
/// Minimum throughput of two threads, relative to one.
const GAIN: f64 = 1.2;
/// Minimum speed-up over a newly started Python.
const FASTER: f64 = 100.0;

/// Returns all targets.
pub fn rows(found: &Findings) -> Vec<Row> {
    let median = |guest, who| found.medians.get(&(guest, who)).copied();
    let mut rows = Vec::new();
    for (guest, max) in MAX_MICROS {
        rows.push(Row {
            what: format!("{}: µs of a run, warm", guest.title()),
            bound: Bound::AtMost(max),
            measured: median(guest, Contestant::Restored),
        });
    }
    for guest in Guest::ALL {
        rows.push(Row {
            what: format!("{}: runs/s, 2 threads / 1", guest.title()),
            bound: Bound::AtLeast(GAIN),
            measured: found.gains.get(&guest).copied(),
        });
    }
    let native = median(Guest::Python, Contestant::Native);
    rows.push(Row {
        what: "bare python3 -I -S -c / Python, warm".to_owned(),
        bound: Bound::AtLeast(FASTER),
        measured: native.zip(median(Guest::Python, Contestant::Restored)).map(|(native, warm)| native / warm),
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::render;

    #[test]
    fn figures_stand_beside_their_bounds() {
        let mut found = Findings::default();
        assert_eq!(render(&rows(&found)).matches("not measured").count(), MAX_MICROS.len() + Guest::ALL.len() + 1);
        found.medians.insert((Guest::Null, Contestant::Restored), 2.5);
        found.medians.insert((Guest::Python, Contestant::Restored), 80.0);
        found.medians.insert((Guest::Python, Contestant::New), 1.0);
        found.medians.insert((Guest::Python, Contestant::Native), 8800.0);
        found.gains.insert(Guest::Hello, 1.1);
        let text = render(&rows(&found));
        let row = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        assert!(row("null module: µs").ends_with("<= 3          2.50 met"), "{text}");
        assert!(row("Python, print(1): µs").ends_with("80.00 missed"), "{text}");
        assert!(row("WASI hello: runs/s").ends_with("1.10 missed"), "{text}");
        assert!(row("bare python3").ends_with("110.00 met"), "{text}");
        assert!(row("WASI hello: µs").ends_with("not measured"), "{text}");
    }
}
