//! Tests of the ledger: examples and random operations.

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
type Book = Ledger<u32, Claim>;

fn next(ledger: &mut Book) -> Option<Next<u32, Claim>> {
    ledger.next(|claim, _| claim.1)
}

/// Creates a ledger whose first refill is done.
fn filled() -> Book {
    let mut ledger = Book::new(config());
    for warm in 0..ledger.refill(Duration::ZERO) as u32 {
        assert_eq!(ledger.filled(warm, Duration::ZERO), None);
    }
    assert_eq!(ledger.count(SlotState::Idle), 2);
    ledger
}

#[test]
fn youngest_compatible_is_claimed_and_replaced_without_waiting_claims() {
    let mut ledger = filled();
    ledger.enter(&tenant(0), (7, true)).unwrap();
    assert_eq!(next(&mut ledger), Some(Next::Warm((7, true), 1)));
    assert_eq!(ledger.refill(SECOND), 0, "the refill yields to the claim that is being served");
    ledger.shift(SlotState::Making, SlotState::Leased);
    assert_eq!(ledger.refill(SECOND), 0, "the refill leaves the processors to the claimed sandbox");
    let later = SECOND + config().refill_delay;
    assert_eq!(ledger.next_poll(SECOND), Some(later));
    assert_eq!(ledger.refill(later), 1);
}

/// Claims an idle sandbox and begins its lease.
fn claim(ledger: &mut Book) {
    ledger.enter(&tenant(0), (7, true)).unwrap();
    assert!(matches!(next(ledger), Some(Next::Warm(..))));
    ledger.shift(SlotState::Making, SlotState::Leased);
}

#[test]
fn a_refill_waits_after_claims_but_not_for_ever_and_not_once_none_is_ready() {
    let config = PoolConfig { min_warm: 64, max_warm: 64, max: 200, refill_at_once: 64, ..config() };
    let mut ledger = Book::new(config.clone());
    for warm in 0..ledger.refill(Duration::ZERO) as u32 {
        assert_eq!(ledger.filled(warm, Duration::ZERO), None);
    }
    let mut now = SECOND;
    while ledger.refill(now) == 0 {
        claim(&mut ledger);
        assert_eq!(ledger.refill(now), 0);
        now += Duration::from_millis(4);
    }
    assert!(now - SECOND >= config.refill_yield_timeout && now - SECOND < 2 * config.refill_yield_timeout);

    let mut ledger = filled();
    claim(&mut ledger);
    assert_eq!(ledger.refill(SECOND), 0);
    claim(&mut ledger);
    assert_eq!(ledger.refill(SECOND), 2);
}

#[test]
fn a_spec_that_does_not_fit_gets_a_place_of_its_own() {
    let mut ledger = filled();
    ledger.enter(&tenant(0), (7, false)).unwrap();
    assert_eq!(next(&mut ledger), Some(Next::Cold((7, false), ClaimKind::ColdUnfit)));
    assert_eq!(ledger.count(SlotState::Idle), 2);
}

#[test]
fn idle_sandbox_is_evicted_if_all_slots_are_taken() {
    let mut ledger = filled();
    for _ in 0..4 {
        ledger.enter(&tenant(0), (0, false)).unwrap();
        assert!(matches!(next(&mut ledger), Some(Next::Cold(..))));
    }
    ledger.enter(&tenant(0), (7, false)).unwrap();
    assert_eq!(next(&mut ledger), Some(Next::Evict(0)), "the oldest");
    assert_eq!(next(&mut ledger), None, "one eviction for each queued claim");
    ledger.shift(SlotState::Closing, SlotState::Free);
    assert!(matches!(next(&mut ledger), Some(Next::Cold((7, false), _))));
    assert_eq!(ledger.used(), 6);
}

#[test]
fn demand_raises_the_target_and_idleness_lowers_it() {
    let mut ledger = Book::new(config());
    for _ in 0..5 {
        ledger.enter(&tenant(0), (0, true)).unwrap();
        assert!(matches!(next(&mut ledger), Some(Next::Cold(_, ClaimKind::ColdEmpty))));
        ledger.found_empty();
        ledger.shift(SlotState::Making, SlotState::Leased);
        ledger.shift(SlotState::Leased, SlotState::Closing);
        ledger.shift(SlotState::Closing, SlotState::Free);
    }
    let mut created = 0;
    while ledger.refill(Duration::ZERO) > 0 {
        while ledger.count(SlotState::Filling) > 0 {
            ledger.filled(created, Duration::ZERO);
            created += 1;
        }
    }
    assert_eq!(created, 4, "up to max_warm");
    assert_eq!(ledger.expire(59 * SECOND), Vec::<u32>::new());
    assert_eq!(ledger.expire(60 * SECOND), [0, 1], "surplus sandboxes, oldest first");
    assert_eq!(ledger.refill(60 * SECOND), 0, "they are not replaced");
}

