//! The requests of the agent while it runs. The agent is an ordinary process among guests, and a guest may have taken
//! it over: it can freeze the other guests, change the identity of this VM, route addresses to its
//! loopback interface, and nothing else.

use super::connection_attempts;
use super::failure::{Failure, Step};
use super::groups::Group;
use super::partner::{self, ANSWER, REQUEST, Request};
use super::reseed::Identity;
use super::sys::{self, Fd, Ready};

/// The address of programs that connect to others: the one of the agent's resolver.
const SOURCE: [u8; 4] = [127, 64, 0, 1];

/// Serves the agent until it has ended. An invalid request ends the VM.
pub fn serve(socket: &Fd, agent: i32, group: &Group, mut identity: Identity) -> Result<(), Failure> {
    const AGENT: &[u8] = b"the agent";
    let invalid = || Failure::new("parse a request of", AGENT, 0);
    loop {
        sys::wait([(socket.number(), Ready::Read), (-1, Ready::Read)], None).step("wait for", AGENT)?;
        let mut message = [0; REQUEST + 1];
        let length = match sys::receive(socket.number(), &mut message) {
            Ok((0, _)) => return Ok(()),
            Ok((length, _)) => length,
            Err(sys::EAGAIN) => continue,
            Err(errno) => return Err(Failure::new("receive from", AGENT, errno)),
        };
        let request = partner::decode(message.get(..length).unwrap_or_default());
        let (number, request) = request.ok_or_else(invalid)?;
        let done = match request {
            Request::Freeze { on } => group.freeze(agent, on),
            Request::Reseed(it) => identity.reseed(&it),
            Request::Route => sys::change_routes(&connection_attempts::route(SOURCE)),
        };
        message.fill(0);
        // Prevents the compiler from removing the zeroing: the message contained secrets.
        core::hint::black_box(&message);
        let answer: [u8; ANSWER] = partner::answer(number, done.err().unwrap_or(0));
        match sys::send(socket.number(), [&answer, &[], &[]], &[]) {
            Ok(()) => {}
            // The agent ended meanwhile.
            Err(sys::EPIPE | sys::ECONNRESET) => return Ok(()),
            Err(errno) => return Err(Failure::new("answer", AGENT, errno)),
        }
    }
}
