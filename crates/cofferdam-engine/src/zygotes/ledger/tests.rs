use std::collections::HashMap;

use cofferdam_contract::{Limits, Spec, TenantId};
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const OPEN: Health = Health { open: true, running: 0 };

fn of(tenant: &str) -> Spec {
    Spec::builder().tenant(TenantId::new(tenant).unwrap()).build().unwrap()
}

/// Two tenants, each with the same two specs but for the tenant.
fn specs() -> Vec<Spec> {
    let small = |spec: &Spec| {
        let limits = Limits { pids: Some(3), ..Limits::default() };
        spec.to_builder().limits(limits).build().unwrap()
    };
    let (a, b) = (of("a"), of("b"));
    vec![small(&a), small(&b), a, b]
}

#[test]
fn one_is_made_for_each_spec_and_then_used() {
    let mut ledger = Ledger::new(2, 10 * SECOND);
    let (a, b) = (of("a"), of("b"));
    assert_eq!(ledger.ask(&a, SECOND, |_| OPEN), Answer::Make(0));
    assert_eq!(ledger.ask(&a, SECOND, |_| OPEN), Answer::Wait(0));
    assert_eq!(ledger.made(0, "for a", SECOND), None);
    assert_eq!(ledger.ask(&a, SECOND, |_| OPEN), Answer::Use(0, "for a"));
    assert_eq!(ledger.ask(&b, SECOND, |_| OPEN), Answer::Make(1));
    ledger.gone(1);
    assert_eq!(ledger.ask(&b, SECOND, |_| OPEN), Answer::Make(2), "one that could not be made is tried again");
}

#[test]
fn the_one_unused_for_longest_makes_room_and_none_that_is_used() {
    let mut ledger = Ledger::new(2, 10 * SECOND);
    for (id, tenant) in ["a", "b"].into_iter().enumerate() {
        assert_eq!(ledger.ask(&of(tenant), SECOND, |_| OPEN), Answer::Make(id as Id));
        ledger.made(id as Id, tenant, SECOND);
    }
    assert_eq!(ledger.ask(&of("a"), 3 * SECOND, |_| OPEN), Answer::Use(0, "a"));
    assert_eq!(ledger.ask(&of("c"), 4 * SECOND, |_| Health { running: 1, ..OPEN }), Answer::Full);
    assert_eq!(ledger.ask(&of("c"), 4 * SECOND, |_| OPEN), Answer::Close(1, "b"));
    assert_eq!(ledger.ask(&of("c"), 4 * SECOND, |_| OPEN), Answer::Full, "a is being started, b not closed yet");
    ledger.gone(1);
    assert_eq!(ledger.ask(&of("c"), 4 * SECOND, |_| OPEN), Answer::Make(2));
}

#[test]
fn those_that_are_used_up_or_idle_go_once_nothing_runs() {
    let mut ledger = Ledger::new(3, 10 * SECOND);
    ledger.ask(&of("a"), SECOND, |_| OPEN);
    ledger.made(0, "a", SECOND);
    let used_up = Health { open: false, running: 1 };
    assert_eq!(ledger.ask(&of("a"), SECOND, |_| used_up), Answer::Make(1), "another one takes its place");
    ledger.made(1, "new a", SECOND);
    assert_eq!(ledger.sort_out(2 * SECOND, |one| if *one == "a" { used_up } else { OPEN }), []);
    let ended = Health { running: 0, ..used_up };
    assert_eq!(ledger.sort_out(3 * SECOND, |one| if *one == "a" { ended } else { OPEN }), [(0, "a")]);
    ledger.gone(0);
    assert_eq!(ledger.sort_out(11 * SECOND, |_| Health { running: 1, ..OPEN }), []);
    assert_eq!(ledger.sort_out(20 * SECOND, |_| OPEN), []);
    assert_eq!(ledger.sort_out(21 * SECOND, |_| OPEN), [(1, "new a")]);
    assert_eq!(ledger.counts(), [0, 0, 1]);
}

#[test]
fn nothing_begins_once_it_drains() {
    let mut ledger = Ledger::new(3, SECOND);
    ledger.ask(&of("a"), SECOND, |_| OPEN);
    ledger.ask(&of("b"), SECOND, |_| OPEN);
    ledger.made(1, "b", SECOND);
    ledger.drain();
    assert_eq!(ledger.ask(&of("b"), SECOND, |_| OPEN), Answer::Draining);
    assert_eq!(ledger.made(0, "a", SECOND), Some("a"));
    assert_eq!(ledger.take_all(), [(1, "b")]);
    assert_eq!(ledger.counts(), [0, 0, 2]);
}

