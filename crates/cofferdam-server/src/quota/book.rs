//! The book of reservations and of usage, by tenant and in total.
//!
//! A reservation is made before a sandbox exists and settled when it has ended. What was used counts by day.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Limits, TenantId};

use super::{Bucket, Capacity, Quota, Total};
use crate::store::Usage;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The needs of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Memory, in mebibytes.
    pub memory_mib: u64,
    /// Disk, in mebibytes.
    pub disk_mib: u64,
}

/// The reservation of a sandbox. It must be released.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Reservation {
    tenant: TenantId,
    demand: Demand,
}

/// The reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The tenant's quota or rate is used up. It may have room after the time.
    Quota {
        /// The name of the quota.
        what: &'static str,
        /// The time after which a retry may succeed.
        wait: Duration,
    },
    /// A quota of all tenants together is used up. It may have room after the time.
    Total {
        /// The name of the quota.
        what: &'static str,
        /// The time after which a retry may succeed.
        wait: Duration,
    },
    /// The host is full.
    Full,
}

#[derive(Debug, Default)]
struct Account {
    sandboxes: u32,
    memory_mib: u64,
    disk_mib: u64,
    /// The day that `used` counts.
    day: i64,
    used: Usage,
    requests: Option<Bucket>,
    execs: Option<Bucket>,
}

/// The book of reservations and of usage. Times count from 1970.
#[derive(Debug, Default)]
pub struct Book {
    accounts: BTreeMap<TenantId, Account>,
    quotas: BTreeMap<TenantId, Quota>,
    default: Quota,
    capacity: Capacity,
    total: Total,
    sandboxes: u32,
    memory_mib: u64,
    disk_mib: u64,
    /// The usage of all tenants on a day.
    used: (i64, Usage),
}

/// Returns the day of a time.
pub fn day_of(now: Duration) -> i64 {
    i64::try_from(now.as_secs() / DAY.as_secs()).unwrap_or(i64::MAX)
}

/// The time after which a quota of live sandboxes is checked again.
const LATER: Duration = Duration::from_secs(1);

impl Book {
    /// Creates an empty book.
    pub fn new(default: Quota, capacity: Capacity) -> Self {
        Self { default, capacity, ..Self::default() }
    }

    /// Replaces the quotas of tenants that differ from the default. Takes effect at once.
    pub fn set_quotas(&mut self, quotas: BTreeMap<TenantId, Quota>) {
        self.quotas = quotas;
    }

    /// Replaces the quota of tenants that have none of their own, and that of all tenants together. Takes effect at once.
    pub fn set_default(&mut self, default: Quota, total: Total) {
        (self.default, self.total) = (default, total);
    }

    /// Returns a tenant's quota.
    pub fn quota(&self, tenant: &TenantId) -> Quota {
        self.quotas.get(tenant).copied().unwrap_or(self.default)
    }

    /// Returns a tenant's live sandboxes, their memory in mebibytes, and its usage of the day.
    pub fn state(&self, tenant: &TenantId, now: Duration) -> (u32, u64, Usage) {
        let today = |account: &Account| if account.day == day_of(now) { account.used } else { Usage::default() };
        self.accounts
            .get(tenant)
            .map_or_else(Default::default, |account| (account.sandboxes, account.memory_mib, today(account)))
    }

    /// Returns the disk of a tenant's live sandboxes, in mebibytes.
    pub fn disk_mib(&self, tenant: &TenantId) -> u64 {
        self.accounts.get(tenant).map_or(0, |account| account.disk_mib)
    }

