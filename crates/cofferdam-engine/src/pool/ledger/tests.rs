//! The ledger by examples, and driven at random.

use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn tenant(number: usize) -> TenantId {
    TenantId::new(format!("t{number}")).unwrap()
}

fn config() -> PoolConfig {
    PoolConfig { min_warm: 2, max_warm: 4, max: 6, refill_at_once: 2, max_waiting: 4, ..PoolConfig::default() }
}

/// Somebody who waits, and whether those that wait fit.
type Who = (usize, bool);
type Book = Ledger<u32, Who>;

fn next(ledger: &mut Book) -> Option<Next<u32, Who>> {
    ledger.next(|who, _| who.1)
}

/// A ledger whose first refill is done.
fn filled() -> Book {
    let mut ledger = Book::new(config());
    for warm in 0..ledger.refill(Duration::ZERO) as u32 {
        assert_eq!(ledger.filled(warm, Duration::ZERO), None);
    }
    assert_eq!(ledger.count(Standing::Idle), 2);
    ledger
}

#[test]
fn the_youngest_that_fits_is_claimed_and_replaced_when_nobody_waits() {
    let mut ledger = filled();
    ledger.enter(&tenant(0), (7, true)).unwrap();
    assert_eq!(next(&mut ledger), Some(Next::Warm((7, true), 1)));
    assert_eq!(ledger.refill(SECOND), 0, "it gives way to the claim that is being made");
    ledger.shift(Standing::Making, Standing::Leased);
    assert_eq!(ledger.refill(SECOND), 0, "it leaves the processors to what was claimed");
    let later = SECOND + config().refill_delay;
    assert_eq!(ledger.look_again(SECOND), Some(later));
    assert_eq!(ledger.refill(later), 1);
}

/// Claims one that is ready, and has its lease begin.
fn claim(ledger: &mut Book) {
    ledger.enter(&tenant(0), (7, true)).unwrap();
    assert!(matches!(next(ledger), Some(Next::Warm(..))));
    ledger.shift(Standing::Making, Standing::Leased);
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
    assert!(now - SECOND >= config.refill_patience && now - SECOND < 2 * config.refill_patience);

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
    assert_eq!(ledger.count(Standing::Idle), 2);
}

#[test]
fn one_that_waits_makes_room_where_all_places_are_taken() {
    let mut ledger = filled();
    for _ in 0..4 {
        ledger.enter(&tenant(0), (0, false)).unwrap();
        assert!(matches!(next(&mut ledger), Some(Next::Cold(..))));
    }
    ledger.enter(&tenant(0), (7, false)).unwrap();
    assert_eq!(next(&mut ledger), Some(Next::Evict(0)), "the oldest");
    assert_eq!(next(&mut ledger), None, "one for each who waits");
    ledger.shift(Standing::Closing, Standing::Free);
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
        ledger.shift(Standing::Making, Standing::Leased);
        ledger.shift(Standing::Leased, Standing::Closing);
        ledger.shift(Standing::Closing, Standing::Free);
    }
    let mut made = 0;
    while ledger.refill(Duration::ZERO) > 0 {
        while ledger.count(Standing::Filling) > 0 {
            ledger.filled(made, Duration::ZERO);
            made += 1;
        }
    }
    assert_eq!(made, 4, "up to max_warm");
    assert_eq!(ledger.expire(59 * SECOND), Vec::<u32>::new());
    assert_eq!(ledger.expire(60 * SECOND), [0, 1], "those beyond the minimum, the oldest first");
    assert_eq!(ledger.refill(60 * SECOND), 0, "they are not made again");
}

#[test]
fn the_old_are_replaced_a_few_at_a_time() {
    let mut ledger = Book::new(PoolConfig { refill_at_once: 1, ..config() });
    for warm in 0..2 {
        assert_eq!(ledger.refill(Duration::ZERO), 1);
        ledger.filled(warm, Duration::ZERO);
    }
    let old = PoolConfig::default().max_age;
    assert_eq!(ledger.look_again(old - SECOND), Some(old));
    assert_eq!(ledger.expire(old), [0]);
    assert_eq!(ledger.refill(old), 1);
    assert_eq!(ledger.expire(old), Vec::<u32>::new(), "its successor first");
    ledger.filled(2, old);
    assert_eq!(ledger.expire(old), [1]);
}

