//! Rewriting of a module so that its instances can start from a memory image and be frozen: its internal state is
//! exported under reserved names, its data is moved to an image, and its start function is called by name.
//!
//! The code is not changed. The module itself cannot use the reserved names, since it cannot import its own exports.

use wasm_encoder::{DataSection, ExportKind, ExportSection, RawSection};
use wasmparser::{
    ConstExpr, Data, DataKind, ElementItems, ExternalKind, FunctionBody, GlobalType, Operator, Parser, Payload, ValType,
};

use cofferdam_contract::Error;

use crate::analysis::not_executable;
use crate::sys::Image;

/// The prefix of the added export names.
const RESERVED: &str = "\u{1}cofferdam:";
/// The maximum number of mutable globals. Each takes an export.
const MAX_GLOBALS: usize = 10_000;
/// The maximum number of functions in mutable tables.
const MAX_ESCAPING: usize = 100_000;
const WASM_PAGE: u64 = 64 << 10;
/// The maximum number of pages of a 32-bit memory.
const MAX_PAGES: u64 = 1 << 16;
/// The maximum number of host pages that data segments may touch. Each takes a whole page, however little is used.
const MAX_SPREAD: usize = (64 << 20) / HOST_PAGE;
const HOST_PAGE: usize = 4096;

/// A rewritten module with its properties.
pub(crate) struct Instrumented {
    pub(crate) module: Vec<u8>,
    pub(crate) layout: Layout,
    /// The initial content of the memory.
    pub(crate) image: std::sync::Arc<Image>,
}

/// The mutable state of a module's instances, under the reserved names.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Layout {
    /// True if the module has a memory.
    pub(crate) memory: bool,
    /// The number of mutable globals.
    pub(crate) globals: u32,
    /// The number of mutable tables: zero if no instruction changes a table.
    pub(crate) tables: u32,
    /// The number of functions that tables can contain; counted only if tables are mutable.
    pub(crate) functions: u32,
    /// True if the module has a start function.
    pub(crate) start: bool,
    /// The reason for which an instance cannot be frozen, if it cannot.
    pub(crate) unfreezable: Option<String>,
}

pub(crate) fn global_name(number: u32) -> String {
    format!("{RESERVED}global:{number}")
}

pub(crate) fn table_name(number: u32) -> String {
    format!("{RESERVED}table:{number}")
}

pub(crate) fn function_name(number: u32) -> String {
    format!("{RESERVED}function:{number}")
}

pub(crate) const MEMORY: &str = "\u{1}cofferdam:memory";
pub(crate) const START: &str = "\u{1}cofferdam:start";
pub(crate) const ENTRY: &str = "\u{1}cofferdam:entry";

/// The parts of a module that the rewrite needs.
#[derive(Default)]
struct Seen<'a> {
    exports: Vec<(&'a str, ExternalKind, u32)>,
    imported_globals: u32,
    globals: Vec<GlobalType>,
    tables: u32,
    imported_functions: u32,
    /// The functions that a table may contain.
    escaping: Vec<u32>,
    /// The initial number of memory pages.
    memory: Option<u64>,
    start: Option<u32>,
    data: Vec<Data<'a>>,
    tables_change: bool,
    /// True if instructions refer to data segments.
    names_data: bool,
    drops: bool,
    references: bool,
}

/// A function of a module that is called by name later.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EntryPoint<'a> {
    /// By its index among all functions.
    Function(u32),
    /// By its export name.
    Export(&'a str),
}

/// Rewrites a module that passed the static analysis.
pub(crate) fn instrument(module: &[u8], entry: Option<EntryPoint<'_>>) -> Result<Instrumented, Error> {
    let seen = inspect(module)?;
    let entry = match entry {
        Some(EntryPoint::Function(index)) => Some(index),
        Some(EntryPoint::Export(name)) => {
            let found = seen.exports.iter().find(|(known, kind, _)| *known == name && *kind == ExternalKind::Func);
            Some(found.ok_or_else(|| not_executable("the module does not export its entry function"))?.2)
        }
        None => None,
    };
    let image = image(&seen)?;
    let layout = layout(&seen)?;
    let module = rewrite(module, &seen, &layout, entry)?;
    Ok(Instrumented { module, layout, image })
}

fn malformed(error: wasmparser::BinaryReaderError) -> Error {
    not_executable("the module is malformed").with_source(error)
}

fn inspect(module: &[u8]) -> Result<Seen<'_>, Error> {
    let mut seen = Seen::default();
    for payload in Parser::new(0).parse_all(module) {
        note(payload.map_err(malformed)?, &mut seen).map_err(malformed)?;
    }
    Ok(seen)
}

