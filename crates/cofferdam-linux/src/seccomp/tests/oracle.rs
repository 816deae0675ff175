//! Tests of compiled programs against a simple interpretation of the table, which shares no code with the compiler.
use super::super::rule::{Action, Test, Verdict};
use super::super::rules::RULES;
use super::interpreter::{has_no_dead_code, verify};
use super::{
    ALLOW, Arch, Call, EINVAL, ENOSYS, EPERM, KEY, KILL, Options, Program, all_options, compile, compile_stages, run,
};
use proptest::prelude::*;

/// Returns every relevant number, on both sides of each comparison of the policy.
const TELLING: [u64; 41] = [
    17,
    22,
    41,
    60,
    78,
    0x0001_0400,
    0x1234_5679_0000_0000,
    0x89ab_cdef_0000_000f,
    7,
    32,
    1031,
    0,
    1,
    2,
    3,
    4,
    6,
    10,
    12,
    15,
    16,
    17,
    35,
    38,
    40,
    62,
    0x7f,
    0o100,
    0o755,
    0o2755,
    0o4755,
    0o6000,
    0o020_644,
    0o060_644,
    0o100_644,
    0x5412,
    0x541c,
    0x0004_0000,
    0o20_000_000,
    0x1000_0000,
    0xffff_ffff,
];

fn expected(arch: Arch, options: &Options, call: &Call) -> u32 {
    let own = if arch == Arch::X86_64 { 0xc000_003e } else { 0xc000_00b7 };
    if call.arch != own || (arch == Arch::X86_64 && call.number & 0x4000_0000 != 0) {
        return KILL;
    }
    let Some(name) = arch.name(call.number) else { return ENOSYS };
    let low = call.arguments.map(|argument| argument as u32);
    match name {
        "prlimit64"
            if options.tag_key.is_some()
                && call.arguments[0] >> 32 == 0x1234_5679
                && call.arguments[1] == 0x89ab_cdef_0000_000f =>
        {
            return ALLOW;
        }
        "fcntl" if options.deny_large_buffers && low[1] == 1031 => return EPERM,
        "setsockopt" if options.deny_large_buffers && low[1] == 1 && matches!(low[2], 7 | 8 | 32 | 33) => {
            return 0x5_0000;
        }
        "inotify_add_watch" if options.watch_reads => return ALLOW,
        "setsockopt" if options.deny_large_buffers && low[1] == 1 && low[2] == 60 => return EPERM,
        "semget" | "msgget" if options.deny_kernel_memory => return EPERM,
        "seccomp" | "sendfile" | "splice" | "tee" | "vmsplice" if options.deny_kernel_memory => return EINVAL,
        "prctl" if options.deny_kernel_memory && low[0] == 22 => return EINVAL,
        "memfd_create" if options.deny_memfd => return EPERM,
        "shmget" if options.deny_shared_memory => return EPERM,
        "sched_setaffinity" if options.deny_affinity => return EPERM,
        "mmap" if options.deny_shared_memory && low[3] & 0x40020 == 0x20 && matches!(low[3] & 0xf, 1 | 3) => {
            return EPERM;
        }
        _ => {}
    }
    RULES.iter().find(|rule| rule.name == name).map_or(EPERM, |rule| read(rule.verdict, call))
}

fn read(verdict: Verdict, call: &Call) -> u32 {
    let value = |action| match action {
        Action::Allow => ALLOW,
        Action::KillProcess => KILL,
        Action::Notify => unreachable!("not in the table"),
        Action::Errno(errno) => 0x5_0000 + u32::from(errno),
    };
    match verdict {
        Verdict::Always(action) => value(action),
        Verdict::Tagging(_) | Verdict::Keyed { .. } => unreachable!("not in the table"),
        Verdict::ByArguments { cases, otherwise } => cases
            .iter()
            .find(|case| case.when.iter().all(|test| holds(test, call)))
            .map_or_else(|| value(otherwise), |case| value(case.then)),
    }
}

fn holds(test: &Test, call: &Call) -> bool {
    match *test {
        Test::OneOf { argument, mask, values } => {
            values.iter().any(|value| call.arguments[usize::from(argument)] as u32 & mask == *value)
        }
        Test::AnyBit { argument, mask } => call.arguments[usize::from(argument)] as u32 & mask > 0,
        Test::NotNull { argument } => call.arguments[usize::from(argument)] > 0,
    }
}

fn check(arch: Arch, options: &Options, program: &Program, call: &Call) {
    assert_eq!(run(program, call), expected(arch, options, call), "{arch:?} {options:?} {call:?}");
}

/// Promise (Process isolation): The seccomp filter treats every system call number as its table states, on both
/// architectures.
#[test]
fn every_number_gets_the_verdict_of_the_table() {
    for arch in Arch::ALL {
        for options in all_options() {
            let program = compile(arch, &options);
            for number in 0..1024 {
                for telling in TELLING {
                    check(arch, &options, &program, &Call::new(arch, number, [telling; 6]));
                }
            }
        }
    }
}

