//! A sample of everything that could leak.

use crate::host::{groups, kernel, mounts, tree};

/// The unit of a figure, which also determines the growth that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of objects, of which a single one matters.
    Count,
    /// KiB of Cofferdam's own processes.
    OwnKib,
    /// KiB of the whole host, which other processes use too.
    HostKib,
}

impl Unit {
    /// Returns the smallest growth over a whole run that is reported.
    pub fn min_growth(self) -> f64 {
        match self {
            Self::Count => 1.0,
            Self::OwnKib => 64.0,
            Self::HostKib => 4096.0,
        }
    }

    /// Returns the text after a number.
    pub fn text(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::OwnKib | Self::HostKib => " KiB",
        }
    }
}

/// The figures, in the order of [`Reading`].
pub const FIGURES: [(&str, Unit); 12] = [
    ("own RSS", Unit::OwnKib),
    ("launcher RSS", Unit::OwnKib),
    ("own fds", Unit::Count),
    ("launcher fds", Unit::Count),
    ("groups", Unit::Count),
    ("own mounts", Unit::Count),
    ("launcher mounts", Unit::Count),
    ("processes", Unit::Count),
    ("namespaces", Unit::Count),
    ("tmpfs", Unit::Count),
    ("host net ns", Unit::Count),
    ("host Slab", Unit::HostKib),
];

/// One value for each of [`FIGURES`]. `None` if this user may not read it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading(pub [Option<f64>; FIGURES.len()]);

impl Reading {
    /// Samples the current values.
    pub fn now() -> Self {
        let own = std::process::id();
        let launchers = tree::launchers();
        let below = tree::descendants();
        let all: Vec<u32> = below.iter().copied().chain([own]).collect();
        let resident = |pids: &[u32]| tree::memory(pids).map(|memory| memory.resident as f64);
        let descriptors = |pids: &[u32]| tree::descriptors(pids).map(|count| count as f64);
        Self([
            resident(&[own]),
            resident(&launchers),
            descriptors(&[own]),
            descriptors(&launchers),
            Some(groups::of_launchers(&launchers).len() as f64),
            Some(mounts::count(own) as f64),
            Some(launchers.iter().map(|pid| mounts::count(*pid)).sum::<usize>() as f64),
            Some(below.len() as f64),
            Some(tree::namespaces(&all) as f64),
            Some(mounts::tmpfs(&all) as f64),
            kernel::network_namespaces().map(|count| count as f64),
            Some(kernel::memory().slab as f64),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_values_of_this_process() {
        let Reading(values) = Reading::now();
        let value = |name: &str| FIGURES.iter().position(|(figure, _)| *figure == name).and_then(|at| values[at]);
        assert!(value("own RSS").unwrap() > 0.0);
        assert!(value("own fds").unwrap() >= 3.0);
        assert!(value("own mounts").unwrap() > 0.0);
        assert!(value("namespaces").unwrap() >= 7.0);
        assert!(value("host Slab").unwrap() > 0.0);
    }
}
