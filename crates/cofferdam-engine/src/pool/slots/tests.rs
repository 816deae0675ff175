//! Tests of the slots: examples and random operations.

use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn tenant(number: usize) -> TenantId {
    TenantId::new(format!("t{number}")).unwrap()
}

fn config() -> PoolConfig {
    PoolConfig { min_warm: 2, max_warm: 4, max: 6, refill_at_once: 2, max_waiting: 4, ..PoolConfig::default() }
}

/// A queued claim, with a flag: true if idle sandboxes are compatible with it.
type Claim = (usize, bool);
type TestSlots = Slots<u32, Claim>;

fn next(slots: &mut TestSlots) -> Option<Next<u32, Claim>> {
    slots.next(|claim, _| claim.1)
}

/// Creates slots whose first refill is done.
fn filled() -> TestSlots {
    let mut slots = TestSlots::new(config());
    for warm in 0..slots.refill(Duration::ZERO) as u32 {
        assert_eq!(slots.filled(warm, Duration::ZERO), None);
    }
    assert_eq!(slots.count(SlotState::Idle), 2);
    slots
}

#[test]
fn youngest_compatible_is_claimed_and_replaced_without_waiting_claims() {
    let mut slots = filled();
    slots.enter(&tenant(0), (7, true)).unwrap();
    assert_eq!(next(&mut slots), Some(Next::Warm((7, true), 1)));
    assert_eq!(slots.refill(SECOND), 0, "the refill yields to the claim that is being served");
    slots.shift(SlotState::Making, SlotState::Leased);
    assert_eq!(slots.refill(SECOND), 0, "the refill leaves the processors to the claimed sandbox");
    let later = SECOND + config().refill_delay;
    assert_eq!(slots.next_poll(SECOND), Some(later));
    assert_eq!(slots.refill(later), 1);
}

/// Claims an idle sandbox and begins its lease.
fn claim(slots: &mut TestSlots) {
    slots.enter(&tenant(0), (7, true)).unwrap();
    assert!(matches!(next(slots), Some(Next::Warm(..))));
    slots.shift(SlotState::Making, SlotState::Leased);
}

#[test]
fn a_refill_waits_after_claims_but_not_for_ever_and_not_once_none_is_ready() {
    let config = PoolConfig { min_warm: 64, max_warm: 64, max: 200, refill_at_once: 64, ..config() };
    let mut slots = TestSlots::new(config.clone());
    for warm in 0..slots.refill(Duration::ZERO) as u32 {
        assert_eq!(slots.filled(warm, Duration::ZERO), None);
    }
    let mut now = SECOND;
    while slots.refill(now) == 0 {
        claim(&mut slots);
        assert_eq!(slots.refill(now), 0);
        now += Duration::from_millis(4);
    }
    assert!(now - SECOND >= config.refill_yield_timeout && now - SECOND < 2 * config.refill_yield_timeout);

    let mut slots = filled();
    claim(&mut slots);
    assert_eq!(slots.refill(SECOND), 0);
    claim(&mut slots);
    assert_eq!(slots.refill(SECOND), 2);
}

#[test]
fn a_spec_that_does_not_fit_gets_a_place_of_its_own() {
    let mut slots = filled();
    slots.enter(&tenant(0), (7, false)).unwrap();
    assert_eq!(next(&mut slots), Some(Next::Cold((7, false), ClaimKind::ColdUnfit)));
    assert_eq!(slots.count(SlotState::Idle), 2);
}

#[test]
fn idle_sandbox_is_evicted_if_all_slots_are_taken() {
    let mut slots = filled();
    for _ in 0..4 {
        slots.enter(&tenant(0), (0, false)).unwrap();
        assert!(matches!(next(&mut slots), Some(Next::Cold(..))));
    }
    slots.enter(&tenant(0), (7, false)).unwrap();
    assert_eq!(next(&mut slots), Some(Next::Evict(0)), "the oldest");
    assert_eq!(next(&mut slots), None, "one eviction for each queued claim");
    slots.shift(SlotState::Closing, SlotState::Free);
    assert!(matches!(next(&mut slots), Some(Next::Cold((7, false), _))));
    assert_eq!(slots.used(), 6);
}

