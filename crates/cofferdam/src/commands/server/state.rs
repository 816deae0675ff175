//! The directory of a server's state, which one server uses at a time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_util::private;
use tokio::time::Instant;

/// Time for the processes of a killed server, which may hold its lock, to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the directory of the state: the given one, `$XDG_STATE_HOME/cofferdam/server`, for root else
/// `/var/lib/cofferdam/server`, for other users else `~/.local/state/cofferdam/server`. A private server, of this user
/// alone, has the directory `private-server` there.
pub fn directory(configured: Option<&Path>, is_private: bool) -> Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| match rustix::process::geteuid().is_root() {
        true => Some("/var/lib".into()),
        false => absolute("HOME").map(|home| home.join(".local/state")),
    });
    let name = if is_private { "cofferdam/private-server" } else { "cofferdam/server" };
    configured.map(Path::to_path_buf).or_else(|| base.map(|base| base.join(name))).ok_or_else(|| {
        Error::invalid("open database", "there is no directory for the server's state")
            .with_remedy("give --state DIR, or set XDG_STATE_HOME")
    })
}

/// Locks the directory for this server, until the returned file is dropped. A successor gets the lock when its
/// predecessor ends, and keeps it.
///
/// # Errors
/// - `Conflict` if another server has it: each would settle the sandboxes of the other as those of a killed one.
pub async fn lock(directory: &Path, is_successor: bool) -> Result<Option<File>> {
    lock_within(directory, is_successor, LOCK_TIMEOUT).await
}

async fn lock_within(directory: &Path, is_successor: bool, timeout: Duration) -> Result<Option<File>> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, "serve", "cannot lock the directory of the state")
            .with_context("directory", directory.display().to_string())
            .with_source(error)
    };
    private::create_directory(directory).map_err(failed)?;
    let file = File::options().create(true).truncate(false).write(true).open(directory.join("lock")).map_err(failed)?;
    if is_successor {
        tokio::spawn(async move {
            while file.try_lock().is_err() {
                tokio::time::sleep(LOCK_INTERVAL).await;
            }
            std::future::pending::<()>().await;
        });
        return Ok(None);
    }
    let begun = Instant::now();
    while file.try_lock().is_err() {
        if begun.elapsed() > timeout {
            return Err(Error::new(ErrorKind::Conflict, "serve", "another server uses the same state")
                .with_context("directory", directory.display().to_string())
                .with_remedy("give this one another --state DIR, or stop the other one"));
        }
        tokio::time::sleep(LOCK_INTERVAL).await;
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn state_is_locked_by_one_server_until_its_successor() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("state");
        let lock = async |is_successor| lock_within(&directory, is_successor, LOCK_INTERVAL * 2).await;
        let first = lock(false).await.unwrap();
        assert!(first.is_some());
        assert_eq!(lock(false).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert!(lock(true).await.unwrap().is_none());
        drop(first);
        tokio::time::sleep(LOCK_INTERVAL * 4).await;
        assert_eq!(lock(false).await.unwrap_err().kind(), ErrorKind::Conflict, "the successor has it");
    }
}
