//! Progress of long work: a bar on a terminal, otherwise a line for each step.

use std::io::IsTerminal;

use cofferdam::ByteSize;
use cofferdam::registry::ImageStep;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::report;
use crate::style::Tone;
use crate::terminal::one_line;

/// A display of steps on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    last: Mutex<String>,
}

impl Progress {
    /// Creates a display, with a bar if standard error is a terminal.
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(ProgressBar::no_length);
        Self { bar, last: Mutex::default() }
    }

    /// Shows a step and its progress.
    pub fn report(&self, step: ImageStep) {
        let what = one_line(&step.what);
        let mut last = self.last.lock();
        let is_new = *last != what;
        match (&self.bar, step.bytes) {
            (Some(bar), Some((done, total))) => {
                if bar.length() != Some(total) {
                    bar.set_length(total);
                    bar.set_style(style("{msg} {bar:32} {bytes}/{total_bytes}"));
                }
                bar.set_position(done);
            }
            (Some(bar), None) if is_new => {
                bar.unset_length();
                bar.set_style(style("{spinner} {msg}"));
            }
            (None, _) if is_new && !(what.starts_with("packing ") && last.starts_with("packing ")) => {
                report::remark(&what, Tone::Good);
            }
            _ => {}
        }
        if let Some(bar) = self.bar.as_ref().filter(|_| is_new) {
            bar.set_message(what.clone());
        }
        *last = what;
    }

    /// Shows the size of what was copied, on a terminal only.
    pub fn transferred(&self, what: &str, size: ByteSize) {
        if let Some(bar) = &self.bar {
            bar.set_style(style("{spinner} {msg}"));
            bar.set_message(format!("{}: {size}", one_line(what)));
            bar.tick();
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns the style of a template. Templates are constants, so an invalid one only falls back to the default style.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
