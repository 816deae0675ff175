//! Static analysis of a component before it is compiled.
//!
//! The modules in a component obey the limits of single modules. The component around them is a program too, which the
//! compiler runs: each instance of a component repeats its content, so a few hundred bytes could describe more than any
//! host can hold. This analysis counts the instantiated items without instantiating them. The count requires that the
//! file alone determines the instantiated components, so components that take components as arguments, or pass them on,
//! are rejected.

use cofferdam_contract::Result;
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExport, ComponentExternalKind, ComponentInstance,
    ComponentOuterAliasKind, ComponentTypeRef, Instance, Parser, Payload,
};

use super::types::{Types, check_nesting};
use crate::analysis::{MAX_FUNCTIONS, check_body, check_memories, not_executable};

/// The maximum nesting of components and modules.
const MAX_DEPTH: usize = 10;
const MAX_MODULES: usize = 200;
/// The maximum number of imports, exports, and arguments of instances, whose types the compiler compares, and of
/// functions between components and modules, whose types it translates.
const MAX_COMPARED: u64 = 5_000;
/// The same limit, multiplied by the parts of the largest type so far.
const MAX_PARTS: u64 = 10_000_000;
/// The maximum number of instantiated items: instances, their arguments, aliases, and functions between them.
const MAX_ITEMS: u64 = 200_000;
/// The items counted for a function between components and modules, since the compiler generates code for each.
const FUNCTION: u64 = 20;
/// The parts of the largest type that count as one more item.
const PARTS: u64 = 50;

/// Returns true if the header is that of a component.
pub(crate) fn is_component(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\0asm") && bytes.get(6..8) == Some(&[1, 0])
}

/// Rejects bytes that are not a component, and components without a good bound on their compile time.
pub(crate) fn check_component(bytes: &[u8]) -> Result<()> {
    let mut analysis = Analysis { bytes, ..Analysis::default() };
    for payload in Parser::new(0).parse_all(bytes) {
        analysis.visit(&payload.map_err(malformed)?)?;
    }
    Ok(())
}

fn malformed(error: BinaryReaderError) -> cofferdam_contract::Error {
    not_executable("the component is malformed").with_source(error)
}

fn too_much<T>(what: &str) -> Result<T> {
    Err(not_executable(format!("the component has too many {what}")))
}

fn passed_on<T>() -> Result<T> {
    Err(not_executable("the component takes components or modules as arguments, or passes them on"))
}

/// The state of a component while it is read.
#[derive(Default)]
struct Frame {
    /// The items of one instance.
    items: u64,
    /// The items of the components that it can reference, by index.
    components: Vec<u64>,
}

#[derive(Default)]
struct Analysis<'a> {
    bytes: &'a [u8],
    /// The enclosing components, innermost last. `None` for modules.
    frames: Vec<Option<Frame>>,
    types: Types,
    modules: usize,
    /// The memories of the current module.
    memories: u32,
    functions: u64,
    compared: u64,
    parts: u64,
}