#[test]
fn demand_raises_the_target_and_idleness_lowers_it() {
    let mut slots = TestSlots::new(config());
    for _ in 0..5 {
        slots.enter(&tenant(0), (0, true)).unwrap();
        assert!(matches!(next(&mut slots), Some(Next::Cold(_, ClaimKind::ColdEmpty))));
        slots.found_empty();
        slots.shift(SlotState::Making, SlotState::Leased);
        slots.shift(SlotState::Leased, SlotState::Closing);
        slots.shift(SlotState::Closing, SlotState::Free);
    }
    let mut created = 0;
    while slots.refill(Duration::ZERO) > 0 {
        while slots.count(SlotState::Filling) > 0 {
            slots.filled(created, Duration::ZERO);
            created += 1;
        }
    }
    assert_eq!(created, 4, "up to max_warm");
    assert_eq!(slots.expire(59 * SECOND), Vec::<u32>::new());
    assert_eq!(slots.expire(60 * SECOND), [0, 1], "surplus sandboxes, oldest first");
    assert_eq!(slots.refill(60 * SECOND), 0, "they are not replaced");
}

#[test]
fn the_old_are_replaced_a_few_at_a_time() {
    let mut slots = TestSlots::new(PoolConfig { refill_at_once: 1, ..config() });
    for warm in 0..2 {
        assert_eq!(slots.refill(Duration::ZERO), 1);
        slots.filled(warm, Duration::ZERO);
    }
    let old = PoolConfig::default().max_age;
    assert_eq!(slots.next_poll(old - SECOND), Some(old));
    assert_eq!(slots.expire(old), [0]);
    assert_eq!(slots.refill(old), 1);
    assert_eq!(slots.expire(old), Vec::<u32>::new(), "its replacement comes first");
    slots.filled(2, old);
    assert_eq!(slots.expire(old), [1]);
}

#[test]
fn failures_are_waited_out_and_then_tried_one_at_a_time() {
    let mut slots = TestSlots::new(config());
    assert_eq!(slots.refill(Duration::ZERO), 2);
    slots.fill_failed(Duration::ZERO, 1.0);
    slots.fill_failed(Duration::ZERO, 1.0);
    let again = slots.next_poll(Duration::ZERO).unwrap();
    assert_eq!(again, Duration::from_millis(200));
    assert_eq!(slots.refill(again - Duration::from_nanos(1)), 0);
    assert_eq!(slots.refill(again), 1);
    assert_eq!(slots.filled(0, again), None);
    assert_eq!(slots.refill(again), 1);
    assert_eq!(slots.used(), 2);
    slots.fill_unsupported();
    assert_eq!(slots.refill(again + 1000 * SECOND), 0, "never again");
}

#[test]
fn polls_are_in_the_future_while_several_waits_overlap() {
    let times = |more| PoolConfig { min_warm: 3, refill_at_once: 1, ..more };
    // A quiet time that is over, within a wait after a failure.
    let mut slots = TestSlots::new(times(config()));
    let now = Duration::from_millis(6);
    for warm in 0..2 {
        assert_eq!(slots.refill(Duration::ZERO), 1);
        slots.filled(warm, Duration::ZERO);
    }
    assert_eq!(slots.refill(Duration::ZERO), 1);
    slots.enter(&tenant(0), (0, true)).unwrap();
    assert!(matches!(next(&mut slots), Some(Next::Warm(..))));
    assert_eq!(slots.refill(Duration::ZERO), 0);
    slots.fill_failed(Duration::ZERO, 1.0);
    assert_eq!(slots.refill(now), 0);
    assert_eq!(slots.next_poll(now), Some(Duration::from_millis(100)));
    // The end of the time in which a refill yields, within a quiet time.
    let mut slots = TestSlots::new(times(config()));
    for warm in 0..2 {
        assert_eq!(slots.refill(Duration::ZERO), 1);
        slots.filled(warm, Duration::ZERO);
    }
    slots.enter(&tenant(0), (0, false)).unwrap();
    assert!(matches!(next(&mut slots), Some(Next::Cold(..))));
    assert_eq!(slots.refill(Duration::ZERO), 0);
    slots.enter(&tenant(0), (1, true)).unwrap();
    assert!(matches!(next(&mut slots), Some(Next::Warm(..))));
    let now = PoolConfig::default().refill_yield_timeout;
    assert_eq!(slots.refill(now), 0);
    assert_eq!(slots.next_poll(now), Some(now + PoolConfig::default().refill_delay));
}