#[test]
fn the_old_are_replaced_a_few_at_a_time() {
    let mut ledger = Book::new(PoolConfig { refill_at_once: 1, ..config() });
    for warm in 0..2 {
        assert_eq!(ledger.refill(Duration::ZERO), 1);
        ledger.filled(warm, Duration::ZERO);
    }
    let old = PoolConfig::default().max_age;
    assert_eq!(ledger.next_poll(old - SECOND), Some(old));
    assert_eq!(ledger.expire(old), [0]);
    assert_eq!(ledger.refill(old), 1);
    assert_eq!(ledger.expire(old), Vec::<u32>::new(), "its replacement comes first");
    ledger.filled(2, old);
    assert_eq!(ledger.expire(old), [1]);
}

#[test]
fn failures_are_waited_out_and_then_tried_one_at_a_time() {
    let mut ledger = Book::new(config());
    assert_eq!(ledger.refill(Duration::ZERO), 2);
    ledger.fill_failed(Duration::ZERO, 1.0);
    ledger.fill_failed(Duration::ZERO, 1.0);
    let again = ledger.next_poll(Duration::ZERO).unwrap();
    assert_eq!(again, Duration::from_millis(200));
    assert_eq!(ledger.refill(again - Duration::from_nanos(1)), 0);
    assert_eq!(ledger.refill(again), 1);
    assert_eq!(ledger.filled(0, again), None);
    assert_eq!(ledger.refill(again), 1);
    assert_eq!(ledger.used(), 2);
    ledger.fill_unsupported();
    assert_eq!(ledger.refill(again + 1000 * SECOND), 0, "never again");
}

#[test]
fn polls_are_in_the_future_while_several_waits_overlap() {
    let times = |more| PoolConfig { min_warm: 3, refill_at_once: 1, ..more };
    // A quiet time that is over, within a wait after a failure.
    let mut ledger = Book::new(times(config()));
    let now = Duration::from_millis(6);
    for warm in 0..2 {
        assert_eq!(ledger.refill(Duration::ZERO), 1);
        ledger.filled(warm, Duration::ZERO);
    }
    assert_eq!(ledger.refill(Duration::ZERO), 1);
    ledger.enter(&tenant(0), (0, true)).unwrap();
    assert!(matches!(next(&mut ledger), Some(Next::Warm(..))));
    assert_eq!(ledger.refill(Duration::ZERO), 0);
    ledger.fill_failed(Duration::ZERO, 1.0);
    assert_eq!(ledger.refill(now), 0);
    assert_eq!(ledger.next_poll(now), Some(Duration::from_millis(100)));
    // The end of the time in which a refill yields, within a quiet time.
    let mut ledger = Book::new(times(config()));
    for warm in 0..2 {
        assert_eq!(ledger.refill(Duration::ZERO), 1);
        ledger.filled(warm, Duration::ZERO);
    }
    ledger.enter(&tenant(0), (0, false)).unwrap();
    assert!(matches!(next(&mut ledger), Some(Next::Cold(..))));
    assert_eq!(ledger.refill(Duration::ZERO), 0);
    ledger.enter(&tenant(0), (1, true)).unwrap();
    assert!(matches!(next(&mut ledger), Some(Next::Warm(..))));
    let now = PoolConfig::default().refill_yield_timeout;
    assert_eq!(ledger.refill(now), 0);
    assert_eq!(ledger.next_poll(now), Some(now + PoolConfig::default().refill_delay));
}

/// Promise (Warm sandboxes and pools): Refills yield to creates of callers, but not without end.
#[test]
fn a_refill_gives_way_to_creates_but_not_for_ever() {
    let mut ledger = Book::new(config());
    ledger.enter(&tenant(0), (0, true)).unwrap();
    assert!(matches!(next(&mut ledger), Some(Next::Cold(..))));
    assert_eq!(ledger.refill(SECOND), 0);
    let yield_time = PoolConfig::default().refill_yield_timeout;
    assert_eq!(ledger.next_poll(SECOND), Some(SECOND + yield_time));
    assert_eq!(ledger.refill(SECOND + yield_time), 2);
}

