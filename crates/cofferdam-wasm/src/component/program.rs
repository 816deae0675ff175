//! Compilation of a component from bytes, and its run.

use cofferdam_contract::{Error, Result};
use wasmtime::component::{Component as Compiled, HasSelf, Linker};
use wasmtime::{Engine, Store, Trap};

use super::analysis::check_component;
use super::bindings::{Command, CommandPre, LinkOptions};
use super::error::trap;
use crate::analysis::not_executable;
use crate::termination::Termination;
use crate::wasi::Host;

/// Bytes that one call can pass to the host.
const MAX_PASSED: usize = 16 << 20;
/// Handles that all parts of a component hold together, both host resources and its own.
const MAX_HANDLES: usize = 100_000;

/// A component ready to be instantiated.
pub(crate) type Component = CommandPre<Host>;

/// Compiles a component, and checks that all its imports exist.
pub(crate) fn compile(engine: &Engine, bytes: &[u8]) -> Result<Component> {
    check_component(bytes)?;
    let compiled = Compiled::from_binary(engine, bytes)
        .map_err(|error| not_executable(format!("cannot compile the component: {}", reason(&error))))?;
    let mut linker = Linker::new(engine);
    Command::add_to_linker::<_, HasSelf<Host>>(&mut linker, &LinkOptions::default(), |host| host).map_err(|error| {
        Error::new(cofferdam_contract::ErrorKind::Internal, "start", "cannot link the WASI interfaces")
            .with_context("reason", reason(&error))
    })?;
    let ready = linker
        .instantiate_pre(&compiled)
        .map_err(|error| not_executable(format!("the component has an unknown import: {}", reason(&error))))?;
    CommandPre::new(ready).map_err(|_| {
        not_executable("the component is not a command: it does not export wasi:cli/run of version 0.2")
            .with_remedy("build it as a program, not as a library")
    })
}

/// Returns the error as one line.
fn reason(error: &wasmtime::Error) -> String {
    let text = format!("{error:#}");
    let line: String = text.lines().next().unwrap_or_default().chars().take(300).collect();
    line.escape_debug().to_string()
}

/// Runs a component until it ends.
pub(crate) fn run(store: &mut Store<Host>, component: &Component) -> wasmtime::Result<()> {
    store.set_hostcall_fuel(MAX_PASSED);
    store.set_max_component_handles(MAX_HANDLES);
    let command = component.instantiate(&mut *store)?;
    match command.wasi_cli_run().call_run(&mut *store) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(())) => Err(wasmtime::Error::new(Termination::Exit(1))),
        Err(error) if error.downcast_ref::<Termination>().is_some() || error.downcast_ref::<Trap>().is_some() => {
            Err(error)
        }
        // Errors of the engine between the calls: invalid handles, invalid strings, lists outside of memory.
        Err(_) => Err(trap("a call that violates the component model")),
    }
}