#[test]
fn failures_are_waited_out_and_then_tried_one_at_a_time() {
    let mut ledger = Book::new(config());
    assert_eq!(ledger.refill(Duration::ZERO), 2);
    ledger.fill_failed(Duration::ZERO, 1.0);
    ledger.fill_failed(Duration::ZERO, 1.0);
    let again = ledger.look_again(Duration::ZERO).unwrap();
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
fn a_refill_gives_way_to_creates_but_not_for_ever() {
    let mut ledger = Book::new(config());
    ledger.enter(&tenant(0), (0, true)).unwrap();
    assert!(matches!(next(&mut ledger), Some(Next::Cold(..))));
    assert_eq!(ledger.refill(SECOND), 0);
    let patience = PoolConfig::default().refill_patience;
    assert_eq!(ledger.look_again(SECOND), Some(SECOND + patience));
    assert_eq!(ledger.refill(SECOND + patience), 2);
}

#[test]
fn nobody_is_let_in_beyond_the_bounds() {
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
    assert_eq!((ledger.refill(SECOND), ledger.look_again(SECOND)), (0, None));
}

#[test]
fn what_was_leased_is_never_idle_again() {
    use Standing as S;
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
    Made,
    MakeFailed,
    LeaseEnds,
    Closed,
    Reap(u32),
    Expire,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..3, any::<bool>()).prop_map(|(who, fits)| Step::Enter(who, fits)),
        1 => (0usize..4).prop_map(Step::Leave),
        4 => Just(Step::Serve),
        2 => Just(Step::Refill),
        3 => Just(Step::Filled),
        1 => Just(Step::FillFailed),
        3 => Just(Step::Made),
        1 => Just(Step::MakeFailed),
        3 => Just(Step::LeaseEnds),
        3 => Just(Step::Closed),
        1 => (0u32..4).prop_map(Step::Reap),
        1 => Just(Step::Expire),
        1 => (0u64..700_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever happens: the places add up, the bounds hold, nothing is given out twice, and nobody waits while nothing
    /// is under way.
    #[test]
    fn places_add_up_and_nobody_waits_for_nothing(
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
                Step::Enter(who, fits) => {
                    let busy = ledger.waiting();
                    if let Ok(ticket) = ledger.enter(&tenant(who), (who, fits)) {
                        prop_assert!(busy < config.max_waiting);
                        tickets.push(ticket);
                    }
                }
                Step::Leave(which) => { tickets.get(which).map(|ticket| ledger.leave(ticket)); },
                Step::Serve => match next(&mut ledger) {
                    Some(Next::Warm(_, warm) | Next::Evict(warm)) => prop_assert!(seen.insert(warm), "{} twice", warm),
                    Some(Next::Cold(_, kind)) => if kind == ClaimKind::ColdEmpty { ledger.found_empty() },
                    None => {
                        let still = [Standing::Filling, Standing::Making, Standing::Leased, Standing::Closing];
                        let under_way: usize = still.iter().map(|it| ledger.count(*it)).sum();
                        prop_assert!(ledger.waiting() == 0 || under_way > 0);
                    }
                },
                Step::Refill => {
                    ledger.refill(now);
                    prop_assert!(ledger.count(Standing::Filling) <= at_once);
                }
                Step::Filled => if ledger.count(Standing::Filling) > 0 {
                    serial += 1;
                    prop_assert_eq!(ledger.filled(serial, now), None);
                },
                Step::FillFailed => if ledger.count(Standing::Filling) > 0 { ledger.fill_failed(now, 0.5) },
                Step::Made => pass(&mut ledger, Standing::Making, Standing::Leased),
                Step::MakeFailed => pass(&mut ledger, Standing::Making, Standing::Free),
                Step::LeaseEnds => pass(&mut ledger, Standing::Leased, Standing::Closing),
                Step::Closed => pass(&mut ledger, Standing::Closing, Standing::Free),
                Step::Reap(dead) => for warm in ledger.reap(|warm| warm % 4 != dead) {
                    prop_assert!(seen.insert(warm));
                },
                Step::Expire => for warm in ledger.expire(now) {
                    prop_assert!(seen.insert(warm));
                },
                Step::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    // Whoever looks as often as told comes to rest.
                    let rests = (0..=config.max).any(|_| {
                        for warm in ledger.expire(now) {
                            assert!(seen.insert(warm));
                        }
                        ledger.refill(now);
                        ledger.look_again(now).is_none_or(|again| again > now)
                    });
                    prop_assert!(rests);
                }
            }
            prop_assert!(ledger.used() <= config.max);
            prop_assert!(ledger.count(Standing::Idle) <= config.max_warm);
            prop_assert!(ledger.target >= min_warm && ledger.target <= max_warm);
            prop_assert_eq!(ledger.places.iter().sum::<usize>(), config.max);
            prop_assert_eq!(ledger.idle.len(), ledger.count(Standing::Idle));
        }
        // In the end everything goes out.
        let (_, idle) = ledger.drain();
        for warm in idle {
            prop_assert!(seen.insert(warm));
        }
        while ledger.count(Standing::Filling) > 0 {
            prop_assert!(ledger.filled(0, now).is_some());
        }
        for (from, to) in [(Standing::Making, Standing::Leased), (Standing::Leased, Standing::Closing), (Standing::Closing, Standing::Free)] {
            while ledger.count(from) > 0 {
                ledger.shift(from, to);
            }
        }
        prop_assert_eq!(ledger.used(), 0);
    }
}
