//! The parts of a run that has its own thread: the thread's stack, and the standard input of its guest.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, ExecRequest, Stdin, StdinWriter};

use crate::guest_control::{GuestControl, Input, InputWriter};
use crate::state::Common;

/// Stack for the host's part of a guest thread.
const HOST_STACK: u64 = 1 << 20;

/// Returns the stack size of a guest thread.
pub(super) fn stack_size(common: &Common) -> usize {
    usize::try_from(common.config.stack.as_bytes() + HOST_STACK).unwrap_or(usize::MAX)
}

/// Returns the source of a guest's standard input, and its writer if it is streamed.
pub(super) fn input(request: &ExecRequest, control: &Arc<GuestControl>) -> (Input, Option<StdinWriter>) {
    match request.stdin() {
        Stdin::Empty => (Input::Given(Bytes::new()), None),
        Stdin::Bytes(bytes) => (Input::Given(bytes.clone()), None),
        Stdin::Stream => (Input::Streamed, Some(StdinWriter::new(InputWriter(Arc::clone(control))))),
    }
}

/// Returns the error of a start while the maximum number of guests run.
pub(super) fn no_slot(common: &Common) -> Error {
    let message = format!("{} modules are running, which is this backend's maximum", common.config.guests);
    Error::new(ErrorKind::ResourceExhausted, "start", message)
}

/// Returns the error of a start without a thread.
pub(super) fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "start", "cannot start a thread for the module").with_source(error)
}
