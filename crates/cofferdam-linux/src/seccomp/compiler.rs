//! Compilation of the allowlist to a program:
//!
//! ```text
//! wrong audit arch, foreign ABI bit -> kill
//! number -> binary tree over ranges of equal verdict -> return, or the checks of the arguments -> return
//! ```
//!
//! A list of comparisons would be longer and slower to install: the kernel runs a new filter once for each number that
//! it knows. The verdicts are not decided here.
use super::arch::Arch;
use super::assembler::{Assembler, Condition, Program, Target};
use super::checks::{PRLIMIT, RLIMIT_RTTIME};
use super::policy::{ALLOWED, Options, UNKNOWN, early, in_quota, is_for_building, lone, verdict};
use super::rule::{Action, Case, Test, Verdict};

// Offsets in `struct seccomp_data`; both architectures are little-endian.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Carries the key of [`Verdict::Keyed`]: calls with fewer arguments leave it to chance, and a filter sees it.
const KEY_ARGUMENT: u8 = 5;

/// A range of numbers with one verdict. It ends where the next one starts.
#[derive(Clone, Copy)]
struct Range {
    start: u32,
    verdict: Verdict,
}

/// A range and the target of its calls.
#[derive(Clone, Copy)]
struct Leaf {
    start: u32,
    target: Target,
}

pub(super) fn compile(arch: Arch, options: &Options) -> Program {
    guarded(arch, &ranges(arch, |name| name.map_or(UNKNOWN, |name| verdict(name, options))))
}

/// Compiles the whole list for a process beside others.
pub(super) fn compile_lone(arch: Arch) -> Program {
    let verdict = |name: &str| lone(name).unwrap_or_else(|| verdict(name, &Options::default()));
    guarded(arch, &ranges(arch, |name| name.map_or(UNKNOWN, verdict)))
}

/// Compiles the whole list, except that calls which build sandboxes are allowed.
pub(super) fn compile_early(arch: Arch, options: &Options) -> Program {
    let verdict = |name: &str| early(name, options);
    guarded(arch, &ranges(arch, |name| name.map_or(UNKNOWN, verdict)))
}

/// Compiles only calls that build sandboxes, with the verdicts of the whole list, and the notifications of quotas. The
/// early part decides about all other calls, including those of foreign ABIs: the kernel runs all filters of a process
/// and obeys the strictest.
pub(super) fn compile_late(arch: Arch, options: &Options) -> Program {
    let verdict = |name: &str| match in_quota(name, options) {
        Some(verdict) => verdict,
        None if is_for_building(name) => verdict(name, options),
        None => ALLOWED,
    };
    let mut assembler = Assembler::default();
    let leaves = checks(&mut assembler, &ranges(arch, |name| name.map_or(ALLOWED, verdict)));
    let tree = tree(&mut assembler, &leaves);
    assembler.load(NUMBER, tree);
    assembler.finish()
}

/// Writes the search through these ranges, after the checks against foreign ABIs.
fn guarded(arch: Arch, ranges: &[Range]) -> Program {
    let mut assembler = Assembler::default();
    let leaves = checks(&mut assembler, ranges);
    let mut tree = tree(&mut assembler, &leaves);
    let kill = returns(Action::KillProcess);
    if let Some(bit) = arch.foreign_abi_bit() {
        tree = assembler.branch(Condition::AnyBit(bit), kill, tree);
    }
    let by_number = assembler.load(NUMBER, tree);
    let known_arch = assembler.branch(Condition::Equal(arch.audit()), by_number, kill);
    assembler.load(ARCH, known_arch);
    assembler.finish()
}

/// Returns all numbers as ranges whose neighbours differ. The first one starts at 0, and the last one has no end.
fn ranges<'a>(arch: Arch, verdict: impl Fn(Option<&'a str>) -> Verdict) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    let mut end = 0;
    for (number, name) in arch.table() {
        ranges.push(Range { start: number, verdict: verdict(name) });
        end = number + 1;
    }
    ranges.push(Range { start: end, verdict: verdict(None) });
    ranges.dedup_by(|next, previous| next.verdict == previous.verdict);
    ranges
}