#[test]
fn claims_beyond_the_bounds_are_refused() {
    let mut ledger = Book::new(PoolConfig { max: 1, min_warm: 0, max_warm: 0, max_waiting: 1, ..config() });
    ledger.enter(&tenant(0), (0, true)).unwrap();
    assert!(next(&mut ledger).is_some());
    let ticket = ledger.enter(&tenant(0), (1, true)).unwrap();
    assert_eq!(ledger.enter(&tenant(1), (2, true)), Err(Full::All(1)));
    assert!(ledger.leave(&ticket) && !ledger.leave(&ticket));
    assert!(ledger.enter(&tenant(1), (2, true)).is_ok());
}

#[test]
fn draining_gives_everything_back_and_refills_no_more() {
    let mut ledger = filled();
    assert_eq!(ledger.refill(SECOND), 0);
    ledger.enter(&tenant(0), (0, true)).unwrap();
    assert_eq!(ledger.drain(), (vec![(0, true)], vec![0, 1]));
    assert_eq!((ledger.refill(SECOND), ledger.next_poll(SECOND)), (0, None));
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
        3 => (0usize..3, any::<bool>()).prop_map(|(claim, fits)| Step::Enter(claim, fits)),
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
        let mut ledger = Book::new(config.clone());
        let (mut now, mut serial) = (Duration::ZERO, 0);
        let mut tickets = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        let pass = |ledger: &mut Book, from, to| if ledger.count(from) > 0 { ledger.shift(from, to) };
        for step in steps {
            match step {
                Step::Enter(claim, fits) => {
                    let busy = ledger.waiting();
                    if let Ok(ticket) = ledger.enter(&tenant(claim), (claim, fits)) {
                        prop_assert!(busy < config.max_waiting);
                        tickets.push(ticket);
                    }
                }
                Step::Leave(which) => { tickets.get(which).map(|ticket| ledger.leave(ticket)); },
                Step::Serve => match next(&mut ledger) {
                    Some(Next::Warm(_, warm) | Next::Evict(warm)) => prop_assert!(seen.insert(warm), "{} twice", warm),
                    Some(Next::Cold(_, kind)) => if kind == ClaimKind::ColdEmpty { ledger.found_empty() },
                    None => {
                        let still = [SlotState::Filling, SlotState::Making, SlotState::Leased, SlotState::Closing];
                        let under_way: usize = still.iter().map(|it| ledger.count(*it)).sum();
                        prop_assert!(ledger.waiting() == 0 || under_way > 0);
                    }
                },
                Step::Refill => {
                    ledger.refill(now);
                    prop_assert!(ledger.count(SlotState::Filling) <= at_once);
                }
                Step::Filled => if ledger.count(SlotState::Filling) > 0 {
                    serial += 1;
                    prop_assert_eq!(ledger.filled(serial, now), None);
                },
                Step::FillFailed => if ledger.count(SlotState::Filling) > 0 { ledger.fill_failed(now, 0.5) },
                Step::Created => pass(&mut ledger, SlotState::Making, SlotState::Leased),
                Step::MakeFailed => pass(&mut ledger, SlotState::Making, SlotState::Free),
                Step::LeaseEnds => pass(&mut ledger, SlotState::Leased, SlotState::Closing),
                Step::Closed => pass(&mut ledger, SlotState::Closing, SlotState::Free),
                Step::Reap(dead) => for warm in ledger.reap(|warm| warm % 4 != dead) {
                    prop_assert!(seen.insert(warm));
                },
                Step::Expire => for warm in ledger.expire(now) {
                    prop_assert!(seen.insert(warm));
                },
                Step::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    // Polling at the returned times comes to rest.
                    let rests = (0..=config.max).any(|_| {
                        for warm in ledger.expire(now) {
                            assert!(seen.insert(warm));
                        }
                        ledger.refill(now);
                        ledger.next_poll(now).is_none_or(|again| again > now)
                    });
                    prop_assert!(rests);
                }
            }
            prop_assert!(ledger.used() <= config.max);
            prop_assert!(ledger.count(SlotState::Idle) <= config.max_warm);
            prop_assert!(ledger.target >= min_warm && ledger.target <= max_warm);
            prop_assert_eq!(ledger.slots.iter().sum::<usize>(), config.max);
            prop_assert_eq!(ledger.idle.len(), ledger.count(SlotState::Idle));
        }
        // Draining returns everything.
        let (_, idle) = ledger.drain();
        for warm in idle {
            prop_assert!(seen.insert(warm));
        }
        while ledger.count(SlotState::Filling) > 0 {
            prop_assert!(ledger.filled(0, now).is_some());
        }
        for (from, to) in [(SlotState::Making, SlotState::Leased), (SlotState::Leased, SlotState::Closing), (SlotState::Closing, SlotState::Free)] {
            while ledger.count(from) > 0 {
                ledger.shift(from, to);
            }
        }
        prop_assert_eq!(ledger.used(), 0);
    }
}
