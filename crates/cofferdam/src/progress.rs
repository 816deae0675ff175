//! How far something is that takes long: a bar on a terminal, a line for each step elsewhere.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use cofferdam::registry::ImageStep;
use indicatif::{ProgressBar, ProgressStyle};

use crate::report;
use crate::style::Tone;
use crate::terminal::one_line;

/// Shows steps on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    last: Mutex<String>,
}

impl Progress {
    /// A bar where standard error is a terminal.
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(ProgressBar::no_length);
        Self { bar, last: Mutex::default() }
    }

    /// Shows a step, and how far it is.
    pub fn tell(&self, step: ImageStep) {
        let what = one_line(&step.what);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Clears the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Templates are constants of ours: one that is wrong shows as the plain style.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
