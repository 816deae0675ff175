//! A live sandbox: a backend's sandbox with an owner, a lease and its execs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use cofferdam_code::{CodeConfig, Executor, Sessions};
use cofferdam_contract::{ByteSize, Error, ErrorKind, ExecRequest, Level, NetworkPolicy, Result, Sandbox, TenantId};
use cofferdam_volume::sandbox::VolumeMount;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::exec::LiveExec;
use super::lease::Lease;
use super::rings::{Ring, Rings};
use crate::bounds::Bounds;
use crate::ids::new_id;
use crate::layers::traces::{STARTED, Started};

/// A live sandbox.
#[derive(Debug)]
pub struct LiveSandbox {
    /// The id, unique on this server.
    pub id: String,
    /// The tenant that owns it.
    pub tenant: TenantId,
    /// The backend's name.
    pub backend: String,
    /// The isolation level.
    pub level: Level,
    /// The time of its creation.
    pub created: SystemTime,
    /// The id of the snapshot or sandbox that it was created from.
    pub parent: Option<String>,
    /// The volumes of the tenant that it has.
    pub volumes: Vec<VolumeMount>,
    name: Mutex<Option<String>>,
    sandbox: Arc<dyn Sandbox>,
    lease: Mutex<Lease>,
    paused: AtomicBool,
    users: AtomicUsize,
    execs: Mutex<Vec<Arc<LiveExec>>>,
    starting: AtomicUsize,
    applying: Arc<Semaphore>,
    rings: Arc<Rings>,
    /// The kernels, with an executor of this sandbox alone: a guest may lie about the versions of its interpreters.
    kernels: Mutex<Option<Arc<Sessions>>>,
}

/// The identity of a new sandbox.
pub(super) struct Identity {
    pub(super) id: String,
    pub(super) tenant: TenantId,
    pub(super) name: Option<String>,
    pub(super) from: Origin,
}

/// The origin of a new sandbox.
pub(super) struct Origin {
    pub(super) backend: String,
    pub(super) level: Level,
    pub(super) parent: Option<String>,
    pub(super) volumes: Vec<VolumeMount>,
}

impl LiveSandbox {
    pub(super) fn new(identity: Identity, sandbox: Arc<dyn Sandbox>, life: Duration, idle: Duration) -> Self {
        let now = Instant::now();
        let Identity { id, tenant, name, from } = identity;
        let Origin { backend, level, parent, volumes } = from;
        Self {
            id,
            tenant,
            name: Mutex::new(name),
            backend,
            level,
            created: SystemTime::now(),
            parent,
            volumes,
            sandbox,
            lease: Mutex::new(Lease { ends: now + life, idle, used: now }),
            paused: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            execs: Mutex::default(),
            starting: AtomicUsize::new(0),
            applying: Arc::new(Semaphore::new(1)),
            rings: Arc::default(),
            kernels: Mutex::default(),
        }
    }

    /// Returns its name, unique for the tenant.
    pub fn name(&self) -> Option<String> {
        self.name.lock().clone()
    }

    /// Replaces the name and returns the other one. Only the table of sandboxes calls this.
    pub(super) fn set_name(&self, name: Option<String>) -> Option<String> {
        std::mem::replace(&mut *self.name.lock(), name)
    }

    /// Returns the backend's sandbox, and records a use.
    pub fn used(&self) -> &Arc<dyn Sandbox> {
        self.touch();
        &self.sandbox
    }

    /// Returns the backend's sandbox without a use of it.
    pub fn inner(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// Records a use.
    pub fn touch(&self) {
        self.lease.lock().used = Instant::now();
    }

    /// Keeps the sandbox from being idle while the result lives.
    pub fn keep(self: &Arc<Self>) -> Use {
        self.users.fetch_add(1, Ordering::SeqCst);
        Use(Arc::clone(self))
    }

    /// Begins to apply changes. Only one application runs at a time, until the result is dropped.
    ///
    /// # Errors
    /// - `Conflict` while another one runs.
    pub fn begin_apply(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.applying).try_acquire_owned().map_err(|_| {
            Error::new(ErrorKind::Conflict, "changes", "the changes of the sandbox are being applied")
                .with_remedy("try again when that has ended")
        })
    }

    /// Returns the lease.
    pub fn lease(&self) -> Lease {
        *self.lease.lock()
    }

    /// Changes the remaining lifetime, the idle time or both, and records a use.
    pub fn extend(&self, life: Option<Duration>, idle: Option<Duration>) {
        let mut lease = self.lease.lock();
        let now = Instant::now();
        lease.used = now;
        lease.ends = life.map_or(lease.ends, |life| now + life);
        lease.idle = idle.unwrap_or(lease.idle);
    }

    /// Returns true while an exec runs or a client is connected.
    pub fn is_busy(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0 || self.running() > 0
    }

