//! A first look at a module, before anything is spent on it: what is too much for the compiler is refused here.

use cofferdam_contract::{Error, ErrorKind};
use wasmparser::{BinaryReaderError, Encoding, FunctionBody, Parser, Payload, TypeRef};

const MAGIC: &[u8] = b"\0asm";
pub(crate) const MAX_FUNCTIONS: u32 = 200_000;
/// Code of one function: the compiler takes one to two kilobytes of memory for each byte of the worst of them.
const MAX_BODY: usize = 384 << 10;
/// Code of one function times its locals: what the compiler's tables grow with.
const MAX_WORK: u64 = 1 << 27;

/// Whether these bytes call themselves WebAssembly.
pub(crate) fn is_wasm(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Refuses what is no module, or one whose compilation has no good bound.
pub(crate) fn screen(bytes: &[u8]) -> Result<(), Error> {
    if !is_wasm(bytes) {
        return Err(not_executable("the file is no WebAssembly module"));
    }
    let mut memories = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(malformed)?;
        screen_memories(&payload, &mut memories)?;
        match payload {
            Payload::Version { encoding: Encoding::Component, .. } => {
                return Err(not_executable("the file is a component where a module must be"));
            }
            Payload::CodeSectionStart { count, .. } if count > MAX_FUNCTIONS => {
                return Err(not_executable(format!("the module has more than {MAX_FUNCTIONS} functions")));
            }
            Payload::CodeSectionEntry(body) => screen_body(&body)?,
            _ => {}
        }
    }
    Ok(())
}

/// The engine allows a module several memories, for what it makes itself. A guest's has one at most.
pub(crate) fn screen_memories(payload: &Payload<'_>, memories: &mut u32) -> Result<(), Error> {
    match payload {
        Payload::ImportSection(section) => {
            for import in section.clone().into_imports() {
                *memories += u32::from(matches!(import.map_err(malformed)?.ty, TypeRef::Memory(_)));
            }
        }
        Payload::MemorySection(section) => *memories = memories.saturating_add(section.count()),
        _ => {}
    }
    if *memories > 1 { Err(not_executable("a module with several memories")) } else { Ok(()) }
}

fn malformed(error: BinaryReaderError) -> Error {
    not_executable("the module is malformed").with_source(error)
}

pub(crate) fn screen_body(body: &FunctionBody<'_>) -> Result<(), Error> {
    let size = body.range().len();
    if size > MAX_BODY {
        return Err(not_executable(format!("a function of the module has more than {MAX_BODY} bytes")));
    }
    let mut locals = 0u64;
    for group in body.get_locals_reader().map_err(malformed)? {
        locals += u64::from(group.map_err(malformed)?.0);
    }
    if locals.saturating_mul(size as u64) > MAX_WORK {
        return Err(not_executable("a function of the module has too much code for its many locals"));
    }
    Ok(())
}

pub(crate) fn not_executable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotExecutable, "start", message)
}
