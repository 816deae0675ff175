//! The table of a component's host resources. Its size is fixed. It knows nothing of the interfaces that use it.

use wasmtime::component::{Resource, ResourceTable, ResourceTableError};

/// The maximum host resources of one exec: descriptors, streams, pollables, errors.
const MAX_RESOURCES: usize = 4096;
/// The maximum of files and directories among them, as in preview 1.
const MAX_OPENED: usize = 1024;

type Result<T> = std::result::Result<T, ResourceTableError>;

/// The table of one exec.
#[derive(Debug)]
pub(crate) struct Resources {
    table: ResourceTable,
    opened: usize,
}

impl Default for Resources {
    fn default() -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        Self { table, opened: 0 }
    }
}

impl Resources {
    pub(crate) fn get<T: 'static>(&self, handle: &Resource<T>) -> Result<&T> {
        self.table.get(handle)
    }

    pub(crate) fn get_mut<T: 'static>(&mut self, handle: &Resource<T>) -> Result<&mut T> {
        self.table.get_mut(handle)
    }

    pub(crate) fn push<T: Send + 'static>(&mut self, value: T) -> Result<Resource<T>> {
        self.table.push(value)
    }

    pub(crate) fn delete<T: 'static>(&mut self, handle: Resource<T>) -> Result<T> {
        self.table.delete(handle)
    }

    /// Returns true if one more file or directory can be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.opened < MAX_OPENED
    }

    /// Adds an open file or directory.
    pub(crate) fn push_opened<T: Send + 'static>(&mut self, opened: T) -> Result<Resource<T>> {
        let handle = self.push(opened)?;
        self.opened += 1;
        Ok(handle)
    }

    /// Removes an open file or directory.
    pub(crate) fn delete_opened<T: 'static>(&mut self, handle: Resource<T>) -> Result<T> {
        let opened = self.delete(handle)?;
        self.opened = self.opened.saturating_sub(1);
        Ok(opened)
    }
}
