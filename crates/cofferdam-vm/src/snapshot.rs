//! VM snapshots: their contents, and the conditions for resuming them.
//!
//! ```text
//! VmSnapshot = manifest (JSON) + memory (sparse) + devices (small) + the workspace's disk (sparse), if there is one
//! ```
//!
//! All but the manifest is in unnamed files, which are freed with the last snapshot and VM that needs them. The root
//! file system is not included: it belongs to an image, which the manifest names.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use cofferdam_contract::{
    Access, ByteSize, Error, ExecId, Limits, RootFs, Snapshot, Spec, SpecBuilder, TenantId, Workspace,
};
use cofferdam_guest::{Evidence, PROTOCOL, Record};
use cofferdam_util::text::excerpt;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::NAME;
use crate::budget::Lease;
use crate::error::{Result, VmError, io};
use crate::plan::Plan;
use crate::sparse;
use crate::vmm::{Origin, VmState};

/// Version of the format. Incremented when the meaning of a field changes.
const FORMAT: u32 = 1;
/// Maximum difference between two measurements of one counter, in thousandths.
const TICKS_DIFFER: u64 = 10;

/// The metadata of a snapshot, besides its files. Its JSON form is stored in archives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotManifest {
    format: u32,
    origin: Origin,
    /// Key of the image with kernel and root file system.
    image: String,
    plan: Plan,
    access: Access,
    limits: Limits,
    guest: Record,
    /// Tenant of the original sandbox; `None` for a template, which contains no tenant's work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<TenantId>,
}

/// Refuses a format that this program does not know.
pub(crate) fn check_format(found: u64) -> Result<()> {
    if found == u64::from(FORMAT) {
        return Ok(());
    }
    let what = format!("its format is {found}, and this program knows {FORMAT}");
    Err(VmError::InvalidSnapshot { what })
}

/// Refuses a guest whose agent speaks another protocol version.
pub(crate) fn check_agent(found: u64) -> Result<()> {
    if found == u64::from(PROTOCOL) {
        return Ok(());
    }
    let what = format!("its agent speaks version {found} of the protocol, and this program speaks {PROTOCOL}");
    Err(Error::unsupported("restore", what)
        .with_remedy("restore it with the release that saved it, or save it again")
        .into())
}

impl SnapshotManifest {
    pub(crate) fn new(origin: Origin, image: String, plan: Plan, spec: (Access, Limits), guest: Record) -> Self {
        let (access, limits) = spec;
        Self { format: FORMAT, origin, image, plan, access, limits, guest, tenant: None }
    }

    /// Refuses a tenant other than the one whose work is in it.
    pub(crate) fn check_tenant(&self, tenant: &TenantId) -> Result<()> {
        match &self.tenant {
            Some(owner) if owner != tenant => Err(VmError::OtherTenant { requested: tenant.as_str().to_owned() }),
            _ => Ok(()),
        }
    }

    /// Returns the properties that the snapshot depends on: VMM, VM type, processor.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the key of the image with the VM's root file system.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Returns the size of the VM's memory, which is the length of the memory file.
    pub fn memory(&self) -> ByteSize {
        self.plan.memory
    }

    /// Returns the length of the workspace's disk, if it has one.
    pub fn disk(&self) -> Option<ByteSize> {
        self.plan.shares.disk.map(ByteSize::from_bytes)
    }

    /// Returns the limits of the original sandbox.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    #[cfg(test)]
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Returns the execs that ran in it, and resume in its copies.
    pub fn running(&self) -> Vec<ExecId> {
        self.guest.running()
    }

    /// Returns a spec that can restore it with this root. The spec contains none of the permissions of the original
    /// spec.
    pub fn spec(&self, root: RootFs) -> SpecBuilder {
        Spec::builder().limits(self.limits.clone()).root(root).workspace(Workspace::Private { access: self.access })
    }

    /// Refuses a snapshot of another format, or with an agent of another protocol version.
    pub(crate) fn check_versions(&self) -> Result<()> {
        check_format(self.format.into())?;
        check_agent(self.guest.version().into())
    }

    pub(crate) fn guest(&self) -> &Record {
        &self.guest
    }

