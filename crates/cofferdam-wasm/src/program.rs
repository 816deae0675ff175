//! A module ready to be instantiated, from its initial state or from a frozen one.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use wasmtime::{
    Extern, Global, Instance, InstancePre, Linker, Memory, Module, ModuleExport, Mutability, Ref, Store, Table,
    TypedFunc, Val,
};

use crate::component::Component;
use crate::instrument::{ENTRY, Layout, MEMORY, START, function_name, global_name, table_name};
use crate::sys::{Handle, Image, with_image};
use crate::wasi::Host;

/// The maximum number of entries of all tables that are frozen.
const MAX_ENTRIES: u64 = 1 << 20;
const WASM_PAGE: u64 = 64 << 10;

/// A module or component ready to be instantiated.
pub(crate) struct Program {
    body: Body,
    layout: Layout,
    initial: Frozen,
    /// Bytes of memory that the module declares.
    declared: usize,
    /// Bytes that its memory can grow to.
    largest: usize,
    exports: Exports,
}

enum Body {
    Module(InstancePre<Host>),
    Component(Component),
}

/// The exports with the state of instances.
#[derive(Default)]
struct Exports {
    memory: Option<ModuleExport>,
    globals: Vec<ModuleExport>,
    tables: Vec<ModuleExport>,
    functions: Vec<ModuleExport>,
    start: Option<ModuleExport>,
    command: Option<ModuleExport>,
    entry: Option<ModuleExport>,
}

/// The state of an instance that is not running. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Frozen {
    pub(crate) image: Arc<Image>,
    /// The values of the globals. Empty if they are the module's initial values.
    pub(crate) globals: Arc<[Value]>,
    /// The entries of the tables. Empty if they are the module's initial entries.
    pub(crate) tables: Arc<[Vec<Option<u32>>]>,
}

/// An instance, with the handle that resets its memory.
pub(crate) struct Instantiated {
    pub(crate) instance: Instance,
    pub(crate) memory: Option<Memory>,
    handle: Option<Handle>,
}

/// The value of a global.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Value {
    I32(i32),
    I64(i64),
    F32(u32),
    F64(u64),
    V128(u128),
}

/// The function by which a run enters a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// `_start`.
    Command,
    /// The entry function of a prepared interpreter, with its argument if it takes one.
    Prepared(Option<i32>),
    /// The module's start function, then `_initialize` if it has one.
    Start,
    /// An exported function without arguments and results.
    Export(String),
}

/// A function that was looked up.
pub(crate) enum ResolvedEntry {
    Plain(TypedFunc<(), ()>),
    With(TypedFunc<i32, i32>, i32),
}

impl ResolvedEntry {
    pub(crate) fn call(&self, store: &mut Store<Host>) -> wasmtime::Result<()> {
        match self {
            Self::Plain(function) => function.call(store, ()),
            Self::With(function, argument) => function.call(store, *argument).map(drop),
        }
    }
}

impl Program {
    /// Creates a program. `image` is the initial content of its memory.
    pub(crate) fn new(
        linker: &Linker<Host>,
        module: &Module,
        layout: Layout,
        image: Arc<Image>,
    ) -> wasmtime::Result<Self> {
        let ready = linker.instantiate_pre(module)?;
        let find = |name: &str| module.get_export_index(name);
        let all = |count: u32, name: fn(u32) -> String| (0..count).filter_map(|number| find(&name(number))).collect();
        let exports = Exports {
            memory: find(MEMORY),
            globals: all(layout.globals, global_name),
            tables: all(layout.tables, table_name),
            functions: all(layout.functions, function_name),
            start: find(START),
            command: find("_start"),
            entry: find(ENTRY),
        };
        let initial = Frozen { image, globals: Arc::default(), tables: Arc::default() };
        let memory = module.get_export(MEMORY).and_then(|export| export.memory().cloned());
        let bytes = |pages: u64| usize::try_from(pages.saturating_mul(WASM_PAGE)).unwrap_or(usize::MAX);
        let declared = memory.as_ref().map_or(0, |memory| bytes(memory.minimum()));
        let largest = memory.map_or(0, |memory| memory.maximum().map_or(usize::MAX, bytes));
        Ok(Self { body: Body::Module(ready), layout, initial, declared, largest, exports })
    }

