//! Attribution of CPU time to execs that run concurrently in one sandbox, for backends whose counter covers the whole
//! sandbox.
//!
//! An exec is charged with all time counted since it began, minus the time that is known to belong to other execs. Time
//! that cannot be attributed is therefore charged to each of them. A program gains nothing by hiding its usage, because
//! hidden time is not attributed to any other exec either.
//!
//! The source of the attribution needs little trust. Time reported for an exec is charged to that exec, and is never
//! more than the exec can have used. All execs together are therefore charged with at least the time that was counted.
//!
//! The module is pure: it reads no counter and knows no processes.

use std::collections::BTreeMap;

/// The most running execs whose usage is recorded when another exec begins. Time of any further ones is not subtracted.
const MAX_BEFORE: usize = 64;

/// The running execs of one sandbox and their known CPU time. All times are in microseconds. `counted` is always the
/// current value of the sandbox's counter.
#[derive(Debug, Default)]
pub struct Shares {
    live: BTreeMap<u64, Share>,
    begun: u64,
}

#[derive(Debug)]
struct Share {
    /// The position in the order in which execs began.
    order: u64,
    /// The counter when the exec began.
    base: u64,
    /// The time known to be the exec's own.
    own: u64,
    /// The time, since the exec began, known to belong to others that have ended.
    ended: u64,
    /// The most that each exec which ran already can have used when this one began.
    before: Vec<(u64, u64)>,
}

impl Share {
    /// Returns the time that another exec is known to have used since this one began.
    fn used_by_other(&self, id: u64, other: &Self) -> u64 {
        if other.order > self.order {
            return other.own;
        }
        let before = self.before.iter().find(|(known, _)| *known == id);
        before.map_or(0, |(_, used)| other.own.saturating_sub(*used))
    }
}

impl Shares {
    /// Adds an exec that begins now.
    pub fn begin(&mut self, exec: u64, counted: u64) {
        let others = self.live.keys().take(MAX_BEFORE);
        let before = others.map(|id| (*id, self.charged(*id, counted))).collect();
        self.begun += 1;
        self.live.insert(exec, Share { order: self.begun, base: counted, own: 0, ended: 0, before });
    }

    /// Adds execs that resume from elsewhere, all at once. Only the time charged to each of them is known.
    pub fn resume(&mut self, counted: u64, execs: &[(u64, u64)]) {
        self.begun += 1;
        for (exec, charged) in execs {
            // No exec can have used more by now than it was charged.
            let others = execs.iter().filter(|(id, _)| id != exec);
            let before = others.take(MAX_BEFORE).copied().collect();
            let base = counted.saturating_sub(*charged);
            self.live.insert(*exec, Share { order: self.begun, base, own: 0, ended: 0, before });
        }
    }

    /// Returns the counter when the exec began, plus all time since then that is not charged to it. Returns `None` for
    /// an unknown exec.
    pub fn base(&self, exec: u64) -> Option<u64> {
        self.live.get(&exec).map(|share| share.base.saturating_add(self.others(exec, share)))
    }

    /// Returns true if more than one exec is running.
    pub fn are_several(&self) -> bool {
        self.live.len() > 1
    }

    /// Returns true if other execs run beside this one.
    pub fn has_company(&self, exec: u64) -> bool {
        self.live.keys().any(|id| *id != exec)
    }

    /// Records the least time that each of the given execs has used since it began. `counted` must be read after these
    /// values.
    pub fn saw(&mut self, counted: u64, used: impl IntoIterator<Item = (u64, u64)>) {
        for (exec, micros) in used {
            let max = self.max_own(exec, counted);
            if let Some(share) = self.live.get_mut(&exec) {
                share.own = share.own.max(micros.min(max));
            }
        }
    }

    /// Returns the time charged to an exec.
    pub fn charged(&self, exec: u64, counted: u64) -> u64 {
        self.max_own(exec, counted).max(self.live.get(&exec).map_or(0, |share| share.own))
    }

    /// Removes an exec that has ended. Time used by processes that it left running cannot be attributed from now on and
    /// is charged to every exec.
    pub fn end(&mut self, exec: u64) {
        if let Some(ended) = self.live.remove(&exec) {
            for share in self.live.values_mut() {
                share.ended = share.ended.saturating_add(share.used_by_other(exec, &ended));
            }
        }
    }

