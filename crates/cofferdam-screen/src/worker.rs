//! A thread for parsing untrusted code: its stack is large enough, and its panics become errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::report::AnalysisError;
use crate::text::printable;

/// The minimum stack of a thread.
const STACK: usize = 64 << 20;
/// Additional stack for each byte of code. A syntax tree is dropped recursively, and the tree of `a.a.a` is as deep as
/// the code is long. The stack is only reserved, and uses memory only as far as it is touched.
const STACK_PER_BYTE: usize = 512;

/// Runs work on a thread with a stack for this many bytes of code and this much additional stack.
pub(crate) fn run<T: Send>(
    bytes: usize,
    more: usize,
    work: impl FnOnce() -> Result<T, AnalysisError> + Send,
) -> Result<T, AnalysisError> {
    let size = STACK.saturating_add(bytes.saturating_mul(STACK_PER_BYTE)).saturating_add(more);
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("screen".to_owned()).stack_size(size);
        let worker = worker
            .spawn_scoped(scope, || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(failed(&*panic))))
            .map_err(|error| AnalysisError::Host(error.to_string()))?;
        worker.join().unwrap_or_else(|panic| Err(failed(&*panic)))
    })
}

fn failed(panic: &(dyn Any + Send)) -> AnalysisError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    AnalysisError::Parser(printable(text.unwrap_or("without a message"), 200))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let panicked = run(10, 0, || -> Result<(), _> { panic!("of {}", "the parser") });
        assert_eq!(panicked, Err(AnalysisError::Parser("of the parser".to_owned())));
        assert_eq!(run(10, 0, || Ok(1)), Ok(1));
    }
}