    /// Creates a program of a component, which is a command.
    pub(crate) fn of_component(component: Component) -> Result<Self> {
        let image = Image::new(0, std::iter::empty()).map_err(no_room)?;
        let initial = Frozen { image, globals: Arc::default(), tables: Arc::default() };
        let layout = Layout { unfreezable: Some("components cannot be frozen".to_owned()), ..Layout::default() };
        Ok(Self {
            body: Body::Component(component),
            layout,
            initial,
            declared: 0,
            largest: 0,
            exports: Exports::default(),
        })
    }

    /// Returns the component, if the program is one. It is instantiated and run in one step.
    pub(crate) fn component(&self) -> Option<&Component> {
        match &self.body {
            Body::Component(component) => Some(component),
            Body::Module(_) => None,
        }
    }

    fn module(&self) -> wasmtime::Result<&InstancePre<Host>> {
        match &self.body {
            Body::Module(module) => Ok(module),
            Body::Component(_) => Err(no_entry()),
        }
    }

    /// Returns true if the program is a command.
    pub(crate) fn is_command(&self) -> bool {
        self.component().is_some() || self.has("_start")
    }

    /// Returns true if it exports a function of this name without arguments and results.
    pub(crate) fn has(&self, name: &str) -> bool {
        let Ok(module) = self.module() else { return false };
        let found = module.module().get_export(name).and_then(|export| export.func().cloned());
        found.is_some_and(|function| function.params().len() + function.results().len() == 0)
    }

    /// Returns the initial state of an instance.
    pub(crate) fn initial(&self) -> &Frozen {
        &self.initial
    }

    /// Creates an instance. No code of the guest has run if it starts from the initial state.
    pub(crate) fn instantiate(&self, store: &mut Store<Host>, from: &Frozen) -> wasmtime::Result<Instantiated> {
        let more = from.image.size().checked_sub(self.declared);
        let more = more.ok_or_else(|| wasmtime::Error::msg("the memory is smaller than the module's minimum"))?;
        if from.image.size() > self.largest {
            return Err(wasmtime::Error::msg("the memory is larger than the module's maximum"));
        }
        if !store.data_mut().limiter.charge(more as u64) {
            return Err(wasmtime::Error::msg("the memory exceeds the limit"));
        }
        let ready = self.module()?;
        let (instance, handle) = if self.layout.memory {
            with_image(&from.image, || ready.instantiate(&mut *store))
        } else {
            (ready.instantiate(&mut *store), None)
        };
        let instance = instance?;
        let memory = self.memory(store, &instance);
        store.data_mut().memory = memory;
        if !from.globals.is_empty() {
            self.set_globals(store, &instance, &from.globals)?;
        }
        if !from.tables.is_empty() {
            self.set_tables(store, &instance, &from.tables)?;
        }
        Ok(Instantiated { instance, memory, handle })
    }

    /// Returns true if instances can be reset: memory and globals are all that they can change.
    pub(crate) fn can_be_restored(&self) -> bool {
        self.layout.unfreezable.is_none() && self.layout.tables == 0
    }

    /// Returns the values of all mutable globals; nothing if one of them is not a number.
    pub(crate) fn values(&self, store: &mut Store<Host>, instantiated: &Instantiated) -> Option<Vec<Value>> {
        self.globals(store, &instantiated.instance).iter().map(|global| Value::of(global, &mut *store)).collect()
    }

    /// Resets an instance to its image and these values of its globals. Returns false on failure.
    pub(crate) fn restore(&self, store: &mut Store<Host>, instantiated: &Instantiated, values: &[Value]) -> bool {
        let restored = instantiated.handle.as_ref().is_none_or(|handle| handle.restore(store));
        restored
            && self.layout.memory == instantiated.handle.is_some()
            && self.set_globals(store, &instantiated.instance, values).is_ok()
    }