/// Promise (Warm sandboxes and pools): Refills yield to creates of callers, but not without end.
#[test]
fn a_refill_gives_way_to_creates_but_not_for_ever() {
    let mut slots = TestSlots::new(config());
    slots.enter(&tenant(0), (0, true)).unwrap();
    assert!(matches!(next(&mut slots), Some(Next::Cold(..))));
    assert_eq!(slots.refill(SECOND), 0);
    let yield_time = PoolConfig::default().refill_yield_timeout;
    assert_eq!(slots.next_poll(SECOND), Some(SECOND + yield_time));
    assert_eq!(slots.refill(SECOND + yield_time), 2);
}

#[test]
fn claims_beyond_the_bounds_are_refused() {
    let mut slots = TestSlots::new(PoolConfig { max: 1, min_warm: 0, max_warm: 0, max_waiting: 1, ..config() });
    slots.enter(&tenant(0), (0, true)).unwrap();
    assert!(next(&mut slots).is_some());
    let ticket = slots.enter(&tenant(0), (1, true)).unwrap();
    assert_eq!(slots.enter(&tenant(1), (2, true)), Err(Full::All(1)));
    assert!(slots.leave(&ticket) && !slots.leave(&ticket));
    assert!(slots.enter(&tenant(1), (2, true)).is_ok());
}

#[test]
fn draining_gives_everything_back_and_refills_no_more() {
    let mut slots = filled();
    assert_eq!(slots.refill(SECOND), 0);
    slots.enter(&tenant(0), (0, true)).unwrap();
    assert_eq!(slots.drain(), (vec![(0, true)], vec![0, 1]));
    assert_eq!((slots.refill(SECOND), slots.next_poll(SECOND)), (0, None));
}

/// Promise (Warm sandboxes and pools): A leased sandbox never becomes idle again.
#[test]
fn leased_sandbox_never_becomes_idle() {
    use SlotState as S;
    let all = [S::Free, S::Filling, S::Idle, S::Making, S::Leased, S::Closing];
    let from_leased: Vec<_> = all.into_iter().filter(|to| valid_transition(S::Leased, *to)).collect();
    assert_eq!(from_leased, [S::Closing]);
    let to_idle: Vec<_> = all.into_iter().filter(|from| valid_transition(*from, S::Idle)).collect();
    assert_eq!(to_idle, [S::Filling]);
}

