//! Tests of queries.

use std::fs::OpenOptions;
use std::io::Write;

use cofferdam_audit::*;

use crate::support::*;

#[test]
fn lines_are_found_by_id_tenant_and_time() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let log = Log::open(Config { segment_bytes: 0, ..config(directory.path()) }).unwrap();
    for (name, tenant, start) in [("a", "x", 10), ("b", "y\n", 20), ("c", "x", 30)] {
        let subject = Subject { tenant: Some(tenant.into()), start: Timestamp::from_micros(start), ..subject(name) };
        log.reserve(subject).unwrap().commit(outcome()).unwrap();
    }
    let found = |filter: Filter| -> Vec<String> {
        let all = query(&audit, filter).unwrap().map(|entry| entry.unwrap().record);
        all.filter(|record| matches!(record, Record::End(_))).map(|r| r.id().unwrap().as_str().to_owned()).collect()
    };
    let time = |micros| Some(Timestamp::from_micros(micros));
    assert_eq!(found(Filter::default()), ["a", "b", "c"]);
    assert_eq!(found(Filter { id: Some(id("b")), ..Filter::default() }), ["b"]);
    assert_eq!(found(Filter { tenant: Some("x".into()), ..Filter::default() }), ["a", "c"]);
    // A tenant is matched as it is written.
    assert_eq!(found(Filter { tenant: Some("y\n".into()), ..Filter::default() }), ["b"]);
    assert_eq!(found(Filter { from: time(20), ..Filter::default() }), ["b", "c"]);
    assert_eq!(found(Filter { from: time(20), until: time(30), ..Filter::default() }), ["b"]);
    let last = query(&audit, Filter { tenant: Some("x".into()), ..Filter::default() }).unwrap().tail(3).unwrap();
    let names: Vec<_> = last.iter().map(|entry| entry.record.id().unwrap().as_str()).collect();
    assert_eq!(names, ["a", "c", "c"]);
    let kinds: Vec<u64> = last.iter().map(|entry| entry.line).collect();
    assert_eq!(kinds, [3, 2, 3]);
}

/// A text is found in texts and numbers of a record, as it is written there, but not in names of fields.
#[test]
fn lines_are_found_by_text() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    for (name, tenant) in [("a", "Größe\n"), ("b", "y")] {
        let subject = Subject { tenant: Some(tenant.into()), ..subject(name) };
        log.reserve(subject).unwrap().commit(Outcome { duration_us: 987_654, ..outcome() }).unwrap();
    }
    let found = |text: &str| -> Vec<u64> {
        let filter = Filter { text: Some(text.to_owned()), ..Filter::default() };
        query(&directory.path().join("audit"), filter).unwrap().map(|entry| entry.unwrap().seq).collect()
    };
    assert_eq!(found("GRÖSSE"), [0; 0]);
    assert_eq!(found("GRÖß"), [2, 3]);
    assert_eq!(found("größe\\u{a}"), [2, 3]);
    assert_eq!(found("begin"), [2, 4], "the kind");
    assert_eq!(found("7654"), [3, 5]);
    for missing in ["tenant", "duration_us", "null", "false", "\"y\""] {
        assert_eq!(found(missing), [0; 0], "{missing}");
    }
}

#[test]
fn an_unfinished_line_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    execute(&Log::open(config(directory.path())).unwrap(), "a");
    let segment = directory.path().join("audit/audit-00000001.jsonl");
    OpenOptions::new().append(true).open(segment).unwrap().write_all(b"{\"v\":1").unwrap();
    let found: Vec<_> =
        query(&directory.path().join("audit"), Filter::default()).unwrap().map(|entry| entry.unwrap().seq).collect();
    assert_eq!(found, [1, 2, 3]);
}

