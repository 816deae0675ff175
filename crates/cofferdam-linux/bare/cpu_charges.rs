//! CPU time that execs are charged with if no control group counts it: never less than they used.
//!
//! The CPU time of existing processes, and of children that were waited for, can be read. The time of a process that no
//! parent waits for is lost with it. So a span in which a process appeared or vanished counts as if every processor had
//! worked all the time. Only a span with the same processes at both ends is charged with their actual use.

/// The CPU time account of the execs that run at the same time.
#[derive(Debug, Default)]
pub struct CpuCharges {
    charged_micros: u64,
    sum_micros: u64,
    population: Population,
}

/// The set of existing processes, and the last process id that the kernel assigned: every new process between two polls
/// changes it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Population {
    count: u64,
    /// A digest of their process ids.
    digest: u64,
    last: u64,
}

impl Population {
    /// Creates an empty population. Processes of the sandbox do not know the seed, so they cannot imitate the digest of
    /// others.
    pub fn new(seed: u64, last: u64) -> Self {
        Self { count: 0, digest: seed, last }
    }

    /// Adds a process.
    pub fn add(&mut self, pid: i32) {
        self.count += 1;
        self.digest = mix(self.digest ^ pid as u64);
    }
}

/// Mixes bits: a permutation in which each bit of the input changes about half of the output's (the finisher of
/// splitmix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

impl CpuCharges {
    /// Opens an account with these processes and the sum of their times.
    pub fn open(sum_micros: u64, population: Population) -> Self {
        Self { charged_micros: 0, sum_micros, population }
    }

    /// Charges a span. The arguments are the processes at its end and the sum of their times.
    pub fn charge(&mut self, span_micros: u64, processors: u64, sum_micros: u64, population: Population) {
        let seen = sum_micros.saturating_sub(self.sum_micros);
        let same = population == self.population;
        self.charged_micros += if same { seen } else { seen.max(span_micros.saturating_mul(processors)) };
        self.sum_micros = sum_micros;
        self.population = population;
    }

    /// Resumes after a pause: keeps what was charged before, and does not charge the time until now.
    pub fn resume(&mut self, sum_micros: u64, population: Population) {
        self.sum_micros = sum_micros;
        self.population = population;
    }

    /// Returns the microseconds charged so far.
    pub fn charged_micros(&self) -> u64 {
        self.charged_micros
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population(pids: &[i32], last: u64) -> Population {
        let mut population = Population::new(7, last);
        pids.iter().for_each(|&pid| population.add(pid));
        population
    }

    #[test]
    fn processes_that_come_and_go_are_charged_for_the_whole_span() {
        let mut charges = CpuCharges::open(0, population(&[], 0));
        charges.charge(1000, 2, 0, population(&[2], 2));
        assert_eq!(charges.charged_micros(), 2000, "a process appeared");
        charges.charge(1000, 2, 300, population(&[2], 2));
        assert_eq!(charges.charged_micros(), 2300, "the same processes at both ends");
        charges.charge(1000, 2, 300, population(&[2], 9));
        assert_eq!(charges.charged_micros(), 4300, "processes appeared and vanished between polls");
        charges.charge(1000, 2, 100, population(&[], 9));
        assert_eq!(charges.charged_micros(), 6300, "a process vanished with its times");
    }

    #[test]
    fn stopped_time_is_not_charged() {
        let mut charges = CpuCharges::open(0, population(&[2], 2));
        charges.charge(1000, 2, 300, population(&[2], 2));
        charges.resume(900, population(&[2, 3], 9));
        assert_eq!(charges.charged_micros(), 300);
        charges.charge(1000, 2, 1000, population(&[2, 3], 9));
        assert_eq!(charges.charged_micros(), 400);
    }

    #[test]
    fn populations_are_the_same_only_with_the_same_processes() {
        assert_eq!(population(&[2, 3], 3), population(&[2, 3], 3));
        for other in [population(&[2], 3), population(&[2, 4], 3), population(&[2, 3], 4), population(&[3, 2], 3)] {
            assert_ne!(population(&[2, 3], 3), other);
        }
    }
}
