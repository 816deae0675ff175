//! Tests of jumps that are too far for eight bits. The allowlist itself is too small to need them.
use super::super::assembler::{Assembler, Condition, Target};
use super::interpreter::{has_no_dead_code, run, verify};
use super::{Arch, Call};

const CHAIN: u32 = 1000;

fn call(number: u32) -> Call {
    Call::new(Arch::X86_64, number, [7, 0, 0, 0, 0, 0])
}

/// Builds a chain of comparisons. Each may jump to the block at the far end or return a shared value.
#[test]
fn far_targets_are_reached_through_stand_ins() {
    let mut assembler = Assembler::default();
    let seven = assembler.branch(Condition::Equal(7), Target::Return(1), Target::Return(2));
    let block = assembler.load(16, seven);
    let chain = (0..CHAIN).rev().fold(Target::Return(3), |next, number| {
        let to = if number % 2 == 0 { block } else { Target::Return(4) };
        assembler.branch(Condition::Equal(number), to, next)
    });
    assembler.load(0, chain);
    let program = assembler.finish();
    verify(&program);
    assert!(has_no_dead_code(&program));
    for number in 0..CHAIN {
        assert_eq!(run(&program, &call(number)), if number % 2 == 0 { 1 } else { 4 }, "{number}");
    }
    assert_eq!(run(&program, &call(CHAIN)), 3);
    assert!(program.len() < CHAIN as usize + 20, "stand-ins are shared, {} instructions", program.len());
}

/// Both targets are exactly at the limit of a jump's reach, one instruction before it, or beyond it.
#[test]
fn targets_at_the_edge_of_reach_are_reached() {
    for filler in 250..262 {
        let mut assembler = Assembler::default();
        let one = assembler.branch(Condition::Equal(7), Target::Return(1), Target::Return(2));
        let one = assembler.load(16, one);
        let two = assembler.branch(Condition::AtLeast(8), Target::Return(5), Target::Return(6));
        let two = assembler.load(24, two);
        let filled = (0..filler).fold(Target::Return(3), |next, _| assembler.mask(u32::MAX, next));
        let either = assembler.branch(Condition::AtLeast(500), one, two);
        let first = assembler.branch(Condition::Equal(9), filled, either);
        assembler.load(0, first);
        let program = assembler.finish();
        verify(&program);
        assert_eq!([9, 600, 10].map(|number| run(&program, &call(number))), [3, 1, 6], "{filler}");
    }
}

#[test]
fn a_test_with_one_outcome_is_not_written() {
    let mut assembler = Assembler::default();
    assert_eq!(assembler.branch(Condition::Equal(1), Target::Return(1), Target::Return(1)), Target::Return(1));
    assert!(assembler.finish().is_empty());
}