#[test]
fn a_line_that_was_changed_is_an_error_and_the_next_is_not() {
    let directory = tempfile::tempdir().unwrap();
    execute(&Log::open(config(directory.path())).unwrap(), "a");
    let segment = directory.path().join("audit/audit-00000001.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap().replacen(r#""kind":"begin","#, r#""kind":"begun","#, 1);
    std::fs::write(&segment, text).unwrap();
    let all: Vec<_> = query(&directory.path().join("audit"), Filter::default()).unwrap().collect();
    assert!(all[0].is_ok() && matches!(all[1], Err(Error::Damaged { .. })) && all[2].is_ok());
    assert_eq!(all.len(), 3);
}

#[test]
fn a_segment_that_cannot_be_opened_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(Config { segment_bytes: 0, ..config(directory.path()) }).unwrap();
    execute(&log, "a");
    execute(&log, "b");
    drop(log);
    let segment = directory.path().join("audit/audit-00000002.jsonl");
    std::fs::remove_file(&segment).unwrap();
    std::os::unix::fs::symlink("/dev/null", &segment).unwrap();
    let found: Vec<_> = query(&directory.path().join("audit"), Filter::default()).unwrap().take(100).collect();
    assert!(found.len() < 100, "the same error without end");
    assert_eq!(found.iter().filter(|found| found.is_err()).count(), 1);
    assert!(found.last().unwrap().is_err());
}

/// Follows the pages of a log, and returns the numbers of their lines and the number of pages.
fn paged(audit: &std::path::Path, filter: &Filter, mut part: Part, count: usize) -> (Vec<u64>, usize) {
    let (mut all, mut pages) = (Vec::new(), 0);
    loop {
        let found = page(audit, filter, part, count).unwrap();
        assert!(found.entries.len() <= count);
        pages += 1;
        all.extend(found.entries.iter().map(|entry| entry.seq));
        match found.next {
            Some(next) => part = next,
            None => return (all, pages),
        }
    }
}

#[test]
fn pages_have_every_line_once_in_both_directions() {
    for segment_bytes in [0, 64 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let audit = directory.path().join("audit");
        let log = Log::open(Config { segment_bytes, ..config(directory.path()) }).unwrap();
        for number in 0..9 {
            let tenant = Some(if number % 3 == 0 { "x".into() } else { "y".into() });
            let subject = Subject { tenant, ..subject(&format!("e{number}")) };
            log.reserve(subject).unwrap().commit(outcome()).unwrap();
        }
        let all: Vec<_> = query(&audit, Filter::default()).unwrap().map(|entry| entry.unwrap().seq).collect();
        for filter in [
            Filter::default(),
            Filter { tenant: Some("x".into()), ..Filter::default() },
            Filter { kind: Some("end".to_owned()), ..Filter::default() },
            Filter { id: Some(id("e4")), ..Filter::default() },
            Filter { id: Some(id("none")), ..Filter::default() },
        ] {
            let expected: Vec<_> = query(&audit, filter.clone()).unwrap().map(|entry| entry.unwrap().seq).collect();
            let reversed: Vec<_> = expected.iter().rev().copied().collect();
            for count in [1, 2, 3, 100] {
                let (forward, _) = paged(&audit, &filter, Part::After(0), count);
                let (backward, _) = paged(&audit, &filter, Part::Before(u64::MAX), count);
                assert_eq!((forward, backward), (expected.clone(), reversed.clone()), "{filter:?} {count}");
            }
        }
        let middle = all[all.len() / 2];
        let (after, _) = paged(&audit, &Filter::default(), Part::After(middle), 2);
        let (before, _) = paged(&audit, &Filter::default(), Part::Before(middle), 2);
        assert_eq!(after, all[all.len() / 2 + 1..]);
        assert_eq!(before, all[..all.len() / 2].iter().rev().copied().collect::<Vec<_>>());
        // Many segments without a match are not read at once.
        let (_, pages) = paged(&audit, &Filter { id: Some(id("none")), ..Filter::default() }, Part::After(0), 10);
        assert_eq!(pages > 1, segment_bytes == 0, "{pages}");
    }
}

#[test]
fn every_kind_has_its_name_in_a_line() {
    let directory = tempfile::tempdir().unwrap();
    execute(&Log::open(config(directory.path())).unwrap(), "a");
    for entry in query(&directory.path().join("audit"), Filter::default()).unwrap() {
        let record = entry.unwrap().record;
        assert_eq!(serde_json::to_value(&record).unwrap()["kind"], record.kind());
        assert!(Record::KINDS.contains(&record.kind()));
    }
}
