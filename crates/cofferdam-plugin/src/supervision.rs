//! The supervision of one plugin: when it starts, stops, and is tried again. Pure: no clock, no tasks.
//!
//! ```text
//!              start                    ready                    drain
//!   stopped ----------> starting ----------------> ready -----------------> draining --ended--> stopped
//!      ^                  |  ^  failed, ended        | ended                    (also when idle)
//!      |                  v  |<--------------------- v
//!      |               backoff (full jitter) -- more than N crashes in M --> open --after a pause, at a call--> probing
//!      |                  drain                                               ^------ failed ------------------- |
//!      +------------------+                                                                      ready --> ready +
//! ```
//!
//! In development mode, a changed file drains a plugin that is ready, and ends `backoff` and `open`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Restart;

/// The default of the maximum number of restarts within [`DEFAULT_WITHIN`].
const DEFAULT_MAX: u32 = 5;
/// The default of the time in which restarts are counted.
const DEFAULT_WITHIN: Duration = Duration::from_secs(60);
/// The default of the time before the first restart.
const DEFAULT_MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The default of the maximum time before a restart.
const DEFAULT_MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The minimum of both times, so that no manifest makes its host start processes all the time.
const MIN_WITHIN: Duration = Duration::from_secs(1);
const MIN_MIN_BACKOFF: Duration = Duration::from_millis(50);

/// The state of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It does not run, and starts at the next call.
    Stopped,
    /// It was launched, and is not ready.
    Starting,
    /// It takes calls.
    Ready,
    /// It takes no more calls, and ends.
    Draining,
    /// It crashed, and is started again at this time.
    Backoff(Duration),
    /// It crashed too often. It is not started before this time.
    Open(Duration),
    /// It was launched to find out whether it works again.
    Probing,
}

impl State {
    /// Returns the name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Backoff(_) => "backoff",
            Self::Open(_) => "open",
            Self::Probing => "probing",
        }
    }
}

/// An event of a plugin's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A call needs the plugin.
    Wanted,
    /// The plugin is ready.
    Ready,
    /// The plugin's process has ended, or could not be started.
    Ended,
    /// The plugin shall end: the host drains, or the plugin was idle.
    Drain,
    /// A file of the plugin changed. Crashes of the old files do not count any more.
    Changed,
    /// Time has passed.
    Tick,
}

/// Something that the host does after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Launch the plugin.
    Launch,
    /// Shut the plugin down.
    Shutdown,
}

/// The policy of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The maximum number of restarts within `within`.
    pub max: u32,
    /// The time in which restarts are counted. The circuit stays open as long.
    pub within: Duration,
    /// The time before the first restart. It doubles with each further one.
    pub min_backoff: Duration,
    /// The maximum time before a restart.
    pub max_backoff: Duration,
}

impl From<&Restart> for Policy {
    fn from(restart: &Restart) -> Self {
        Self {
            max: restart.max.unwrap_or(DEFAULT_MAX),
            within: restart.within.unwrap_or(DEFAULT_WITHIN).max(MIN_WITHIN),
            min_backoff: restart.min_backoff.unwrap_or(DEFAULT_MIN_BACKOFF).max(MIN_MIN_BACKOFF),
            max_backoff: restart.max_backoff.unwrap_or(DEFAULT_MAX_BACKOFF),
        }
    }
}

/// The state of one plugin with its recent crashes. Times count from any fixed moment.
#[derive(Debug)]
pub struct Supervision {
    policy: Policy,
    state: State,
    crashes: VecDeque<Duration>,
    /// Restarts since the plugin was last ready for as long as `within`.
    attempts: u32,
    ready_since: Option<Duration>,
}