/// Writes the argument checks, each once. Returns the target of each range.
fn checks(assembler: &mut Assembler, ranges: &[Range]) -> Vec<Leaf> {
    let mut written: Vec<(Verdict, Target)> = Vec::new();
    let mut leaf = |range: &Range| {
        let known = written.iter().find(|(verdict, _)| *verdict == range.verdict);
        let target = known.map_or_else(|| check(assembler, range.verdict), |(_, target)| *target);
        written.push((range.verdict, target));
        Leaf { start: range.start, target }
    };
    ranges.iter().map(&mut leaf).collect()
}

fn check(assembler: &mut Assembler, verdict: Verdict) -> Target {
    match verdict {
        Verdict::Always(action) => returns(action),
        Verdict::ByArguments { cases, otherwise } => {
            cases.iter().rev().fold(returns(otherwise), |next, case| check_case(assembler, case, next))
        }
        Verdict::Keyed { key, with, without } => {
            let (with, without) = (check(assembler, *with), check(assembler, *without));
            let words = [(low(KEY_ARGUMENT), key.resource_half), (high(KEY_ARGUMENT), key.process_half)];
            words.into_iter().fold(with, |yes, (word, value)| {
                let branch = assembler.branch(Condition::Equal(value), yes, without);
                assembler.load(word, branch)
            })
        }
        Verdict::Tagging(key) => {
            let otherwise = check(assembler, PRLIMIT);
            let tests = [(low(1), RLIMIT_RTTIME), (high(1), key.resource_half), (high(0), key.process_half)];
            tests.into_iter().rev().fold(returns(Action::Allow), |yes, (word, value)| {
                let branch = assembler.branch(Condition::Equal(value), yes, otherwise);
                assembler.load(word, branch)
            })
        }
    }
}

/// Writes a case: jumps to its action if all its tests hold, else to `next`.
fn check_case(assembler: &mut Assembler, case: &Case, next: Target) -> Target {
    case.when.iter().rev().fold(returns(case.then), |yes, test| check_test(assembler, test, yes, next))
}

fn check_test(assembler: &mut Assembler, test: &Test, yes: Target, no: Target) -> Target {
    match *test {
        Test::OneOf { argument, mask, values } => {
            let mut first =
                values.iter().rev().fold(no, |no, value| assembler.branch(Condition::Equal(*value), yes, no));
            if mask != u32::MAX {
                first = assembler.mask(mask, first);
            }
            assembler.load(low(argument), first)
        }
        Test::AnyBit { argument, mask } => {
            let branch = assembler.branch(Condition::AnyBit(mask), yes, no);
            assembler.load(low(argument), branch)
        }
        Test::NotNull { argument } => {
            let high_null = assembler.branch(Condition::Equal(0), no, yes);
            let high_null = assembler.load(high(argument), high_null);
            let low_null = assembler.branch(Condition::Equal(0), high_null, yes);
            assembler.load(low(argument), low_null)
        }
    }
}

/// Writes the search for the range of the number in the accumulator.
fn tree(assembler: &mut Assembler, leaves: &[Leaf]) -> Target {
    match leaves {
        [only] => only.target,
        // A call with its own verdict between equal ones: one comparison instead of two.
        [before, own, after] if before.target == after.target && after.start - own.start == 1 => {
            assembler.branch(Condition::Equal(own.start), own.target, before.target)
        }
        _ => {
            let middle = leaves.len() / 2;
            let (lower, upper) = leaves.split_at(middle);
            let pivot = upper[0].start;
            let upper = tree(assembler, upper);
            let lower = tree(assembler, lower);
            assembler.branch(Condition::AtLeast(pivot), upper, lower)
        }
    }
}

const fn returns(action: Action) -> Target {
    Target::Return(action.code())
}

const fn low(argument: u8) -> u32 {
    ARGUMENTS + 8 * argument as u32
}

const fn high(argument: u8) -> u32 {
    low(argument) + 4
}
