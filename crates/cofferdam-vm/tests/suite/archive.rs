//! Snapshots in archives, between backends that share only their images.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, ByteSize, ErrorKind, ExecRequest, Limits, Sandbox, SandboxPath, Spec};
use cofferdam_vm::{LoadOptions, SaveOptions, VmBackend, VmConfig, VmSnapshot};

use crate::support::{self, NO_HANG};

/// Counts in memory and in a file.
const COUNTER: &str =
    "i=0; while :; do i=$((i+1)); echo $i > /workspace/new; mv /workspace/new /workspace/count; sleep 0.05; done";

async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NO_HANG, work).await.expect("no hang")
}

async fn counted(sandbox: &Arc<dyn Sandbox>, beyond: u64) -> u64 {
    let counting = async {
        loop {
            let path = SandboxPath::new("count").unwrap();
            let read = sandbox.read_file_to_end(&path, ByteSize::from_bytes(100)).await.ok();
            let count = read.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok());
            if let Some(count) = count.filter(|count| *count > beyond) {
                return count;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    promptly(counting).await
}

/// Returns a backend with the same images, and other directories.
fn elsewhere(temp: &std::path::Path, snapshots: u64) -> VmBackend {
    let disks = temp.join("disks");
    VmBackend::new(VmConfig { disks, snapshots: ByteSize::from_mebibytes(snapshots), ..support::config() }).unwrap()
}

/// A stream that accepts so many bytes, and then fails like a full disk.
struct Full(u64);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = self.0.min(bytes.len() as u64);
        self.0 -= now;
        if now == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(now as usize) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Promise (Virtual machines): A VM snapshot moves between backends as a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_moves_between_backends() {
    let Some(backend) = support::backend("snapshot_moves_between_backends") else { return };
    let before = support::census();
    let temp = tempfile::tempdir().unwrap();
    let limits = Limits { memory: Some(ByteSize::from_mebibytes(64)), cpu_time: None, ..Limits::default() };
    let spec = Spec::builder().limits(limits).build().unwrap();
    let source = promptly(backend.create(spec.clone())).await.unwrap();
    let request = ExecRequest::shell(COUNTER).timeout(Duration::from_secs(3600)).build().unwrap();
    let handle = promptly(source.start(request)).await.unwrap();
    let at_least = counted(&source, 3).await;
    let snapshot = promptly(source.snapshot()).await.unwrap();
    let at_most = counted(&source, at_least + 20).await;
    promptly(source.close()).await.unwrap();
    let taken = VmSnapshot::of(&snapshot).unwrap();

    // To a full disk, and with a cancellation.
    let on = |_| ControlFlow::Continue(());
    let error = taken.save(Full(100_000), SaveOptions::default(), on).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    let error = taken.save(io::sink(), SaveOptions::default(), |_| ControlFlow::Break(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");

    let file = tempfile::tempfile().unwrap();
    let written = promptly(taken.save(file.try_clone().unwrap(), SaveOptions::default(), on)).await.unwrap();
    println!("{:?} in an archive of {} bytes", taken.sizes(), written.bytes);
    assert_eq!(written.bytes, file.metadata().unwrap().len());
    drop((handle, snapshot, source, backend));

    let input = || -> File {
        (&file).rewind().unwrap();
        file.try_clone().unwrap()
    };
    let poor = elsewhere(temp.path(), 8);
    let error = promptly(poor.load(input(), LoadOptions::default(), on)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    let other = elsewhere(temp.path(), 512);
    let error = promptly(other.load(input(), LoadOptions::default(), |_| ControlFlow::Break(()))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    // Refused loads have released their memory: there is space for each of many.
    for generation in 0..3 {
        let loaded = promptly(other.load(input(), LoadOptions::default(), on)).await.unwrap();
        let again = loaded.spec().build().unwrap();
        assert_eq!(again.limits(), spec.limits());
        assert_eq!(loaded.manifest().running().len(), 1);
        let clone = promptly(other.restore(loaded.clone().into(), again)).await.unwrap();
        let found = counted(&clone, 0).await;
        assert!((at_least..at_most).contains(&found), "{generation}: {at_least} {found} {at_most}");
        counted(&clone, found + 3).await;
        promptly(clone.close()).await.unwrap();
        // Save the loaded snapshot again.
        let mut copy = Vec::new();
        io::Read::read_to_end(&mut input(), &mut copy).unwrap();
        let mut resaved = tempfile::tempfile().unwrap();
        promptly(loaded.save(resaved.try_clone().unwrap(), SaveOptions::default(), on)).await.unwrap();
        let mut same = Vec::new();
        resaved.rewind().unwrap();
        io::Read::read_to_end(&mut resaved, &mut same).unwrap();
        // VMs were restored from it, and did not change it; only the image's local name may differ, which is not in the
        // archive.
        assert!(copy == same, "{} {}", copy.len(), same.len());
    }
    drop((other, poor));
    drop(file);
    assert_eq!(std::fs::read_dir(temp.path().join("disks")).map_or(0, Iterator::count), 0);
    assert_eq!(support::left(&before).await, BTreeSet::new());
}
