//! A machine that waits for its request: it came from a snapshot of one that had only booted, and was given an identity of
//! its own; nothing of anybody's has run in it.
//!
//! Its bounds were built by its init, which is gone: they are the template's or it does not fit. What the supervisor keeps
//! (wall time, CPU time) is the claim's, as are tenant and labels, of which a machine knows nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{
    Error, ErrorKind, ExecRequest, Limits, Result, Retry, RootFs, Sandbox, Spec, SpecParts, Warm, Workspace,
    after_close,
};

use crate::make::{Host, Raw};
use crate::plan::Plan;
use crate::ready::Kind;
use crate::sandbox::VmSandbox;
use crate::snapshot::VmSnapshot;

/// Time that a program has that does nothing.
const RUN_IN: Duration = Duration::from_secs(10);

/// A machine without a request.
#[derive(Debug)]
pub(crate) struct VmWarm {
    /// `None` once it was claimed or closed.
    raw: Option<Raw>,
    host: Arc<Host>,
    template: Spec,
    /// Whether CPU time is counted inside, rather than watched by an agent that was told of the limit.
    counts_cpu: bool,
}

impl VmWarm {
    /// Has one made. Fails where a sandbox for the template itself would be refused.
    pub(crate) async fn make(host: &Arc<Host>, template: Spec) -> Result<Self> {
        let plan = Plan::of(&template, &host.config)?;
        let raw = match template.root() {
            RootFs::Default => {
                let kind = Kind::new(plan, template.workspace().access());
                let kept = host.ready.get(kind, first(host, &template)).await.and_then(|snapshot| {
                    snapshot.lease_all().map_err(|error| error.into_error("warm"))?;
                    Ok(snapshot)
                });
                match kept {
                    Ok(snapshot) => Raw::restore(host, &template, &snapshot).await?,
                    // Where no more snapshots fit, machines are booted ahead.
                    Err(error) if error.kind() == ErrorKind::ResourceExhausted => Raw::make(host, &template).await?,
                    Err(error) => return Err(error),
                }
            }
            // What is in a directory may change from one machine to the next.
            _ => Raw::make(host, &template).await?,
        };
        raw.judge(&template).await?;
        run_in(&raw).await;
        let counts_cpu = raw.evidence.counts_cpu;
        Ok(Self { raw: Some(raw), host: Arc::clone(host), template, counts_cpu })
    }
}

/// Has a program of the root file system do nothing, so that what starts programs has been translated, and read from the disk,
/// before the first that anybody waits for. Where there is none, that one takes longer.
async fn run_in(raw: &Raw) {
    let limits = Limits { wall_time: RUN_IN, ..Limits::default() };
    if let Ok(request) = ExecRequest::argv(["true"]).build()
        && let Ok(handle) = raw.guest.start(&request, &limits).await
    {
        // It ends, or is ended by its limit.
        let _ = handle.exit().await;
    }
}

/// A snapshot of a machine that only booted.
async fn first(host: &Arc<Host>, template: &Spec) -> Result<VmSnapshot> {
    let sandbox = VmSandbox::make(host, template.clone()).await?;
    let taken = sandbox.take_snapshot("warm").await;
    after_close(taken, sandbox.close().await)
}

#[async_trait]
impl Warm for VmWarm {
    fn made_for(&self) -> &Spec {
        &self.template
    }

    fn fits(&self, spec: &Spec) -> bool {
        fits(&self.template, spec, self.counts_cpu)
    }

    fn is_alive(&self) -> bool {
        self.raw.as_ref().is_some_and(|raw| raw.guest.is_alive())
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Plan::of(&spec, &self.host.config)?;
        if !self.fits(&spec) {
            return Err(Error::invalid("claim", "the spec asks for what is fixed in a sandbox made ahead"));
        }
        let died = || {
            Error::new(ErrorKind::Unavailable, "claim", "the sandbox died while it waited").with_retry(Retry::MayHelp)
        };
        let raw = self.raw.take().filter(|raw| raw.guest.is_alive()).ok_or_else(died)?;
        let raw = raw.claimed(spec.limits().clone());
        Ok(Arc::new(VmSandbox::of(raw, spec).await?))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        match self.raw.take() {
            Some(raw) => raw.close().await,
            None => Ok(()),
        }
    }
}

/// Whether a machine made for `template` can still become what `spec` asks for.
fn fits(template: &Spec, spec: &Spec, counts_cpu: bool) -> bool {
    let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // The owner's words, and permissions: nothing of the machine was built from them.
    let (_, _, _) = (tenant, labels, allow_weaker);
    // This backend has none of its own, which a claim is refused for, and ignores those of others.
    let _ = attributes;
    matches!(workspace, Workspace::Private { .. })
        && workspace == template.workspace()
        && root == template.root()
        && directories == template.directories()
        && network == template.network()
        && limits_fit(template.limits(), limits, counts_cpu)
}

fn limits_fit(template: &Limits, asked: &Limits, counts_cpu: bool) -> bool {
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = asked;
    // The supervisor's own clock.
    let _ = wall_time;
    (cpu_time == &template.cpu_time || counts_cpu)
        && memory == &template.memory
        && disk == &template.disk
        && pids == &template.pids
        && processes == &template.processes
        && cpus == &template.cpus
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::{Access, ByteSize, TenantId};

    use super::*;

    fn with(change: impl FnOnce(&mut Limits)) -> Spec {
        let mut limits = Limits::default();
        change(&mut limits);
        Spec::builder().limits(limits).build().unwrap()
    }

    #[test]
    fn what_the_supervisor_keeps_can_come_late() {
        let template = Spec::default();
        let tenant = Spec::builder().tenant(TenantId::new("other").unwrap()).label("a", "b").build().unwrap();
        for spec in [template.clone(), tenant, with(|limits| limits.wall_time = Duration::from_secs(1))] {
            assert!(fits(&template, &spec, false), "{spec:?}");
        }
        let late = with(|limits| limits.cpu_time = Some(Duration::from_secs(1)));
        assert!(fits(&template, &late, true) && !fits(&template, &late, false));
    }

    #[test]
    fn what_was_built_in_is_fixed() {
        let fixed = [
            with(|limits| limits.memory = Some(ByteSize::from_mebibytes(64))),
            with(|limits| limits.memory = None),
            with(|limits| limits.disk = None),
            with(|limits| limits.pids = Some(3)),
            with(|limits| limits.cpus = Some("1".parse().unwrap())),
            Spec::builder().root(RootFs::Directory { path: "/x".into() }).build().unwrap(),
            Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap(),
        ];
        for spec in &fixed {
            assert!(!fits(&Spec::default(), spec, true), "{spec:?}");
        }
    }
}