#[derive(Debug, Clone)]
enum Step {
    Ask(usize),
    Made(usize),
    Failed(usize),
    Started(usize),
    Run(usize, usize),
    UseUp(usize),
    Closed(usize),
    SortOut,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0usize..8;
    prop_oneof![
        6 => (0usize..4).prop_map(Step::Ask),
        4 => which.clone().prop_map(Step::Made),
        1 => which.clone().prop_map(Step::Failed),
        3 => which.clone().prop_map(Step::Started),
        3 => (which.clone(), 0usize..3).prop_map(|(which, running)| Step::Run(which, running)),
        1 => which.clone().prop_map(Step::UseUp),
        3 => which.prop_map(Step::Closed),
        1 => Just(Step::SortOut),
        1 => (0u64..20).prop_map(Step::Wait),
    ]
}

/// What a zygote in the test is: the spec that it was made for, and how it stands.
type Made = (Id, Spec);

#[derive(Default)]
struct World {
    asked_for: HashMap<Id, Spec>,
    making: Vec<Id>,
    live: Vec<Id>,
    closing: Vec<Id>,
    starting: Vec<Id>,
    health: HashMap<Id, Health>,
}

proptest! {
    /// Whatever happens in whatever order: a request never gets a zygote that was made for another spec, and so for
    /// another tenant; there are never more than may be; none is closed that runs something or is about to.
    #[test]
    fn no_request_is_served_by_a_zygote_of_another_tenant(steps in prop::collection::vec(step(), 0..200), max in 1usize..5) {
        let specs = specs();
        let mut ledger: Ledger<Made> = Ledger::new(max, 10 * SECOND);
        let mut world = World::default();
        let mut now = Duration::ZERO;
        let pick = |list: &[Id], which: usize| (!list.is_empty()).then(|| list[which % list.len()]);
        for step in steps {
            let health = world.health.clone();
            let look = |made: &Made| health.get(&made.0).copied().unwrap_or(OPEN);
            match step {
                Step::Ask(which) => match ledger.ask(&specs[which], now, look) {
                    Answer::Use(id, (made, spec)) => {
                        prop_assert_eq!(id, made);
                        prop_assert_eq!(&spec, &specs[which]);
                        prop_assert_eq!(spec.tenant(), specs[which].tenant());
                        prop_assert!(world.live.contains(&id) && look(&(id, spec)).open);
                        world.starting.push(id);
                    }
                    Answer::Make(id) => {
                        prop_assert!(!world.asked_for.contains_key(&id));
                        world.asked_for.insert(id, specs[which].clone());
                        world.making.push(id);
                    }
                    Answer::Wait(id) => prop_assert!(world.making.contains(&id) && world.asked_for[&id] == specs[which]),
                    Answer::Close(id, one) => {
                        prop_assert!(look(&one).running == 0 && !world.starting.contains(&id));
                        world.live.retain(|other| *other != id);
                        world.closing.push(id);
                    }
                    Answer::Full => prop_assert!(world.making.len() + world.live.len() + world.closing.len() >= max),
                    Answer::Draining => prop_assert!(false, "nobody drains"),
                },
                Step::Made(which) => if let Some(id) = pick(&world.making, which) {
                    world.making.retain(|other| *other != id);
                    prop_assert_eq!(ledger.made(id, (id, world.asked_for[&id].clone()), now), None);
                    world.live.push(id);
                },
                Step::Failed(which) => if let Some(id) = pick(&world.making, which) {
                    world.making.retain(|other| *other != id);
                    ledger.gone(id);
                },
                Step::Started(which) => if let Some(id) = pick(&world.starting, which) {
                    let place = world.starting.iter().position(|other| *other == id).unwrap();
                    world.starting.remove(place);
                    ledger.started(id, now);
                },
                Step::Run(which, running) => if let Some(id) = pick(&world.live, which) {
                    world.health.entry(id).or_insert(OPEN).running = running;
                },
                Step::UseUp(which) => if let Some(id) = pick(&world.live, which) {
                    world.health.entry(id).or_insert(OPEN).open = false;
                },
                Step::Closed(which) => if let Some(id) = pick(&world.closing, which) {
                    world.closing.retain(|other| *other != id);
                    ledger.gone(id);
                },
                Step::SortOut => for (id, one) in ledger.sort_out(now, look) {
                    prop_assert!(look(&one).running == 0 && !world.starting.contains(&id));
                    world.live.retain(|other| *other != id);
                    world.closing.push(id);
                },
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            prop_assert_eq!(ledger.counts(), [world.live.len(), world.making.len(), world.closing.len()]);
            prop_assert!(ledger.counts().iter().sum::<usize>() <= max);
        }
    }
}
