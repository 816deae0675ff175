//! Which zygote serves which spec, and which has to go. Pure: the caller brings time, and carries out what it is told.
//!
//! ```text
//! making --made--> live --(idle | used up | another needs the place)--> closing --closed--> gone
//!    '--failed--> gone
//! ```
//!
//! A zygote is used for the spec that it was made for, every word of it, the tenant with the others, and for no other.

use std::time::Duration;

use cofferdam_contract::Spec;

/// Names one zygote of one ledger.
pub(super) type Id = u64;

/// What is known of a zygote now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Health {
    /// It takes requests.
    pub open: bool,
    /// Requests that it runs.
    pub running: usize,
}

/// What to do for a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer<T> {
    /// Use this one, and say when it is started.
    Use(Id, T),
    /// One is being made: wait, and ask again.
    Wait(Id),
    /// Make one, and ask again.
    Make(Id),
    /// Close this one, and ask again.
    Close(Id, T),
    /// All places are taken by those that are in use.
    Full,
    /// There will be no more.
    Draining,
}

#[derive(Debug)]
enum State<T> {
    Making,
    Live(T),
    Closing,
}

#[derive(Debug)]
struct Entry<T> {
    id: Id,
    spec: Spec,
    state: State<T>,
    /// Requests that are being started on it.
    starting: usize,
    last_use: Duration,
}

/// All zygotes.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    max: usize,
    idle: Duration,
    entries: Vec<Entry<T>>,
    next: Id,
    draining: bool,
}

impl<T: Clone> Ledger<T> {
    pub(super) fn new(max: usize, idle: Duration) -> Self {
        Self { max, idle, entries: Vec::new(), next: 0, draining: false }
    }

    /// Finds the one for `spec`, or says what has to happen first.
    pub(super) fn ask(&mut self, spec: &Spec, now: Duration, health: impl Fn(&T) -> Health) -> Answer<T> {
        if self.draining {
            return Answer::Draining;
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.spec == *spec) {
            match &entry.state {
                State::Live(one) if health(one).open => {
                    entry.starting += 1;
                    entry.last_use = now;
                    return Answer::Use(entry.id, one.clone());
                }
                State::Making => return Answer::Wait(entry.id),
                // One that is used up keeps its place until its last request has ended.
                State::Live(_) | State::Closing => {}
            }
        }
        if self.entries.len() < self.max {
            let (id, spec) = (self.next, spec.clone());
            self.next += 1;
            self.entries.push(Entry { id, spec, state: State::Making, starting: 0, last_use: now });
            return Answer::Make(id);
        }
        let unused = |entry: &&mut Entry<T>| match &entry.state {
            State::Live(one) => entry.starting == 0 && health(one).running == 0,
            State::Making | State::Closing => false,
        };
        match self.entries.iter_mut().filter(unused).min_by_key(|entry| entry.last_use).and_then(close) {
            Some((id, one)) => Answer::Close(id, one),
            None => Answer::Full,
        }
    }

    /// Puts in one that was made; gives it back, to be closed, where nobody wants it any more.
    pub(super) fn made(&mut self, id: Id, one: T, now: Duration) -> Option<T> {
        let draining = self.draining;
        let Some(entry) = self.entry(id) else { return Some(one) };
        entry.last_use = now;
        if draining {
            entry.state = State::Closing;
            return Some(one);
        }
        entry.state = State::Live(one);
        None
    }

    /// Notes that a request was started, or could not be.
    pub(super) fn started(&mut self, id: Id, now: Duration) {
        if let Some(entry) = self.entry(id) {
            entry.starting = entry.starting.saturating_sub(1);
            entry.last_use = now;
        }
    }

    /// Gives up the place of one that could not be made, or is closed.
    pub(super) fn gone(&mut self, id: Id) {
        self.entries.retain(|entry| entry.id != id);
    }

    /// Takes out those that nobody has used for long, and those that are used up.
    pub(super) fn sort_out(&mut self, now: Duration, health: impl Fn(&T) -> Health) -> Vec<(Id, T)> {
        let idle = self.idle;
        let mut out = Vec::new();
        for entry in &mut self.entries {
            let State::Live(one) = &entry.state else { continue };
            let Health { open, running } = health(one);
            if running > 0 {
                // Its end counts as a use.
                entry.last_use = now;
            } else if entry.starting == 0 && (!open || entry.last_use + idle <= now) {
                out.extend(close(entry));
            }
        }
        out
    }

    /// Makes no more.
    pub(super) fn drain(&mut self) {
        self.draining = true;
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> Vec<(Id, T)> {
        self.entries.iter_mut().filter_map(close).collect()
    }

    /// Those that are alive, being made, being closed.
    pub(super) fn counts(&self) -> [usize; 3] {
        let count = |is: fn(&State<T>) -> bool| self.entries.iter().filter(|entry| is(&entry.state)).count();
        [
            count(|state| matches!(state, State::Live(_))),
            count(|state| matches!(state, State::Making)),
            count(|state| matches!(state, State::Closing)),
        ]
    }

    /// Those that are alive.
    pub(super) fn live(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| match &entry.state {
            State::Live(one) => Some(one),
            State::Making | State::Closing => None,
        })
    }

    fn entry(&mut self, id: Id) -> Option<&mut Entry<T>> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }
}

/// Takes a live one out of its entry, which keeps its place until it is gone.
fn close<T>(entry: &mut Entry<T>) -> Option<(Id, T)> {
    if !matches!(entry.state, State::Live(_)) {
        return None;
    }
    match std::mem::replace(&mut entry.state, State::Closing) {
        State::Live(one) => Some((entry.id, one)),
        State::Making | State::Closing => None,
    }
}

#[cfg(test)]
mod tests;
