use std::time::Duration;

use chrono::DateTime;
use proptest::prelude::*;

use super::super::testing::{Fixture, caller};
use super::*;

const ICS: &str = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VTIMEZONE\r\nTZID:Europe/Berlin\r\nBEGIN:STANDARD\r\n\
    DTSTART:19701025T030000\r\nEND:STANDARD\r\nEND:VTIMEZONE\r\nBEGIN:VEVENT\r\nUID:standup@example.com\r\n\
    DTSTART;TZID=\"Europe/Berlin\":20260327T090000\r\nDURATION:PT15M\r\nRRULE:FREQ=DAILY;UNTIL=20260401T220000Z\r\n\
    EXDATE;TZID=Europe/Berlin:20260328T090000\r\nBEGIN:VALARM\r\nTRIGGER:-PT5M\r\nSUMMARY:alarm\r\nEND:VALARM\r\n\
    SUMMARY:Stand\r\n -up\\, daily\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nUID:standup@example.com\r\n\
    RECURRENCE-ID;TZID=Europe/Berlin:20260330T090000\r\nDTSTART;TZID=Europe/Berlin:20260330T100000\r\n\
    SUMMARY:Later\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nUID:holiday\r\nDTSTART;VALUE=DATE:20260331\r\nSUMMARY:Holiday\r\n\
    END:VEVENT\r\nEND:VCALENDAR\r\n";

async fn query(fixture: &Fixture, caller: &Caller, from: &str, to: &str) -> Vec<String> {
    let found = fixture.ok(caller, "calendar.query", json!({"from": from, "to": to})).await;
    let text = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
    let found = found["occurrences"].as_array().unwrap().iter();
    found.map(|found| format!("{} {}", text(found, "start"), text(found, "summary"))).collect()
}

#[tokio::test]
async fn entries_are_shared_by_the_plugins_of_a_tenant() {
    let mut fixture = Fixture::new();
    let (a, b) = (caller("a", Some("t")), caller("b", Some("t")));
    let entry = json!({
        "summary": "Review", "start": "2026-03-28T09:00:00+01:00", "end": "2026-03-28T10:00:00+01:00",
        "timezone": "Europe/Berlin", "rrule": "FREQ=DAILY;COUNT=2", "location": "Room 1",
    });
    let id = fixture.ok(&a, "calendar.create", entry).await["id"].clone();
    fixture.reopen();
    let read = fixture.ok(&b, "calendar.read", json!({"id": id})).await;
    let expected = json!({
        "id": id, "summary": "Review", "start": "2026-03-28T09:00:00+01:00", "end": "2026-03-28T10:00:00+01:00",
        "timezone": "Europe/Berlin", "allDay": false, "rrule": "FREQ=DAILY;COUNT=2", "exceptions": [],
        "description": null, "location": "Room 1",
    });
    assert_eq!(read, expected);
    assert_eq!(fixture.err(&caller("a", None), "calendar.read", json!({"id": id})).await.kind, ErrorKind::NotFound);
    let found = query(&fixture, &b, "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z").await;
    assert_eq!(found, ["2026-03-28T09:00:00+01:00 Review", "2026-03-29T09:00:00+02:00 Review"]);
    // An occurrence that has begun overlaps, and one that has ended does not.
    assert_eq!(query(&fixture, &b, "2026-03-28T08:59:59Z", "2026-03-28T10:00:00Z").await.len(), 1);
    assert_eq!(query(&fixture, &b, "2026-03-28T09:00:00Z", "2026-03-28T10:00:00Z").await.len(), 0);
    assert_eq!(fixture.ok(&b, "calendar.delete", json!({"id": id})).await, json!({"deleted": true}));
    assert_eq!(fixture.ok(&b, "calendar.delete", json!({"id": id})).await, json!({"deleted": false}));
}

