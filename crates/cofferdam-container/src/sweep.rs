//! Removal of the containers of killed supervisors: those whose owner ran on this host and is dead.
//!
//! The engine removes a container by itself once the attached connection is closed, so a sweep rarely finds any. It
//! finds containers that were created but not started, and those of an engine that ended at the same time.

use std::collections::HashMap;
use std::time::Duration;

use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};
use cofferdam_contract::Result;
use tokio::time::{Instant, sleep};

use crate::engine::Engine;
use crate::labels::{self, Owner, OwnerState};
use crate::outside;

/// Time limit for a container to reach a state that the API defines.
const UNKNOWN_STATE_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Removes leftover containers. Returns their number. The next sweep retries those that cannot be removed now.
pub(crate) async fn sweep(engine: &Engine, current: &Owner) -> Result<usize> {
    let mut removed = 0;
    for id in leftovers(engine, current).await? {
        outside::kill_all(engine, &id, outside::groups(engine, &id).await).await;
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        if engine.change(engine.docker.remove_container(&id, Some(options))).await.is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

async fn leftovers(engine: &Engine, current: &Owner) -> Result<Vec<String>> {
    let filters = HashMap::from([("label".to_owned(), vec![labels::OWN_LABEL.to_owned()])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let begun = Instant::now();
    let all = loop {
        match engine.ask(engine.docker.list_containers(Some(options.clone()))).await {
            Err(failed) if failed.is_unknown() && begun.elapsed() < UNKNOWN_STATE_TIMEOUT => {
                sleep(RETRY_INTERVAL).await
            }
            answered => break answered,
        }
    };
    let all = all.map_err(|failed| engine.error("create", "list the containers of earlier runs", failed))?;
    let dead = all.into_iter().filter(|container| {
        let names = container.names.as_deref().unwrap_or_default();
        let owner = container.labels.as_ref().and_then(|labels| labels::owner_of(names, labels));
        owner.is_some_and(|owner| owner.state(&current.host) == OwnerState::Dead)
    });
    Ok(dead.filter_map(|container| container.id).collect())
}
