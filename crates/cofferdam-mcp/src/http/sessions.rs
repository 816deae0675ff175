//! Client sessions over HTTP, of which there is a most: the SDK's own, and no more than that.

use std::fmt;
use std::time::Duration;

use futures_core::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use tokio::sync::Mutex;

/// The sessions.
#[derive(Debug)]
pub struct Sessions {
    inner: LocalSessionManager,
    most: usize,
    beginning: Mutex<()>,
}

impl Sessions {
    /// At most `most` at once, each ended after `idle` without a message.
    pub fn new(most: usize, idle: Duration) -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.keep_alive = Some(idle);
        // Answers that were sent are kept only until the next request: kept for a time, as many would gather as a client can
        // have made in it.
        inner.session_config.completed_cache_ttl = Duration::ZERO;
        Self { inner, most, beginning: Mutex::new(()) }
    }
}

/// Why a session does not do what is asked.
#[derive(Debug)]
pub enum Refused {
    /// There are as many as there may be.
    Full(usize),
    /// The SDK's own reason.
    Own(LocalSessionManagerError),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(most) => write!(f, "{most} clients are connected, and no more may be"),
            Self::Own(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<LocalSessionManagerError> for Refused {
    fn from(error: LocalSessionManagerError) -> Self {
        Self::Own(error)
    }
}

impl SessionManager for Sessions {
    type Error = Refused;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Refused> {
        // Counted and made in one step.
        let _beginning = self.beginning.lock().await;
        if self.inner.sessions.read().await.len() >= self.most {
            return Err(Refused::Full(self.most));
        }
        Ok(self.inner.create_session().await?)
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Refused> {
        Ok(self.inner.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Refused> {
        Ok(self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Refused> {
        Ok(self.inner.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        Ok(self.inner.create_stream(id, message).await?)
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Refused> {
        Ok(self.inner.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        Ok(self.inner.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        Ok(self.inner.resume(id, last_event_id).await?)
    }
}
