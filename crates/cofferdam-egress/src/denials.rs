//! Refusals of the gateway, for the summary at the end of a run.

use std::fmt;

use parking_lot::Mutex;

/// The maximum of different denials that are kept, and of characters of each text.
const MAX_KEPT: usize = 64;
const MAX_TEXT: usize = 300;

/// A refused look-up, connection or request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The refused action, such as `the look-up of example.com`. Contains no control characters.
    pub what: String,
    /// The reason, and the rule that would allow it, if one would.
    pub why: String,
    /// The number of times.
    pub times: u64,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused {}: {}", self.what, self.why)?;
        if self.times > 1 { write!(f, " ({} times)", self.times) } else { Ok(()) }
    }
}

/// The denials of one sandbox.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    list: Vec<Denial>,
    others: u64,
}

impl Denials {
    /// Counts a denial. The text may come from the guest.
    pub fn note(&self, what: impl fmt::Display, why: impl fmt::Display) {
        let plain = |text: String| -> String { text.chars().take(MAX_TEXT).flat_map(char::escape_debug).collect() };
        let (what, why) = (plain(what.to_string()), plain(why.to_string()));
        let mut kept = self.0.lock();
        let is_full = kept.list.len() >= MAX_KEPT;
        match kept.list.iter_mut().find(|known| known.what == what && known.why == why) {
            Some(known) => known.times += 1,
            None if !is_full => kept.list.push(Denial { what, why, times: 1 }),
            None => kept.others += 1,
        }
    }

    /// Returns the number of all denials.
    pub fn count(&self) -> u64 {
        let kept = self.0.lock();
        kept.list.iter().map(|denial| denial.times).sum::<u64>() + kept.others
    }

    /// Returns the denials in the order of their first occurrence. The last one counts those that were not kept.
    pub fn list(&self) -> Vec<Denial> {
        let kept = self.0.lock();
        let others = (kept.others > 0).then(|| Denial {
            what: "other look-ups and connections".to_owned(),
            why: "the policy does not allow them".to_owned(),
            times: kept.others,
        });
        kept.list.iter().cloned().chain(others).collect()
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
