//! What calls of other interfaces than preview 1 use of the host of an exec.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::descriptors::{Descriptor, OpenDirectory};
use super::host::Host;
use crate::ending::Ending;
use crate::fs::{FsResult, Tree};
use crate::leash::{Input, Leash};
use crate::network::Waker;
use crate::time::{Clock, Random};

impl Host {
    pub(crate) fn files(&self) -> &Arc<Mutex<Tree>> {
        &self.files
    }

    pub(crate) fn locked_tree(&self) -> MutexGuard<'_, Tree> {
        self.tree()
    }

    pub(crate) fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    pub(crate) fn input(&mut self) -> (&mut Input, &Leash) {
        (&mut self.input, &self.leash)
    }

    /// Waits until `until` or the deadline or, if that is wanted, until there is input.
    pub(crate) fn wait_until(&mut self, until: Option<Instant>, input: bool) -> Result<(), Ending> {
        self.wait(until, input)
    }

    /// What wakes the guest where it waits for connections. Without a policy there is none.
    pub(crate) fn waker(&mut self) -> io::Result<Arc<Waker>> {
        let egress = self.egress.as_mut().ok_or(io::ErrorKind::PermissionDenied)?;
        let waker = Arc::clone(egress.waker()?);
        self.leash.wake_elsewhere(&waker);
        Ok(waker)
    }

    /// Notes a limit that was in the way.
    pub(crate) fn noted<T>(&mut self, result: FsResult<T>) -> FsResult<T> {
        self.note(result)
    }

    /// The directories that the guest began with.
    pub(crate) fn preopens(&self) -> Vec<OpenDirectory> {
        let directory = |number| match self.descriptors.get(number) {
            Ok(Descriptor::Directory(directory)) => Some(directory.clone()),
            _ => None,
        };
        // The three streams come first, and nothing comes between.
        (3..).map_while(directory).filter(|directory| directory.preopen.is_some()).collect()
    }
}
