//! A place for a parser to work on hostile code: a stack of its own, and panics that end nothing else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::position::printable;
use crate::report::ScreenError;

/// The stack that a parser and what walks its tree may use.
const STACK: usize = 64 << 20;
/// What is asked for besides for each byte of code: a tree is taken apart recursively, and a chain as `a.a.a` is a tree as
/// deep as it is long. It is reserved, and used only by such code.
const STACK_FOR_BYTE: usize = 512;

/// Does the work on a thread for code of so many bytes, with this much stack besides.
pub(crate) fn on_own_stack<T: Send>(
    bytes: usize,
    besides: usize,
    work: impl FnOnce() -> Result<T, ScreenError> + Send,
) -> Result<T, ScreenError> {
    let size = STACK.saturating_add(bytes.saturating_mul(STACK_FOR_BYTE)).saturating_add(besides);
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("screen".to_owned()).stack_size(size);
        let worker = worker
            .spawn_scoped(scope, || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|thrown| Err(said(thrown))))
            .map_err(|error| ScreenError::Host(error.to_string()))?;
        worker.join().unwrap_or_else(|thrown| Err(said(thrown)))
    })
}

fn said(thrown: Box<dyn Any + Send>) -> ScreenError {
    let text = thrown.downcast_ref::<&str>().copied();
    let text = text.or_else(|| thrown.downcast_ref::<String>().map(String::as_str));
    ScreenError::Parser(printable(text.unwrap_or("without a word"), 200))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let panicked = on_own_stack(10, 0, || -> Result<(), _> { panic!("of {}", "its own") });
        assert_eq!(panicked, Err(ScreenError::Parser("of its own".to_owned())));
        assert_eq!(on_own_stack(10, 0, || Ok(1)), Ok(1));
    }
}
