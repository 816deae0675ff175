//! A place for a parser to work on hostile code: a stack of its own, and panics that end nothing else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::position::printable;
use crate::report::ScreenError;

/// The stack that a parser and what walks its tree may use.
pub(crate) const STACK: usize = 64 << 20;
/// What is asked for besides for each byte of code: a tree is taken apart recursively, and a chain as `a.a.a` is a tree as
/// deep as it is long. It is reserved, and used only by such code.
const STACK_FOR_BYTE: usize = 512;

/// How work ends that is broken off on purpose. Thrown by [`std::panic::resume_unwind`], which tells no panic hook.
#[derive(Debug)]
pub(crate) struct Stop(pub ScreenError);

/// Does the work on a thread for code of so many bytes.
pub(crate) fn on_own_stack<T: Send>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, ScreenError> + Send,
) -> Result<T, ScreenError> {
    let size = STACK + bytes.saturating_mul(STACK_FOR_BYTE);
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("screen".to_owned()).stack_size(size);
        let worker = worker
            .spawn_scoped(scope, || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|thrown| Err(said(thrown))))
            .map_err(|error| ScreenError::Host(error.to_string()))?;
        worker.join().unwrap_or_else(|thrown| Err(said(thrown)))
    })
}

fn said(thrown: Box<dyn Any + Send>) -> ScreenError {
    let thrown = match thrown.downcast::<Stop>() {
        Ok(stop) => return stop.0,
        Err(thrown) => thrown,
    };
    let text = thrown.downcast_ref::<&str>().copied();
    let text = text.or_else(|| thrown.downcast_ref::<String>().map(String::as_str));
    ScreenError::Parser(printable(text.unwrap_or("without a word"), 200))
}

/// Where the stack is now. The address of a local variable, which no code reads through.
#[inline(never)]
pub(crate) fn stack_address() -> usize {
    let here = 0_u8;
    std::hint::black_box(std::ptr::from_ref(&here)).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_a_stop_is_what_it_carries() {
        let panicked = on_own_stack(10, || -> Result<(), _> { panic!("of {}", "its own") });
        assert_eq!(panicked, Err(ScreenError::Parser("of its own".to_owned())));
        let stopped = on_own_stack(10, || -> Result<(), _> {
            std::panic::resume_unwind(Box::new(Stop(ScreenError::TooAmbiguous)))
        });
        assert_eq!(stopped, Err(ScreenError::TooAmbiguous));
        assert_eq!(on_own_stack(10, || Ok(1)), Ok(1));
    }
}