    /// Returns the most time that can be the exec's own.
    fn max_own(&self, exec: u64, counted: u64) -> u64 {
        self.base(exec).map_or(0, |base| counted.saturating_sub(base))
    }

    /// Returns the time since the exec began that is known to belong to others.
    fn others(&self, exec: u64, share: &Share) -> u64 {
        let others = self.live.iter().filter(|(id, _)| **id != exec);
        others.fold(share.ended, |sum, (id, other)| sum.saturating_add(share.used_by_other(*id, other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_exec_alone_is_charged_with_everything() {
        let mut shares = Shares::default();
        shares.begin(1, 100);
        assert!(!shares.has_company(1));
        assert_eq!(shares.charged(1, 160), 60);
        shares.saw(160, [(1, 20)]);
        assert_eq!(shares.charged(1, 160), 60, "unattributed time is charged to the exec");
    }

    #[test]
    fn what_another_is_known_to_use_is_not_charged() {
        let mut shares = Shares::default();
        shares.begin(1, 0);
        shares.begin(2, 10);
        assert!(shares.has_company(1));
        assert_eq!((shares.charged(1, 100), shares.charged(2, 100)), (100, 90), "nothing is attributed yet");
        shares.saw(100, [(2, 85)]);
        assert_eq!((shares.charged(1, 100), shares.charged(2, 100)), (15, 90));
        // Known time is still subtracted after the exec has ended. Later time is not attributed.
        shares.end(2);
        assert_eq!((shares.charged(1, 100), shares.charged(1, 130)), (15, 45));
        assert!(!shares.has_company(1));
    }

    #[test]
    fn what_was_used_before_it_began_is_no_discount() {
        let mut shares = Shares::default();
        shares.begin(1, 0);
        // It has used 50 by now, which is not known yet.
        shares.begin(2, 50);
        shares.saw(60, [(1, 55)]);
        assert_eq!(shares.charged(2, 60), 5, "5 of the 10 since then belong to the other exec");
        shares.saw(60, [(1, 60)]);
        assert_eq!(shares.charged(2, 60), 0);
    }

    #[test]
    fn knowledge_never_shrinks_and_never_exceeds_what_was_counted() {
        let mut shares = Shares::default();
        shares.begin(1, 0);
        shares.begin(2, 0);
        shares.saw(10, [(2, 1_000_000)]);
        assert_eq!((shares.charged(1, 10), shares.charged(2, 10)), (0, 10));
        shares.saw(20, [(2, 3)]);
        assert_eq!((shares.charged(1, 20), shares.charged(2, 20)), (10, 20));
        shares.saw(20, [(1, 1_000_000), (7, 5)]);
        assert_eq!((shares.charged(1, 20), shares.charged(2, 20)), (10, 10));
    }

    #[test]
    fn from_too_many_at_once_nothing_is_subtracted() {
        let mut shares = Shares::default();
        let many = MAX_BEFORE as u64;
        (0..=many).for_each(|exec| shares.begin(exec, 0));
        shares.begin(many + 1, 0);
        shares.saw(100, [(many, 60), (0, 30)]);
        assert_eq!(shares.charged(many + 1, 100), 70);
    }

    #[test]
    fn what_goes_on_elsewhere_is_charged_with_as_much_as_before() {
        let mut shares = Shares::default();
        shares.begin(1, 0);
        shares.begin(2, 10);
        assert!(shares.are_several());
        shares.begin(3, 20);
        shares.saw(100, [(2, 40), (3, 30)]);
        shares.end(3);
        let charged = [1, 2].map(|exec| (exec, shares.charged(exec, 100)));
        assert_eq!(charged, [(1, 30), (2, 60)]);
        assert_eq!([1, 2, 3].map(|exec| shares.base(exec)), [Some(70), Some(40), None]);
        let mut later = Shares::default();
        later.resume(100, &charged);
        assert_eq!([1, 2].map(|exec| later.charged(exec, 110)), [40, 70]);
        // It had certainly used 40 of its 60. Time beyond 60 belongs to no other exec.
        later.saw(110, [(2, 48)]);
        assert_eq!([1, 2].map(|exec| later.charged(exec, 110)), [40, 70]);
        later.saw(130, [(2, 68)]);
        assert_eq!([1, 2].map(|exec| later.charged(exec, 130)), [52, 90]);
        later.begin(4, 130);
        later.saw(140, [(4, 10)]);
        assert_eq!([1, 2, 4].map(|exec| later.charged(exec, 140)), [52, 90, 10]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin(u64),
        Use(u64, u64),
        /// A reported value, which may be false.
        Claim(u64, u64),
        See,
        End(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let exec = 0u64..5;
        prop_oneof![
            exec.clone().prop_map(Step::Begin),
            (exec.clone(), 0u64..100).prop_map(|(exec, micros)| Step::Use(exec, micros)),
            (exec.clone(), 0u64..1000).prop_map(|(exec, micros)| Step::Claim(exec, micros)),
            Just(Step::See),
            exec.prop_map(Step::End),
        ]
    }

    proptest! {
        /// Promise (Limits): An exec is never charged with less CPU time than it used.
        #[test]
        fn who_tells_the_truth_is_charged_with_no_less_than_it_used(steps in prop::collection::vec(step(), 0..60)) {
            let (mut shares, mut used, mut counted) = (Shares::default(), BTreeMap::new(), 0);
            for step in steps {
                match step {
                    Step::Begin(exec) => {
                        if used.insert(exec, 0).is_some() {
                            shares.end(exec);
                        }
                        shares.begin(exec, counted);
                    }
                    Step::Use(exec, micros) => {
                        counted += micros;
                        used.entry(exec).and_modify(|used| *used += micros);
                    }
                    // A part of the time can be observed at any moment.
                    Step::Claim(exec, part) => {
                        let seen = used.get(&exec).map_or(0, |used| used * part / 1000);
                        shares.saw(counted, [(exec, seen)]);
                    }
                    Step::See => shares.saw(counted, used.clone()),
                    Step::End(exec) => {
                        used.remove(&exec);
                        shares.end(exec);
                    }
                }
                for (exec, used) in &used {
                    let charged = shares.charged(*exec, counted);
                    prop_assert!(charged >= *used, "{exec} used {used} and is charged with {charged}");
                }
            }
        }

        #[test]
        fn who_goes_on_is_charged_with_no_less_than_it_used(
            used in prop::collection::vec(0u64..100, 1..5), unknown in 0u64..100, more in prop::collection::vec(0u64..100, 4),
        ) {
            // Each was charged with its own time and with the unattributed time.
            let counted = used.iter().sum::<u64>() + unknown;
            let charged: Vec<(u64, u64)> = (0..).zip(&used).map(|(exec, used)| (exec, used + unknown)).collect();
            let mut shares = Shares::default();
            shares.resume(counted, &charged);
            let now: Vec<(u64, u64)> = (0..).zip(used.iter().zip(&more).map(|(used, more)| used + more)).collect();
            let counted = counted + now.iter().zip(&used).map(|((_, now), used)| now - used).sum::<u64>();
            shares.saw(counted, now.iter().copied());
            for (exec, used) in &now {
                let charged = shares.charged(*exec, counted);
                prop_assert!(charged >= *used, "{exec} used {used} and is charged with {charged}");
            }
            let all: u64 = now.iter().map(|(exec, _)| shares.charged(*exec, counted)).sum();
            prop_assert!(all >= counted, "{all} of {counted}");
        }

        /// Promise (Limits): No false report of a guest reduces the CPU time that is charged to all execs together.
        #[test]
        fn no_lie_makes_all_of_them_together_pay_less(
            execs in 1u64..5,
            claims in prop::collection::vec((0u64..5, 0u64..100, 0u64..500), 0..40),
        ) {
            let (mut shares, mut counted) = (Shares::default(), 0);
            (0..execs).for_each(|exec| shares.begin(exec, 0));
            for (exec, more, claim) in claims {
                counted += more;
                shares.saw(counted, [(exec, claim)]);
                let charged: u64 = (0..execs).map(|exec| shares.charged(exec, counted)).sum();
                prop_assert!(charged >= counted, "{charged} of {counted}");
            }
        }
    }
}
