//! Tests of the table's order.
use super::super::describe;
use super::super::rule::{Action, Verdict};
use super::super::rules::RULES;
use super::{Arch, number};

#[test]
fn rules_are_sorted_and_unique() {
    for pair in RULES.windows(2) {
        assert!(pair[0].name < pair[1].name, "{} stands before {}", pair[0].name, pair[1].name);
    }
}

/// Promise (Process isolation): Every allowed system call states its reason.
#[test]
fn every_rule_has_a_reason() {
    for rule in RULES {
        assert!(!rule.why.trim().is_empty(), "{}", rule.name);
    }
}

#[test]
fn every_rule_names_a_call_of_some_architecture() {
    for rule in RULES {
        assert!(Arch::ALL.iter().any(|arch| number(*arch, rule.name).is_some()), "{} is no system call", rule.name);
    }
}

#[test]
fn verdicts_by_arguments_have_cases_with_tests() {
    for rule in RULES {
        if let Verdict::ByArguments { cases, .. } = rule.verdict {
            assert!(!cases.is_empty() && cases.iter().all(|case| !case.when.is_empty()), "{}", rule.name);
            assert!(cases.iter().all(|case| case.then != Action::KillProcess), "{}", rule.name);
        }
    }
}

/// The crate with the numbers is generated. These come from the kernel's headers.
///
/// Promise (Process isolation): The seccomp table has the kernel's system call numbers.
#[test]
fn numbers_are_those_of_the_kernel() {
    let known = [
        ("read", 0, 63),
        ("mmap", 9, 222),
        ("ioctl", 16, 29),
        ("socket", 41, 198),
        ("clone", 56, 220),
        ("ptrace", 101, 117),
        ("prctl", 157, 167),
        ("mount", 165, 40),
        ("keyctl", 250, 219),
        ("openat", 257, 56),
        ("unshare", 272, 97),
        ("prlimit64", 302, 261),
        ("seccomp", 317, 277),
        ("bpf", 321, 280),
        ("io_uring_setup", 425, 425),
        ("clone3", 435, 435),
        ("file_setattr", 469, 469),
    ];
    for (name, x86_64, aarch64) in known {
        assert_eq!(number(Arch::X86_64, name), Some(x86_64), "{name}");
        assert_eq!(number(Arch::Aarch64, name), Some(aarch64), "{name}");
    }
}

#[test]
fn description_covers_every_known_call_with_verdict_and_reason() {
    for arch in Arch::ALL {
        let described: Vec<_> = describe(arch).collect();
        assert_eq!(described.len(), arch.table().filter(|(_, name)| name.is_some()).count());
        assert!(described.iter().all(|(_, verdict, why)| !verdict.is_empty() && !why.is_empty()));
        assert!(described.iter().all(|(_, verdict, _)| !verdict.contains("errno")), "an error without a name");
    }
    let verdict = |wanted| describe(Arch::X86_64).find(|(name, ..)| *name == wanted).map(|(_, verdict, _)| verdict);
    assert_eq!(verdict("read").as_deref(), Some("allow"));
    assert_eq!(verdict("tuxcall").as_deref(), Some("EPERM"));
    assert_eq!(
        verdict("open").as_deref(),
        Some("EPERM if arg1 & 0x400040 is not 0 and arg2 & 0xc00 is not 0; else allow")
    );
    assert_eq!(
        verdict("setrlimit").as_deref(),
        Some("EPERM if arg0 in {0xf}; success without effect if arg0 in {0x4}; else allow")
    );
}