    /// Refuses a host or VMM on which the snapshot cannot resume.
    pub(crate) fn check_origin(&self, here: &Origin) -> Result<()> {
        let found = &self.origin;
        let Origin { vmm, version, vm_type, accelerator, processor, host, ticks_per_millisecond } = here;
        let none = || "none".to_owned();
        let pairs = [
            ("the VMM", found.vmm.clone(), vmm.clone()),
            // VMs are compatible within a release series.
            ("version", series(&found.version), series(version)),
            ("the VM type", found.vm_type.clone(), vm_type.clone()),
            ("the accelerator", found.accelerator.as_str().to_owned(), accelerator.as_str().to_owned()),
            ("the processor", found.processor.clone(), processor.clone()),
            ("the host's processor", found.host.clone().unwrap_or_else(none), host.clone().unwrap_or_else(none)),
        ];
        for (what, found, current) in pairs {
            if found != current {
                return Err(VmError::OriginMismatch { what, found: excerpt(&found), current });
            }
        }
        match (found.ticks_per_millisecond, *ticks_per_millisecond) {
            (Some(saved), Some(current)) if saved.abs_diff(current) > current * TICKS_DIFFER / 1000 => {
                Err(VmError::OriginMismatch {
                    what: "a time-stamp counter of",
                    found: format!("{saved} kHz"),
                    current: format!("{current} kHz"),
                })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a spec that differs in a property that is fixed in the snapshot.
    pub(crate) fn check_spec(&self, plan: &Plan, spec: &Spec) -> Result<()> {
        let access = spec.workspace().access();
        if access != self.access {
            let what = "the guests' access to the workspace";
            return Err(VmError::FixedProperty {
                what,
                found: format!("{:?}", self.access),
                requested: format!("{access:?}"),
            });
        }
        match self.plan.difference(plan) {
            Some((what, found, requested)) => Err(VmError::FixedProperty { what, found, requested }),
            None => Ok(()),
        }
    }
}

/// Returns a version without its patch level.
fn series(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// The state that all clones of a snapshot share.
pub(crate) struct Frozen {
    pub manifest: SnapshotManifest,
    pub state: VmState,
    pub disk: Option<File>,
    /// The VM's root file system; `None` if it was read from an archive.
    pub root: Option<(RootFs, Arc<File>)>,
    /// The measurements of this process inside the VM. Those from an archive are not trusted.
    evidence: Option<Evidence>,
    /// The digest at the end of the archive that it was read from.
    digest: Option<String>,
    /// Its reservation of the memory for snapshots.
    lease: Mutex<Lease>,
}

/// A snapshot of a VM. Cheap to clone; any number of sandboxes can be created from it.
#[derive(Clone)]
pub struct VmSnapshot(Arc<Frozen>);

/// Allocated bytes of a snapshot, without holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSizes {
    /// Of the host's memory: the VM's memory.
    pub memory: u64,
    /// Of the host's memory: device state.
    pub devices: u64,
    /// Of the directory for disks.
    pub disk: u64,
}

impl VmSnapshot {
    pub(crate) fn new(
        manifest: SnapshotManifest,
        state: VmState,
        disk: Option<File>,
        root: Option<(RootFs, Arc<File>)>,
        lease: Lease,
    ) -> Result<Self> {
        let length = |file: &File| file.metadata().map(|found| found.len()).map_err(io("inspect", "a snapshot"));
        let bad = |what: &str| Err(VmError::InvalidSnapshot { what: what.to_owned() });
        manifest.check_versions()?;
        if length(state.memory())? != manifest.plan.memory.as_bytes() {
            return bad("the size of its memory differs from its manifest");
        }
        if disk.as_ref().map(length).transpose()? != manifest.plan.shares.disk {
            return bad("the size of its disk differs from its manifest");
        }
        let (evidence, digest, lease) = (None, None, Mutex::new(lease));
        Ok(Self(Arc::new(Frozen { manifest, state, disk, root, evidence, digest, lease })))
    }

    /// Sets the measurements inside its VM, when the snapshot is taken.
    pub(crate) fn measured(mut self, evidence: Evidence) -> Self {
        if let Some(frozen) = Arc::get_mut(&mut self.0) {
            frozen.evidence = Some(evidence);
        }
        self
    }

    /// Sets the tenant whose work is in it.
    pub(crate) fn of_tenant(mut self, tenant: &TenantId) -> Self {
        if let Some(frozen) = Arc::get_mut(&mut self.0) {
            frozen.manifest.tenant = Some(tenant.clone());
        }
        self
    }

    /// Sets the SHA-256 at the end of the archive that it was read from.
    pub(crate) fn read_from(mut self, digest: String) -> Self {
        if let Some(frozen) = Arc::get_mut(&mut self.0) {
            frozen.digest = Some(digest);
        }
        self
    }

    /// Returns the SHA-256 at the end of its archive; `None` if it was not read from an archive.
    pub fn digest(&self) -> Option<&str> {
        self.0.digest.as_deref()
    }

    /// Returns the measurements inside its VM.
    pub(crate) fn evidence(&self) -> Option<&Evidence> {
        self.0.evidence.as_ref()
    }

    /// Reserves all of its memory. VMs that are restored from it fill its holes by merely reading them, and the pages
    /// stay when the VMs end. A fork's snapshot does not need this: it belongs to one VM, ends with it, and its pages
    /// are charged to that VM's own limits.
    pub(crate) fn lease_all(&self) -> Result<()> {
        let devices = sparse::allocated(self.state().devices()).map_err(io("inspect", "a snapshot"))?;
        let all = self.manifest().memory().as_bytes().saturating_add(devices);
        self.0.lease.lock().grow(all)
    }

    /// Returns the VM snapshot in a snapshot of the contract, if it is one of this backend.
    pub fn of(snapshot: &Snapshot) -> Option<&Self> {
        (snapshot.backend() == NAME).then(|| snapshot.payload())?
    }

    /// Returns its metadata.
    pub fn manifest(&self) -> &SnapshotManifest {
        &self.0.manifest
    }

    /// Returns a spec that can restore it. The caller may change the properties that are not fixed.
    pub fn spec(&self) -> SpecBuilder {
        self.manifest().spec(self.root().map_or(RootFs::Default, |(root, _)| root.clone()))
    }

    /// Returns the VM's memory and devices.
    pub fn state(&self) -> &VmState {
        &self.0.state
    }

    /// Returns the workspace's disk, if the workspace is not in memory. It must not be written to.
    pub fn disk(&self) -> Option<&File> {
        self.0.disk.as_ref()
    }

    pub(crate) fn root(&self) -> Option<&(RootFs, Arc<File>)> {
        self.0.root.as_ref()
    }

    /// Returns the bytes that it takes.
    ///
    /// # Errors
    ///
    /// [`VmError::Io`] if a file cannot be inspected.
    pub fn sizes(&self) -> Result<SnapshotSizes> {
        let of = |file: &File| sparse::allocated(file).map_err(io("inspect", "a snapshot"));
        let disk = self.disk().map_or(Ok(0), of)?;
        Ok(SnapshotSizes { memory: of(self.state().memory())?, devices: of(self.state().devices())?, disk })
    }
}

impl From<VmSnapshot> for Snapshot {
    fn from(snapshot: VmSnapshot) -> Self {
        let digest = snapshot.digest().map(str::to_owned);
        let tenant = snapshot.manifest().tenant.clone();
        let mut snapshot = Self::new(NAME, snapshot);
        if let Some(tenant) = tenant {
            snapshot = snapshot.with_tenant(tenant);
        }
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
            vmm: "qemu".to_owned(),
            version: "7.2.22".to_owned(),
            vm_type: "microvm x86_64".to_owned(),
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

    /// Promise (Virtual machines): A snapshot that does not match the host is refused, and the error names the
    /// difference.
    #[test]
    fn snapshot_of_another_host_is_refused_with_the_difference() {
        let manifest = manifest(&Spec::default());
        manifest.check_origin(&origin()).unwrap();
        manifest.check_origin(&Origin { version: "7.2.99".to_owned(), ..origin() }).unwrap();
        manifest.check_origin(&Origin { ticks_per_millisecond: Some(2_610_000), ..origin() }).unwrap();
        for (here, says) in [
            (Origin { vmm: "firecracker".to_owned(), ..origin() }, "VMM qemu"),
            (Origin { version: "8.0.0".to_owned(), ..origin() }, "version 7.2"),
            (Origin { vm_type: "q35 x86_64".to_owned(), ..origin() }, "microvm"),
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
    fn restore_refuses_changes_of_fixed_settings() {
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
            assert!(matches!(error, VmError::FixedProperty { .. }), "{error}");
        }
    }

    /// Promise (Virtual machines): A snapshot of one tenant is refused to another tenant.
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

    /// Promise (Virtual machines): A snapshot whose files do not match its manifest is refused.
    #[test]
    fn files_that_are_not_the_manifests_are_refused() {
        let limits = cofferdam_contract::Limits { disk: None, ..Default::default() };
        let manifest = manifest(&Spec::builder().limits(limits).build().unwrap());
        let lease = || Budget::new(ByteSize::from_bytes(0)).take_up_to(0);
        let of = |manifest: &SnapshotManifest, memory: u64, disk: Option<File>| {
            let state = VmState::new(sparse::blank(memory).unwrap(), sparse::blank(1).unwrap()).unwrap();
            VmSnapshot::new(manifest.clone(), state, disk, None, lease())
        };
        let memory = manifest.memory().as_bytes();
        let travelled = of(&manifest, memory, None).unwrap();
        assert!(travelled.evidence().is_none(), "measurements from elsewhere are not trusted");
        assert_eq!(travelled.measured(Evidence::default()).evidence(), Some(&Evidence::default()));
        assert!(of(&manifest, memory - 4096, None).is_err());
        assert!(of(&manifest, memory, Some(sparse::blank(9).unwrap())).is_err());
        assert!(of(&SnapshotManifest { format: 2, ..manifest }, memory, None).is_err());
    }

    #[test]
    fn snapshot_reserves_its_whole_memory_once() {
        let limits = cofferdam_contract::Limits { disk: None, ..Default::default() };
        let manifest = manifest(&Spec::builder().limits(limits).build().unwrap());
        let memory = manifest.memory().as_bytes();
        for (room, succeeds) in [(memory + 4096, true), (memory, false)] {
            let budget = Budget::new(ByteSize::from_bytes(room));
            let devices = sparse::blank(0).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&devices, b"x", 0).unwrap();
            let state = VmState::new(sparse::blank(memory).unwrap(), devices).unwrap();
            let lease = budget.take(state.allocated().unwrap()).unwrap();
            let snapshot = VmSnapshot::new(manifest.clone(), state, None, None, lease).unwrap();
            assert_eq!(budget.left(), room - 4096);
            for _ in 0..10 {
                assert_eq!(snapshot.clone().lease_all().is_ok(), succeeds);
            }
            assert_eq!(budget.left() == 0, succeeds);
            drop(snapshot);
            assert_eq!(budget.left(), room);
        }
    }
}
