//! Long work of a command: its progress, and its end when a signal asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam::Result;
use cofferdam::registry::ImageStep;
use cofferdam::registry::machines::Watch;

use crate::interrupts::Interrupts;
use crate::progress::Progress;
use crate::report::Form;

/// Shows progress to people, and ends long work when a signal asks for it.
pub(super) struct Work {
    progress: Arc<Option<Progress>>,
    cancelled: Arc<AtomicBool>,
}

/// How long work came out.
pub(super) enum Outcome<T> {
    Done(T),
    /// The signal that asked us to end. Nothing is left of the work.
    Interrupted(i32),
}

impl Work {
    pub(super) fn new(form: Form, quiet: bool) -> Self {
        let progress = (form == Form::Text && !quiet).then(Progress::new);
        Self { progress: Arc::new(progress), cancelled: Arc::default() }
    }

    pub(super) fn tell(&self) -> Arc<dyn Fn(ImageStep) + Send + Sync> {
        let progress = Arc::clone(&self.progress);
        Arc::new(move |step: ImageStep| progress.iter().for_each(|shown: &Progress| shown.tell(step.clone())))
    }

    pub(super) fn watch(&self) -> Watch {
        Watch { progress: self.tell(), cancelled: Arc::clone(&self.cancelled) }
    }

    pub(super) fn finish(&self) {
        self.progress.iter().for_each(Progress::finish);
    }

    /// Work that looks at our [`Watch`]: after a signal it is waited for, so that it leaves nothing.
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
                // What it came to does not matter any more.
                let _ = work.await;
                Ok(Outcome::Interrupted(number))
            }
        };
        self.finish();
        done
    }
}