    /// Runs an instance from an entry until it returns.
    pub(crate) fn call(&self, store: &mut Store<Host>, instance: &Instance, entry: &Entry) -> wasmtime::Result<()> {
        match entry {
            Entry::Command => {
                self.begin(store, instance)?;
                self.plain(store, instance, self.exports.command.as_ref())
            }
            Entry::Start => {
                self.begin(store, instance)?;
                match instance.get_export(&mut *store, "_initialize") {
                    Some(Extern::Func(function)) => function.typed::<(), ()>(&*store)?.call(&mut *store, ()),
                    _ => Ok(()),
                }
            }
            Entry::Export(name) => instance.get_typed_func::<(), ()>(&mut *store, name)?.call(&mut *store, ()),
            Entry::Prepared(None) => self.plain(store, instance, self.exports.entry.as_ref()),
            Entry::Prepared(Some(argument)) => match export(store, instance, self.exports.entry.as_ref()) {
                Some(Extern::Func(entry)) => entry.typed::<i32, i32>(&*store)?.call(&mut *store, *argument).map(drop),
                _ => Err(no_entry()),
            },
        }
    }

    /// Looks up the function of an entry for repeated calls. Returns nothing if another function must run first.
    pub(crate) fn resolve_entry(
        &self,
        store: &mut Store<Host>,
        instance: &Instance,
        entry: &Entry,
    ) -> Option<ResolvedEntry> {
        let (which, argument) = match entry {
            Entry::Command if !self.layout.start => (self.exports.command.as_ref(), None),
            Entry::Prepared(argument) => (self.exports.entry.as_ref(), *argument),
            _ => return None,
        };
        let function = export(store, instance, which)?.into_func()?;
        match argument {
            None => function.typed(&*store).ok().map(ResolvedEntry::Plain),
            Some(argument) => function.typed(&*store).ok().map(|function| ResolvedEntry::With(function, argument)),
        }
    }

    /// Runs the module's start function, if it has one.
    pub(crate) fn begin(&self, store: &mut Store<Host>, instance: &Instance) -> wasmtime::Result<()> {
        if self.layout.start { self.plain(store, instance, self.exports.start.as_ref()) } else { Ok(()) }
    }

    fn plain(
        &self,
        store: &mut Store<Host>,
        instance: &Instance,
        which: Option<&ModuleExport>,
    ) -> wasmtime::Result<()> {
        match export(store, instance, which) {
            Some(Extern::Func(function)) => function.typed::<(), ()>(&*store)?.call(&mut *store, ()),
            _ => Err(no_entry()),
        }
    }

    fn memory(&self, store: &mut Store<Host>, instance: &Instance) -> Option<Memory> {
        export(store, instance, self.exports.memory.as_ref())?.into_memory()
    }

    fn globals(&self, store: &mut Store<Host>, instance: &Instance) -> Vec<Global> {
        let exports = self.exports.globals.iter();
        exports.filter_map(|each| instance.get_module_export(&mut *store, each)?.into_global()).collect()
    }

    fn tables(&self, store: &mut Store<Host>, instance: &Instance) -> Vec<Table> {
        let exports = self.exports.tables.iter();
        exports.filter_map(|each| instance.get_module_export(&mut *store, each)?.into_table()).collect()
    }

    fn set_globals(&self, store: &mut Store<Host>, instance: &Instance, values: &[Value]) -> wasmtime::Result<()> {
        if self.exports.globals.len() != values.len() {
            return Err(foreign());
        }
        for (export, value) in self.exports.globals.iter().zip(values) {
            let Some(Extern::Global(global)) = instance.get_module_export(&mut *store, export) else {
                return Err(foreign());
            };
            // A value of another type fails here.
            global.set(&mut *store, value.into_val())?;
        }
        Ok(())
    }

    fn set_tables(
        &self,
        store: &mut Store<Host>,
        instance: &Instance,
        values: &[Vec<Option<u32>>],
    ) -> wasmtime::Result<()> {
        let tables = self.tables(store, instance);
        if tables.len() != values.len() {
            return Err(foreign());
        }
        for (table, values) in tables.iter().zip(values) {
            let more = (values.len() as u64).checked_sub(table.size(&*store)).ok_or_else(foreign)?;
            if more > 0 {
                let nothing = Ref::null(table.ty(&*store).element().heap_type());
                table.grow(&mut *store, more, nothing)?;
            }
            for (index, value) in (0..).zip(values) {
                let entry = match value {
                    Some(number) => Ref::Func(Some(self.function(store, instance, *number)?)),
                    None => Ref::null(table.ty(&*store).element().heap_type()),
                };
                table.set(&mut *store, index, entry)?;
            }
        }
        Ok(())
    }

