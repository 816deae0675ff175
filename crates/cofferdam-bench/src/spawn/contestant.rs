//! Who is compared. A new contestant of ours is a variant here with its line in `all`, `slug` and `name`, and an arm in
//! `Field::run`; a new program beside ours is a [`Peer`].

use super::peer::Peer;
use super::workload::Workload;

/// One way to run a program. What it does is said in `docs/performance.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contestant {
    /// No wall at all: glibc's `posix_spawn`, which is `clone(CLONE_VM | CLONE_VFORK)` and `execve`.
    Bare,
    /// A command in a sandbox that is there already.
    Exec,
    /// Create, exec, close, one after the other.
    Create,
    /// The one-shot call, which may order the command together with the sandbox.
    Run,
    /// The one-shot call to a backend that makes nothing ready in idle time.
    Unprepared,
    /// A claim from a pool that has some ready, and a command in it.
    Pool,
    /// The same from a pool that has enough ready for a burst of them all.
    PoolBurst,
    /// `cofferdam run` as a program, with everything that it starts and ends.
    CommandLine,
    /// The same through a daemon that has sandboxes ready.
    CommandLineDaemon,
    /// A Python that waits takes over a script, instead of one that is started.
    Warm,
    /// A Python that waits with pandas imported takes over a script that imports it.
    WarmPandas,
    /// No wall, and a Python that imports pandas.
    BarePandas,
    /// Another program.
    Peer(Peer),
}

impl Contestant {
    /// Everybody, in the order of the tables.
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
            Self::CommandLineDaemon,
            Self::Warm,
            Self::WarmPandas,
            Self::BarePandas,
        ];
        ours.into_iter().chain(Peer::ALL.iter().copied().map(Self::Peer)).collect()
    }

    /// The short name, for options and programs.
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
            Self::CommandLineDaemon => "cli-daemon",
            Self::Warm => "warm",
            Self::WarmPandas => "warm-pandas",
            Self::BarePandas => "bare-pandas",
            Self::Peer(peer) => peer.slug(),
        }
    }

    /// The name for people.
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
            Self::CommandLineDaemon => "cofferdam command line, daemon",
            Self::Warm => "cofferdam waiting Python",
            Self::WarmPandas => "cofferdam waiting Python, pandas",
            Self::BarePandas => "bare Python, pandas",
            Self::Peer(peer) => peer.name(),
        }
    }

    /// Whether it is measured with several at once, too: those that a target or a comparison needs.
    pub fn at_once(self) -> bool {
        let ours = matches!(self, Self::Bare | Self::PoolBurst | Self::Create | Self::Run | Self::CommandLine);
        ours || self == Self::Peer(Peer::Bubblewrap)
    }

    /// Whether it is measured one at a time.
    pub fn alone(self) -> bool {
        self != Self::PoolBurst
    }

    /// Whether it runs this workload, or something of its own beside it.
    pub fn runs(self, workload: Workload) -> bool {
        workload == Workload::Python || !matches!(self, Self::Warm | Self::WarmPandas | Self::BarePandas)
    }

    /// The one with this short name.
    pub fn parse(slug: &str) -> Result<Self, String> {
        let known = || Self::all().iter().map(|who| who.slug()).collect::<Vec<_>>().join(", ");
        let found = Self::all().into_iter().find(|who| who.slug() == slug);
        found.ok_or_else(|| format!("nobody is called '{slug}'; known are {}", known()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_found_by_a_name_of_their_own() {
        for who in Contestant::all() {
            assert_eq!(Contestant::parse(who.slug()), Ok(who));
        }
        assert!(Contestant::parse("nobody").unwrap_err().contains("bwrap"));
    }
}