impl Supervision {
    /// Creates the supervision of a plugin that does not run.
    pub fn new(policy: Policy) -> Self {
        Self { policy, state: State::Stopped, crashes: VecDeque::new(), attempts: 0, ready_since: None }
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the number of crashes within the time of the policy.
    pub fn recent_crashes(&self) -> usize {
        self.crashes.len()
    }

    /// Takes an event at the time `now`. `random` is a number from 0 to 1 for the jitter of a restart.
    pub fn transition(&mut self, event: Event, now: Duration, random: f64) -> Action {
        let (state, action) = match (self.state, event) {
            (State::Stopped, Event::Wanted) => (State::Starting, Action::Launch),
            (State::Backoff(at), Event::Tick) if now >= at => (State::Starting, Action::Launch),
            (State::Open(until), Event::Wanted) if now >= until => (State::Probing, Action::Launch),
            (State::Starting | State::Probing, Event::Ready) => {
                self.ready_since = Some(now);
                (State::Ready, Action::None)
            }
            (State::Probing, Event::Ended) => (State::Open(now + self.policy.within), Action::None),
            (State::Starting | State::Ready, Event::Ended) => (self.crashed(now, random), Action::None),
            (State::Starting | State::Ready | State::Probing, Event::Drain) => (State::Draining, Action::Shutdown),
            (State::Draining, Event::Ended) | (State::Backoff(_), Event::Drain) => (State::Stopped, Action::None),
            (State::Ready, Event::Changed) => (State::Draining, Action::Shutdown),
            (State::Backoff(_) | State::Open(_), Event::Changed) => {
                self.crashes.clear();
                self.attempts = 0;
                (State::Stopped, Action::None)
            }
            (state, _) => (state, Action::None),
        };
        self.state = state;
        action
    }

    /// Returns the state after a crash.
    fn crashed(&mut self, now: Duration, random: f64) -> State {
        let Policy { max, within, min_backoff, max_backoff } = self.policy;
        if self.ready_since.take().is_some_and(|since| now.saturating_sub(since) >= within) {
            self.attempts = 0;
        }
        while self.crashes.front().is_some_and(|crash| now.saturating_sub(*crash) >= within) {
            self.crashes.pop_front();
        }
        if self.crashes.len() >= max as usize {
            self.crashes.clear();
            return State::Open(now + within);
        }
        self.crashes.push_back(now);
        let ceiling = min_backoff.saturating_mul(1 << self.attempts.min(20)).min(max_backoff.max(min_backoff));
        self.attempts += 1;
        // Full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
        State::Backoff(now + ceiling.mul_f64(random.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Policy = Policy {
        max: 3,
        within: Duration::from_secs(10),
        min_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(1),
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Promise (Plugins): A plugin that crashes more often than its policy allows is not started until its circuit may be
    /// probed, and one failed probe opens the circuit again.
    #[test]
    fn the_circuit_opens_is_probed_and_closes() {
        let mut plugin = Supervision::new(POLICY);
        assert_eq!(plugin.transition(Event::Wanted, seconds(0), 0.0), Action::Launch);
        for _ in 0..3 {
            plugin.transition(Event::Ended, seconds(0), 0.0);
            assert_eq!(plugin.transition(Event::Tick, seconds(0), 0.0), Action::Launch);
        }
        plugin.transition(Event::Ended, seconds(0), 0.0);
        assert_eq!(plugin.state(), State::Open(seconds(10)));
        assert_eq!(plugin.transition(Event::Wanted, seconds(9), 0.0), Action::None);
        assert_eq!(plugin.transition(Event::Tick, seconds(11), 0.0), Action::None);
        assert_eq!(plugin.transition(Event::Wanted, seconds(11), 0.0), Action::Launch);
        assert_eq!(plugin.transition(Event::Wanted, seconds(11), 0.0), Action::None);
        plugin.transition(Event::Ended, seconds(12), 0.0);
        assert_eq!(plugin.state(), State::Open(seconds(22)));
        plugin.transition(Event::Wanted, seconds(22), 0.0);
        plugin.transition(Event::Ready, seconds(22), 0.0);
        assert_eq!(plugin.state(), State::Ready);
    }

    /// Promise (Plugins): A plugin that crashed too often starts again when its files changed (B5).
    #[test]
    fn a_changed_file_closes_the_circuit() {
        let mut plugin = Supervision::new(Policy { max: 0, ..POLICY });
        plugin.transition(Event::Wanted, seconds(0), 0.0);
        plugin.transition(Event::Ended, seconds(0), 0.0);
        assert_eq!(plugin.state(), State::Open(seconds(10)));
        plugin.transition(Event::Changed, seconds(1), 0.0);
        assert_eq!(plugin.transition(Event::Wanted, seconds(1), 0.0), Action::Launch);
        assert_eq!(plugin.transition(Event::Changed, seconds(1), 0.0), Action::None);
        plugin.transition(Event::Ready, seconds(1), 0.0);
        assert_eq!(plugin.transition(Event::Changed, seconds(1), 0.0), Action::Shutdown);
    }

    fn events() -> impl Strategy<Value = Vec<(Event, u64, f64)>> {
        let event = prop::sample::select(vec![Event::Wanted, Event::Ready, Event::Ended, Event::Drain, Event::Tick]);
        prop::collection::vec((event, 0u64..2000, 0.0..1.0), 0..300)
    }

    proptest! {
        /// Promise (Plugins): No sequence of events restarts a plugin more often than its policy allows, or twice at a time.
        #[test]
        fn no_sequence_of_events_restarts_a_plugin_too_often(events in events()) {
            let mut plugin = Supervision::new(POLICY);
            let (mut now, mut restarts, mut live) = (Duration::ZERO, Vec::<Duration>::new(), false);
            for (event, step, random) in events {
                now += Duration::from_millis(step);
                let before = plugin.state();
                if event == Event::Ended && !live {
                    continue;
                }
                let action = plugin.transition(event, now, random);
                live &= event != Event::Ended;
                if let State::Backoff(until) = plugin.state() {
                    prop_assert!(until <= now + POLICY.max_backoff || before == plugin.state());
                }
                if action == Action::Launch {
                    prop_assert!(!live, "two at a time");
                    live = true;
                    if matches!(before, State::Backoff(_)) {
                        restarts.push(now);
                    }
                }
                let recent = restarts.iter().filter(|at| now - **at < POLICY.within).count();
                // A restart follows its crash by at most the longest back-off.
                let bound = POLICY.max as usize + 1;
                prop_assert!(recent <= 2 * bound, "{recent} restarts");
                let is_live = matches!(plugin.state(), State::Starting | State::Ready | State::Draining | State::Probing);
                prop_assert_eq!(is_live, live);
            }
        }
    }
}
