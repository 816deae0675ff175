//! A layer around a backend applies to every sandbox of it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use cofferdam_contract::{Backend, BackendLayer, Capability, ErrorKind, Result, Sandbox, Snapshot, Spec};
use cofferdam_simulated::{Program, SimulatedBackend, Step};

/// A layer that counts the sandboxes that pass through it.
#[derive(Debug, Default)]
struct Counting {
    inner: SimulatedBackend,
    count: AtomicUsize,
}

#[async_trait]
impl BackendLayer for Counting {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.inner.create(spec).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.inner.restore(snapshot, spec).await
    }
}

/// Promise (Contract): No sandbox of a backend evades a layer around it: a layer prepares none.
#[tokio::test(start_paused = true)]
async fn no_sandbox_evades_a_layer() {
    let layer = Arc::new(Counting::default());
    let backend: Arc<dyn Backend> = Arc::clone(&layer) as _;
    assert_eq!((backend.name(), backend.level()), (layer.inner.name(), layer.inner.level()));
    let request = || Program::new([Step::Exit(3)]).request().build().unwrap();
    let sandbox = backend.create(Spec::default()).await.unwrap();
    let (_started, handle) = backend.start_one(Spec::default(), request()).await.unwrap();
    assert_eq!(handle.exit().await.unwrap().code, 3);
    assert_eq!(backend.run(Spec::default(), request()).await.unwrap().0.exit.code, 3);
    backend.restore(sandbox.snapshot().await.unwrap(), Spec::default()).await.unwrap();
    assert_eq!(layer.count.load(Ordering::SeqCst), 4);

    let mut capabilities = layer.inner.capabilities();
    assert!(capabilities.remove(&Capability::Warm));
    assert_eq!(backend.capabilities(), capabilities);
    assert_eq!(backend.prepare(Spec::default()).await.unwrap_err().kind(), ErrorKind::Unsupported);
}
