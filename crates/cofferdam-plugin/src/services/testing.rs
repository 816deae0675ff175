//! Services in a temporary directory, with a clock that tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Notify;

use super::*;

/// 2026-01-01T00:00:00Z.
pub const START: i64 = 1_767_225_600;

#[derive(Default)]
pub struct Log(pub Mutex<Vec<SecretAccess>>);

impl AccessLog for Log {
    fn secret_accessed(&self, access: &SecretAccess) {
        self.0.lock().push(access.clone());
    }
}

pub struct Fixture {
    pub directory: TempDir,
    pub services: Option<Arc<Services>>,
    pub log: Arc<Log>,
    seconds: Arc<AtomicI64>,
    adjust: Box<dyn Fn(&mut ServicesConfig)>,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(adjust: impl Fn(&mut ServicesConfig) + 'static) -> Self {
        let mut fixture = Self {
            directory: tempfile::tempdir().unwrap(),
            services: None,
            log: Arc::default(),
            seconds: Arc::new(AtomicI64::new(START)),
            adjust: Box::new(adjust),
        };
        fixture.reopen();
        fixture
    }

    pub fn config(&self) -> ServicesConfig {
        let mut config = ServicesConfig::new(self.directory.path().join("state"), Arc::clone(&self.log) as _);
        let seconds = Arc::clone(&self.seconds);
        config.clock =
            Arc::new(move || DateTime::<Utc>::from_timestamp(seconds.load(Ordering::SeqCst), 0).unwrap_or_default());
        config.limits.retry = Retry {
            attempts: 3,
            first: Duration::from_millis(1),
            longest: Duration::from_millis(2),
            ..config.limits.retry
        };
        (self.adjust)(&mut config);
        config
    }

    /// Ends the host and starts another with the same state.
    pub fn reopen(&mut self) {
        self.services = None;
        self.services = Some(Services::open(self.config()).unwrap());
    }

    pub fn services(&self) -> &Arc<Services> {
        self.services.as_ref().unwrap()
    }

    pub fn advance_seconds(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::SeqCst);
    }

    pub async fn ok(&self, caller: &Caller, method: &str, params: Value) -> Value {
        let shown = params.to_string();
        match self.services().call(caller, method, params).await {
            Ok(value) => value,
            Err(error) => panic!("{method} {shown}: {error}"),
        }
    }

    pub async fn err(&self, caller: &Caller, method: &str, params: Value) -> CallError {
        let shown = params.to_string();
        match self.services().call(caller, method, params).await {
            Ok(value) => panic!("{method} {shown}: {value}"),
            Err(error) => error,
        }
    }
}

pub fn caller(plugin: &str, tenant: Option<&str>) -> Caller {
    Caller { plugin: plugin.to_owned(), tenant: tenant.map(str::to_owned), correlation: "c-1".to_owned() }
}

/// Plugins that record what is delivered, and fail as often as a test wants.
#[derive(Default)]
pub struct Plugins {
    pub delivered: Mutex<Vec<Delivery>>,
    /// Deliveries that fail before the next succeeds.
    pub failures: Mutex<usize>,
    /// Deliveries hang while it is true.
    pub hangs: Mutex<bool>,
    changed: Notify,
}

impl Plugins {
    /// Waits until a number of deliveries have arrived, and returns them. A test that would hang fails instead.
    pub async fn wait(&self, count: usize) -> Vec<Delivery> {
        let deliveries = tokio::time::timeout(Duration::from_secs(60), self.wait_for(count)).await;
        deliveries.unwrap_or_else(|_| panic!("{count} deliveries were expected: {:?}", self.delivered.lock()))
    }

    async fn wait_for(&self, count: usize) -> Vec<Delivery> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let delivered = self.delivered.lock().clone();
            if delivered.len() >= count {
                return delivered;
            }
            changed.await;
        }
    }
}

#[async_trait]
impl Deliver for Plugins {
    async fn deliver(&self, delivery: Delivery) -> std::result::Result<(), CallError> {
        self.delivered.lock().push(delivery);
        self.changed.notify_waiters();
        if *self.hangs.lock() {
            std::future::pending::<()>().await;
        }
        let mut failures = self.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(CallError::new(ErrorKind::Unavailable, "restarting"));
        }
        Ok(())
    }
}
