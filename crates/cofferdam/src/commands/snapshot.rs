//! `cofferdam snapshot`: freezes a machine to a file, lets it go on from one, shows what is in one.

mod inspect;
mod restore;
mod save;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam::Result;
use cofferdam::registry::ImageStep;
use cofferdam::registry::machines::{ArchiveKey, Watch};

use crate::args::{SnapshotArgs, SnapshotCommand};
use crate::interrupts::Interrupts;
use crate::progress::Progress;
use crate::report::{self, Form};

/// Does what is asked for; the exit status is that of a command inside, if there was one.
pub fn main(args: SnapshotArgs, config: Option<PathBuf>) -> u8 {
    let form = if args.command.json() { Form::Json } else { Form::Text };
    let done = match args.command {
        SnapshotCommand::Save(args) => save::carry_out(*args, config, form),
        SnapshotCommand::Restore(args) => restore::carry_out(*args, config, form),
        SnapshotCommand::Inspect(args) => inspect::carry_out(&args, form),
    };
    done.unwrap_or_else(|error| report::error(&error, form))
}

fn key(path: Option<&Path>) -> Result<Option<ArchiveKey>> {
    path.map(ArchiveKey::read).transpose()
}

/// Shows progress to people, and ends long work when a signal asks for it.
struct Work {
    progress: Arc<Option<Progress>>,
    cancelled: Arc<AtomicBool>,
}

/// How long work came out.
enum Outcome<T> {
    Done(T),
    /// The signal that asked us to end. Nothing is left of the work.
    Interrupted(i32),
}

impl Work {
    fn new(form: Form, quiet: bool) -> Self {
        let progress = (form == Form::Text && !quiet).then(Progress::new);
        Self { progress: Arc::new(progress), cancelled: Arc::default() }
    }

    fn tell(&self) -> Arc<dyn Fn(ImageStep) + Send + Sync> {
        let progress = Arc::clone(&self.progress);
        Arc::new(move |step: ImageStep| progress.iter().for_each(|shown: &Progress| shown.tell(step.clone())))
    }

    fn watch(&self) -> Watch {
        Watch { progress: self.tell(), cancelled: Arc::clone(&self.cancelled) }
    }

    fn finish(&self) {
        self.progress.iter().for_each(Progress::finish);
    }

    /// Work that looks at our [`Watch`]: after a signal it is waited for, so that it leaves nothing.
    async fn run<T>(&self, interrupts: &mut Interrupts, work: impl Future<Output = Result<T>>) -> Result<Outcome<T>> {
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
