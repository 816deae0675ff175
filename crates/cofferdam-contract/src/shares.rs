//! Whose CPU time it was, where several execs run in one sandbox at the same time: decisions that every backend takes
//! alike whose counter counts the sandbox as a whole.
//!
//! An exec is charged with all that was counted since it began, but for what is known to be others'. So what nobody can
//! tell is charged to each of them, and no program is better off for hiding: what it hides is nobody else's either.
//!
//! Whoever says what was whose need not be trusted far. What is claimed for an exec is charged to it, and is never more
//! than could be its own; hence all of them together are charged with at least what was counted.
//!
//! Pure: it reads no counter, and knows no process.

use std::collections::BTreeMap;

/// Execs that ran already when another began, of which that one remembers what they had used. From any more it is told
/// apart in nothing.
const MAX_BEFORE: usize = 64;

/// The execs of one sandbox that run, and what is known of their CPU time. All times are microseconds; `counted` is
/// always what the sandbox's counter says now.
#[derive(Debug, Default)]
pub struct Shares {
    live: BTreeMap<u64, Share>,
    begun: u64,
}

#[derive(Debug)]
struct Share {
    /// Its place in the order in which they began.
    place: u64,
    /// What was counted when it began.
    base: u64,
    /// What is known to be its own.
    own: u64,
    /// What is known to have been, since it began, that of others which have ended.
    ended: u64,
    /// What those that ran when it began can have used by then at most.
    before: Vec<(u64, u64)>,
}

impl Share {
    /// What another one is known to have used since this one began.
    fn of_another(&self, id: u64, other: &Self) -> u64 {
        if other.place > self.place {
            return other.own;
        }
        let before = self.before.iter().find(|(known, _)| *known == id);
        before.map_or(0, |(_, used)| other.own.saturating_sub(*used))
    }
}

impl Shares {
    /// An exec begins.
    pub fn begin(&mut self, exec: u64, counted: u64) {
        let others = self.live.keys().take(MAX_BEFORE);
        let before = others.map(|id| (*id, self.charged(*id, counted))).collect();
        self.begun += 1;
        self.live.insert(exec, Share { place: self.begun, base: counted, own: 0, ended: 0, before });
    }

    /// Execs go on that began elsewhere, all in one moment, of which nothing is known but what is charged to each.
    pub fn resume(&mut self, counted: u64, execs: &[(u64, u64)]) {
        self.begun += 1;
        for (exec, charged) in execs {
            // None can have used more by now.
            let others = execs.iter().filter(|(id, _)| id != exec);
            let before = others.take(MAX_BEFORE).copied().collect();
            let base = counted.saturating_sub(*charged);
            self.live.insert(*exec, Share { place: self.begun, base, own: 0, ended: 0, before });
        }
    }

    /// What was counted when an exec began, and with it all that was used since then and is not charged to it.
    pub fn base(&self, exec: u64) -> Option<u64> {
        self.live.get(&exec).map(|share| share.base.saturating_add(self.others(exec, share)))
    }

    /// Whether several run.
    pub fn are_several(&self) -> bool {
        self.live.len() > 1
    }

    /// Whether others run beside this one.
    pub fn has_company(&self, exec: u64) -> bool {
        self.live.keys().any(|id| *id != exec)
    }

    /// Takes in what each of some execs was seen to have used at least, since it began. The counter was read after that.
    pub fn saw(&mut self, counted: u64, used: impl IntoIterator<Item = (u64, u64)>) {
        for (exec, micros) in used {
            let most = self.most(exec, counted);
            if let Some(share) = self.live.get_mut(&exec) {
                share.own = share.own.max(micros.min(most));
            }
        }
    }

    /// What is charged to an exec.
    pub fn charged(&self, exec: u64, counted: u64) -> u64 {
        self.most(exec, counted).max(self.live.get(&exec).map_or(0, |share| share.own))
    }

    /// An exec has ended. What it leaves behind is nobody's from now on, that is, everybody's.
    pub fn end(&mut self, exec: u64) {
        if let Some(ended) = self.live.remove(&exec) {
            for share in self.live.values_mut() {
                share.ended = share.ended.saturating_add(share.of_another(exec, &ended));
            }
        }
    }

    /// All that can be its own.
    fn most(&self, exec: u64, counted: u64) -> u64 {
        self.base(exec).map_or(0, |base| counted.saturating_sub(base))
    }

    /// What is known to have been others' since it began.
    fn others(&self, exec: u64, share: &Share) -> u64 {
        let others = self.live.iter().filter(|(id, _)| **id != exec);
        others.fold(share.ended, |sum, (id, other)| sum.saturating_add(share.of_another(*id, other)))
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
        assert_eq!(shares.charged(1, 160), 60, "what nobody knows is its own");
    }

    #[test]
    fn what_another_is_known_to_use_is_not_charged() {
        let mut shares = Shares::default();
        shares.begin(1, 0);
        shares.begin(2, 10);
        assert!(shares.has_company(1));
        assert_eq!((shares.charged(1, 100), shares.charged(2, 100)), (100, 90), "nothing is known yet");
        shares.saw(100, [(2, 85)]);
        assert_eq!((shares.charged(1, 100), shares.charged(2, 100)), (15, 90));
        // Nor when it has ended. What is used after that is told apart no more.
        shares.end(2);
        assert_eq!((shares.charged(1, 100), shares.charged(1, 130)), (15, 45));
        assert!(!shares.has_company(1));
    }

    #[test]
    fn what_was_used_before_it_began_is_no_discount() {
        let mut shares = Shares::default();
        shares.begin(1, 0);
        // It has used 50 by now, of which nobody knew.
        shares.begin(2, 50);
        shares.saw(60, [(1, 55)]);
        assert_eq!(shares.charged(2, 60), 5, "of the 10 since then, 5 were the other's");
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
        // It had used 40 of its 60 for certain; what is beyond 60 is no other's.
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
        /// What is claimed, which need not be true.
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
                    // A part of it can be seen at any time.
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
            // Each was charged with what it used, and with what nobody knew.
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
