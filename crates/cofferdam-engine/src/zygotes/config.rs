//! How many zygotes live, and for how long.

use std::time::Duration;

use cofferdam_contract::{Error, Result, Spec};
use cofferdam_interpreter::ZygoteConfig;

/// The most zygotes that one keeper holds.
const MOST: usize = 256;

/// How [`crate::Zygotes`] are kept. Every count and wait has a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZygotesConfig {
    /// How each is started. Its `cpu_time` is taken from the spec of the request instead.
    pub zygote: ZygoteConfig,
    /// Zygotes that are alive, being made or being closed, of all tenants together. Default 8.
    pub max: usize,
    /// How long one lives that nobody uses. Default 5 min.
    pub idle_timeout: Duration,
    /// How long making one may take, sandbox and warm-up together. Default 120 s.
    pub make_timeout: Duration,
    /// How often those that nobody uses are looked at. Default 5 s.
    pub check_every: Duration,
}

impl ZygotesConfig {
    /// With this zygote, all else default.
    pub fn new(zygote: ZygoteConfig) -> Self {
        Self {
            zygote,
            max: 8,
            idle_timeout: Duration::from_secs(300),
            make_timeout: Duration::from_secs(120),
            check_every: Duration::from_secs(5),
        }
    }

    /// Refuses what contradicts itself.
    pub fn validate(&self) -> Result<()> {
        self.zygote.validate()?;
        let times = [self.idle_timeout, self.make_timeout, self.check_every];
        if self.max == 0 || self.max > MOST || times.iter().any(Duration::is_zero) {
            return Err(Error::invalid("configure", "1 to 256 zygotes are kept, and no time of theirs is 0"));
        }
        Ok(())
    }

    /// The spec of a sandbox for the forks of requests with `spec`, and the zygote in it. What bounds a moment is the
    /// spec's for all forks together; CPU time, which is used up, is the spec's for each.
    pub(super) fn inside(&self, spec: &Spec) -> Result<(Spec, ZygoteConfig)> {
        let mut limits = spec.limits().clone();
        let zygote = ZygoteConfig { cpu_time: limits.cpu_time, ..self.zygote.clone() };
        limits.pids = limits.pids.map(|count| count.saturating_add(zygote.extra_processes()));
        limits.processes = limits.processes.map(|count| count.saturating_add(zygote.extra_processes()));
        // Warming is one use more.
        let uses = zygote.max_forks.saturating_add(1);
        limits.cpu_time = limits.cpu_time.map(|time| time.saturating_mul(uses).min(MOST_CPU_TIME.max(time)));
        Ok((spec.to_builder().limits(limits).build()?, zygote))
    }
}

/// As good as no bound: a hundred years of one processor.
const MOST_CPU_TIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Limits, TenantId};
    use cofferdam_interpreter::InterpreterConfig;

    #[test]
    fn contradictions_are_refused() {
        let default = || ZygotesConfig::new(ZygoteConfig::python());
        assert!(default().validate().is_ok());
        assert!(ZygotesConfig { max: 0, ..default() }.validate().is_err());
        assert!(ZygotesConfig { max: 257, ..default() }.validate().is_err());
        assert!(ZygotesConfig { idle_timeout: Duration::ZERO, ..default() }.validate().is_err());
        assert!(ZygotesConfig::new(ZygoteConfig::of(InterpreterConfig::node())).validate().is_err());
    }

    #[test]
    fn a_sandbox_inside_differs_in_processes_and_cpu_time_only() {
        let config = ZygotesConfig::new(ZygoteConfig { max_forks: 9, ..ZygoteConfig::python() });
        let limits = Limits { cpu_time: Some(Duration::from_secs(3)), pids: Some(7), ..Limits::default() };
        let tenant = TenantId::new("acme").unwrap();
        let spec = Spec::builder().limits(limits.clone()).tenant(tenant).label("a", "b").build().unwrap();
        let (inside, zygote) = config.inside(&spec).unwrap();
        assert_eq!(inside.limits().pids, Some(7 + zygote.extra_processes()));
        assert_eq!(inside.limits().cpu_time, Some(Duration::from_secs(30)));
        assert_eq!(zygote.cpu_time, Some(Duration::from_secs(3)));
        assert_eq!(inside.to_builder().limits(limits).build().unwrap(), spec);
        let free = Limits { cpu_time: None, pids: None, ..Limits::default() };
        let free = Spec::builder().limits(free).build().unwrap();
        assert_eq!(config.inside(&free).unwrap().0, free);
    }
}
