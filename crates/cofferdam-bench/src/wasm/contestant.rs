//! The contestants.

use super::guest::Guest;

/// A way to run a guest. `docs/performance.md` describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contestant {
    /// Without a sandbox, on the caller's thread, in a reused instance that was restored to its initial state.
    Restored,
    /// Without a sandbox, the first run of a thread, in a new instance that is dropped.
    New,
    /// The one-shot call of the contract: a sandbox, a thread, streams.
    Contract,
    /// A new backend, as in a new process: its engine, the guest's code, the first run.
    Cold,
    /// `cofferdam run` as a program.
    CommandLine,
    /// Wasmtime's own command line, with the same module.
    Wasmtime,
    /// A native program, without a sandbox.
    Native,
}

impl Contestant {
    /// All contestants, in the order of the tables.
    pub const ALL: [Self; 7] =
        [Self::Restored, Self::New, Self::Contract, Self::Cold, Self::CommandLine, Self::Wasmtime, Self::Native];

    /// Returns the short name, for JSON.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::New => "new",
            Self::Contract => "contract",
            Self::Cold => "cold",
            Self::CommandLine => "cli",
            Self::Wasmtime => "wasmtime",
            Self::Native => "native",
        }
    }

    /// Returns the display name with this guest.
    pub fn name(self, guest: Guest) -> String {
        match self {
            Self::Restored => "cofferdam, restored instance".to_owned(),
            Self::New => "cofferdam, new instance".to_owned(),
            Self::Contract => "cofferdam run (one call)".to_owned(),
            Self::Cold if guest.is_script() => "cofferdam, new backend, code cached".to_owned(),
            Self::Cold => "cofferdam, new backend, compiles".to_owned(),
            Self::CommandLine => "cofferdam command line".to_owned(),
            Self::Wasmtime => "wasmtime run".to_owned(),
            Self::Native => format!("native {}", guest.native().join(" ")),
        }
    }

    /// Returns true if it is Cofferdam's, and must work.
    pub fn in_process(self) -> bool {
        matches!(self, Self::Restored | Self::New | Self::Contract | Self::Cold)
    }

    /// Returns true if it can run this guest.
    pub fn runs(self, guest: Guest) -> bool {
        self != Self::Wasmtime || !guest.is_script()
    }

    /// Returns the number of runs in one turn. Runs of microseconds are measured in sequence, after some that do not
    /// count.
    pub fn batch(self) -> usize {
        match self {
            Self::Restored => 200,
            Self::New | Self::Contract => 10,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestant_names_are_unique() {
        for guest in Guest::ALL {
            let names: std::collections::BTreeSet<_> =
                Contestant::ALL.iter().map(|contestant| contestant.name(guest)).collect();
            assert_eq!(names.len(), Contestant::ALL.len());
        }
        let slugs: std::collections::BTreeSet<_> = Contestant::ALL.iter().map(|contestant| contestant.slug()).collect();
        assert_eq!(slugs.len(), Contestant::ALL.len());
    }
}
