//! The environment of all targets: the runtime and backend on which cases run, and the checks after each.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cofferdam_contract::{ByteSize, Limits, Sandbox};
use cofferdam_wasm::{WasmBackend, WasmConfig};
use tokio::runtime::Runtime;

use crate::drive::Outcome;
use crate::watch;

/// Wall time of a guest, and of the compiler before it.
pub(crate) const WALL_TIME: Duration = Duration::from_secs(1);
/// Tolerance for ends that are late because the machine is busy.
pub(crate) const LATE: Duration = Duration::from_secs(30);
/// Size of the output buffer of an exec.
pub(crate) const OUTPUT: ByteSize = ByteSize::from_bytes(64 << 10);
const CPU_TIME: Duration = Duration::from_millis(100);
const MEMORY: ByteSize = ByteSize::from_mebibytes(16);
const DISK: ByteSize = ByteSize::from_mebibytes(1);
/// Maximum module size. Larger modules are refused, so that many are compiled.
const MODULE: ByteSize = ByteSize::from_bytes(256 << 10);
/// Number of cases that share a backend and its caches.
const SHARED_BY: u32 = 64;

/// A runtime and a backend, which is recreated periodically.
#[derive(Debug)]
pub(crate) struct FuzzHost {
    runtime: Runtime,
    backend: WasmBackend,
    used: u32,
}

impl FuzzHost {
    /// Creates a host. Panics are recorded from now on.
    pub(crate) fn new() -> Result<Self> {
        watch::keep_panics();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Self { runtime, backend: backend(), used: 0 })
    }

    /// Runs preparatory work that is not a case, such as generating one.
    pub(crate) fn prepare<T>(&self, work: impl AsyncFnOnce(&WasmBackend) -> Result<T>) -> Result<T> {
        self.runtime.block_on(work(&self.backend))
    }

    /// Runs a case. A panic on any thread, a remaining thread, and an error are findings.
    pub(crate) fn check(&mut self, case: impl AsyncFnOnce(&WasmBackend) -> Result<Outcome>) -> Result<Outcome> {
        self.used += 1;
        if self.used.is_multiple_of(SHARED_BY) {
            self.backend = backend();
        }
        let outcome = self.runtime.block_on(case(&self.backend));
        let panics = watch::panics();
        ensure!(panics.is_empty(), "panicked: {}", panics.join("; "));
        let left = watch::threads_left();
        ensure!(left.is_empty(), "threads still run: {left:?}");
        outcome
    }
}

fn backend() -> WasmBackend {
    WasmBackend::new(WasmConfig { module_size: MODULE, ..WasmConfig::default() })
}

/// Returns the limits of a case: little of everything.
pub(crate) fn limits() -> Limits {
    Limits {
        wall_time: WALL_TIME,
        cpu_time: Some(CPU_TIME),
        memory: Some(MEMORY),
        disk: Some(DISK),
        ..Limits::default()
    }
}

/// Checks that disk use and peak memory are within [`limits`].
pub(crate) async fn within_limits(sandbox: &Arc<dyn Sandbox>) -> Result<()> {
    let usage = sandbox.usage().await.context("cannot read the usage")?;
    let disk = usage.disk_bytes.unwrap_or(u64::MAX);
    ensure!(disk <= DISK.as_bytes(), "{disk} bytes are stored, over the limit");
    let peak = usage.peak_memory_bytes.unwrap_or(u64::MAX);
    ensure!(peak <= MEMORY.as_bytes(), "{peak} bytes of memory were used, over the limit");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_a_case_is_a_finding_even_if_the_case_went_well() {
        let _alone = watch::ALONE.lock();
        let mut host = FuzzHost::new().unwrap();
        let case = async |_: &WasmBackend| {
            let caught = std::thread::spawn(|| panic!("of the case")).join();
            ensure!(caught.is_err(), "it did not panic");
            Ok(Outcome::Ended)
        };
        let found = host.check(case).unwrap_err();
        assert!(found.to_string().contains("of the case"), "{found}");
        assert_eq!(host.check(async |_| Ok(Outcome::Ended)).unwrap(), Outcome::Ended);
    }
}