#[tokio::test]
async fn icalendar_is_imported_and_exported() {
    let fixture = Fixture::new();
    let a = caller("a", None);
    let ids = fixture.ok(&a, "calendar.import", json!({"ics": ICS})).await["ids"].clone();
    assert_eq!((&ids[0], &ids[2]), (&json!("standup@example.com"), &json!("holiday")));
    let expected = [
        "2026-03-27T09:00:00+01:00 Stand-up, daily",
        "2026-03-29T09:00:00+02:00 Stand-up, daily",
        "2026-03-30T10:00:00+02:00 Later",
        "2026-03-31T00:00:00Z Holiday",
        "2026-03-31T09:00:00+02:00 Stand-up, daily",
        "2026-04-01T09:00:00+02:00 Stand-up, daily",
    ];
    let (from, to) = ("2026-03-01T00:00:00Z", "2026-05-01T00:00:00Z");
    assert_eq!(query(&fixture, &a, from, to).await, expected);
    // The same events again replace the entries.
    assert_eq!(fixture.ok(&a, "calendar.import", json!({"ics": ICS})).await["ids"], ids);
    let exported = fixture.ok(&a, "calendar.export", json!({})).await["ics"].clone();
    let b = caller("b", Some("other"));
    fixture.ok(&b, "calendar.import", json!({"ics": exported})).await;
    assert_eq!(query(&fixture, &b, from, to).await, expected);
    let one = fixture.ok(&a, "calendar.export", json!({"ids": ["holiday"]})).await["ics"].clone();
    assert!(one.as_str().unwrap().contains("DTSTART;VALUE=DATE:20260331\r\n"), "{one}");
    assert_eq!(one.as_str().unwrap().matches("BEGIN:VEVENT").count(), 1);
    assert_eq!(fixture.err(&a, "calendar.export", json!({"ids": ["x"]})).await.kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn hostile_icalendar_is_refused() {
    let fixture = Fixture::with(|config| config.limits.calendar.count = 1500);
    let a = caller("a", None);
    let event = |lines: &str| format!("BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:x\n{lines}\nEND:VEVENT\nEND:VCALENDAR");
    let many = "BEGIN:VEVENT\nUID:x\nDTSTART:20260101T000000Z\nEND:VEVENT\n".repeat(MAX_IMPORT + 1);
    for (ics, reason) in [
        ("BEGIN:X\n".repeat(100_000), "begins no VCALENDAR"),
        (format!("BEGIN:VCALENDAR\n{}", "BEGIN:X\n".repeat(100_000)), "ends within"),
        (format!("BEGIN:VCALENDAR\n{many}END:VCALENDAR"), "more than 1000"),
        ("END:VCALENDAR".to_owned(), "did not begin"),
        ("no line".to_owned(), "line 1: it has no name"),
        (event(""), "no UID or DTSTART"),
        (event("DTSTART:2026"), "line 4: DTSTART is no time"),
        (event("DTSTART;TZID=W. Europe Standard Time:20260101T000000"), "TZID is no name"),
        (event("DTSTART:20260101T000000Z\nDURATION:P99999999W"), "1900 to 2200"),
        (event("DTSTART:20260101T000000Z\nRDATE:20260102T000000Z"), "RDATE is not supported"),
        (event("DTSTART:20260101T000000Z\nRRULE:FREQ=SECONDLY;UNTIL=30260101T000000Z"), "more often than hourly"),
        (event(&format!("DTSTART:20260101T000000Z\nEXDATE:{}20260102", "20260102,".repeat(1000))), "left-out"),
    ] {
        let error = fixture.err(&a, "calendar.import", json!({"ics": ics})).await;
        assert_eq!(error.kind, ErrorKind::InvalidParams, "{reason}");
        assert!(error.message.contains(reason), "{reason}: {error}");
    }
    let large = " ".repeat(MAX_ICS + 1);
    assert_eq!(fixture.err(&a, "calendar.import", json!({"ics": large})).await.kind, ErrorKind::Limit);
    // A refused import leaves nothing behind, not even its first events.
    let exported = fixture.ok(&a, "calendar.export", json!({})).await;
    assert!(!exported["ics"].as_str().unwrap().contains("VEVENT"));
}

#[tokio::test]
async fn queries_are_bounded_in_time_and_results() {
    let mut fixture = Fixture::new();
    let a = caller("a", None);
    for hour in 0..2 {
        let start = format!("1900-01-01T0{hour}:00:00Z");
        let entry = json!({"summary": hour.to_string(), "start": start, "rrule": "FREQ=DAILY"});
        fixture.ok(&a, "calendar.create", entry).await;
    }
    let range = json!({"from": "1900-01-01T00:00:00Z", "to": "2200-01-01T00:00:00Z", "limit": 3});
    let found = fixture.ok(&a, "calendar.query", range.clone()).await;
    let starts: Vec<_> = found["occurrences"].as_array().unwrap().iter().map(|found| found["start"].clone()).collect();
    assert_eq!(starts, ["1900-01-01T00:00:00Z", "1900-01-01T01:00:00Z", "1900-01-02T00:00:00Z"]);
    fixture.services = None;
    let mut config = fixture.config();
    config.limits.recurrence = Duration::ZERO;
    fixture.services = Some(super::super::Services::open(config).unwrap());
    assert_eq!(fixture.err(&a, "calendar.query", range).await.kind, ErrorKind::Limit);
    assert_eq!(fixture.err(&a, "calendar.import", json!({"ics": ICS})).await.kind, ErrorKind::Limit);
}

#[tokio::test]
async fn invalid_entries_are_refused_and_the_quota_holds() {
    let fixture = Fixture::with(|config| config.limits.calendar.count = 1);
    let a = caller("a", None);
    let start = "2026-01-01T00:00:00Z";
    for bad in [
        json!({"summary": "", "start": start}),
        json!({"summary": "x", "start": "2026-01-01"}),
        json!({"summary": "x", "start": start, "end": "2025-01-01T00:00:00Z"}),
        json!({"summary": "x", "start": "1800-01-01T00:00:00Z"}),
        json!({"summary": "x", "start": start, "timezone": "CEST"}),
        json!({"summary": "x", "start": start, "rrule": "FREQ=DAILY;COUNT=0;BYDAY=XX"}),
        json!({"summary": "x", "start": start, "id": "mine"}),
    ] {
        assert_eq!(fixture.err(&a, "calendar.create", bad.clone()).await.kind, ErrorKind::InvalidParams, "{bad}");
    }
    fixture.ok(&a, "calendar.create", json!({"summary": "x", "start": start})).await;
    // The quota is the tenant's, whichever plugin writes.
    let more = json!({"summary": "x", "start": start});
    assert_eq!(fixture.err(&caller("b", None), "calendar.create", more.clone()).await.kind, ErrorKind::Limit);
    fixture.ok(&caller("b", Some("t")), "calendar.create", more).await;
    let backwards = json!({"from": start, "to": start});
    assert_eq!(fixture.err(&a, "calendar.query", backwards).await.kind, ErrorKind::InvalidParams);
}

proptest! {
    /// An exported entry is imported as the same, with any texts.
    #[test]
    fn exported_entries_are_imported_as_the_same(
        summary in "[^\\p{Cc}]{1,99}", description in proptest::option::of("[^\\p{Cc}\u{2028}]{0,200}(\n[a-z]{0,9}){0,3}"),
        start in 0..4_000_000_000_i64, zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Asia/Kathmandu"]),
    ) {
        let start = DateTime::from_timestamp(start, 0).unwrap();
        // The second of two equal local times has no form in iCalendar.
        let zone_start = start.with_timezone(&zone.parse::<chrono_tz::Tz>().unwrap());
        prop_assume!(recurrence::instant(zone_start.naive_local(), zone_start.timezone()) == zone_start);
        let entry = Entry {
            id: "x".into(), summary, start, end: start, timezone: zone.into(), all_day: false, rrule: None,
            exceptions: vec![start], description, location: None,
        };
        let ics = ics::print(std::iter::once(&entry), start);
        prop_assert!(ics.split("\r\n").all(|line| line.len() <= 75));
        prop_assert_eq!(ics::parse(&ics, 1, Instant::now() + Duration::from_secs(600)).unwrap(), [entry]);
    }

    #[test]
    fn any_icalendar_is_answered(lines in proptest::collection::vec("(BEGIN:VEVENT|END:VEVENT|BEGIN:V|[A-Z-]{0,9}[;:=\"][ -~]{0,20}|DTSTART:[0-9TZ]{0,16}|DURATION:[PTWDHMS0-9+-]{0,12})", 0..20)) {
        let text = format!("BEGIN:VCALENDAR\n{}\nEND:VCALENDAR", lines.join("\n"));
        let _ = ics::parse(&text, 10, Instant::now() + Duration::from_secs(600));
    }
}