impl Analysis<'_> {
    fn visit(&mut self, payload: &Payload<'_>) -> Result<()> {
        check_memories(payload, &mut self.memories)?;
        match payload {
            Payload::Version { encoding, .. } => return self.enter(*encoding == wasmparser::Encoding::Component),
            Payload::End(_) => return self.leave(),
            Payload::CodeSectionStart { count, .. } => {
                self.functions += u64::from(*count);
                if self.functions > MAX_FUNCTIONS.into() {
                    return too_much("functions");
                }
            }
            Payload::CodeSectionEntry(body) => check_body(body)?,
            _ => {}
        }
        self.of_component(payload)
    }

    fn enter(&mut self, component: bool) -> Result<()> {
        if self.frames.len() >= MAX_DEPTH {
            return Err(not_executable("the component is nested too deeply"));
        }
        if !component {
            (self.modules, self.memories) = (self.modules + 1, 0);
            if self.modules > MAX_MODULES {
                return too_much("modules");
            }
        }
        self.frames.push(component.then(Frame::default));
        self.types.enter();
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        self.types.leave();
        let inner = self.frames.pop().flatten();
        if let (Some(inner), Some(Some(outer))) = (inner, self.frames.last_mut()) {
            outer.components.push(inner.items);
        }
        Ok(())
    }

    fn of_component(&mut self, payload: &Payload<'_>) -> Result<()> {
        match payload {
            Payload::CoreTypeSection(section) => {
                for core in section.clone() {
                    self.types.core(&core.map_err(malformed)?)?;
                }
            }
            Payload::ComponentTypeSection(section) => {
                check_nesting(self.bytes.get(section.range()).unwrap_or_default())?;
                for declared in section.clone() {
                    self.types.component(&declared.map_err(malformed)?)?;
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section.clone() {
                    self.import(&import.map_err(malformed)?.ty)?;
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section.clone() {
                    self.export(&export.map_err(malformed)?)?;
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section.clone() {
                    self.alias(&alias.map_err(malformed)?)?;
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section.clone() {
                    self.count(core_instance(&instance.map_err(malformed)?))?;
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section.clone() {
                    let items = self.instance(&instance.map_err(malformed)?)?;
                    self.count(items)?;
                }
            }
            Payload::ComponentCanonicalSection(section) => {
                for function in section.clone() {
                    function.map_err(malformed)?;
                    self.compare(1)?;
                    self.count(FUNCTION + self.types.largest() / PARTS)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn compare(&mut self, count: usize) -> Result<()> {
        self.compared = self.compared.saturating_add(count as u64);
        self.parts = self.parts.saturating_add((count as u64).saturating_mul(self.types.largest()));
        if self.compared > MAX_COMPARED || self.parts > MAX_PARTS {
            return too_much(
                "imports, exports and functions between its parts, or its types are too large for so many",
            );
        }
        Ok(())
    }

    fn import(&mut self, what: &ComponentTypeRef) -> Result<()> {
        if matches!(what, ComponentTypeRef::Component(_) | ComponentTypeRef::Module(_)) {
            return passed_on();
        }
        self.compare(1)?;
        self.types.named(what)?;
        self.count(1)
    }

    fn export(&mut self, export: &ComponentExport<'_>) -> Result<()> {
        if is_passed(export.kind) {
            return passed_on();
        }
        self.compare(1)?;
        match (&export.ty, export.kind) {
            (Some(named @ ComponentTypeRef::Type(_)), _) => self.types.named(named)?,
            (_, ComponentExternalKind::Type) => self.types.copy(export.index)?,
            _ => {}
        }
        self.count(1)
    }

    fn count(&mut self, items: u64) -> Result<()> {
        let Some(Some(frame)) = self.frames.last_mut() else { return Ok(()) };
        frame.items = frame.items.saturating_add(items);
        if frame.items > MAX_ITEMS { too_much("instances, or too many items in them") } else { Ok(()) }
    }

    /// Counts an alias. An alias of a component must refer to a known one.
    fn alias(&mut self, alias: &ComponentAlias<'_>) -> Result<()> {
        self.types.alias(alias)?;
        self.count(1)?;
        match alias {
            ComponentAlias::InstanceExport { kind, .. } if is_passed(*kind) => passed_on(),
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
                let depth = self.frames.len().checked_sub(1 + *count as usize);
                let outer = depth.and_then(|depth| self.frames.get(depth)).and_then(Option::as_ref);
                let items = outer.and_then(|frame| frame.components.get(*index as usize)).copied();
                let items = items.ok_or_else(|| not_executable("the component is malformed"))?;
                if let Some(Some(frame)) = self.frames.last_mut() {
                    frame.components.push(items);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn instance(&mut self, instance: &ComponentInstance<'_>) -> Result<u64> {
        match instance {
            ComponentInstance::FromExports(exports) => {
                if exports.iter().any(|export| is_passed(export.kind) || export.kind == ComponentExternalKind::Instance)
                {
                    return passed_on();
                }
                self.compare(exports.len())?;
                Ok(1 + exports.len() as u64)
            }
            ComponentInstance::Instantiate { component_index, args } => {
                if args.iter().any(|arg| is_passed(arg.kind)) {
                    return passed_on();
                }
                self.compare(1 + args.len())?;
                let frame = self.frames.last().and_then(Option::as_ref);
                let items = frame.and_then(|frame| frame.components.get(*component_index as usize)).copied();
                let items = items.ok_or_else(|| not_executable("the component is malformed"))?;
                Ok(items.saturating_add(1 + args.len() as u64))
            }
        }
    }
}

fn is_passed(kind: ComponentExternalKind) -> bool {
    matches!(kind, ComponentExternalKind::Component | ComponentExternalKind::Module)
}

fn core_instance(instance: &Instance<'_>) -> u64 {
    1 + match instance {
        Instance::Instantiate { args, .. } => args.len(),
        Instance::FromExports(exports) => exports.len(),
    } as u64
}
