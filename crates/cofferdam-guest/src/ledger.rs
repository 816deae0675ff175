//! The shares of execs in the CPU time that the sandbox's control group counts. The agent's report of shares is only a
//! claim. [`Shares`] bounds the advantage that a false report can bring.

use std::sync::Arc;

use cofferdam_contract::shares::Shares;
use parking_lot::{Mutex, MutexGuard};

use crate::record::RunningExec;
use crate::slots::Reply;
use crate::wire::Counts;

/// The shares of the execs of one sandbox.
#[derive(Default)]
pub struct ShareLedger(Mutex<Account>);

#[derive(Default)]
struct Account {
    shares: Shares,
    /// The highest count so far. A report that arrives after an earlier count may cover CPU time used after it.
    counted: u64,
}

impl Account {
    fn charged(&self, exec: u64) -> Option<u64> {
        self.shares.base(exec).map(|_| self.shares.charged(exec, self.counted))
    }
}

impl ShareLedger {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.0.lock()
    }

    /// Restores the shares from the record of a former host. `counted` is the current count, if there is one.
    pub fn resume(&self, counted: Option<u64>, execs: &[RunningExec]) {
        let Some(counted) = counted else { return };
        let charged = execs.iter().map(|exec| (exec.id, counted.saturating_sub(exec.cpu_base.unwrap_or(0))));
        let charged: Vec<(u64, u64)> = charged.collect();
        let mut account = self.account();
        account.counted = counted;
        account.shares.resume(counted, &charged);
    }

    /// Returns true if several execs run.
    pub fn is_shared(&self) -> bool {
        self.account().shares.are_several()
    }

    /// Returns the count at the start of an exec plus the CPU time since then that is known to belong to other execs.
    pub fn base(&self, exec: u64) -> Option<u64> {
        self.account().shares.base(exec)
    }

    /// Records the agent's report of shares. `ended` is an exec that has ended and the CPU time of its reaped
    /// processes.
    pub fn record(&self, reply: &Reply, ended: Option<(u64, u64)>) {
        let Reply::Shares { counts: Counts { cpu_micros: Some(counted), .. }, used } = reply else { return };
        let mut account = self.account();
        account.counted = account.counted.max(*counted);
        let counted = account.counted;
        let reaped = ended.map(|(exec, reaped)| {
            // The CPU time of reaped processes is in no running process.
            let left = used.iter().find(|(tag, _)| *tag == exec).map_or(0, |(_, micros)| *micros);
            (exec, left.saturating_add(reaped))
        });
        account.shares.saw(counted, used.iter().copied().chain(reaped));
    }
}

/// The share of one exec. Dropping it ends the share.
pub struct Share {
    ledger: Arc<ShareLedger>,
    exec: u64,
}

impl Share {
    /// Creates the share of an exec that has not begun, or of a reattached exec.
    pub fn new(ledger: &Arc<ShareLedger>, exec: u64) -> Self {
        Self { ledger: Arc::clone(ledger), exec }
    }

    /// Begins the share, if CPU time is counted. Execs must begin their shares in the order in which they started.
    pub fn begin(&self, counts: &Counts) {
        if let Some(counted) = counts.cpu_micros {
            let mut account = self.ledger.account();
            account.counted = account.counted.max(counted);
            account.shares.begin(self.exec, counted);
        }
    }

    /// Returns true if other execs run at the same time.
    pub fn has_company(&self) -> bool {
        self.ledger.account().shares.has_company(self.exec)
    }

    /// Returns the CPU time charged to the exec if the count is at least `counted`. Returns `None` if nothing was
    /// counted at its start.
    pub fn charged(&self, counted: u64) -> Option<u64> {
        let mut account = self.ledger.account();
        account.counted = account.counted.max(counted);
        account.charged(self.exec)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.ledger.account().shares.end(self.exec);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(micros: u64) -> Counts {
        Counts { cpu_micros: Some(micros), ..Counts::default() }
    }

    fn begun(ledger: &Arc<ShareLedger>, exec: u64, counted: u64) -> Share {
        let share = Share::new(ledger, exec);
        share.begin(&counts(counted));
        share
    }

    fn used(counted: u64, used: &[(u64, u64)]) -> Reply {
        Reply::Shares { counts: counts(counted), used: used.to_vec() }
    }

    /// Promise (Limits): In containers and VMs, an exec is charged with its own CPU time and with time of unknown
    /// origin.
    #[test]
    fn an_exec_is_charged_with_its_own_and_with_what_nobody_knows() {
        let ledger = Arc::new(ShareLedger::default());
        let one = begun(&ledger, 1, 100);
        assert!(!ledger.is_shared() && !one.has_company());
        let other = begun(&ledger, 2, 110);
        assert!(ledger.is_shared() && one.has_company());
        ledger.record(&used(200, &[(2, 60), (77, 9)]), None);
        assert_eq!((one.charged(200), other.charged(200)), (Some(40), Some(90)));
        // It has ended: its reaped processes used 15, and the running ones that it left have used 55.
        ledger.record(&used(205, &[(2, 55)]), Some((2, 15)));
        drop(other);
        assert_eq!(one.charged(205), Some(35));
        assert!(!one.has_company());
        assert_eq!(one.charged(150), Some(35), "a delayed answer");
    }

    #[test]
    fn where_nobody_counts_nobody_is_charged() {
        let ledger = Arc::new(ShareLedger::default());
        let share = Share::new(&ledger, 1);
        share.begin(&Counts::default());
        assert_eq!((share.charged(50), ledger.base(1)), (None, None));
        ledger.record(&Reply::Shares { counts: Counts::default(), used: vec![(1, 9)] }, None);
        assert_eq!(share.charged(50), None);
    }

    /// Promise (Limits): In containers and VMs, a reattached exec is not charged for the earlier time of other execs.
    #[test]
    fn what_was_others_is_not_charged_after_it_was_taken_over() {
        let ledger = Arc::new(ShareLedger::default());
        let (waiting, busy) = (begun(&ledger, 1, 0), begun(&ledger, 2, 10));
        let call = begun(&ledger, 3, 20);
        ledger.record(&used(60, &[(1, 10), (2, 8), (3, 32)]), None);
        drop(call);
        assert_eq!((waiting.charged(60), busy.charged(60)), (Some(20), Some(18)));
        let written =
            |id, base| RunningExec { id, elapsed: 0, wall: 1, cpu: None, cpu_base: base, script: false, kill_in: None };
        let record = [1, 2].map(|id| written(id, ledger.base(id)));
        let later = Arc::new(ShareLedger::default());
        let [waiting, busy] = [1, 2].map(|id| Share::new(&later, id));
        later.resume(Some(62), &record);
        assert_eq!((waiting.charged(62), busy.charged(62)), (Some(22), Some(20)));
        later.record(&used(162, &[(1, 10), (2, 108)]), None);
        assert_eq!((waiting.charged(162), busy.charged(162)), (Some(34), Some(120)));
        // An exec that began later is charged separately.
        let next = begun(&later, 5, 162);
        later.record(&used(262, &[(1, 10), (2, 108), (5, 100)]), None);
        assert_eq!([waiting.charged(262), busy.charged(262), next.charged(262)], [Some(34), Some(120), Some(100)]);
    }
}
