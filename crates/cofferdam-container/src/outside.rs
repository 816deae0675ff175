//! Counting and killing of a container's processes by the host, and a raw socket that shows their refused connections.
//! Nothing here depends on the agent. A guest that keeps process 1 from running can change neither the count nor the kill.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bollard::models::ContainerUpdateBody;
use bollard::query_parameters::StatsOptionsBuilder;
use cofferdam_guest::{Meter, ReadCpu, network};
use cofferdam_linux::cgroup::Foreign;

use crate::engine::{Answered, Engine};
use crate::stream::next;

/// The highest CPU weight that an engine accepts.
const MAX_SHARES: i64 = 262_144;

/// Returns the control groups of a running container, if the engine is on this host and they are visible.
pub(crate) async fn groups(engine: &Engine, id: &str) -> Option<Arc<Foreign>> {
    if !engine.facts.local {
        return None;
    }
    let found = engine.ask(engine.docker.inspect_container(id, None)).await.ok()?;
    // A paused process would not exit after a kill.
    let state = found.state.filter(|state| state.paused != Some(true))?;
    let pid = state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1)?;
    Foreign::of(pid, found.id.as_deref()?).ok().map(Arc::new)
}

/// Returns a counter of the container's CPU time outside of it: its control groups, else the engine. Returns `None` if
/// neither counts. `alike` is true if the agent reads the same groups.
pub(crate) async fn meter(engine: &Engine, id: &str, groups: Option<Arc<Foreign>>, alike: bool) -> Option<Meter> {
    let read: ReadCpu = match groups.filter(|groups| groups.stats().cpu_micros().is_some()) {
        Some(groups) => Arc::new(move || Box::pin(std::future::ready(groups.stats().cpu_micros()))),
        None => {
            let (engine, id) = (engine.clone(), id.to_owned());
            counted(&engine, &id).await.filter(|micros| *micros > 0)?;
            Arc::new(move || {
                let (engine, id) = (engine.clone(), id.clone());
                Box::pin(async move { counted(&engine, &id).await })
            })
        }
    };
    Some(if alike { Meter::Same(read) } else { Meter::Around(read) })
}

/// Returns the CPU microseconds that the engine counts.
async fn counted(engine: &Engine, id: &str) -> Option<u64> {
    let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
    let mut stats = Box::pin(engine.docker.stats(id, Some(options)));
    let first = async { next(&mut stats).await.transpose() };
    let answer: Answered<_> = first.await;
    Some(answer.ok()??.cpu_stats?.cpu_usage?.total_usage? / 1000)
}

/// Routes all IPv4 addresses in a container's network to its loopback interface, and opens a raw socket there. It shows
/// the connections that the kernel refuses. Returns `None` if this process may not join the network, or sees none of the container's
/// processes.
pub(crate) async fn open_connection_attempts(groups: Arc<Foreign>) -> Option<OwnedFd> {
    let opening = tokio::task::spawn_blocking(move || {
        let process = groups.open_process()?;
        cofferdam_linux::connection_attempts::open_beside(process.as_fd(), network::RESOLVER).ok()
    });
    opening.await.ok().flatten()
}

/// Kills every process of a container without the help of its first process. If the host cannot kill them itself, it
/// gives the container the highest CPU weight, so that the processes that the engine kills can exit.
pub(crate) async fn kill_all(engine: &Engine, id: &str, groups: Option<Arc<Foreign>>) {
    if let Some(groups) = groups {
        let killed = tokio::task::spawn_blocking(move || groups.kill()).await;
        if killed.unwrap_or(false) {
            return;
        }
    }
    if engine.facts.can_update() {
        let update = ContainerUpdateBody { cpu_shares: Some(MAX_SHARES), ..ContainerUpdateBody::default() };
        // Ignores an error: a container that is already being removed cannot be changed.
        let _ = engine.ask(engine.docker.update_container(id, update)).await;
    }
}
