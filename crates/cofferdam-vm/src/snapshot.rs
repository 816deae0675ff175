//! Machines at rest: what a snapshot consists of, and where it may go on.
//!
//! ```text
//! VmSnapshot = manifest (JSON) + memory (sparse) + devices (small) + the workspace's disk (sparse), if there is one
//! ```
//!
//! All but the manifest lies in files without names, which are gone with the last snapshot and machine that needs them. The
//! root file system is none of it: that is an image's, which the manifest names.

use std::fmt;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_contract::{
    Access, ByteSize, Error, ExecId, Limits, RootFs, Snapshot, Spec, SpecBuilder, TenantId, Workspace,
};
use cofferdam_guest::{Evidence, PROTOCOL, Record};
use serde::{Deserialize, Serialize};

use crate::backend::NAME;
use crate::budget::Lease;
use crate::error::{Result, VmError, io};
use crate::plan::Plan;
use crate::sparse;
use crate::vmm::{MachineState, Origin};

/// Changes when what is written down means something else.
const FORMAT: u32 = 1;
/// Two measurements of one counter differ by less, in thousandths.
const TICKS_DIFFER: u64 = 10;

/// What has to be known of a snapshot besides its files. Its form as JSON is what travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotManifest {
    format: u32,
    origin: Origin,
    /// Names kernel and root file system.
    image: String,
    plan: Plan,
    access: Access,
    limits: Limits,
    guest: Record,
    /// The tenant of the sandbox that it was taken of; `None` for a template, which holds no tenant's work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<TenantId>,
}

/// Refuses a format that this program does not know.
pub(crate) fn check_format(found: u64) -> Result<()> {
    if found == u64::from(FORMAT) {
        return Ok(());
    }
    let what = format!("its format is {found}, and this program knows {FORMAT}");
    Err(VmError::BadSnapshot { what })
}

/// Refuses a guest whose agent nobody here can speak with.
pub(crate) fn check_agent(found: u64) -> Result<()> {
    if found == u64::from(PROTOCOL) {
        return Ok(());
    }
    let what = format!("its agent speaks version {found} of the protocol, and this program speaks {PROTOCOL}");
    Err(Error::unsupported("restore", what)
        .with_remedy("restore it with the release that saved it, or save it anew")
        .into())
}

impl SnapshotManifest {
    pub(crate) fn new(origin: Origin, image: String, plan: Plan, spec: (Access, Limits), guest: Record) -> Self {
        let (access, limits) = spec;
        Self { format: FORMAT, origin, image, plan, access, limits, guest, tenant: None }
    }

    /// Refuses another tenant than the one whose work is in it.
    pub(crate) fn check_tenant(&self, tenant: &TenantId) -> Result<()> {
        match &self.tenant {
            Some(owner) if owner != tenant => Err(VmError::OtherTenant { asked: tenant.as_str().to_owned() }),
            _ => Ok(()),
        }
    }

    /// What the snapshot depends on: monitor, machine, processor.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The key of the image whose root file system the machine has.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// All of the machine's memory: the length of its memory's file.
    pub fn memory(&self) -> ByteSize {
        self.plan.memory
    }

    /// The length of the workspace's disk, if it has one.
    pub fn disk(&self) -> Option<ByteSize> {
        self.plan.shares.disk.map(ByteSize::from_bytes)
    }

    /// The limits of the sandbox that it was taken of.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    #[cfg(test)]
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// What ran in it, and goes on in what is made from it.
    pub fn running(&self) -> Vec<ExecId> {
        self.guest.running()
    }

    /// A spec that it can go on with, with this root: nothing of it is what whoever took it allowed himself.
    pub fn spec(&self, root: RootFs) -> SpecBuilder {
        Spec::builder().limits(self.limits.clone()).root(root).workspace(Workspace::Private { access: self.access })
    }

    /// Refuses one whose fields mean something else than they say here, and one whose agent nobody here can speak with.
    pub(crate) fn check_versions(&self) -> Result<()> {
        check_format(self.format.into())?;
        check_agent(self.guest.version().into())
    }

    pub(crate) fn guest(&self) -> &Record {
        &self.guest
    }

