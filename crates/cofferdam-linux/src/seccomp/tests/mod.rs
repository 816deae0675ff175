//! Three kinds of tests: the table is sorted, programs match a simple interpretation of the table ([`oracle`]), and the
//! policy is correct, written again with literal numbers ([`policy`]).
mod assembler;
mod interpreter;
mod live;
mod oracle;
mod policy;
mod quotas;
mod table;

use super::{Arch, Options, Program, TagKey, compile, compile_lone, compile_stages};
use interpreter::run;

/// Halves of a key that no ordinary argument has.
const KEY: TagKey = TagKey { process_half: 0x1234_5679, resource_half: 0x89ab_cdef };

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const PRETEND: u32 = 0x0005_0000;
const EPERM: u32 = PRETEND | 1;
const ENOSYS: u32 = PRETEND | 38;
const ENOMEM: u32 = PRETEND | 12;
const ENODEV: u32 = PRETEND | 19;
const EINVAL: u32 = PRETEND | 22;
const EPROTONOSUPPORT: u32 = PRETEND | 93;
const EOPNOTSUPP: u32 = PRETEND | 95;
const EAFNOSUPPORT: u32 = PRETEND | 97;

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const AARCH64: u32 = 0xc000_00b7;
const ARM: u32 = 0x4000_0028;

/// The data that the kernel passes to a filter.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: u32,
    arch: u32,
    arguments: [u64; 6],
}

impl Call {
    /// Creates a call through the architecture's own ABI.
    fn new(arch: Arch, number: u32, arguments: [u64; 6]) -> Self {
        Self { number, arch: arch.audit(), arguments }
    }
}

fn all_options() -> impl Iterator<Item = Options> {
    (0..32).map(|bits| Options {
        deny_memfd: bits & 1 != 0,
        deny_shared_memory: bits & 2 != 0,
        deny_affinity: bits & 4 != 0,
        tag_key: (bits & 8 != 0).then_some(KEY),
        deny_large_buffers: bits & 16 != 0,
        // It changes a call that no other option changes. A separate bit would double the time of the tests.
        watch_reads: bits & 1 != 0,
        // It changes only the late stage, which has its own test.
        quotas: false,
        count_processes: false,
        // It is combined with the other refusals for kernel buffers. Random tests separate them.
        deny_kernel_memory: bits & 16 != 0,
    })
}

/// Returns the number of a call by name, from the tables that the compiler uses.
fn number(arch: Arch, name: &str) -> Option<u32> {
    arch.table().find(|(_, known)| *known == Some(name)).map(|(number, _)| number)
}

fn arguments(values: &[u64]) -> [u64; 6] {
    let mut all = [0; 6];
    all[..values.len()].copy_from_slice(values);
    all
}
