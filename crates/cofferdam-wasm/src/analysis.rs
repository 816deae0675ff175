//! Static analysis of a module before it is compiled. It rejects modules that take the compiler too many resources.

use cofferdam_contract::{Error, ErrorKind};
use wasmparser::{BinaryReaderError, Encoding, FunctionBody, Parser, Payload, TypeRef};

const MAGIC: &[u8] = b"\0asm";
pub(crate) const MAX_FUNCTIONS: u32 = 200_000;
/// The maximum code size of one function. The compiler takes up to two kilobytes of memory for each byte of code.
const MAX_BODY: usize = 384 << 10;
/// The maximum product of a function's code size and its locals, which determines the size of the compiler's tables.
const MAX_WORK: u64 = 1 << 27;

/// Returns true if the bytes have the header of a WebAssembly binary.
pub(crate) fn is_wasm(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Rejects bytes that are not a module, and modules without a good bound on their compile time.
pub(crate) fn check_module(bytes: &[u8]) -> Result<(), Error> {
    if !is_wasm(bytes) {
        return Err(not_executable("the file is not a WebAssembly module"));
    }
    let mut memories = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(malformed)?;
        check_memories(&payload, &mut memories)?;
        match payload {
            Payload::Version { encoding: Encoding::Component, .. } => {
                return Err(not_executable("the file is a component, not a module"));
            }
            Payload::CodeSectionStart { count, .. } if count > MAX_FUNCTIONS => {
                return Err(not_executable(format!("the module has more than {MAX_FUNCTIONS} functions")));
            }
            Payload::CodeSectionEntry(body) => check_body(&body)?,
            _ => {}
        }
    }
    Ok(())
}

/// Counts memories. The engine allows modules with several memories, for its own adapters. A guest's module may have
/// one.
pub(crate) fn check_memories(payload: &Payload<'_>, memories: &mut u32) -> Result<(), Error> {
    match payload {
        Payload::ImportSection(section) => {
            for import in section.clone().into_imports() {
                *memories += u32::from(matches!(import.map_err(malformed)?.ty, TypeRef::Memory(_)));
            }
        }
        Payload::MemorySection(section) => *memories = memories.saturating_add(section.count()),
        _ => {}
    }
    if *memories > 1 { Err(not_executable("the module has several memories")) } else { Ok(()) }
}

fn malformed(error: BinaryReaderError) -> Error {
    not_executable("the module is malformed").with_source(error)
}

pub(crate) fn check_body(body: &FunctionBody<'_>) -> Result<(), Error> {
    let size = body.range().len();
    if size > MAX_BODY {
        return Err(not_executable(format!("a function of the module has more than {MAX_BODY} bytes")));
    }
    let mut locals = 0u64;
    for group in body.get_locals_reader().map_err(malformed)? {
        locals += u64::from(group.map_err(malformed)?.0);
    }
    if locals.saturating_mul(size as u64) > MAX_WORK {
        return Err(not_executable("a function of the module has too much code for its number of locals"));
    }
    Ok(())
}

pub(crate) fn not_executable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotExecutable, "start", message)
}