    /// Returns true if the sandbox has no time left.
    pub fn is_over(&self, now: Instant) -> bool {
        let busy = self.is_busy();
        if busy {
            self.lease.lock().used = now;
        }
        self.lease().is_over(now, busy)
    }

    /// Returns true if the sandbox is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Pauses every program.
    pub async fn pause(&self) -> Result<()> {
        self.used().pause().await?;
        self.paused.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Resumes every program.
    pub async fn resume(&self) -> Result<()> {
        self.used().resume().await?;
        self.paused.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Returns the number of execs that run.
    pub fn running(&self) -> usize {
        self.execs.lock().iter().filter(|exec| exec.try_exit().is_none()).count()
    }

    /// Starts an exec.
    ///
    /// # Errors
    /// - `ResourceExhausted` if too many execs of this sandbox run, or if their outputs take too much memory.
    /// - The errors of [`Sandbox::start`].
    pub async fn start(&self, request: ExecRequest, bounds: &Bounds) -> Result<Arc<LiveExec>> {
        let _starting = Starting::new(&self.starting);
        if self.running() + self.starting.load(Ordering::SeqCst) > bounds.running {
            let message = format!("{} execs of this sandbox run already", bounds.running);
            return Err(Error::new(ErrorKind::ResourceExhausted, "start", message)
                .with_remedy("wait until one has ended, or signal one"));
        }
        let ring = self.ring(request.output_buffer().as_bytes(), bounds)?;
        let request = request.to_builder().output_buffer(ByteSize::from_bytes(ring.bytes())).build()?;
        let started = Arc::new(Started { id: new_id("ex")?, span: OnceLock::new() });
        let sandbox = self.used();
        let denied = (*sandbox.spec().network() != NetworkPolicy::None).then(|| sandbox.network_denials());
        let handle = STARTED.scope(Arc::clone(&started), sandbox.start(request.clone())).await?;
        let mut exec = LiveExec::new(started, &request, handle, ring);
        if let Some(before) = denied {
            exec = exec.with_denials(sandbox, before);
        }
        let exec = Arc::new(exec);
        let mut execs = self.execs.lock();
        execs.push(Arc::clone(&exec));
        let ended = execs.iter().filter(|exec| exec.try_exit().is_some()).count();
        for _ in bounds.ended..ended {
            if let Some(oldest) = execs.iter().position(|exec| exec.try_exit().is_some()) {
                execs.remove(oldest);
            }
        }
        Ok(exec)
    }

    /// Takes memory for the output of an exec. The oldest ended execs are forgotten if that is needed.
    fn ring(&self, requested: u64, bounds: &Bounds) -> Result<Ring> {
        let max = bounds.replay_of_sandbox.as_bytes();
        let mut execs = self.execs.lock();
        let mut ended: Vec<_> = execs.iter().filter(|exec| exec.has_ended()).map(|exec| exec.id.clone()).collect();
        ended.reverse();
        while self.rings.left(max) < requested {
            let Some(oldest) = ended.pop() else { break };
            execs.retain(|exec| exec.id != oldest);
        }
        self.rings.take(requested, max).ok_or_else(|| {
            let message = format!("the outputs of execs of this sandbox fill their {}", bounds.replay_of_sandbox);
            Error::new(ErrorKind::ResourceExhausted, "start", message)
                .with_remedy("wait until an exec has ended, or end one")
        })
    }

    /// Finds an exec.
    ///
    /// # Errors
    /// - `NotFound` if there is none, or if it ended long ago.
    pub fn exec(&self, id: &str) -> Result<Arc<LiveExec>> {
        self.touch();
        let found = self.execs.lock().iter().find(|exec| exec.id == id).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "find exec", "there is no such exec in this sandbox"))
    }

    /// Returns the execs, oldest first.
    pub fn execs(&self) -> Vec<Arc<LiveExec>> {
        self.execs.lock().clone()
    }

    /// Returns the kernels, which are created at the first call.
    ///
    /// # Errors
    /// Those of [`Executor::new`].
    pub fn kernels(&self, config: &CodeConfig) -> Result<Arc<Sessions>> {
        self.touch();
        let mut kernels = self.kernels.lock();
        if let Some(kernels) = &*kernels {
            return Ok(Arc::clone(kernels));
        }
        let new = Arc::new(Sessions::new(Executor::new(config.clone())?));
        *kernels = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Kills the execs, and waits until they have ended.
    pub(super) async fn end_execs(&self, limit: Duration) {
        let execs = self.execs();
        execs.iter().for_each(|exec| exec.signal(Duration::ZERO));
        let ended = futures_util::future::join_all(execs.iter().map(|exec| exec.exit_within(limit)));
        ended.await;
    }

    pub(super) async fn close(&self) -> Result<()> {
        self.sandbox.close().await
    }
}

/// A use of a sandbox that lasts.
#[derive(Debug)]
pub struct Use(Arc<LiveSandbox>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.touch();
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts an exec that is being started.
struct Starting<'a>(&'a AtomicUsize);

impl<'a> Starting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
