//! Refusals of the gateway, for the summary at the end of a run.

use std::fmt;

use cofferdam_contract::NetworkDenial;
use parking_lot::Mutex;

/// The maximum of different denials that are kept, and of characters of each text.
const MAX_KEPT: usize = 64;
const MAX_TEXT: usize = 300;

/// The denials of one sandbox.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Stored>);

#[derive(Debug, Default)]
struct Stored {
    list: Vec<NetworkDenial>,
    others: u64,
}

impl Denials {
    /// Counts a denial. The text may come from the guest.
    pub fn note(&self, what: impl fmt::Display, why: impl fmt::Display) {
        let plain = |text: String| -> String { text.chars().take(MAX_TEXT).flat_map(char::escape_debug).collect() };
        let (what, why) = (plain(what.to_string()), plain(why.to_string()));
        let mut stored = self.0.lock();
        let is_full = stored.list.len() >= MAX_KEPT;
        match stored.list.iter_mut().find(|known| known.what == what && known.why == why) {
            Some(known) => known.times += 1,
            None if !is_full => stored.list.push(NetworkDenial { what, why, times: 1 }),
            None => stored.others += 1,
        }
    }

    /// Returns the number of all denials.
    pub fn count(&self) -> u64 {
        let stored = self.0.lock();
        stored.list.iter().map(|denial| denial.times).sum::<u64>() + stored.others
    }

    /// Returns the denials in the order of their first occurrence. The last one counts those that were not kept.
    pub fn list(&self) -> Vec<NetworkDenial> {
        let stored = self.0.lock();
        let others = (stored.others > 0).then(|| NetworkDenial {
            what: "other look-ups and connections".to_owned(),
            why: "as those before".to_owned(),
            times: stored.others,
        });
        stored.list.iter().cloned().chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_counted_bounded_and_printable() {
        let denials = Denials::default();
        denials.note("a\u{1b}[31m", "no rule");
        denials.note("a\u{1b}[31m", "no rule");
        assert_eq!(denials.list()[0].to_string(), "refused a\\u{1b}[31m: no rule (2 times)");
        for number in 0..1000 {
            denials.note(number, "no rule");
        }
        let list = denials.list();
        assert_eq!(list.len(), MAX_KEPT + 1);
        assert_eq!(denials.count(), 1002);
    }
}