/// Returns the kernel's action on a call under two filters: the strictest verdict wins. There are no other verdicts
/// than these.
fn strictest(one: u32, other: u32) -> u32 {
    let strictness = |verdict: u32| match verdict {
        KILL => 2,
        ALLOW => 0,
        errno => {
            assert_eq!(errno & 0xffff_0000, 0x5_0000);
            1
        }
    };
    if strictness(one) >= strictness(other) { one } else { other }
}

fn check_stages(arch: Arch, options: &Options, stages: &(Program, Program), call: &Call) {
    let (early, late) = (run(&stages.0, call), run(&stages.1, call));
    // With two errors, the order of the filters would determine the visible one.
    assert!(early == ALLOW || early == KILL || late == ALLOW, "{arch:?} {options:?} {call:?}");
    assert_eq!(strictest(early, late), expected(arch, options, call), "{arch:?} {options:?} {call:?}");
}

#[test]
fn two_stages_judge_every_number_as_the_whole_does() {
    for arch in Arch::ALL {
        for options in all_options() {
            let stages = compile_stages(arch, &options);
            for number in (0..1024).chain([0x4000_0000, 0x4000_0038, u32::MAX]) {
                for telling in TELLING {
                    check_stages(arch, &options, &stages, &Call::new(arch, number, [telling; 6]));
                }
            }
        }
    }
}

#[test]
fn the_late_stage_is_short_and_both_pass_the_kernels_checks() {
    for arch in Arch::ALL {
        for options in all_options() {
            let (early, late) = compile_stages(arch, &options);
            for program in [&early, &late] {
                verify(program);
                assert!(has_no_dead_code(program));
            }
            assert!(late.len() < 100, "{arch:?}: {} instructions", late.len());
        }
        let (early, late) = compile_stages(arch, &Options::default());
        eprintln!("{arch:?}: {} + {} instructions", early.len(), late.len());
    }
}

#[test]
fn programs_pass_the_kernels_checks_and_stay_small() {
    for arch in Arch::ALL {
        for options in all_options() {
            let program = compile(arch, &options);
            verify(&program);
            assert!(has_no_dead_code(&program));
            assert!(!program.is_empty() && program.len() < 500, "{arch:?}: {} instructions", program.len());
        }
        eprintln!("{arch:?}: {} instructions", compile(arch, &Options::default()).len());
    }
}

#[test]
fn compiling_twice_gives_the_same_program() {
    for arch in Arch::ALL {
        for options in all_options() {
            assert_eq!(compile(arch, &options), compile(arch, &options));
        }
    }
}

fn any_options() -> impl Strategy<Value = Options> {
    let all = any::<[bool; 7]>();
    all.prop_map(|[deny_memfd, deny_shared_memory, deny_affinity, tag, deny_large_buffers, watch_reads, kernel]| {
        Options {
            watch_reads,
            quotas: false,
            count_processes: false,
            deny_kernel_memory: kernel,
            deny_large_buffers,
            deny_memfd,
            deny_shared_memory,
            deny_affinity,
            tag_key: tag.then_some(KEY),
        }
    })
}

/// Generates random values, relevant values, relevant values with high bits, and two relevant values combined.
fn any_argument() -> impl Strategy<Value = u64> {
    let telling = || prop::sample::select(&TELLING[..]);
    prop_oneof![
        any::<u64>(),
        telling(),
        (telling(), any::<u32>()).prop_map(|(low, high)| low | u64::from(high) << 32),
        (telling(), telling()).prop_map(|(one, other)| one | other),
    ]
}

fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..480_u32, 1 => any::<u32>(), 1 => (0..480_u32).prop_map(|number| number | 0x4000_0000)]
}

fn any_audit() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => Just(None),
        1 => prop::sample::select(&[super::I386, super::ARM, super::X86_64, super::AARCH64][..]).prop_map(Some),
        1 => any::<u32>().prop_map(Some),
    ]
    .prop_map(|audit| audit.unwrap_or(0))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    /// Promise (Process isolation): The seccomp filter treats random system calls as its table states.
    #[test]
    fn random_calls_get_the_verdict_of_the_table(
        arch in prop::sample::select(&Arch::ALL[..]),
        options in any_options(),
        number in any_number(),
        audit in any_audit(),
        arguments in prop::array::uniform6(any_argument()),
    ) {
        let audit = if audit == 0 { arch.audit() } else { audit };
        let call = Call { number, arch: audit, arguments };
        check(arch, &options, &compile(arch, &options), &call);
        check_stages(arch, &options, &compile_stages(arch, &options), &call);
    }
}
