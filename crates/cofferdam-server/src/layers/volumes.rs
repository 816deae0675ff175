//! Volumes: a new sandbox keeps the volumes that were attached for it, until it is closed. This layer is inside of the
//! others, so that a sandbox whose close fails keeps its volumes until a later close succeeds.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{Backend, BackendLayer, ExecHandle, ExecRequest, Result, Sandbox, Snapshot, Spec};
use parking_lot::Mutex;

use crate::volumes::Attached;

tokio::task_local! {
    /// The volumes of the sandbox that this task creates, until it exists.
    static ATTACHED: Arc<Mutex<Option<Attached>>>;
}

/// Creates a sandbox with volumes. Returns the volumes as well if no sandbox got them.
pub async fn attached_to<T>(attached: Attached, create: impl Future<Output = T>) -> (T, Option<Attached>) {
    let attached = Arc::new(Mutex::new(Some(attached)));
    let created = ATTACHED.scope(Arc::clone(&attached), create).await;
    let left = attached.lock().take();
    (created, left)
}

/// A backend whose sandboxes keep their volumes.
#[derive(Debug)]
pub struct WithVolumes(pub Arc<dyn Backend>);

/// Keeps the volumes of this task's create until the sandbox closes.
fn keep(sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
    match ATTACHED.try_with(|attached| attached.lock().take()) {
        Ok(Some(attached)) => attached.keep_for(sandbox),
        _ => sandbox,
    }
}

#[async_trait]
impl BackendLayer for WithVolumes {
    fn inner(&self) -> &dyn Backend {
        &*self.0
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.0.create(spec).await.map(keep)
    }

    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        let (sandbox, handle) = self.0.start_one(spec, request).await?;
        Ok((keep(sandbox), handle))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.0.restore(snapshot, spec).await.map(keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Admission, QueueBounds};
    use crate::layers::quota::{SandboxAccounts, tests::concern};
    use crate::layers::{Around, Concern};
    use crate::live::{NewSandbox, Sandboxes, Unkept};
    use crate::quota::{Capacity, Quota};
    use crate::recorder::Recorder;
    use crate::volumes::{Volumes, VolumesConfig};
    use cofferdam_contract::{Error, ErrorKind, Exit, TenantId};
    use cofferdam_simulated::{FaultPlan, FaultPoint, Program, SimulatedBackend, Step};
    use std::time::Duration;

    /// A backend that leaves out the mounts, which the simulated one does not have.
    #[derive(Debug)]
    struct Unmounted(SimulatedBackend);

    #[async_trait]
    impl BackendLayer for Unmounted {
        fn inner(&self) -> &dyn Backend {
            &self.0
        }

        async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
            self.0.create(Spec::builder().tenant(spec.tenant().clone()).build()?).await
        }

        async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
            self.0.restore(snapshot, spec).await
        }
    }

    /// A concern that refuses every sandbox that was created.
    #[derive(Debug)]
    struct Refusing;

    #[async_trait]
    impl Concern for Refusing {
        type Held = ();
        type Exec = ();

        async fn enter(&self, _: &Spec) -> Result<()> {
            Ok(())
        }

        async fn created(&self, (): &(), created: Result<&Arc<dyn Sandbox>, &Error>) -> Result<()> {
            match created {
                Ok(_) => Err(Error::new(ErrorKind::Denied, "create", "refused")),
                Err(_) => Ok(()),
            }
        }

        async fn starting(&self, (): &(), _: &Spec, _: &ExecRequest) -> Result<()> {
            Ok(())
        }

        async fn ended(&self, (): &(), (): (), _: &Result<Exit>) {}

        async fn closing(&self, (): &(), _: &dyn Sandbox) {}

        async fn closed(&self, (): &()) {}
    }

    /// Promise (Server): A sandbox whose close fails keeps its quota and its volumes until a later close succeeds, even if
    /// it was refused while it was created.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_unclosed_sandbox_keeps_its_quota_and_its_volumes() {
        for (refuses, runs) in [(false, false), (false, true), (true, false), (true, true)] {
            for failures in 0..3_u64 {
                an_unclosed_sandbox(refuses, runs, failures).await;
            }
        }
    }

    async fn an_unclosed_sandbox(refuses: bool, runs: bool, failures: u64) {
        let case = format!("refuses {refuses}, runs {runs}, failures {failures}");
        let (directory, store) = crate::store::tests::fresh().await;
        let config = VolumesConfig { directory: directory.path().join("volumes"), before_use: || {} };
        let volumes = Volumes::open(config).unwrap();
        let sandboxes = Arc::new(Sandboxes::new(None, Arc::clone(&volumes)));
        let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
        let (recorder, _recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let accounts = Arc::new(SandboxAccounts::default());
        let faults = (1..=failures)
            .fold(FaultPlan::none(), |plan, nth| plan.fail(FaultPoint::Close, nth, ErrorKind::Unavailable));
        let inner = Unmounted(SimulatedBackend::with_faults(faults));
        let mut backend: Arc<dyn Backend> = Arc::new(WithVolumes(Arc::new(inner)));
        if refuses {
            backend = Arc::new(Around::new(backend, Arc::new(Refusing)));
        }
        let quota = concern(&admission, recorder, &store, &accounts);
        let backend: Arc<dyn Backend> = Arc::new(Around::new(backend, Arc::new(quota)));
        let tenant = TenantId::new("acme").unwrap();
        volumes.create(&tenant, "data".parse().unwrap(), None, &Quota::default()).await.unwrap();
        let spec = Spec::builder().tenant(tenant.clone()).build().unwrap();
        let mounts = vec!["data:/data".parse().unwrap()];
        let closed = if runs {
            let request = Program::new(vec![Step::Exit(0)]).request().build().unwrap();
            sandboxes.run(Arc::clone(&backend), spec, mounts, request).await.map(drop)
        } else {
            let hour = Duration::from_secs(3600);
            let (name, volumes) = (Some("a".to_owned()), mounts);
            let new = NewSandbox { spec, name, life: hour, idle: hour, snapshot: None, parent: None, volumes };
            match sandboxes.create(&backend, new).await {
                Ok(_) => sandboxes.delete(&tenant, "a", Unkept::Discard).await.map(drop),
                Err(error) => Err(error),
            }
        };
        let expected = match (refuses, failures) {
            (true, _) => Some(ErrorKind::Denied),
            (false, 0) => None,
            (false, _) => Some(ErrorKind::Unavailable),
        };
        assert_eq!(closed.err().map(|error| error.kind()), expected, "{case}");
        let held = async || {
            let volume = volumes.find(&tenant, "data".parse().unwrap()).await.unwrap();
            (admission.state_of(&tenant).1, !volume.holders.is_empty())
        };
        for failed in (1..=failures).rev() {
            assert_eq!(held().await, (1, true), "{case}: {failed} closes will fail");
            accounts.close_again().await;
        }
        assert_eq!(held().await, (0, false), "{case}");
        sandboxes.stop().await;
    }
}
