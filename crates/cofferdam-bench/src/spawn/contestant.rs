//! The contestants. To add one of Cofferdam's, add a variant here with its line in `all`, `slug` and `name`, and an arm
//! in `Field::run`. Another program is a [`Peer`].

use super::peer::Peer;
use super::workload::Workload;

/// A way to run a program. `docs/performance.md` describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contestant {
    /// No sandbox: glibc's `posix_spawn`, which is `clone(CLONE_VM
    ///
    /// CLONE_VFORK)` and `execve`.
    Bare,
    /// A command in an existing sandbox.
    Exec,
    /// Create, exec, close, in sequence.
    Create,
    /// The one-shot call, which may request the command together with the sandbox.
    Run,
    /// The one-shot call to a backend that prepares nothing in idle time.
    Unprepared,
    /// A claim from a pool with prepared sandboxes, and a command in it.
    Pool,
    /// The same from a pool with enough prepared sandboxes for a burst.
    PoolBurst,
    /// `cofferdam run` as a program, including its start and end.
    CommandLine,
    /// The same through a server with prepared sandboxes.
    CommandLineServer,
    /// A prepared Python that takes over a script.
    Warm,
    /// A prepared Python with pandas imported that takes over a script that imports it.
    WarmPandas,
    /// No sandbox, and a Python that imports pandas.
    BarePandas,
    /// Another program.
    Peer(Peer),
}

impl Contestant {
    /// Returns all contestants, in the order of the tables.
    pub fn all() -> Vec<Self> {
        let ours = [
            Self::Bare,
            Self::Exec,
            Self::Pool,
            Self::PoolBurst,
            Self::Create,
            Self::Run,
            Self::Unprepared,
            Self::CommandLine,
            Self::CommandLineServer,
            Self::Warm,
            Self::WarmPandas,
            Self::BarePandas,
        ];
        ours.into_iter().chain(Peer::ALL.iter().copied().map(Self::Peer)).collect()
    }

    /// Returns the short name, for options and JSON.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Exec => "exec",
            Self::Create => "create",
            Self::Run => "run",
            Self::Unprepared => "unprepared",
            Self::Pool => "pool",
            Self::PoolBurst => "pool-run",
            Self::CommandLine => "cli",
            Self::CommandLineServer => "cli-server",
            Self::Warm => "warm",
            Self::WarmPandas => "warm-pandas",
            Self::BarePandas => "bare-pandas",
            Self::Peer(peer) => peer.slug(),
        }
    }

    /// Returns the display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare posix_spawn",
            Self::Exec => "cofferdam exec, live sandbox",
            Self::Create => "cofferdam create+exec+close",
            Self::Run => "cofferdam run (one call)",
            Self::Unprepared => "cofferdam run, unprepared",
            Self::Pool => "cofferdam pool: claim+run",
            Self::PoolBurst => "cofferdam pool: claim+run, burst",
            Self::CommandLine => "cofferdam command line",
            Self::CommandLineServer => "cofferdam command line, server",
            Self::Warm => "cofferdam warm Python",
            Self::WarmPandas => "cofferdam warm Python, pandas",
            Self::BarePandas => "bare Python, pandas",
            Self::Peer(peer) => peer.name(),
        }
    }

    /// Returns true if it is also measured with several runs at once, for a target or a comparison.
    pub fn at_once(self) -> bool {
        let ours = matches!(self, Self::Bare | Self::PoolBurst | Self::Create | Self::Run | Self::CommandLine);
        ours || self == Self::Peer(Peer::Bubblewrap)
    }

    /// Returns true if it is measured one at a time.
    pub fn alone(self) -> bool {
        self != Self::PoolBurst
    }

    /// Returns true if it runs this workload, or one of its own beside it.
    pub fn runs(self, workload: Workload) -> bool {
        workload == Workload::Python || !matches!(self, Self::Warm | Self::WarmPandas | Self::BarePandas)
    }

    /// Returns the contestant with this short name.
    pub fn parse(slug: &str) -> Result<Self, String> {
        let known = || Self::all().iter().map(|contestant| contestant.slug()).collect::<Vec<_>>().join(", ");
        let found = Self::all().into_iter().find(|contestant| contestant.slug() == slug);
        found.ok_or_else(|| format!("unknown contestant '{slug}'; known are {}", known()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contestant_parses_from_its_slug() {
        for contestant in Contestant::all() {
            assert_eq!(Contestant::parse(contestant.slug()), Ok(contestant));
        }
        assert!(Contestant::parse("unknown").unwrap_err().contains("bwrap"));
    }
}
