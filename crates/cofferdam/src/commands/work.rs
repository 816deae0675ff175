//! Long work of a command, with progress and cancellation by signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam::Result;
use cofferdam::registry::ImageStep;
use cofferdam::registry::vms::Watch;

use crate::interrupts::Interrupts;
use crate::progress::Progress;
use crate::report::Form;

/// Progress display and cancellation flag of long work.
pub(super) struct Work {
    progress: Arc<Option<Progress>>,
    cancelled: Arc<AtomicBool>,
}

/// The result of long work.
pub(super) enum Outcome<T> {
    Done(T),
    /// The signal that cancelled the work, which left nothing behind.
    Interrupted(i32),
}

impl Work {
    pub(super) fn new(form: Form, quiet: bool) -> Self {
        let progress = (form == Form::Text && !quiet).then(Progress::new);
        Self { progress: Arc::new(progress), cancelled: Arc::default() }
    }

    pub(super) fn progress(&self) -> Arc<dyn Fn(ImageStep) + Send + Sync> {
        let progress = Arc::clone(&self.progress);
        Arc::new(move |step: ImageStep| progress.iter().for_each(|shown: &Progress| shown.report(step.clone())))
    }

    pub(super) fn watch(&self) -> Watch {
        Watch { progress: self.progress(), cancelled: Arc::clone(&self.cancelled) }
    }

    pub(super) fn finish(&self) {
        self.progress.iter().for_each(Progress::finish);
    }

    /// Runs work that polls the [`Watch`]. After a signal, waits until the work has cleaned up.
    pub(super) async fn run<T>(
        &self,
        interrupts: &mut Interrupts,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Outcome<T>> {
        let mut work = std::pin::pin!(work);
        let done = tokio::select! {
            done = &mut work => done.map(Outcome::Done),
            number = interrupts.next() => {
                self.cancelled.store(true, Ordering::Relaxed);
                // The result of cancelled work is irrelevant.
                let _ = work.await;
                Ok(Outcome::Interrupted(number))
            }
        };
        self.finish();
        done
    }
}
