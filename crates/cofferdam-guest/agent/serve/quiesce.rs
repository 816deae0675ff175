//! Stopping guests, quiescing, and resuming for the same host or another one.

use super::super::asks::{self, Request};
use super::super::buffers::Outbox;
use super::super::connections::Connections;
use super::super::execs::Execs;
use super::super::jobs::Jobs;
use super::super::launch::Desk;
use super::super::sys::{self, Res};
use super::super::wire::{Answer, MAX_EXECS, Reseed, VERSION};
use super::super::{texts, tree, watch};
use super::Agent;

/// The highest number of checks for running processes.
const MAX_SCANS: usize = 2000;
/// The number of checks after which a process in uninterruptible sleep counts as stopped.
const UNINTERRUPTED_SCANS: usize = 50;
pub const EBUSY: i32 = 16;
const ENOSYS: i32 = 38;

/// The stage of quiescing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Open,
    /// Neither side sends a frame, for any time.
    Quiesced,
    /// The agent serves another host, and guests are still stopped.
    Reseeded,
}

/// The means by which guests are stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StoppedBy {
    Nothing,
    Signals,
    /// Their control group, which is invisible to them.
    Group,
}

impl Agent {
    /// Stops or resumes all guests: by their control group if there is an init that can, else by signals.
    pub fn freeze(&mut self, on: bool) -> Res<()> {
        match (on, self.stopped_by) {
            (true, StoppedBy::Nothing) => {
                let sent = self.partner.as_mut().map(|partner| partner.ask(&Request::Freeze { on }));
                if sent == Some(Ok(())) {
                    self.stopped_by = StoppedBy::Group;
                } else {
                    stop_by_signals()?;
                    self.stopped_by = StoppedBy::Signals;
                }
            }
            (false, StoppedBy::Group) => {
                self.partner.as_mut().ok_or(ENOSYS)?.ask(&Request::Freeze { on })?;
                self.stopped_by = StoppedBy::Nothing;
            }
            (false, StoppedBy::Signals) => {
                sys::kill(-1, sys::SIGCONT);
                self.stopped_by = StoppedBy::Nothing;
            }
            (true, _) | (false, StoppedBy::Nothing) => {}
        }
        Ok(())
    }

    /// Stops all guests, so that the agent's next frame is its last. The host ensures that no request is pending.
    pub fn quiesce(&mut self, jobs: &Jobs) -> Res<()> {
        if !self.configured || self.stopped_by != StoppedBy::Nothing || !jobs.is_empty() {
            return Err(EBUSY);
        }
        // Every guest in a VM descends from this process. Without a child there is no guest to stop, and none can
        // appear.
        if self.partner.is_none() || sys::has_children() {
            self.freeze(true)?;
        }
        self.stage = Stage::Quiesced;
        Ok(())
    }

    /// Resumes all guests. Has no effect if the agent is not quiesced.
    pub fn release(&mut self) -> Res<()> {
        if self.stage == Stage::Open {
            return Ok(());
        }
        self.freeze(false)?;
        if let Some(watch) = &mut self.watch {
            watch.resume(None);
        }
        self.stage = Stage::Open;
        self.heard = sys::now_micros();
        // No process was reaped meanwhile.
        self.reaping = true;
        Ok(())
    }

    /// Reseeds the VM, and becomes the agent of another VM.
    pub fn reseed(
        &mut self,
        it: &Reseed<'_>,
        desk: &mut Desk,
        execs: &mut Execs,
        (jobs, connections): (&mut Jobs, &mut Connections),
    ) -> Res<()> {
        if self.stage != Stage::Quiesced {
            return Err(EBUSY);
        }
        let partner = self.partner.as_mut().ok_or(ENOSYS)?;
        // Discards the state of the former host.
        jobs.forget_all();
        connections.reset();
        execs.abandon();
        *desk = Desk::NEW;
        let Reseed { silence, now, entropy, machine_id, boot_id, hostname } = *it;
        partner.ask(&Request::Reseed(asks::Reseed { now, entropy, machine_id, boot_id, hostname }))?;
        if let Some(watch) = &mut self.watch {
            let words = entropy.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
            watch.resume(Some(words.fold(0, |all, word| all.rotate_left(7) ^ word)));
        }
        self.silence = silence;
        self.heard = sys::now_micros();
        self.stage = Stage::Reseeded;
        Ok(())
    }
}

fn stop_by_signals() -> Res<()> {
    let mut buffer = [0; 4096];
    for scan in 0..MAX_SCANS {
        sys::kill(-1, sys::SIGSTOP);
        let mut moving = false;
        let whole = watch::each_process(&mut buffer, |pid| moving |= !is_stopped(pid, scan > UNINTERRUPTED_SCANS));
        if whole && !moving {
            return Ok(());
        }
        tree::pause();
    }
    sys::kill(-1, sys::SIGCONT);
    Err(EBUSY)
}

/// Returns true if a process runs no user code any more. A process in uninterruptible sleep waits for a disk, or for a
/// child that shares its memory and is stopped itself. It stops before it runs again; `waiting` counts it as stopped.
fn is_stopped(pid: i32, waiting: bool) -> bool {
    let mut stat = [0; 512];
    let stat = sys::read_file(texts::Path::new("/proc/", pid as u32, "/stat").bytes(), &mut stat);
    // A process that has ended meanwhile is in no later list.
    let stopped = |state| matches!(state, b'T' | b't' | b'Z' | b'X') || (waiting && state == b'D');
    !stat.is_empty() && texts::state(stat).is_none_or(stopped)
}

/// Answers that the VM is reseeded.
pub fn answer_reseeded(id: u64, execs: &Execs, out: &mut Outbox) {
    const ID: usize = size_of::<u64>();
    let mut ids = [0; MAX_EXECS * ID];
    let mut length = 0;
    for (slot, exec) in ids.chunks_exact_mut(ID).zip(execs.iter()) {
        slot.copy_from_slice(&exec.id.to_le_bytes());
        length += ID;
    }
    out.answer(id, &Answer::Reseeded { version: VERSION, execs: ids.get(..length).unwrap_or_default() });
}