    /// Returns the first limit that a sandbox of a tenant lacks although a quota or the capacity counts it.
    pub fn missing_limit(&self, tenant: &TenantId, limits: &Limits) -> Option<&'static str> {
        let (quota, total) = (self.quota(tenant), &self.total);
        let memory_per_day = quota.memory_gib_seconds_per_day.or(total.memory_gib_seconds_per_day);
        let memory = quota.memory.or(self.capacity.memory).is_some() || memory_per_day.is_some();
        let disk = quota.disk.or(total.disk).is_some();
        let counted = [("memory", memory, limits.memory), ("disk", disk, limits.disk)];
        counted.into_iter().find_map(|(what, counts, limit)| (counts && limit.is_none()).then_some(what))
    }

    /// Returns true if a quota of the tenant or of all tenants counts the bytes of the network.
    pub fn counts_egress(&self, tenant: &TenantId) -> bool {
        self.quota(tenant).egress_per_day.or(self.total.egress_per_day).is_some()
    }

    /// Checks the quotas of a tenant and of all tenants for a sandbox, without the capacity of the host.
    ///
    /// # Errors
    /// - [`Refused::Quota`] or [`Refused::Total`].
    pub fn check(&self, tenant: &TenantId, demand: Demand, now: Duration) -> Result<(), Refused> {
        let quota = self.quota(tenant);
        let (sandboxes, memory_mib, used) = self.state(tenant, now);
        let refuse = |what, wait| Err(Refused::Quota { what, wait });
        if quota.sandboxes.is_some_and(|max| sandboxes >= max) {
            return refuse("sandboxes", LATER);
        }
        if quota.memory.is_some_and(|max| memory_mib + demand.memory_mib > mib(max)) {
            return refuse("memory", LATER);
        }
        if quota.disk.is_some_and(|max| self.disk_mib(tenant) + demand.disk_mib > mib(max)) {
            return refuse("disk", LATER);
        }
        self.check_day(&quota, &used, now)
    }

    fn check_day(&self, quota: &Quota, used: &Usage, now: Duration) -> Result<(), Refused> {
        let of_tenant = Total {
            disk: None,
            cpu_seconds_per_day: quota.cpu_seconds_per_day,
            memory_gib_seconds_per_day: quota.memory_gib_seconds_per_day,
            egress_per_day: quota.egress_per_day,
        };
        let wait = tomorrow(now);
        match used_up(&of_tenant, used) {
            Some(what) => return Err(Refused::Quota { what, wait }),
            None if self.used.0 != day_of(now) => return Ok(()),
            None => {}
        }
        used_up(&self.total, &self.used.1).map_or(Ok(()), |what| Err(Refused::Total { what, wait }))
    }

    /// Checks that a tenant may write further audit records.
    ///
    /// # Errors
    /// - [`Refused::Quota`].
    pub fn audit(&self, tenant: &TenantId, now: Duration) -> Result<(), Refused> {
        let written = u64::try_from(self.state(tenant, now).2.audit_bytes).unwrap_or(0);
        match self.quota(tenant).audit_per_day {
            Some(max) if written >= max.as_bytes() => {
                Err(Refused::Quota { what: "audit_per_day", wait: tomorrow(now) })
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the host has room for a sandbox.
    pub fn has_room(&self, demand: Demand) -> bool {
        let Capacity { sandboxes, memory } = self.capacity;
        sandboxes.is_none_or(|max| self.sandboxes < max)
            && memory.is_none_or(|max| self.memory_mib + demand.memory_mib <= mib(max))
            && self.total.disk.is_none_or(|max| self.disk_mib + demand.disk_mib <= mib(max))
    }

    /// Returns true if the host could have room for a sandbox if it were empty.
    pub fn could_fit(&self, demand: Demand) -> bool {
        let Capacity { sandboxes, memory } = self.capacity;
        sandboxes != Some(0)
            && memory.is_none_or(|max| demand.memory_mib <= mib(max))
            && self.total.disk.is_none_or(|max| demand.disk_mib <= mib(max))
    }

    /// Reserves what a sandbox needs.
    ///
    /// # Errors
    /// - [`Refused`].
    pub fn reserve(&mut self, tenant: &TenantId, demand: Demand, now: Duration) -> Result<Reservation, Refused> {
        self.check(tenant, demand, now)?;
        if !self.has_room(demand) {
            return Err(Refused::Full);
        }
        Ok(self.hold(tenant, demand))
    }

    /// Reserves what a sandbox has that exists already, whatever the quotas are.
    pub fn hold(&mut self, tenant: &TenantId, demand: Demand) -> Reservation {
        let account = self.accounts.entry(tenant.clone()).or_default();
        account.sandboxes += 1;
        account.memory_mib += demand.memory_mib;
        account.disk_mib += demand.disk_mib;
        self.sandboxes += 1;
        self.memory_mib += demand.memory_mib;
        self.disk_mib += demand.disk_mib;
        Reservation { tenant: tenant.clone(), demand }
    }

    /// Releases what a sandbox had reserved.
    pub fn release(&mut self, reservation: Reservation) {
        let Reservation { tenant, demand } = reservation;
        self.sandboxes = self.sandboxes.saturating_sub(1);
        self.memory_mib = self.memory_mib.saturating_sub(demand.memory_mib);
        self.disk_mib = self.disk_mib.saturating_sub(demand.disk_mib);
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.sandboxes = account.sandboxes.saturating_sub(1);
            account.memory_mib = account.memory_mib.saturating_sub(demand.memory_mib);
            account.disk_mib = account.disk_mib.saturating_sub(demand.disk_mib);
        }
    }

    /// Adds what a tenant has used.
    pub fn add(&mut self, tenant: &TenantId, day: i64, usage: &Usage) {
        let account = self.accounts.entry(tenant.clone()).or_default();
        if account.day < day {
            (account.day, account.used) = (day, Usage::default());
        }
        if account.day == day {
            account.used.add(usage);
        }
        if self.used.0 < day {
            self.used = (day, Usage::default());
        }
        if self.used.0 == day {
            self.used.1.add(usage);
        }
    }

    /// Raises what a tenant has used to an amount that another process has written, too.
    pub fn raise(&mut self, tenant: &TenantId, day: i64, usage: &Usage) {
        let account = self.accounts.get(tenant).filter(|account| account.day == day);
        let known = account.map_or_else(Usage::default, |account| account.used);
        self.add(tenant, day, &usage.since(&known));
    }

    /// Counts a request against the tenant's rate.
    ///
    /// # Errors
    /// - [`Refused::Quota`].
    pub fn request(&mut self, tenant: &TenantId, now: Duration) -> Result<(), Refused> {
        let rate = self.quota(tenant).requests_per_second;
        let Some(rate) = rate else { return Ok(()) };
        let account = self.accounts.entry(tenant.clone()).or_default();
        take(&mut account.requests, rate, now, "requests_per_second")
    }

    /// Counts the start of an exec against the tenant's rate and its quotas of the day.
    ///
    /// # Errors
    /// - [`Refused::Quota`].
    pub fn exec(&mut self, tenant: &TenantId, now: Duration) -> Result<(), Refused> {
        let quota = self.quota(tenant);
        let (_, _, used) = self.state(tenant, now);
        self.check_day(&quota, &used, now)?;
        let Some(rate) = quota.execs_per_second else { return Ok(()) };
        let account = self.accounts.entry(tenant.clone()).or_default();
        take(&mut account.execs, rate, now, "execs_per_second")
    }

    /// Forgets tenants about which nothing is known that a new account does not have.
    pub fn prune(&mut self, now: Duration) {
        let today = day_of(now);
        self.accounts.retain(|_, account| {
            let buckets = [&mut account.requests, &mut account.execs];
            let idle = buckets.into_iter().flatten().all(|bucket| bucket.is_full(now));
            account.sandboxes > 0 || account.day >= today || !idle
        });
    }
}

/// Returns the whole mebibytes of a size. A size in mebibytes exceeds it exactly if it exceeds these.
fn mib(size: ByteSize) -> u64 {
    size.as_bytes() >> 20
}

/// Returns the time until the next day.
fn tomorrow(now: Duration) -> Duration {
    Duration::from_secs(DAY.as_secs() - now.as_secs() % DAY.as_secs())
}

/// Returns the name of a quota of a day that is used up.
fn used_up(quota: &Total, used: &Usage) -> Option<&'static str> {
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    let memory_seconds = count(used.memory_mib_ms) / 1024 / 1000;
    let quotas = [
        ("cpu_seconds_per_day", quota.cpu_seconds_per_day, count(used.cpu_us) / 1_000_000),
        ("memory_gib_seconds_per_day", quota.memory_gib_seconds_per_day, memory_seconds),
        ("egress_per_day", quota.egress_per_day.map(|max| max.as_bytes()), count(used.egress_bytes)),
    ];
    let over = |(what, max, used): (&'static str, Option<u64>, u64)| (used >= max?).then_some(what);
    quotas.into_iter().find_map(over)
}

fn take(bucket: &mut Option<Bucket>, rate: u32, now: Duration, what: &'static str) -> Result<(), Refused> {
    let bucket = bucket.get_or_insert_with(|| Bucket::new(rate, now));
    bucket.set_rate(rate, now);
    bucket.take(now).map_err(|wait| Refused::Quota { what, wait })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: Demand = Demand { memory_mib: 100, disk_mib: 10 };

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn cause_of(refused: Result<Reservation, Refused>) -> &'static str {
        match refused.unwrap_err() {
            Refused::Quota { what, .. } => what,
            Refused::Total { what, .. } => what,
            Refused::Full => "full",
        }
    }

    #[test]
    fn tenant_quotas_and_host_capacity_are_respected() {
        let quota = Quota { sandboxes: Some(2), memory: Some(ByteSize::from_mebibytes(250)), ..Quota::default() };
        let capacity = Capacity { sandboxes: Some(3), memory: Some(ByteSize::from_mebibytes(1000)) };
        let mut book = Book::new(quota, capacity);
        let (now, a, b) = (Duration::from_secs(100), tenant("a"), tenant("b"));
        let first = book.reserve(&a, SMALL, now).unwrap();
        assert_eq!(cause_of(book.reserve(&a, Demand { memory_mib: 151, ..SMALL }, now)), "memory");
        let second = book.reserve(&a, SMALL, now).unwrap();
        assert_eq!(cause_of(book.reserve(&a, SMALL, now)), "sandboxes");
        let third = book.reserve(&b, SMALL, now).unwrap();
        assert_eq!(cause_of(book.reserve(&b, SMALL, now)), "full");
        book.release(first);
        assert!(book.has_room(SMALL) && !book.could_fit(Demand { memory_mib: 1001, ..SMALL }));
        book.release(second);
        book.release(third);
        assert_eq!((book.sandboxes, book.memory_mib), (0, 0));
    }

    #[test]
    fn a_sandbox_has_each_limit_that_a_quota_counts() {
        let (none, a) = (Limits { memory: None, disk: None, ..Limits::default() }, tenant("a"));
        let size = Some(ByteSize::from_mebibytes(1));
        let missing = |quota: Quota, total: Total, capacity: Capacity| {
            let mut book = Book::new(quota, capacity);
            book.set_default(quota, total);
            let missing = book.missing_limit(&a, &none);
            assert_eq!(book.missing_limit(&a, &Limits { memory: size, disk: size, ..none.clone() }), None);
            missing
        };
        let (quota, total, capacity) = (Quota::default(), Total::default(), Capacity::default());
        assert_eq!(missing(quota, total, capacity), None);
        assert_eq!(missing(Quota { memory: size, ..quota }, total, capacity), Some("memory"));
        assert_eq!(missing(Quota { memory_gib_seconds_per_day: Some(1), ..quota }, total, capacity), Some("memory"));
        assert_eq!(missing(quota, Total { memory_gib_seconds_per_day: Some(1), ..total }, capacity), Some("memory"));
        assert_eq!(missing(quota, total, Capacity { memory: size, ..capacity }), Some("memory"));
        assert_eq!(missing(Quota { disk: size, ..quota }, total, capacity), Some("disk"));
        assert_eq!(missing(quota, Total { disk: size, ..total }, capacity), Some("disk"));
    }

    #[test]
    fn a_day_ends_and_its_quota_begins_again() {
        let quota = Quota { cpu_seconds_per_day: Some(10), ..Quota::default() };
        let mut book = Book::new(quota, Capacity::default());
        let (a, now) = (tenant("a"), DAY * 5 + Duration::from_secs(60 * 60 * 23));
        book.add(&a, 5, &Usage { cpu_us: 9_999_999, ..Usage::default() });
        assert_eq!(book.exec(&a, now), Ok(()));
        book.add(&a, 5, &Usage { cpu_us: 1, ..Usage::default() });
        let refused = Refused::Quota { what: "cpu_seconds_per_day", wait: Duration::from_secs(60 * 60) };
        assert_eq!(book.exec(&a, now), Err(refused));
        assert!(book.reserve(&a, SMALL, now).is_err());
        assert_eq!(book.exec(&a, DAY * 6), Ok(()));
        book.add(&a, 4, &Usage { cpu_us: 1 << 40, ..Usage::default() });
        assert_eq!(book.state(&a, now).2.cpu_us, 10_000_000, "a record of an earlier day changes nothing");
    }

    #[test]
    fn rates_belong_to_tenants_and_change_at_once() {
        let mut book = Book::new(Quota { requests_per_second: Some(2), ..Quota::default() }, Capacity::default());
        let (a, b, now) = (tenant("a"), tenant("b"), Duration::from_secs(50));
        assert!(book.request(&a, now).is_ok() && book.request(&a, now).is_ok() && book.request(&b, now).is_ok());
        assert!(book.request(&a, now).is_err());
        book.set_quotas(BTreeMap::from([(a.clone(), Quota::default())]));
        assert!(book.request(&a, now).is_ok(), "no rate any more");
        book.prune(now + DAY);
        assert!(book.accounts.is_empty());
    }

    #[test]
    fn all_tenants_together_have_quotas() {
        let mut book = Book::new(Quota::default(), Capacity::default());
        let disk = Some(ByteSize::from_mebibytes(20));
        book.set_default(Quota::default(), Total { cpu_seconds_per_day: Some(10), disk, ..Total::default() });
        let (a, b, now) = (tenant("a"), tenant("b"), DAY * 5);
        let first = book.reserve(&a, SMALL, now).unwrap();
        let second = book.reserve(&b, SMALL, now).unwrap();
        assert_eq!(book.reserve(&b, SMALL, now), Err(Refused::Full));
        assert!(!book.could_fit(Demand { disk_mib: 21, ..SMALL }));
        book.release(first);
        book.release(second);
        book.add(&a, 5, &Usage { cpu_us: 6_000_000, ..Usage::default() });
        assert_eq!(book.exec(&b, now), Ok(()));
        book.add(&b, 5, &Usage { cpu_us: 4_000_000, ..Usage::default() });
        let refused = Refused::Total { what: "cpu_seconds_per_day", wait: DAY };
        assert_eq!((book.exec(&a, now), book.exec(&b, now)), (Err(refused.clone()), Err(refused)));
        // Another process writes the usage of one of them.
        book.raise(&a, 5, &Usage { cpu_us: 7_000_000, ..Usage::default() });
        assert_eq!(book.used.1.cpu_us, 11_000_000);
        // What is known already, and what the database lacks so far, count once.
        book.raise(&a, 5, &Usage { cpu_us: 7_000_000, execs: 2, ..Usage::default() });
        book.raise(&b, 5, &Usage { cpu_us: 3_000_000, execs: 1, ..Usage::default() });
        assert_eq!(book.used.1, Usage { cpu_us: 11_000_000, execs: 3, ..Usage::default() });
        assert_eq!((book.state(&a, now).2.cpu_us, book.state(&b, now).2.cpu_us), (7_000_000, 4_000_000));
        assert_eq!(book.exec(&b, DAY * 6), Ok(()));
    }

    #[test]
    fn disk_and_audit_records_of_a_tenant_are_bounded() {
        let quota = Quota {
            disk: Some(ByteSize::from_mebibytes(15)),
            audit_per_day: Some(ByteSize::from_bytes(100)),
            ..Quota::default()
        };
        let mut book = Book::new(quota, Capacity::default());
        let (a, now) = (tenant("a"), DAY * 5);
        let first = book.reserve(&a, SMALL, now).unwrap();
        assert_eq!(cause_of(book.reserve(&a, SMALL, now)), "disk");
        book.release(first);
        book.add(&a, 5, &Usage { audit_bytes: 99, ..Usage::default() });
        assert_eq!(book.audit(&a, now), Ok(()));
        book.add(&a, 5, &Usage { audit_bytes: 1, ..Usage::default() });
        assert_eq!(book.audit(&a, now), Err(Refused::Quota { what: "audit_per_day", wait: DAY }));
        assert_eq!((book.audit(&tenant("b"), now), book.audit(&a, DAY * 6)), (Ok(()), Ok(())));
    }

    proptest! {
        /// Promise (Server): What is reserved is what lives, and never more than the quotas and the machine have.
        #[test]
        fn reservations_add_up(steps in prop::collection::vec((0usize..3, 1u64..200, any::<bool>()), 1..200)) {
            let quota = Quota { sandboxes: Some(4), memory: Some(ByteSize::from_mebibytes(400)), ..Quota::default() };
            let capacity = Capacity { sandboxes: Some(6), memory: Some(ByteSize::from_mebibytes(700)) };
            let mut book = Book::new(quota, capacity);
            let mut live: Vec<Reservation> = Vec::new();
            for (who, memory_mib, adds) in steps {
                if adds {
                    live.extend(book.reserve(&tenant(["a", "b", "c"][who]), Demand { memory_mib, disk_mib: 1 }, Duration::ZERO));
                } else if !live.is_empty() {
                    book.release(live.swap_remove(who % live.len()));
                }
                let memory: u64 = live.iter().map(|one| one.demand.memory_mib).sum();
                prop_assert_eq!((book.sandboxes as usize, book.memory_mib), (live.len(), memory));
                prop_assert!(live.len() <= 6 && memory <= 700);
                for name in ["a", "b", "c"] {
                    let own: Vec<_> = live.iter().filter(|one| one.tenant == tenant(name)).collect();
                    prop_assert!(own.len() <= 4 && own.iter().map(|one| one.demand.memory_mib).sum::<u64>() <= 400);
                }
            }
        }
    }
}
