//! How many executions a log takes in a second.

use std::time::{Duration, Instant};

use cofferdam_audit::*;

use crate::made::*;

#[test]
#[ignore = "a measurement, not a test"]
fn executions_in_a_second() {
    for (name, sync) in
        [("never", Sync::Never), ("interval of 1 s", Sync::Interval(Duration::from_secs(1))), ("each", Sync::Each)]
    {
        for threads in [1, 8] {
            for key in [false, true] {
                let directory = tempfile::tempdir().unwrap();
                let key = key.then(|| key_file(directory.path()));
                let keyed = if key.is_some() { "with a key" } else { "without a key" };
                let log = Log::open(Config { key, sync, ..config(directory.path()) }).unwrap();
                let begun = Instant::now();
                let executed: u64 = std::thread::scope(|scope| {
                    let writing = |thread| {
                        let log = log.clone();
                        move || {
                            (0..)
                                .take_while(|number| {
                                    execute(&log, &format!("t{thread}-{number}"));
                                    begun.elapsed() < Duration::from_secs(2)
                                })
                                .count() as u64
                        }
                    };
                    let all: Vec<_> = (0..threads).map(|thread| scope.spawn(writing(thread))).collect();
                    all.into_iter().map(|thread| thread.join().unwrap()).sum()
                });
                let took = begun.elapsed();
                let rate = |count: u64| count as f64 / took.as_secs_f64();
                println!(
                    "{name}, {threads} threads, {keyed}: {:.0} executions/s, {:.0} lines/s",
                    rate(executed),
                    rate(2 * executed)
                );
                drop(log);
                let begun = Instant::now();
                let expect = Expect::default();
                let report = verify(&directory.path().join("audit"), &expect).unwrap();
                println!("    verified {:.0} MB/s", report.bytes as f64 / 1e6 / begun.elapsed().as_secs_f64());
                assert_eq!(report.verdict, Verdict::Whole, "{report}");
            }
        }
    }
}
