//! Checks that the function which each run calls is in the module and has the expected type.

use cofferdam_wasm_runtimes::Entry;
use wasmparser::{CompositeInnerType, ElementItems, ElementKind, ExternalKind, Operator, Parser, Payload, TypeRef};

/// The parts of a module that lead to its functions.
#[derive(Default)]
struct Contents {
    types: Vec<(usize, usize)>,
    /// The type of each function, imports first.
    functions: Vec<u32>,
    exports: Vec<(String, u32)>,
    /// Pairs of a table index and its function.
    elements: Vec<(u32, u32)>,
    /// The memory before the start.
    memory: Vec<u8>,
}

pub fn assert_entry(bytes: &[u8], entry: Entry) {
    let contents = Contents::read(bytes);
    match entry {
        Entry::Function { index } => {
            assert_eq!(contents.signature(index), (1, 1));
            assert_eq!(contents.step_of("callable_iterator"), index, "the pinned index names another function");
        }
        Entry::Export { name } => {
            let found = contents.exports.iter().find(|(known, _)| known == name).expect("the export");
            assert_eq!(contents.signature(found.1), (0, 0));
        }
    }
}

impl Contents {
    fn read(bytes: &[u8]) -> Self {
        let mut contents = Self::default();
        for payload in Parser::new(0).parse_all(bytes) {
            contents.take(payload.expect("valid WebAssembly"));
        }
        contents
    }

    fn take(&mut self, payload: Payload<'_>) {
        match payload {
            Payload::TypeSection(groups) => {
                for kind in groups.into_iter().flat_map(|group| group.expect("types").into_types()) {
                    let CompositeInnerType::Func(function) = kind.composite_type.inner else { panic!("{kind:?}") };
                    self.types.push((function.params().len(), function.results().len()));
                }
            }
            Payload::ImportSection(imports) => {
                self.functions.extend(imports.into_imports().filter_map(
                    |import| match import.expect("an import").ty {
                        TypeRef::Func(kind) => Some(kind),
                        _ => None,
                    },
                ));
            }
            Payload::FunctionSection(kinds) => {
                self.functions.extend(kinds.into_iter().map(|kind| kind.expect("a type")))
            }
            Payload::ExportSection(exports) => {
                let exports = exports.into_iter().map(|export| export.expect("an export"));
                let functions = exports.filter(|export| export.kind == ExternalKind::Func);
                self.exports.extend(functions.map(|export| (export.name.to_owned(), export.index)));
            }
            Payload::ElementSection(elements) => {
                elements.into_iter().for_each(|element| self.take_element(&element.expect("elements")));
            }
            Payload::DataSection(segments) => segments.into_iter().for_each(|segment| {
                self.take_data(&segment.expect("data"));
            }),
            _ => {}
        }
    }

    fn take_element(&mut self, element: &wasmparser::Element<'_>) {
        let ElementKind::Active { offset_expr, .. } = &element.kind else { return };
        let ElementItems::Functions(functions) = &element.items else { return };
        let functions = functions.clone().into_iter().map(|function| function.expect("a function"));
        self.elements.extend((constant(offset_expr)..).zip(functions));
    }

    fn take_data(&mut self, segment: &wasmparser::Data<'_>) {
        let wasmparser::DataKind::Active { offset_expr, .. } = &segment.kind else { return };
        let start = constant(offset_expr) as usize;
        let end = start + segment.data.len();
        self.memory.resize(self.memory.len().max(end), 0);
        self.memory[start..end].copy_from_slice(segment.data);
    }

    /// Returns the numbers of parameters and results.
    fn signature(&self, function: u32) -> (usize, usize) {
        self.types[self.functions[function as usize] as usize]
    }

    /// Returns the function that steps iterators of a Python type. The type is found by the pointer to its name.
    fn step_of(&self, name: &str) -> u32 {
        // The offsets of `tp_name` and `tp_iternext` in CPython 3.12's `PyTypeObject` for 32 bits.
        const NAME_TO_STEP: usize = 112 - 12;
        let text = format!("\0{name}\0");
        let address = find(&self.memory, text.as_bytes()).expect("the type's name") as u32 + 1;
        let pointer = find(&self.memory, &address.to_le_bytes()).expect("the type") + NAME_TO_STEP;
        let step = u32::from_le_bytes(self.memory[pointer..pointer + 4].try_into().expect("four bytes"));
        self.elements.iter().find(|(index, _)| *index == step).expect("in the table").1
    }
}

fn constant(expression: &wasmparser::ConstExpr<'_>) -> u32 {
    match expression.get_operators_reader().read().expect("an operator") {
        Operator::I32Const { value } => value as u32,
        other => panic!("{other:?}"),
    }
}

fn find(all: &[u8], wanted: &[u8]) -> Option<usize> {
    all.windows(wanted.len()).position(|window| window == wanted)
}
