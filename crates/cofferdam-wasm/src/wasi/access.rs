//! Access to the host of an exec for other interfaces than preview 1.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use super::descriptors::{Descriptor, OpenDirectory};
use super::host::Host;
use crate::fs::{FsResult, Tree};
use crate::guest_control::{GuestControl, Input};
use crate::network::Waker;
use crate::termination::Termination;
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

    pub(crate) fn input(&mut self) -> (&mut Input, &GuestControl) {
        (&mut self.input, &self.control)
    }

    /// Waits until `until`, the deadline or, if `input` is set, until input is available.
    pub(crate) fn wait_until(&mut self, until: Option<Instant>, input: bool) -> Result<(), Termination> {
        self.wait(until, input)
    }

    /// Returns the waker for waits on connections. Fails if there is no network policy.
    pub(crate) fn waker(&mut self) -> io::Result<Arc<Waker>> {
        let egress = self.egress.as_mut().ok_or(io::ErrorKind::PermissionDenied)?;
        let waker = Arc::clone(egress.waker()?);
        self.control.set_waker(&waker);
        Ok(waker)
    }

    /// Records a limit that was reached.
    pub(crate) fn noted<T>(&mut self, result: FsResult<T>) -> FsResult<T> {
        self.note(result)
    }

    /// Returns the directories that were preopened for the guest.
    pub(crate) fn preopens(&self) -> Vec<OpenDirectory> {
        let directory = |number| match self.descriptors.get(number) {
            Ok(Descriptor::Directory(directory)) => Some(directory.clone()),
            _ => None,
        };
        // The preopened directories follow the three streams without a gap.
        (3..).map_while(directory).filter(|directory| directory.preopen.is_some()).collect()
    }
}