fn note<'a>(payload: Payload<'a>, seen: &mut Seen<'a>) -> wasmparser::Result<()> {
    match payload {
        Payload::ImportSection(section) => {
            for import in section.into_imports() {
                match import?.ty {
                    wasmparser::TypeRef::Func(_) | wasmparser::TypeRef::FuncExact(_) => seen.imported_functions += 1,
                    wasmparser::TypeRef::Global(_) => seen.imported_globals += 1,
                    _ => {}
                }
            }
        }
        Payload::TableSection(section) => seen.tables = section.count(),
        Payload::MemorySection(section) => {
            for memory in section {
                let memory = memory?;
                seen.memory.get_or_insert(memory.initial);
            }
        }
        Payload::GlobalSection(section) => {
            for global in section {
                let global = global?;
                note_reference(&global.init_expr, seen)?;
                seen.references |= matches!(global.ty.content_type, ValType::Ref(_)) && global.ty.mutable;
                seen.globals.push(global.ty);
            }
        }
        Payload::ExportSection(section) => {
            for export in section {
                let export = export?;
                if export.kind == ExternalKind::Func {
                    seen.escaping.push(export.index);
                }
                seen.exports.push((export.name, export.kind, export.index));
            }
        }
        Payload::StartSection { func, .. } => seen.start = Some(func),
        Payload::ElementSection(section) => {
            for element in section {
                note_element(element?.items, seen)?;
            }
        }
        Payload::DataSection(section) => seen.data = section.into_iter().collect::<wasmparser::Result<_>>()?,
        Payload::CodeSectionEntry(body) => note_body(&body, seen)?,
        _ => {}
    }
    Ok(())
}

fn note_element(items: ElementItems<'_>, seen: &mut Seen<'_>) -> wasmparser::Result<()> {
    match items {
        ElementItems::Functions(functions) => {
            for function in functions {
                seen.escaping.push(function?);
            }
        }
        ElementItems::Expressions(_, expressions) => {
            for expression in expressions {
                note_reference(&expression?, seen)?;
            }
        }
    }
    Ok(())
}

fn note_reference(expression: &ConstExpr<'_>, seen: &mut Seen<'_>) -> wasmparser::Result<()> {
    for operator in expression.get_operators_reader() {
        if let Operator::RefFunc { function_index } = operator? {
            seen.escaping.push(function_index);
        }
    }
    Ok(())
}

fn note_body(body: &FunctionBody<'_>, seen: &mut Seen<'_>) -> wasmparser::Result<()> {
    for operator in body.get_operators_reader()? {
        match operator? {
            Operator::TableSet { .. }
            | Operator::TableGrow { .. }
            | Operator::TableFill { .. }
            | Operator::TableCopy { .. } => seen.tables_change = true,
            Operator::TableInit { .. } => (seen.tables_change, seen.drops) = (true, true),
            Operator::MemoryInit { .. } | Operator::DataDrop { .. } => (seen.names_data, seen.drops) = (true, true),
            Operator::ElemDrop { .. } => seen.drops = true,
            Operator::RefFunc { function_index } => seen.escaping.push(function_index),
            _ => {}
        }
    }
    Ok(())
}

/// Creates the image: the active data segments over zeros. Data outside of the memory would trap at instantiation.
fn image(seen: &Seen<'_>) -> Result<std::sync::Arc<Image>, Error> {
    let pages = seen.memory.unwrap_or_default();
    if pages > MAX_PAGES {
        return Err(not_executable("the memory of the module is too large"));
    }
    let size = (pages * WASM_PAGE) as usize;
    let mut pieces = Vec::new();
    for data in &seen.data {
        if let DataKind::Active { offset_expr, .. } = &data.kind {
            let at = constant(offset_expr).ok_or_else(|| not_executable("a data segment has no constant offset"))?;
            pieces.push((at as usize, data.data));
        }
    }
    if pieces.iter().any(|(at, bytes)| at.checked_add(bytes.len()).is_none_or(|end| end > size)) {
        return Err(not_executable("a data segment of the module is outside of its memory"));
    }
    if spread(&pieces) > MAX_SPREAD {
        return Err(not_executable("the data segments of the module are spread too widely over its memory"));
    }
    Image::new(size, pieces.into_iter()).map_err(|error| {
        let what = "cannot allocate memory for the module's data";
        Error::new(cofferdam_contract::ErrorKind::ResourceExhausted, "start", what).with_source(error)
    })
}

/// Returns the number of host pages that these pieces touch.
fn spread(pieces: &[(usize, &[u8])]) -> usize {
    let touched = pieces.iter().filter(|(_, bytes)| !bytes.is_empty());
    let mut ranges: Vec<_> = touched.map(|(at, bytes)| (at / HOST_PAGE, (at + bytes.len() - 1) / HOST_PAGE)).collect();
    ranges.sort_unstable();
    let mut next = 0;
    let mut pages = 0;
    for (first, last) in ranges {
        pages += (last + 1).saturating_sub(first.max(next));
        next = next.max(last + 1);
    }
    pages
}

