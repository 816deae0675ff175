//! The files of one sandbox: a tree with the two directories that every guest sees.

use std::sync::Arc;

use cofferdam_contract::{Access, Error, Result, Spec, WORKSPACE_PATH};
use parking_lot::Mutex;

use crate::account::Account;
use crate::fs::{Base, FrozenTree, FsError, Ino, ROOT, Tree};
use crate::policy::Policy;
use crate::time::since_1970;
use crate::wasi::Preopen;

/// The files of a sandbox, and its two fixed directories.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) tree: Arc<Mutex<Tree>>,
    pub(crate) workspace: Ino,
    pub(crate) temporary: Ino,
}

impl Files {
    /// Creates empty files for a sandbox of this spec, charged to `account`.
    pub(crate) fn new(spec: &Spec, policy: Policy, account: &Arc<Account>) -> Result<Self> {
        let mut tree = Tree::new(spec.limits().disk.map(|limit| limit.as_bytes()), Arc::clone(account));
        let now = if policy.seed.is_some() { 0 } else { since_1970() };
        let top = Base { ino: ROOT, name: None };
        let mut make =
            |name: &str| tree.make_directory(top, name, now).map_err(|error| error.into_error("create", name));
        let (workspace, temporary) = (make("workspace")?, make("tmp")?);
        Ok(Self { tree: Arc::new(Mutex::new(tree)), workspace, temporary })
    }

    /// Freezes the current files.
    pub(crate) fn freeze(&self) -> FrozenFiles {
        FrozenFiles { tree: self.tree.lock().freeze(), workspace: self.workspace, temporary: self.temporary }
    }

    /// Returns the preopened directories of an exec. A snapshot has the same ones, since C libraries remember them.
    pub(crate) fn preopens(&self, access: Access, working_dir: Ino) -> Vec<Preopen> {
        let open = |name: &str, ino, absolute: Option<&str>, access| Preopen {
            name: name.to_owned(),
            ino,
            absolute: absolute.map(str::to_owned),
            access,
        };
        let here = (working_dir == self.workspace).then_some(WORKSPACE_PATH);
        vec![
            open(WORKSPACE_PATH, self.workspace, Some(WORKSPACE_PATH), access),
            open("/tmp", self.temporary, Some("/tmp"), Access::ReadWrite),
            open(".", working_dir, here, access),
        ]
    }
}

/// A frozen copy of a sandbox's files.
#[derive(Debug, Clone)]
pub(crate) struct FrozenFiles {
    tree: FrozenTree,
    workspace: Ino,
    temporary: Ino,
}

impl FrozenFiles {
    /// Creates the files of a sandbox of this spec from the copy. `memory` is the account of its memory limit.
    pub(crate) fn thaw(&self, spec: &Spec, memory: &Arc<Account>) -> Result<Files> {
        let disk = spec.limits().disk.map(|limit| limit.as_bytes());
        let failed = |error: FsError| error.into_error("restore", "/workspace");
        let (mut tree, renumbered) = self.tree.thaw(disk, files_account(spec, memory)).map_err(failed)?;
        // No guest runs in the copy, so no descriptors refer to them.
        renumbered.nameless.iter().for_each(|ino| tree.release(*ino));
        let workspace = renumbered.of(self.workspace.0).map_err(failed)?;
        let temporary = renumbered.of(self.temporary.0).map_err(failed)?;
        refuse_shared(&tree, workspace, temporary, spec.workspace().access())?;
        Ok(Files { tree: Arc::new(Mutex::new(tree)), workspace, temporary })
    }
}

/// Returns the account that files are charged to: their own if there is a disk limit, else that of the memory limit.
pub(crate) fn files_account(spec: &Spec, memory: &Arc<Account>) -> Arc<Account> {
    if spec.limits().disk.is_some() { Arc::new(Account::new(None)) } else { Arc::clone(memory) }
}

/// Rejects files with names both in a read-only workspace and outside of it, where they could be written.
pub(crate) fn refuse_shared(tree: &Tree, workspace: Ino, temporary: Ino, access: Access) -> Result<()> {
    if access == Access::ReadWrite || !tree.share_a_node(workspace, temporary) {
        return Ok(());
    }
    Err(Error::unsupported("restore", "a file has one name in the read-only workspace and one outside of it")
        .with_remedy("remove one of its names before the snapshot, or make the workspace writable"))
}
