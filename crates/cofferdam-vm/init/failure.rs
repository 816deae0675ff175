//! What went wrong, for the console.

use super::sys::{self, Res};
use super::text::Text;

/// The longest subject that is told.
const LONGEST: usize = 120;

/// A step that failed.
pub struct Failure {
    doing: &'static str,
    what: Text<LONGEST>,
    errno: i32,
}

impl Failure {
    /// `doing` completes "cannot …"; an error number of 0 is none.
    pub fn new(doing: &'static str, what: &[u8], errno: i32) -> Self {
        let mut shown = Text::new();
        for &byte in what.iter().take(LONGEST - 1).filter(|byte| **byte != 0) {
            let _ = shown.push(&[if (b' '..=b'~').contains(&byte) { byte } else { b'?' }]);
        }
        Self { doing, what: shown, errno }
    }
}

/// Says what was being done when something failed.
pub trait Step<T> {
    /// `doing` completes "cannot …".
    fn step(self, doing: &'static str, what: &[u8]) -> Result<T, Failure>;
}

impl<T> Step<T> for Res<T> {
    fn step(self, doing: &'static str, what: &[u8]) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(doing, what, errno))
    }
}

/// Tells it on the console, in one line.
pub fn tell(failure: &Failure) {
    let mut line = Text::<256>::new();
    // What does not fit is left out.
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
