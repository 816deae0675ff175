//! A layer whose calls wait during a snapshot or fork, when the sandbox cannot start execs.

use async_trait::async_trait;
use cofferdam_contract::{Permit, SandboxLayer, Sharing};
use tokio::sync::RwLock;

/// A lock, shared by concurrent calls and exclusive for a snapshot or fork.
#[derive(Debug, Default)]
pub struct SnapshotGate(RwLock<()>);

#[async_trait]
impl SandboxLayer for SnapshotGate {
    async fn admit<'a>(&'a self, sharing: Sharing) -> Permit<'a> {
        match sharing {
            Sharing::Shared => Some(Box::new(self.0.read().await)),
            Sharing::Exclusive => Some(Box::new(self.0.write().await)),
        }
    }
}
