//! The sizes of a component's types, with all their parts.
//!
//! A type refers to others by index, so twenty lines can describe a type of a million parts. The time to check and
//! compile its uses grows with its size. A type taken from an instance counts as the largest value type seen so far,
//! which overestimates it at worst. Instance types cannot contain instances, so they do not grow in this way.

use cofferdam_contract::{Error, Result};
use wasmparser::{
    ComponentAlias, ComponentDefinedType, ComponentFuncType, ComponentOuterAliasKind, ComponentType, ComponentTypeRef,
    ComponentValType, CoreType, InstanceTypeDeclaration, TypeBounds,
};

use crate::analysis::not_executable;

/// The maximum number of declared types, with their direct parts.
const MAX_DECLARED: u64 = 50_000;
/// The maximum number of parts of one type, with nested parts.
const MAX_SIZE: u64 = 50_000;
/// The maximum number of byte pairs that can start a nested component or instance type. The parser recurses on them.
const MAX_NESTED: usize = 500;

/// The sizes of the types that the current component and each enclosing one can reference by index.
#[derive(Default)]
pub(super) struct Types {
    scopes: Vec<Vec<u64>>,
    largest: u64,
    declared: u64,
}

/// Rejects a section whose types could be nested too deeply for the parser. Runs before the section is parsed.
pub(super) fn check_nesting(section: &[u8]) -> Result<()> {
    let nested = section.windows(2).filter(|pair| pair[0] == 1 && matches!(pair[1], 0x41 | 0x42)).count();
    if nested > MAX_NESTED { Err(not_executable("the types of the component are nested too deeply")) } else { Ok(()) }
}

fn malformed() -> Error {
    not_executable("the component is malformed")
}

impl Types {
    pub(super) fn enter(&mut self) {
        self.scopes.push(Vec::new());
    }

    pub(super) fn leave(&mut self) {
        self.scopes.pop();
    }

    /// Returns the number of parts of the largest value type so far.
    pub(super) fn largest(&self) -> u64 {
        self.largest.max(1)
    }

    fn declare(&mut self, count: usize) -> Result<()> {
        self.declared = self.declared.saturating_add(count as u64);
        if self.declared > MAX_DECLARED {
            return Err(not_executable("the component has too many types"));
        }
        Ok(())
    }

    fn add(&mut self, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(not_executable(format!("a type of the component has more than {MAX_SIZE} parts")));
        }
        self.scopes.last_mut().ok_or_else(malformed)?.push(size);
        Ok(())
    }

    fn size(&self, outward: u32, index: u32) -> Result<u64> {
        let depth = self.scopes.len().checked_sub(1 + outward as usize).ok_or_else(malformed)?;
        self.scopes[depth].get(index as usize).copied().ok_or_else(malformed)
    }

    pub(super) fn core(&mut self, core: &CoreType<'_>) -> Result<()> {
        self.declare(match core {
            CoreType::Rec(group) => group.types().len(),
            CoreType::Module(declarations) => 1 + declarations.len(),
        })
    }

    /// Adds the type that an export copies.
    pub(super) fn copy(&mut self, index: u32) -> Result<()> {
        let size = self.size(0, index)?;
        self.add(size)
    }

    /// Adds the type of an import or export.
    pub(super) fn named(&mut self, what: &ComponentTypeRef) -> Result<()> {
        match what {
            ComponentTypeRef::Type(TypeBounds::Eq(index)) => self.copy(*index),
            ComponentTypeRef::Type(TypeBounds::SubResource) => self.add(1),
            _ => Ok(()),
        }
    }

    /// Adds a type by alias.
    pub(super) fn alias(&mut self, alias: &ComponentAlias<'_>) -> Result<()> {
        match alias {
            ComponentAlias::InstanceExport { kind: wasmparser::ComponentExternalKind::Type, .. } => {
                self.add(self.largest())
            }
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Type, count, index } => {
                let size = self.size(*count, *index)?;
                self.add(size)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn component(&mut self, declared: &ComponentType<'_>) -> Result<()> {
        let size = match declared {
            ComponentType::Defined(defined) => self.defined(defined)?,
            ComponentType::Func(function) => self.function(function)?,
            ComponentType::Resource { .. } => 1,
            ComponentType::Instance(declarations) => {
                self.instance(declarations)?;
                1
            }
            ComponentType::Component(_) => return Err(not_executable("the component declares component types")),
        };
        if matches!(declared, ComponentType::Defined(_)) {
            self.largest = self.largest.max(size);
        }
        self.declare(1)?;
        self.add(size)
    }

    fn instance(&mut self, declarations: &[InstanceTypeDeclaration<'_>]) -> Result<()> {
        self.declare(declarations.len())?;
        self.enter();
        for declaration in declarations {
            match declaration {
                InstanceTypeDeclaration::CoreType(core) => self.core(core)?,
                InstanceTypeDeclaration::Type(ComponentType::Instance(_)) => return Err(nested()),
                InstanceTypeDeclaration::Type(declared) => self.component(declared)?,
                InstanceTypeDeclaration::Alias(alias) => self.alias(alias)?,
                InstanceTypeDeclaration::Export { ty, .. } => match ty {
                    ComponentTypeRef::Instance(_) | ComponentTypeRef::Component(_) | ComponentTypeRef::Module(_) => {
                        return Err(nested());
                    }
                    other => self.named(other)?,
                },
            }
        }
        self.leave();
        Ok(())
    }

    fn function(&mut self, function: &ComponentFuncType<'_>) -> Result<u64> {
        self.declare(function.params.len())?;
        let params = function.params.iter().map(|(_, param)| *param);
        self.sum(params.chain(function.result))
    }

    fn defined(&mut self, defined: &ComponentDefinedType<'_>) -> Result<u64> {
        match defined {
            ComponentDefinedType::Record(fields) => {
                self.declare(fields.len())?;
                self.sum(fields.iter().map(|(_, field)| *field))
            }
            ComponentDefinedType::Variant(cases) => {
                self.declare(cases.len())?;
                Ok(self.sum(cases.iter().filter_map(|case| case.ty))?.saturating_add(cases.len() as u64))
            }
            ComponentDefinedType::Tuple(parts) => {
                self.declare(parts.len())?;
                self.sum(parts.iter().copied())
            }
            ComponentDefinedType::Flags(names) | ComponentDefinedType::Enum(names) => {
                self.declare(names.len())?;
                Ok(1 + names.len() as u64)
            }
            ComponentDefinedType::List(part)
            | ComponentDefinedType::Option(part)
            | ComponentDefinedType::FixedLengthList(part, _) => self.sum([*part]),
            ComponentDefinedType::Map(key, value) => self.sum([*key, *value]),
            ComponentDefinedType::Result { ok, err } => self.sum(ok.iter().chain(err).copied()),
            ComponentDefinedType::Future(part) | ComponentDefinedType::Stream(part) => self.sum(*part),
            ComponentDefinedType::Primitive(_) | ComponentDefinedType::Own(_) | ComponentDefinedType::Borrow(_) => {
                Ok(1)
            }
        }
    }

    fn sum(&self, parts: impl IntoIterator<Item = ComponentValType>) -> Result<u64> {
        parts.into_iter().try_fold(1u64, |sum, part| {
            let size = match part {
                ComponentValType::Primitive(_) => 1,
                ComponentValType::Type(index) => self.size(0, index)?,
            };
            Ok(sum.saturating_add(size))
        })
    }
}

fn nested() -> Error {
    not_executable("an instance type of the component contains instances or components")
}