    fn function(&self, store: &mut Store<Host>, instance: &Instance, number: u32) -> wasmtime::Result<wasmtime::Func> {
        let which = self.exports.functions.get(number as usize);
        export(store, instance, which).and_then(Extern::into_func).ok_or_else(foreign)
    }

    /// Freezes an instance that is not running.
    pub(crate) fn freeze(&self, store: &mut Store<Host>, instance: &Instance) -> Result<Frozen> {
        if let Some(reason) = &self.layout.unfreezable {
            return Err(Error::unsupported("snapshot", format!("cannot freeze this module: {reason}")));
        }
        let memory = self.memory(store, instance);
        let bytes = memory.map_or(&[][..], |memory| memory.data(&*store));
        let image = Image::of(bytes).map_err(no_room)?;
        let globals: Option<Vec<Value>> =
            self.globals(store, instance).iter().map(|global| Value::of(global, &mut *store)).collect();
        let globals = globals
            .ok_or_else(|| Error::unsupported("snapshot", "cannot freeze this module: it has references in globals"))?;
        let tables = self.frozen_tables(store, instance)?;
        Ok(Frozen { image, globals: globals.into(), tables: tables.into() })
    }

    fn frozen_tables(&self, store: &mut Store<Host>, instance: &Instance) -> Result<Vec<Vec<Option<u32>>>> {
        let tables = self.tables(store, instance);
        if tables.iter().map(|table| table.size(&*store)).sum::<u64>() > MAX_ENTRIES {
            return Err(Error::unsupported("snapshot", "cannot freeze this module: its tables are too large"));
        }
        let mut numbers = HashMap::new();
        for number in 0..self.layout.functions {
            if let Ok(function) = self.function(store, instance, number) {
                numbers.insert(function.to_raw(&mut *store) as usize, number);
            }
        }
        let foreign = || Error::unsupported("snapshot", "cannot freeze this module: its tables have host references");
        let mut frozen = Vec::new();
        for table in tables {
            let mut entries = Vec::new();
            for index in 0..table.size(&*store) {
                entries.push(match table.get(&mut *store, index) {
                    Some(Ref::Func(Some(function))) => {
                        let raw = function.to_raw(&mut *store) as usize;
                        Some(*numbers.get(&raw).ok_or_else(foreign)?)
                    }
                    Some(reference) if reference.is_null() => None,
                    _ => return Err(foreign()),
                });
            }
            frozen.push(entries);
        }
        Ok(frozen)
    }
}

fn export(store: &mut Store<Host>, instance: &Instance, which: Option<&ModuleExport>) -> Option<Extern> {
    instance.get_module_export(store, which?)
}

fn no_entry() -> wasmtime::Error {
    wasmtime::Error::msg("the module does not export this function")
}

fn foreign() -> wasmtime::Error {
    wasmtime::Error::msg("the snapshot belongs to another module")
}

fn no_room(error: io::Error) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "snapshot", "cannot allocate memory for the copy").with_source(error)
}

impl Value {
    fn of(global: &Global, mut store: impl wasmtime::AsContextMut) -> Option<Self> {
        debug_assert_eq!(global.ty(store.as_context()).mutability(), Mutability::Var);
        match global.get(&mut store) {
            Val::I32(value) => Some(Self::I32(value)),
            Val::I64(value) => Some(Self::I64(value)),
            Val::F32(value) => Some(Self::F32(value)),
            Val::F64(value) => Some(Self::F64(value)),
            Val::V128(value) => Some(Self::V128(value.as_u128())),
            _ => None,
        }
    }

    fn into_val(self) -> Val {
        match self {
            Self::I32(value) => Val::I32(value),
            Self::I64(value) => Val::I64(value),
            Self::F32(value) => Val::F32(value),
            Self::F64(value) => Val::F64(value),
            Self::V128(value) => Val::V128(value.into()),
        }
    }
}