/// Evaluates a constant integer expression.
fn constant(expression: &ConstExpr<'_>) -> Option<u32> {
    let mut stack: Vec<u32> = Vec::new();
    for operator in expression.get_operators_reader() {
        let value = match operator.ok()? {
            Operator::I32Const { value } => value.cast_unsigned(),
            Operator::I32Add => stack.pop()?.wrapping_add(stack.pop()?),
            Operator::I32Mul => stack.pop()?.wrapping_mul(stack.pop()?),
            Operator::I32Sub => {
                let right = stack.pop()?;
                stack.pop()?.wrapping_sub(right)
            }
            Operator::End => break,
            _ => return None,
        };
        stack.push(value);
    }
    stack.pop().filter(|_| stack.is_empty())
}

fn layout(seen: &Seen<'_>) -> Result<Layout, Error> {
    if seen.exports.iter().any(|(name, ..)| name.starts_with(RESERVED)) {
        return Err(not_executable("the module exports a reserved name"));
    }
    let globals = seen.globals.iter().filter(|global| global.mutable).count();
    if globals > MAX_GLOBALS {
        return Err(not_executable(format!("the module has more than {MAX_GLOBALS} mutable globals")));
    }
    if seen.tables_change && escaping(seen).len() > MAX_ESCAPING {
        return Err(not_executable(format!("the module has mutable tables with more than {MAX_ESCAPING} functions")));
    }
    let reason = if seen.drops {
        Some("it uses passive data or element segments")
    } else if seen.references {
        Some("it has references in mutable globals")
    } else {
        None
    };
    Ok(Layout {
        memory: seen.memory.is_some(),
        globals: globals as u32,
        tables: if seen.tables_change { seen.tables } else { 0 },
        functions: if seen.tables_change { escaping(seen).len() as u32 } else { 0 },
        start: seen.start.is_some(),
        unfreezable: reason.map(str::to_owned),
    })
}

fn escaping(seen: &Seen<'_>) -> Vec<u32> {
    let mut functions = seen.escaping.clone();
    functions.sort_unstable();
    functions.dedup();
    functions
}

fn exports(seen: &Seen<'_>, layout: &Layout, entry: Option<u32>) -> ExportSection {
    let mut section = ExportSection::new();
    for (name, kind, index) in &seen.exports {
        let kind = match kind {
            ExternalKind::Table => ExportKind::Table,
            ExternalKind::Memory => ExportKind::Memory,
            ExternalKind::Global => ExportKind::Global,
            ExternalKind::Tag => ExportKind::Tag,
            ExternalKind::Func | ExternalKind::FuncExact => ExportKind::Func,
        };
        section.export(name, kind, *index);
    }
    if layout.memory {
        section.export(MEMORY, ExportKind::Memory, 0);
    }
    if let Some(start) = seen.start {
        section.export(START, ExportKind::Func, start);
    }
    if let Some(entry) = entry {
        section.export(ENTRY, ExportKind::Func, entry);
    }
    let changing = (seen.imported_globals..).zip(&seen.globals).filter(|(_, global)| global.mutable);
    for (number, (index, _)) in (0..).zip(changing) {
        section.export(&global_name(number), ExportKind::Global, index);
    }
    for number in 0..layout.tables {
        section.export(&table_name(number), ExportKind::Table, number);
    }
    if layout.functions > 0 {
        for (number, index) in (0..).zip(escaping(seen)) {
            section.export(&function_name(number), ExportKind::Func, index);
        }
    }
    section
}

/// Returns the same number of segments. The active ones are empty, since the image has their data. If no instruction
/// refers to segments, all are omitted, because each costs memory in every instance.
fn data(seen: &Seen<'_>) -> DataSection {
    let mut section = DataSection::new();
    for data in &seen.data {
        match data.kind {
            DataKind::Active { .. } => section.passive([]),
            DataKind::Passive => section.passive(data.data.iter().copied()),
        };
    }
    section
}

fn rewrite(module: &[u8], seen: &Seen<'_>, layout: &Layout, entry: Option<u32>) -> Result<Vec<u8>, Error> {
    const EXPORTS: u8 = 7;
    let mut rewritten = wasm_encoder::Module::new();
    let mut exported = false;
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.map_err(malformed)?;
        let Some((id, range)) = payload.as_section() else { continue };
        // Exports follow globals and precede the sections with higher numbers. Tag and string sections are not allowed.
        if !exported && matches!(id, EXPORTS..=12) {
            rewritten.section(&exports(seen, layout, entry));
            exported = true;
        }
        match payload {
            Payload::ExportSection(_) | Payload::StartSection { .. } | Payload::CustomSection(_) => {}
            Payload::DataSection(_) | Payload::DataCountSection { .. } if !seen.names_data => {}
            Payload::DataSection(_) => drop(rewritten.section(&data(seen))),
            _ => drop(rewritten.section(&RawSection { id, data: &module[range] })),
        }
    }
    if !exported {
        rewritten.section(&exports(seen, layout, entry));
    }
    Ok(rewritten.finish())
}
