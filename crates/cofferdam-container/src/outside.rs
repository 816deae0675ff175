//! What the host sees and does of a container by itself. Nothing here asks anyone inside: a guest that keeps process 1 from
//! running changes neither what was counted nor that everything ends.

use std::sync::Arc;

use bollard::models::ContainerUpdateBody;
use bollard::query_parameters::StatsOptionsBuilder;
use cofferdam_guest::{Meter, ReadCpu};
use cofferdam_linux::cgroup::Foreign;

use crate::container::Container;
use crate::engine::{Answered, Engine};
use crate::stream::next;

/// The most that an engine gives of the processors, against others.
const MAX_SHARES: i64 = 262_144;

/// The control groups of a container that runs, where they are this host's and can be seen.
pub(crate) async fn groups(engine: &Engine, id: &str) -> Option<Arc<Foreign>> {
    if !engine.facts.local {
        return None;
    }
    let found = engine.ask(engine.docker.inspect_container(id, None)).await.ok()?;
    // What is stopped would not end when it is killed.
    let state = found.state.filter(|state| state.paused != Some(true))?;
    let pid = state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1)?;
    Foreign::of(pid, found.id.as_deref()?).ok().map(Arc::new)
}

/// What counts the CPU time of a container from outside: its control groups, else the engine. `None` where neither does.
/// `alike` says that the agent reads the same groups.
pub(crate) async fn meter(container: &Container, alike: bool) -> Option<Meter> {
    let read: ReadCpu = match container.groups().await.filter(|groups| groups.stats().cpu_micros().is_some()) {
        Some(groups) => Arc::new(move || Box::pin(std::future::ready(groups.stats().cpu_micros()))),
        None => {
            let (engine, id) = (container.engine.clone(), container.id.clone());
            counted(&engine, &id).await.filter(|micros| *micros > 0)?;
            Arc::new(move || {
                let (engine, id) = (engine.clone(), id.clone());
                Box::pin(async move { counted(&engine, &id).await })
            })
        }
    };
    Some(if alike { Meter::Same(read) } else { Meter::Around(read) })
}

/// CPU microseconds as the engine counts them.
async fn counted(engine: &Engine, id: &str) -> Option<u64> {
    let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
    let mut stats = Box::pin(engine.docker.stats(id, Some(options)));
    let first = async { next(&mut stats).await.transpose() };
    let answer: Answered<_> = first.await;
    Some(answer.ok()??.cpu_stats?.cpu_usage?.total_usage? / 1000)
}

/// Ends every process of a container, whatever the first one does. Where the host's own means do not reach them, the
/// container gets as much of the processors as the engine can give, so that what the engine kills can end.
pub(crate) async fn overpower(engine: &Engine, id: &str, groups: Option<Arc<Foreign>>) {
    if let Some(groups) = groups {
        let killed = tokio::task::spawn_blocking(move || groups.kill()).await;
        if killed.unwrap_or(false) {
            return;
        }
    }
    if engine.facts.can_update() {
        let most = ContainerUpdateBody { cpu_shares: Some(MAX_SHARES), ..ContainerUpdateBody::default() };
        // A container that is being removed already cannot be changed, and need not be.
        let _ = engine.ask(engine.docker.update_container(id, most)).await;
    }
}
