//! Removal of one container, confirmed by the engine.

use std::time::Duration;

use bollard::query_parameters::RemoveContainerOptionsBuilder;
use cofferdam_contract::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep};

use crate::engine::Engine;

/// Time limit for an engine to remove a container.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// The minimum and the maximum interval between polls of a container during its removal.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Removes a container and waits until it is gone.
pub(crate) async fn remove(engine: &Engine, id: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    match engine.change(engine.docker.remove_container(id, Some(options))).await {
        // The automatic removal may be in progress.
        Ok(()) => {}
        Err(failed) if failed.is_missing() => return Ok(()),
        Err(failed) if failed.status() == Some(409) || failed.status() == Some(500) => {}
        Err(failed) => return Err(engine.error("close", "remove the container", failed)),
    }
    if wait_until_gone(engine, id, REMOVAL_TIMEOUT).await? {
        return Ok(());
    }
    let what = format!("the engine did not remove the container within {} s", REMOVAL_TIMEOUT.as_secs());
    Err(Error::new(ErrorKind::Unavailable, "close", what)
        .with_context("container", id.to_owned())
        .with_remedy(format!("remove it by hand: `docker rm -f {id}`")))
}

/// Waits until a container is gone. Returns false if it still exists after this time.
pub(crate) async fn wait_until_gone(engine: &Engine, id: &str, limit: Duration) -> Result<bool> {
    let until = Instant::now() + limit;
    let mut pause = MIN_POLL_INTERVAL;
    loop {
        match engine.ask(engine.docker.inspect_container(id, None)).await {
            Err(failed) if failed.is_missing() => return Ok(true),
            Err(failed) if failed.is_away() => {
                return Err(engine.error("close", "check that the container is gone", failed));
            }
            _ if Instant::now() >= until => return Ok(false),
            _ => sleep(pause).await,
        }
        pause = MAX_POLL_INTERVAL.min(pause * 2);
    }
}
