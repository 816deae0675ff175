//! An interpreter of classic BPF as in the kernel's seccomp, with its static checks as panics.
use super::{Call, Program};

const MAX_INSTRUCTIONS: usize = 4096;

/// Returns the value of `program` for `call`.
pub(super) fn run(program: &Program, call: &Call) -> u32 {
    let (mut accumulator, mut counter) = (0_u32, 0_usize);
    loop {
        let instruction = program.instructions[counter];
        let (class, operation) = (instruction.code & 0x07, instruction.code & 0xf0);
        assert_eq!(instruction.code & 0x08, 0, "no operand in X");
        counter += 1;
        match class {
            0 => accumulator = load(call, instruction.k),
            4 => accumulator = masked(operation, accumulator, instruction.k),
            5 if operation == 0 => counter += instruction.k as usize,
            5 => {
                let holds = compare(operation, accumulator, instruction.k);
                counter += usize::from(if holds { instruction.jt } else { instruction.jf });
            }
            6 => return instruction.k,
            _ => panic!("class {class} is not for seccomp"),
        }
    }
}

/// Panics unless the kernel's checker accepts `program`: known operations, every jump inside, a return at the end.
pub(super) fn verify(program: &Program) {
    let len = program.len();
    assert!((1..=MAX_INSTRUCTIONS).contains(&len));
    for (index, instruction) in program.instructions.iter().enumerate() {
        // Offsets are unsigned, so jumps are forward as long as they are in range.
        let reaches = |offset: usize| assert!(index + 1 + offset < len, "jump out of range at {index}");
        match instruction.code {
            0x20 => assert!(instruction.k.is_multiple_of(4) && instruction.k < 64, "load at {index}"),
            0x54 => reaches(0),
            0x05 => reaches(instruction.k as usize),
            0x15 | 0x35 | 0x45 => {
                reaches(instruction.jt.into());
                reaches(instruction.jf.into());
            }
            0x06 => {}
            other => panic!("operation {other:#x} at {index}"),
        }
    }
    assert_eq!(program.instructions[len - 1].code, 0x06);
}

/// Checks that every instruction can be reached from the first.
pub(super) fn has_no_dead_code(program: &Program) -> bool {
    let mut reached = vec![false; program.len()];
    reached[0] = true;
    for (index, instruction) in program.instructions.iter().enumerate() {
        let offsets = match instruction.code {
            0x06 => vec![],
            0x05 => vec![instruction.k as usize],
            _ => vec![instruction.jt.into(), instruction.jf.into()],
        };
        if reached[index] {
            offsets.into_iter().for_each(|offset: usize| reached[index + 1 + offset] = true);
        }
    }
    reached.into_iter().all(|reached| reached)
}

fn load(call: &Call, offset: u32) -> u32 {
    let mut data = Vec::with_capacity(64);
    data.extend(call.number.to_le_bytes());
    data.extend(call.arch.to_le_bytes());
    data.extend(0x7fff_dead_beef_u64.to_le_bytes()); // the instruction pointer, which no rule uses
    call.arguments.iter().for_each(|argument| data.extend(argument.to_le_bytes()));
    let word = &data[offset as usize..][..4];
    u32::from_le_bytes(word.try_into().expect("four bytes"))
}

fn masked(operation: u16, accumulator: u32, k: u32) -> u32 {
    assert_eq!(operation, 0x50, "AND is the only arithmetic");
    accumulator & k
}

fn compare(operation: u16, accumulator: u32, k: u32) -> bool {
    match operation {
        0x10 => accumulator == k,
        0x20 => accumulator > k,
        0x30 => accumulator >= k,
        0x40 => accumulator & k != 0,
        _ => panic!("unknown comparison {operation:#x}"),
    }
}