    /// Refuses another place than where it can go on.
    pub(crate) fn check_origin(&self, here: &Origin) -> Result<()> {
        let found = &self.origin;
        let Origin { monitor, version, machine, accelerator, processor, host, ticks_per_millisecond } = here;
        let none = || "none".to_owned();
        let pairs = [
            ("the monitor", found.monitor.clone(), monitor.clone()),
            // Within a series, machines stay what they are.
            ("version", series(&found.version), series(version)),
            ("a machine", found.machine.clone(), machine.clone()),
            ("the accelerator", found.accelerator.as_str().to_owned(), accelerator.as_str().to_owned()),
            ("the processor", found.processor.clone(), processor.clone()),
            ("the host's processor", found.host.clone().unwrap_or_else(none), host.clone().unwrap_or_else(none)),
        ];
        for (what, found, here) in pairs {
            if found != here {
                return Err(VmError::Elsewhere { what, found: crate::error::shown(&found), here });
            }
        }
        match (found.ticks_per_millisecond, *ticks_per_millisecond) {
            (Some(there), Some(here)) if there.abs_diff(here) > here * TICKS_DIFFER / 1000 => Err(VmError::Elsewhere {
                what: "a time-stamp counter of",
                found: format!("{there} kHz"),
                here: format!("{here} kHz"),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a spec that asks for anything else in what is fixed in it.
    pub(crate) fn check_spec(&self, plan: &Plan, spec: &Spec) -> Result<()> {
        let access = spec.workspace().access();
        if access != self.access {
            let what = "the guests' access to the workspace";
            return Err(VmError::Fixed { what, found: format!("{:?}", self.access), asked: format!("{access:?}") });
        }
        match self.plan.difference(plan) {
            Some((what, found, asked)) => Err(VmError::Fixed { what, found, asked }),
            None => Ok(()),
        }
    }
}

/// Version without what only repairs it.
fn series(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// What belongs to all clones of a snapshot together.
pub(crate) struct Frozen {
    pub manifest: SnapshotManifest,
    pub state: MachineState,
    pub disk: Option<File>,
    /// The root file system that it had, where it did not travel.
    pub root: Option<(RootFs, Arc<File>)>,
    /// What was measured in the machine by this process; nothing of one that travelled is believed.
    evidence: Option<Evidence>,
    /// What the archive ends with that it was read from.
    digest: Option<String>,
    /// What it takes of the memory that snapshots may take.
    lease: Mutex<Lease>,
}

/// A machine at rest. Cheap to clone; any number of sandboxes can be made from it.
#[derive(Clone)]
pub struct VmSnapshot(Arc<Frozen>);

/// Bytes that a snapshot takes, without holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSizes {
    /// Of the host's memory: what the machine's memory held.
    pub memory: u64,
    /// Of the host's memory: devices.
    pub devices: u64,
    /// Of the directory for disks.
    pub disk: u64,
}

impl VmSnapshot {
    pub(crate) fn new(
        manifest: SnapshotManifest,
        state: MachineState,
        disk: Option<File>,
        root: Option<(RootFs, Arc<File>)>,
        lease: Lease,
    ) -> Result<Self> {
        let length = |file: &File| file.metadata().map(|found| found.len()).map_err(io("look at", "a snapshot"));
        let bad = |what: &str| Err(VmError::BadSnapshot { what: what.to_owned() });
        manifest.check_versions()?;
        if length(state.memory())? != manifest.plan.memory.as_bytes() {
            return bad("its memory is not as large as its manifest says");
        }
        if disk.as_ref().map(length).transpose()? != manifest.plan.shares.disk {
            return bad("its disk is not as large as its manifest says");
        }
        let (evidence, digest, lease) = (None, None, Mutex::new(lease));
        Ok(Self(Arc::new(Frozen { manifest, state, disk, root, evidence, digest, lease })))
    }

    /// With what was measured in its machine, by whoever took it right now.
    pub(crate) fn measured(mut self, evidence: Evidence) -> Self {
        if let Some(frozen) = Arc::get_mut(&mut self.0) {
            frozen.evidence = Some(evidence);
        }
        self
    }

    /// With the tenant whose work is in it.
    pub(crate) fn of_tenant(mut self, tenant: &TenantId) -> Self {
        if let Some(frozen) = Arc::get_mut(&mut self.0) {
            frozen.manifest.tenant = Some(tenant.clone());
        }
        self
    }

    /// With the SHA-256 that the archive ends with which it was read from.
    pub(crate) fn read_from(mut self, digest: String) -> Self {
        if let Some(frozen) = Arc::get_mut(&mut self.0) {
            frozen.digest = Some(digest);
        }
        self
    }

    /// The SHA-256 that its archive ends with; `None` where it was read from none.
    pub fn digest(&self) -> Option<&str> {
        self.0.digest.as_deref()
    }

    /// What was measured in its machine.
    pub(crate) fn evidence(&self) -> Option<&Evidence> {
        self.0.evidence.as_ref()
    }

    /// Counts all of its memory: machines that are made from it fill its holes by no more than reading them, and what they
    /// filled stays when they end. A fork's snapshot is nobody's but its one machine's, ends with it, and is filled at the
    /// cost of that machine's own bounds: it needs none of this.
    pub(crate) fn lease_all(&self) -> Result<()> {
        let devices = sparse::allocated(self.state().devices()).map_err(io("look at", "a snapshot"))?;
        let all = self.manifest().memory().as_bytes().saturating_add(devices);
        self.0.lease.lock().unwrap_or_else(PoisonError::into_inner).grow(all)
    }

    /// What a snapshot of this backend holds.
    pub fn of(snapshot: &Snapshot) -> Option<&Self> {
        (snapshot.backend() == NAME).then(|| snapshot.payload())?
    }

    /// What has to be known of it besides its files.
    pub fn manifest(&self) -> &SnapshotManifest {
        &self.0.manifest
    }

    /// A spec that it can go on with; whoever wants another one changes what may differ.
    pub fn spec(&self) -> SpecBuilder {
        self.manifest().spec(self.root().map_or(RootFs::Default, |(root, _)| root.clone()))
    }

    /// The machine's memory and devices.
    pub fn state(&self) -> &MachineState {
        &self.0.state
    }

    /// The disk with the workspace, where that is not in memory. It must not be written to.
    pub fn disk(&self) -> Option<&File> {
        self.0.disk.as_ref()
    }

    pub(crate) fn root(&self) -> Option<&(RootFs, Arc<File>)> {
        self.0.root.as_ref()
    }

    /// What it takes.
    ///
    /// # Errors
    ///
    /// [`VmError::Io`] where its files do not say.
    pub fn sizes(&self) -> Result<SnapshotSizes> {
        let of = |file: &File| sparse::allocated(file).map_err(io("look at", "a snapshot"));
        let disk = self.disk().map_or(Ok(0), of)?;
        Ok(SnapshotSizes { memory: of(self.state().memory())?, devices: of(self.state().devices())?, disk })
    }
}

impl From<VmSnapshot> for Snapshot {
    fn from(snapshot: VmSnapshot) -> Self {
        let digest = snapshot.digest().map(str::to_owned);
        let snapshot = Self::new(NAME, snapshot);
        match digest {
            Some(digest) => snapshot.with_digest(digest),
            None => snapshot,
        }
    }
}

impl fmt::Debug for VmSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmSnapshot").field("manifest", self.manifest()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::config::VmConfig;
    use crate::vmm::Accelerator;

    fn origin() -> Origin {
        Origin {
            monitor: "qemu".to_owned(),
            version: "7.2.22".to_owned(),
            machine: "microvm x86_64".to_owned(),
            accelerator: Accelerator::Tcg,
            processor: "Nehalem-v1".to_owned(),
            host: None,
            ticks_per_millisecond: Some(2_600_000),
        }
    }

    fn manifest(spec: &Spec) -> SnapshotManifest {
        let plan = Plan::of(spec, &VmConfig::new("/x")).unwrap();
        let record = serde_json::json!({ "version": PROTOCOL, "last": 0, "execs": [] });
        let record = serde_json::from_value(record).unwrap();
        let spec = (spec.workspace().access(), spec.limits().clone());
        SnapshotManifest::new(origin(), "key".to_owned(), plan, spec, record)
    }

    #[test]
    fn a_manifest_is_read_back_as_it_was() {
        let manifest = manifest(&Spec::default());
        let text = serde_json::to_string(&manifest).unwrap();
        assert_eq!(serde_json::from_str::<SnapshotManifest>(&text).unwrap(), manifest);
        let more = text.replacen('{', "{\"more\":1,", 1);
        assert!(serde_json::from_str::<SnapshotManifest>(&more).is_err());
    }

    #[test]
    fn another_place_is_refused_with_what_is_different() {
        let manifest = manifest(&Spec::default());
        manifest.check_origin(&origin()).unwrap();
        manifest.check_origin(&Origin { version: "7.2.99".to_owned(), ..origin() }).unwrap();
        manifest.check_origin(&Origin { ticks_per_millisecond: Some(2_610_000), ..origin() }).unwrap();
        for (here, says) in [
            (Origin { monitor: "firecracker".to_owned(), ..origin() }, "monitor qemu"),
            (Origin { version: "8.0.0".to_owned(), ..origin() }, "version 7.2"),
            (Origin { machine: "q35 x86_64".to_owned(), ..origin() }, "microvm"),
            (Origin { accelerator: Accelerator::Kvm, ..origin() }, "tcg"),
            (Origin { processor: "EPYC-v1".to_owned(), ..origin() }, "Nehalem-v1"),
            (Origin { host: Some("AMD".to_owned()), ..origin() }, "AMD"),
            (Origin { ticks_per_millisecond: Some(3_000_000), ..origin() }, "2600000 kHz"),
        ] {
            let error = manifest.check_origin(&here).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_is_fixed_cannot_be_asked_for_anew() {
        let fixed = manifest(&Spec::default());
        let check = |spec: &Spec| fixed.check_spec(&Plan::of(spec, &VmConfig::new("/x")).unwrap(), spec);
        let limited = |change: fn(&mut cofferdam_contract::Limits)| {
            let mut limits = cofferdam_contract::Limits::default();
            change(&mut limits);
            Spec::builder().limits(limits).build().unwrap()
        };
        check(&Spec::default()).unwrap();
        check(&limited(|limits| limits.wall_time = std::time::Duration::from_secs(1))).unwrap();
        for other in [
            limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(99))),
            limited(|limits| limits.memory = None),
            limited(|limits| limits.disk = Some(ByteSize::from_mebibytes(99))),
            limited(|limits| limits.pids = Some(3)),
            limited(|limits| limits.cpus = Some("0.5".parse().unwrap())),
            Spec::builder()
                .workspace(cofferdam_contract::Workspace::Private { access: Access::ReadOnly })
                .build()
                .unwrap(),
        ] {
            let error = check(&other).unwrap_err();
            assert!(matches!(error, VmError::Fixed { .. }), "{error}");
        }
    }

    #[test]
    fn a_snapshot_of_one_tenant_is_refused_to_another() {
        let mut manifest = manifest(&Spec::default());
        let [mine, other] = ["mine", "other"].map(|name| TenantId::new(name).unwrap());
        manifest.check_tenant(&other).unwrap();
        manifest.tenant = Some(mine.clone());
        manifest.check_tenant(&mine).unwrap();
        let text = serde_json::to_string(&manifest).unwrap();
        let travelled: SnapshotManifest = serde_json::from_str(&text).unwrap();
        let error = travelled.check_tenant(&other).unwrap_err().into_error("restore");
        assert_eq!(error.kind(), cofferdam_contract::ErrorKind::Denied);
        assert!(!error.to_string().contains("mine"), "{error}");
    }

    #[test]
    fn files_that_are_not_the_manifests_are_refused() {
        let limits = cofferdam_contract::Limits { disk: None, ..Default::default() };
        let manifest = manifest(&Spec::builder().limits(limits).build().unwrap());
        let lease = || Budget::new(ByteSize::from_bytes(0)).take_most(0);
        let of = |manifest: &SnapshotManifest, memory: u64, disk: Option<File>| {
            let state = MachineState::new(sparse::blank(memory).unwrap(), sparse::blank(1).unwrap()).unwrap();
            VmSnapshot::new(manifest.clone(), state, disk, None, lease())
        };
        let memory = manifest.memory().as_bytes();
        let travelled = of(&manifest, memory, None).unwrap();
        assert!(travelled.evidence().is_none(), "somebody else measured it, if anybody");
        assert_eq!(travelled.measured(Evidence::default()).evidence(), Some(&Evidence::default()));
        assert!(of(&manifest, memory - 4096, None).is_err());
        assert!(of(&manifest, memory, Some(sparse::blank(9).unwrap())).is_err());
        assert!(of(&SnapshotManifest { format: 2, ..manifest }, memory, None).is_err());
    }

    #[test]
    fn what_machines_come_from_is_counted_whole_and_once() {
        let limits = cofferdam_contract::Limits { disk: None, ..Default::default() };
        let manifest = manifest(&Spec::builder().limits(limits).build().unwrap());
        let memory = manifest.memory().as_bytes();
        for (room, fits) in [(memory + 4096, true), (memory, false)] {
            let budget = Budget::new(ByteSize::from_bytes(room));
            let devices = sparse::blank(0).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&devices, b"x", 0).unwrap();
            let state = MachineState::new(sparse::blank(memory).unwrap(), devices).unwrap();
            let lease = budget.take(state.allocated().unwrap()).unwrap();
            let snapshot = VmSnapshot::new(manifest.clone(), state, None, None, lease).unwrap();
            assert_eq!(budget.left(), room - 4096);
            for _ in 0..10 {
                assert_eq!(snapshot.clone().lease_all().is_ok(), fits);
            }
            assert_eq!(budget.left() == 0, fits);
            drop(snapshot);
            assert_eq!(budget.left(), room);
        }
    }
}
