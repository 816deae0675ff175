//! Components that would exhaust the compiler's resources.

use std::fmt::Write;
use std::time::{Duration, Instant};

use cofferdam_contract::{Error, ErrorKind, Spec};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::componentize::component;
use crate::support::{assemble, limited, run};

async fn refused(text: &str) -> Error {
    let bytes = assemble(text);
    let started = Instant::now();
    let error = run(bytes, Spec::default()).await.expect_err("refused");
    println!("after {:?}: {error}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::NotExecutable, "{error}");
    error
}

#[tokio::test]
async fn instances_of_instances_are_counted_before_they_are_made() {
    // Each level has ten instances of the one below: a thousand million in total.
    let mut text = "(component (component $c0 (core module $m) (core instance (instantiate $m)))".to_owned();
    for level in 1..10 {
        let instances = format!("(instance (instantiate $c{}))", level - 1).repeat(10);
        let outer = format!("(alias outer 1 $c{0} (component $c{0}))", level - 1);
        write!(text, "(component $c{level} {outer} {instances})").unwrap();
    }
    text += "(instance (instantiate $c9)))";
    assert!(refused(&text).await.to_string().contains("too many instances"));
}

#[tokio::test]
async fn too_deep_nesting_is_refused() {
    for depth in [11, 90] {
        let text = format!("{}{}", "(component ".repeat(depth), ")".repeat(depth));
        assert!(refused(&text).await.to_string().contains("nested too deeply"));
    }
}

#[tokio::test]
async fn too_much_of_anything_is_refused() {
    let functions = "(func)".repeat(1100);
    for (what, inner) in [
        ("modules", "(core module)".repeat(201)),
        ("types", "(type (func))".repeat(50_001)),
        ("types", {
            let fields: String = (0..9_000).map(|n| format!("(field \"f{n}\" u8)")).collect();
            format!("(type (record {fields}))").repeat(6)
        }),
        ("functions", format!("(core module {functions})").repeat(190)),
        ("too many instances", {
            let arguments: String = (0..900).map(|n| format!("(with \"n{n}\" (instance $i))")).collect();
            format!(
                "(core module $m) (core instance $i) {}",
                format!("(core instance (instantiate $m {arguments}))").repeat(240)
            )
        }),
    ] {
        let error = refused(&format!("(component {inner})")).await;
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
}

#[tokio::test]
async fn components_that_are_passed_on_are_refused() {
    for text in [
        r#"(component (import "m" (core module)))"#,
        r#"(component (component $c) (export "c" (component $c)))"#,
        r#"(component (core module $m) (export "m" (core module $m)))"#,
        r#"(component (component $c) (instance $i (export "c" (component $c))) (alias export $i "c" (component $d)))"#,
        r#"(component (component $c) (component $d) (instance (instantiate $d (with "c" (component $c)))))"#,
    ] {
        let error = refused(text).await;
        assert!(error.to_string().contains("passes them on"), "{text}: {error}");
    }
}

#[tokio::test]
async fn forbidden_core_modules_inside_components_are_refused() {
    let blocks = "(if (i64.eqz (local.get 0)) (then (local.set 1 (i64.const 3))))".repeat(60_000);
    let locals = "i64 ".repeat(20_000);
    for module in [
        format!("(module (func (local i64 i64) {blocks}))"),
        format!("(module (func (local {locals}) {}))", "(local.set 0 (local.get 1))".repeat(4_000)),
        "(module (memory i64 1))".to_owned(),
        "(module (memory 1) (memory 1))".to_owned(),
        "(module (import \"a\" \"a\" (memory 1)) (memory 1))".to_owned(),
        "(module (func $f (return_call $f)))".to_owned(),
    ] {
        let module = module.replacen("(module", "(core module", 1);
        refused(&format!("(component (component {module}))")).await;
        refused(&format!("(component {module})")).await;
    }
}

#[tokio::test]
async fn every_cut_and_every_flipped_bit_is_answered() {
    let good = component("(call $print (i32.const 0) (i32.const 0)) (i32.const 0)");
    let spec = || limited(|limits| limits.wall_time = Duration::from_millis(500));
    for length in (0..good.len()).step_by(97) {
        assert!(run(good[..length].to_vec(), spec()).await.is_err(), "the first {length} bytes");
    }
    let mut runner = TestRunner::new(ProptestConfig { rng_seed: RngSeed::Fixed(5), ..ProptestConfig::default() });
    let flips = prop::collection::vec((8..good.len(), 0u8..8), 1..4);
    let (mut ran, mut refused) = (0, 0);
    for _ in 0..200 {
        let mut bytes = good.clone();
        for (at, bit) in flips.new_tree(&mut runner).unwrap().current() {
            bytes[at] ^= 1 << bit;
        }
        match run(bytes, spec()).await {
            Ok(_) => ran += 1,
            Err(error) => {
                assert!(!matches!(error.kind(), ErrorKind::Internal), "{error}");
                refused += 1;
            }
        }
    }
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} were refused");
}

/// Returns a type with this number of doublings.
fn doubled(name: &str, levels: usize) -> String {
    let mut text = format!("(type ${name}0 (tuple u8 u8))");
    for level in 1..=levels {
        write!(text, "(type ${name}{level} (tuple ${name}{0} ${name}{0}))", level - 1).unwrap();
    }
    text
}

#[tokio::test]
async fn a_type_of_too_many_parts_is_refused() {
    assert!(refused(&format!("(component {})", doubled("t", 18))).await.to_string().contains("parts"));
    // A type taken from an instance counts as large, too.
    let inner = |before: &str| {
        format!("(instance {before} {} (export \"t\" (type (eq $t9))))", doubled("t", 9).replace("u8 u8", "$a $a"))
    };
    let text = format!(
        "(component (type $b u8) (import \"i\" (instance $i {}))
           (alias export $i \"t\" (type $s)) (import \"j\" (instance $j {})))",
        &inner("(alias outer 1 $b (type $a))")["(instance".len()..inner("(alias outer 1 $b (type $a))").len() - 1],
        &inner("(alias outer 1 $s (type $a))")["(instance".len()..inner("(alias outer 1 $s (type $a))").len() - 1],
    );
    assert!(refused(&text).await.to_string().contains("parts"));
    for nested in [
        "(type (component))",
        "(type (instance (type (instance))))",
        "(type $i (instance)) (type (instance (alias outer 1 $i (type $j)) (export \"a\" (instance (type $j)))))",
        "(instance $i) (instance (export \"a\" (instance $i)))",
    ] {
        refused(&format!("(component {nested})")).await;
    }
}

#[tokio::test]
async fn many_functions_of_large_types_are_refused() {
    // Each alone is within the limits: two thousand functions, and a type of 16,000 parts.
    let component = |levels: usize, count: usize| {
        let functions = "(core func (canon lower (func $i \"f\") (memory (core memory $m \"m\"))))".repeat(count);
        format!(
            "(component {}
               (import \"i\" (instance $i (export \"f\" (func (param \"x\" (list u8))))))
               (core module $m (memory (export \"m\") 1)) (core instance $m (instantiate $m)) {functions})",
            doubled("t", levels)
        )
    };
    for (levels, count, large) in [(13, 10, false), (1, 2000, false), (13, 2000, true)] {
        let error = refused(&component(levels, count)).await.to_string();
        assert_eq!(error.contains("too many"), large, "{levels} {count}: {error}");
    }
}

#[tokio::test]
async fn types_nested_beyond_every_stack_are_refused() {
    // A type section of one type, which is an instance type of one declaration, which is a type, and so on.
    for (depth, reason) in [(490, "contains instances"), (600, "nested too deeply"), (2_000_000, "nested too deeply")] {
        let mut section = vec![1];
        for _ in 0..depth {
            section.extend([0x42, 1, 1]);
        }
        section.extend([0x42, 0]);
        let mut bytes = b"\0asm\x0d\0\x01\0\x07".to_vec();
        let mut length = section.len();
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend(section);
        let error = run(bytes, Spec::default()).await.expect_err("refused");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn large_types_between_components_take_no_long_time() {
    // Lists of a type of 4,000 parts, passed by each of a hundred functions of one component to another.
    let named = |name: &str| doubled(name, 11);
    let functions: String = (0..100)
        .map(|n| {
            format!(
                "(func $g{n} (type $f) (canon lift (core func $m \"f\") (memory (core memory $m \"m\"))
                   (realloc (core func $m \"r\"))))
                 (export \"g{n}\" (func $g{n}))"
            )
        })
        .collect();
    let imported: String = (0..100).map(|n| format!("(export \"g{n}\" (func (param \"x\" (list $t11))))")).collect();
    let lowered: String = (0..100)
        .map(|n| {
            format!(
                "(alias export $b \"g{n}\" (func $g{n}))
                 (core func (canon lower (func $g{n}) (memory (core memory $m \"m\"))))"
            )
        })
        .collect();
    let module = "(core module $m (memory (export \"m\") 1) (func (export \"f\") (param i32 i32))
        (func (export \"r\") (param i32 i32 i32 i32) (result i32) unreachable)
        (func (export \"run\") (result i32) (i32.const 0)))
        (core instance $m (instantiate $m))";
    let text = format!(
        "(component
           (component $b {module} {} (type $f (func (param \"x\" (list $t11)))) {functions})
           (component $a (import \"b\" (instance $b {} {imported})) {module} {lowered}
             (func $run (result (result)) (canon lift (core func $m \"run\")))
             (export \"run\" (func $run)))
           (instance $b (instantiate $b)) (instance $a (instantiate $a (with \"b\" (instance $b))))
           (alias export $a \"run\" (func $run))
           (instance $run (export \"run\" (func $run)))
           (export \"wasi:cli/run@0.2.0\" (instance $run)))",
        named("t"),
        named("t")
    );
    let started = Instant::now();
    let done = run(assemble(&text), Spec::default()).await;
    println!("after {:?}", started.elapsed());
    assert!(done.unwrap().exit.success());
}