#[derive(Debug, Clone)]
enum Step {
    Enter(usize, bool),
    Leave(usize),
    Serve,
    Refill,
    Filled,
    FillFailed,
    Created,
    MakeFailed,
    LeaseEnds,
    Closed,
    Reap(u32),
    Expire,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..3, any::<bool>()).prop_map(|(claim, is_compatible)| Step::Enter(claim, is_compatible)),
        1 => (0usize..4).prop_map(Step::Leave),
        4 => Just(Step::Serve),
        2 => Just(Step::Refill),
        3 => Just(Step::Filled),
        1 => Just(Step::FillFailed),
        3 => Just(Step::Created),
        1 => Just(Step::MakeFailed),
        3 => Just(Step::LeaseEnds),
        3 => Just(Step::Closed),
        1 => (0u32..4).prop_map(Step::Reap),
        1 => Just(Step::Expire),
        1 => (0u64..700_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// The slots add up, the bounds hold, no sandbox is handed out twice, and no claim waits while nothing is under
    /// way.
    ///
    /// Promise (Warm sandboxes and pools): A caller waits only while all slots of a pool are taken.
    #[test]
    fn slots_add_up_and_no_claim_waits_without_progress(
        steps in prop::collection::vec(step(), 0..300),
        (min_warm, more, max, at_once) in (0usize..3, 0usize..3, 0usize..4, 1usize..3),
    ) {
        let max_warm = min_warm + more;
        let config = PoolConfig { min_warm, max_warm, max: (max_warm + max).max(1), refill_at_once: at_once,
            max_waiting: 3, max_waiting_per_tenant: 2, ..PoolConfig::default() };
        config.validate().unwrap();
        let mut slots = TestSlots::new(config.clone());
        let (mut now, mut serial) = (Duration::ZERO, 0);
        let mut tickets = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        let pass = |slots: &mut TestSlots, from, to| if slots.count(from) > 0 { slots.shift(from, to) };
        for step in steps {
            match step {
                Step::Enter(claim, is_compatible) => {
                    let busy = slots.waiting();
                    if let Ok(ticket) = slots.enter(&tenant(claim), (claim, is_compatible)) {
                        prop_assert!(busy < config.max_waiting);
                        tickets.push(ticket);
                    }
                }
                Step::Leave(which) => { tickets.get(which).map(|ticket| slots.leave(ticket)); },
                Step::Serve => match next(&mut slots) {
                    Some(Next::Warm(_, warm) | Next::Evict(warm)) => prop_assert!(seen.insert(warm), "{} twice", warm),
                    Some(Next::Cold(_, kind)) => if kind == ClaimKind::ColdEmpty { slots.found_empty() },
                    None => {
                        let still = [SlotState::Filling, SlotState::Making, SlotState::Leased, SlotState::Closing];
                        let under_way: usize = still.iter().map(|it| slots.count(*it)).sum();
                        prop_assert!(slots.waiting() == 0 || under_way > 0);
                    }
                },
                Step::Refill => {
                    slots.refill(now);
                    prop_assert!(slots.count(SlotState::Filling) <= at_once);
                }
                Step::Filled => if slots.count(SlotState::Filling) > 0 {
                    serial += 1;
                    prop_assert_eq!(slots.filled(serial, now), None);
                },
                Step::FillFailed => if slots.count(SlotState::Filling) > 0 { slots.fill_failed(now, 0.5) },
                Step::Created => pass(&mut slots, SlotState::Making, SlotState::Leased),
                Step::MakeFailed => pass(&mut slots, SlotState::Making, SlotState::Free),
                Step::LeaseEnds => pass(&mut slots, SlotState::Leased, SlotState::Closing),
                Step::Closed => pass(&mut slots, SlotState::Closing, SlotState::Free),
                Step::Reap(dead) => for warm in slots.reap(|warm| warm % 4 != dead) {
                    prop_assert!(seen.insert(warm));
                },
                Step::Expire => for warm in slots.expire(now) {
                    prop_assert!(seen.insert(warm));
                },
                Step::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    // Polling at the returned times comes to rest.
                    let rests = (0..=config.max).any(|_| {
                        for warm in slots.expire(now) {
                            assert!(seen.insert(warm));
                        }
                        slots.refill(now);
                        slots.next_poll(now).is_none_or(|again| again > now)
                    });
                    prop_assert!(rests);
                }
            }
            prop_assert!(slots.used() <= config.max);
            prop_assert!(slots.count(SlotState::Idle) <= config.max_warm);
            prop_assert!(slots.target >= min_warm && slots.target <= max_warm);
            prop_assert_eq!(slots.slots.iter().sum::<usize>(), config.max);
            prop_assert_eq!(slots.idle.len(), slots.count(SlotState::Idle));
        }
        // Draining returns everything.
        let (_, idle) = slots.drain();
        for warm in idle {
            prop_assert!(seen.insert(warm));
        }
        while slots.count(SlotState::Filling) > 0 {
            prop_assert!(slots.filled(0, now).is_some());
        }
        for (from, to) in [(SlotState::Making, SlotState::Leased), (SlotState::Leased, SlotState::Closing), (SlotState::Closing, SlotState::Free)] {
            while slots.count(from) > 0 {
                slots.shift(from, to);
            }
        }
        prop_assert_eq!(slots.used(), 0);
    }
}
