//! A reader whose first error is kept: the request that sends it only reports that its body broke.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cofferdam_contract::FileReader;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};

/// The first error of a reader.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadFailure(Arc<Mutex<Option<io::Error>>>);

impl ReadFailure {
    /// Takes the error, if there was one.
    pub fn take(&self) -> Option<io::Error> {
        self.0.lock().take()
    }
}

struct Noticed {
    reader: FileReader,
    failure: ReadFailure,
}

/// Returns a reader with the same bytes, and its first error.
pub(crate) fn noticed(reader: FileReader) -> (impl AsyncRead + Send, ReadFailure) {
    let failure = ReadFailure::default();
    (Noticed { reader, failure: failure.clone() }, failure)
}

impl AsyncRead for Noticed {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, into).map_err(|error| {
            let shown = io::Error::new(error.kind(), "the source of the upload cannot be read");
            self.failure.0.lock().get_or_insert(error);
            shown
        })
    }
}
