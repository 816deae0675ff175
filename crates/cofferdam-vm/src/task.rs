//! Work that runs apart from its caller: on a thread that may block, or in a task of its own.

use cofferdam_contract::{Error, ErrorKind, Result};

use crate::error::VmError;

/// Runs work that may block, on a thread for that.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VmError> + Send + 'static,
) -> Result<T, VmError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(VmError::Invalid { what: "the operation was interrupted".to_owned() }))
}

/// Runs some work in a task of its own, which continues if its caller stops waiting.
pub(crate) async fn detached<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let interrupted = |_| Err(Error::new(ErrorKind::Internal, operation, "the operation was interrupted"));
    tokio::spawn(work).await.unwrap_or_else(interrupted)
}
