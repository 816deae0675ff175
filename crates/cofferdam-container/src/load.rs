//! Images of other stores: if the engine does not have an image, it is loaded from such a store.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bollard::query_parameters::ImportImageOptionsBuilder;
use cofferdam_contract::{Error, ErrorKind, Result};

use crate::engine::Engine;
use crate::progress::{PullEvent, PullProgress};
use crate::reference::Reference;
use crate::stream;
use crate::upload::{CountingBody, read_answers};

/// A store of images outside of the engine. Its methods block.
pub trait ImageSource: Send + Sync + fmt::Debug {
    /// Returns the digest of an image's configuration (`sha256:…`), which is its id in an engine, or `None` if the store
    /// does not have the image.
    ///
    /// # Errors
    ///
    /// Those of reading the store.
    fn find(&self, name: &str) -> Result<Option<String>>;

    /// Writes an image as an archive of `docker save`, with its name.
    ///
    /// # Errors
    ///
    /// Those of reading the store and of writing.
    fn save(&self, name: &str, out: &mut dyn Write) -> Result<()>;
}

/// Loads an image into the engine, if the store has it. Returns its id.
pub(crate) async fn load(
    engine: &Engine,
    source: &Arc<dyn ImageSource>,
    reference: &Reference,
    progress: &PullProgress,
) -> Result<Option<String>> {
    let (store, name) = (Arc::clone(source), reference.as_str().to_owned());
    let Some(id) = blocking(move || store.find(&name)).await? else { return Ok(None) };
    let status = format!("loading {reference} from the image store into the engine");
    progress.report(&PullEvent { layer: None, status, current: None, total: None });
    let (mut chunks, body) = stream::channel();
    let (store, name) = (Arc::clone(source), reference.as_str().to_owned());
    let saving = tokio::task::spawn_blocking(move || {
        let outcome = store.save(&name, &mut chunks);
        let finished = chunks.finish(match &outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::other(error.to_string())),
        });
        // The store's error is the cause of the stream's.
        outcome.and(
            finished.map_err(|error| Error::new(ErrorKind::Io, "load", "cannot send the image").with_source(error)),
        )
    });
    let moved = Arc::new(AtomicU64::new(0));
    let body = CountingBody::new(body, Arc::clone(&moved));
    let options = ImportImageOptionsBuilder::default().quiet(true).build();
    let answers = engine.docker.import_image(options, bollard::body_try_stream(body), None);
    let answered = read_answers(engine, answers, &moved).await;
    let saved = saving.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "load", "the reader ended")));
    match (saved, answered) {
        (Ok(()), Ok(())) => Ok(Some(id)),
        (_, Err(failed)) if failed.is_away() => Err(engine.error("load", "load the image", failed)),
        (Err(error), Ok(())) => Err(error),
        (_, Err(failed)) => Err(engine.error("load", "load the image", failed)),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "load", "the reader ended")))
}
