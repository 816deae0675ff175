//! Classic BPF, written from the end of the program to its beginning.
//!
//! Jumps only go forward, and a conditional one reaches at most 255 instructions. Written backwards, every target is
//! known when a jump to it is written. If a target is out of reach, a copy (of a return) or a plain jump with its
//! 32-bit offset is written within reach first. The module knows nothing of system calls.
use std::collections::HashMap;

use super::checks::ITSELF;

const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K

/// A classic BPF instruction, laid out as the kernel's `sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// The number of instructions that a conditional jump skips if its test holds.
    pub jt: u8,
    /// The number of instructions that it skips otherwise.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// A compiled filter, ready for [`install`](super::install).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The instructions in the kernel's order.
    pub instructions: Vec<Instruction>,
}

impl Program {
    /// Returns the number of instructions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Returns the instructions in the kernel's format.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = |it: &Instruction| {
            let ([a, b], [c, d, e, f]) = (it.code.to_ne_bytes(), it.k.to_ne_bytes());
            [a, b, it.jt, it.jf, c, d, e, f]
        };
        self.instructions.iter().flat_map(bytes).collect()
    }

    /// Sets the process of a program of [`compile_lone`](super::compile_lone), by its own process id. Does not
    /// allocate, so that the process may call it itself before it executes a program.
    pub fn belongs_to(&mut self, process: u32) {
        for it in &mut self.instructions {
            if it.code == EQUAL && it.k == ITSELF {
                it.k = process;
            }
        }
    }

    /// Returns true if there are no instructions. A compiled program has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }
}

/// The tests of a conditional jump.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition {
    Equal(u32),
    AtLeast(u32),
    AnyBit(u32),
}

/// The target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// The end of the filter, with this value.
    Return(u32),
    /// An instruction already written, counted from the end of the program.
    At(usize),
}

/// The highest value of `jt` and `jf`.
const REACH: usize = u8::MAX as usize;

/// A program under construction, last instruction first.
#[derive(Default)]
pub(super) struct Assembler {
    reversed: Vec<Instruction>,
    /// The copy or trampoline nearest to the beginning for each target that has one.
    nearest: HashMap<Target, usize>,
}

impl Assembler {
    /// Writes a branch to `yes` or `no` by a test of the accumulator.
    pub fn branch(&mut self, condition: Condition, yes: Target, no: Target) -> Target {
        if yes == no {
            return yes;
        }
        // Each placement may write one instruction, and so increase the distance of the other target by one.
        let yes = self.reachable(yes, REACH - 1);
        let no = self.reachable(no, REACH);
        let (code, k) = match condition {
            Condition::Equal(k) => (EQUAL, k),
            Condition::AtLeast(k) => (0x35, k), // BPF_JMP | BPF_JGE | BPF_K
            Condition::AnyBit(k) => (0x45, k),  // BPF_JMP | BPF_JSET | BPF_K
        };
        let (jt, jf) = (self.short(yes), self.short(no));
        self.push(Instruction { code, jt, jf, k })
    }

    /// Writes a load of the word at `offset` of the data into the accumulator, followed by `next`.
    pub fn load(&mut self, offset: u32, next: Target) -> Target {
        self.fall_through(LOAD_WORD, offset, next)
    }

    /// Writes a mask of the accumulator, followed by `next`.
    pub fn mask(&mut self, mask: u32, next: Target) -> Target {
        self.fall_through(AND, mask, next)
    }

    /// Returns the program, which starts with the instruction that was written last.
    pub fn finish(mut self) -> Program {
        self.reversed.reverse();
        Program { instructions: self.reversed }
    }

    fn fall_through(&mut self, code: u16, k: u32, next: Target) -> Target {
        self.reachable(next, 0);
        self.push(Instruction { code, jt: 0, jf: 0, k })
    }

    /// Returns the position of `target`, or of a stand-in for it, within reach of the next instruction.
    fn reachable(&mut self, target: Target, reach: usize) -> usize {
        let known = match (self.nearest.get(&target), target) {
            (Some(&position), _) | (None, Target::At(position)) => Some(position),
            (None, Target::Return(_)) => None,
        };
        if let Some(position) = known.filter(|position| self.distance(*position) <= reach) {
            return position;
        }
        let stand_in = match (target, known) {
            (Target::At(_), Some(position)) => self.jump(position),
            (Target::At(position), None) => self.jump(position),
            (Target::Return(value), _) => self.emit(Instruction { code: RETURN, jt: 0, jf: 0, k: value }),
        };
        self.nearest.insert(target, stand_in);
        stand_in
    }

    fn jump(&mut self, position: usize) -> usize {
        let k = u32::try_from(self.distance(position)).expect("programs are shorter than 2^32 instructions");
        self.emit(Instruction { code: JUMP, jt: 0, jf: 0, k })
    }

    /// Returns the number of instructions between the next one to be written and the one at `position`.
    fn distance(&self, position: usize) -> usize {
        self.reversed.len() - 1 - position
    }

    fn short(&self, position: usize) -> u8 {
        u8::try_from(self.distance(position)).expect("reachable() keeps targets in reach")
    }

    fn push(&mut self, instruction: Instruction) -> Target {
        Target::At(self.emit(instruction))
    }

    fn emit(&mut self, instruction: Instruction) -> usize {
        self.reversed.push(instruction);
        self.reversed.len() - 1
    }
}
