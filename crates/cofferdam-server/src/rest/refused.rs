//! The audit records of calls of unknown callers, and of tenants that may write no more records. They are few, so that
//! such callers cannot fill the disk.

use std::time::{Duration, Instant};

use cofferdam_audit::{ApiCall, Text, Timestamp};
use parking_lot::Mutex;

use super::App;
use super::authentication::record;
use crate::caller::Caller;
use crate::identity::{Peer, keys};
use crate::layers::audit::blocking;
use crate::report;

/// The records of one window. Further calls are only counted.
const MAX_RECORDS: u32 = 20;
/// The length of a window.
const WINDOW: Duration = Duration::from_secs(60);

/// The records so far.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    begun: Option<Instant>,
    records: u32,
    /// The calls since the last record.
    unrecorded: u64,
}

impl Refusals {
    /// Counts a call. Returns the number of earlier calls without a record if this one gets one.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock();
        if window.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= WINDOW) {
            (window.begun, window.records) = (Some(now), 0);
        }
        if window.records == MAX_RECORDS {
            window.unrecorded = window.unrecorded.saturating_add(1);
            return None;
        }
        window.records += 1;
        Some(std::mem::take(&mut window.unrecorded))
    }
}

/// A call that is refused before anything of it is done.
pub(super) struct Refused<'a> {
    /// The caller, if it is known and may write no more records.
    pub caller: Option<&'a Caller>,
    pub peer: &'a Peer,
    pub method: &'a str,
    pub endpoint: &'a str,
    pub bearer: Option<&'a str>,
    pub status: u16,
    pub begun: Instant,
}

/// Records a call. The key is not recorded, only its public part. Nothing of it was done, so a log that fails changes
/// nothing for the caller.
pub(super) async fn record_refused(app: &App, refused: Refused<'_>) {
    let Some(log) = app.services().audit.clone() else { return };
    let is_known = refused.caller.is_some();
    let Some(unrecorded) = app.refusals(is_known).admit(Instant::now()) else { return };
    let presented = refused.bearer.and_then(keys::public_part).unwrap_or_default();
    let call = ApiCall {
        tenant: Text::new(refused.caller.map_or("", |caller| caller.tenant.as_str())),
        key: Text::new(refused.caller.map_or(presented, |caller| &caller.key)),
        peer: Text::new(refused.peer.to_string()),
        time: Timestamp::now(),
        method: Text::new(refused.method),
        endpoint: Text::new(refused.endpoint),
        sandbox: None,
        status: refused.status,
        duration_us: u64::try_from(refused.begun.elapsed().as_micros()).unwrap_or(u64::MAX),
        // A tenant reads its record, and the number includes calls of other tenants.
        unrecorded: if is_known { 0 } else { unrecorded },
    };
    if let Err(error) = blocking(move || record(&log, call)).await {
        report::warning(&format!("a refused call could not be recorded: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Server): Callers without a key cannot fill the audit log: few of their calls have a record, and the others
    /// are counted.
    #[test]
    fn refused_calls_beyond_a_window_are_counted() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let recorded = (0..1000).filter(|_| refusals.admit(now).is_some()).count();
        assert_eq!(recorded, MAX_RECORDS as usize);
        assert_eq!(refusals.admit(now + WINDOW / 2), None);
        assert_eq!(refusals.admit(now + WINDOW), Some(1001 - u64::from(MAX_RECORDS)));
        assert_eq!(refusals.admit(now + WINDOW), Some(0));
    }
}
