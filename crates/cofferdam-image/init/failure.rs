//! Errors of the init, reported on the console.

use super::sys::{self, Res};
use super::text::Text;

/// Maximum length of the subject in a message.
const MAX_SUBJECT: usize = 120;

/// A step that failed.
pub struct Failure {
    doing: &'static str,
    what: Text<MAX_SUBJECT>,
    errno: i32,
}

impl Failure {
    /// Creates an error. `doing` completes "cannot …"; an error number of 0 means none.
    pub fn new(doing: &'static str, what: &[u8], errno: i32) -> Self {
        let mut shown = Text::new();
        for &byte in what.iter().take(MAX_SUBJECT - 1).filter(|byte| **byte != 0) {
            let _ = shown.push(&[if (b' '..=b'~').contains(&byte) { byte } else { b'?' }]);
        }
        Self { doing, what: shown, errno }
    }
}

/// A conversion of error numbers into failures of a step.
pub trait Step<T> {
    /// Adds the step to an error. `doing` completes "cannot …".
    fn step(self, doing: &'static str, what: &[u8]) -> Result<T, Failure>;
}

impl<T> Step<T> for Res<T> {
    fn step(self, doing: &'static str, what: &[u8]) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(doing, what, errno))
    }
}

/// Reports the failure on the console, in one line.
pub fn report(failure: &Failure) {
    let mut line = Text::<256>::new();
    // Text that does not fit is omitted.
    let _ = line.push(b"cofferdam-init: cannot ");
    let _ = line.push(failure.doing.as_bytes());
    let _ = line.push(b" ");
    let _ = line.push(failure.what.bytes());
    if failure.errno != 0 {
        let _ = line.push(b": error ");
        let _ = line.push_number(failure.errno.unsigned_abs().into());
    }
    let _ = line.push(b"\n");
    let _ = sys::write(1, line.bytes());
}
