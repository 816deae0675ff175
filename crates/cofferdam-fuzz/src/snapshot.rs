//! Fuzz target for session snapshots: each is read, restored and called under small limits. The hash matches, because
//! an attacker who changes a file can recompute it.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use cofferdam_contract::{Access, ByteSize, Command, Error, ErrorKind, ExecRequest, Spec, Workspace};
use cofferdam_wasm::{Session, SessionKind, SessionSnapshot, WasmBackend};
use fastrand::Rng;
use tokio::time::timeout;

use crate::cases::{LIBRARY, damaged};
use crate::drive::Outcome;
use crate::host::{FuzzHost, LATE, OUTPUT, WALL_TIME, limits, within_limits};
use crate::module::outcome;

/// Maximum uncompressed size of a file.
const MAX_UNPACKED: ByteSize = ByteSize::from_mebibytes(8);
/// Length of the constant beginning of every file, before its length field.
const BEGINNING: usize = 20;
const PREFIX: usize = 28;
const HASH: usize = 32;

/// A restorer of snapshots that checks the properties of every case.
#[derive(Debug)]
pub struct Snapshots {
    host: FuzzHost,
    /// The beginning of a whole file, and its unpacked content.
    beginning: Vec<u8>,
    plain: Vec<u8>,
}

impl Snapshots {
    /// Creates a target with a runtime of its own and a snapshot to mutate.
    pub fn new() -> Result<Self> {
        let host = FuzzHost::new()?;
        let file = host.prepare(sample).context("cannot create the sample snapshot")?;
        let plain = unpacked(&file).context("cannot unpack the sample snapshot")?;
        Ok(Self { host, beginning: file[..BEGINNING].to_vec(), plain })
    }

    /// Generates the case of a seed and restores it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let mut rng = Rng::with_seed(seed);
        let plain = changed(&mut rng, self.plain.clone());
        let access = if rng.bool() { Access::ReadWrite } else { Access::ReadOnly };
        self.check(&plain, access).with_context(|| format!("a snapshot of {} bytes, {access:?}", plain.len()))
    }

    /// Restores a file with this content. An error is a finding.
    pub fn check(&mut self, plain: &[u8], access: Access) -> Result<Outcome> {
        let file = packed(&self.beginning, plain);
        self.host.check(async |backend| check(backend, &file, access).await)
    }
}

/// Returns the file of a session that has changed all state it can.
async fn sample(backend: &WasmBackend) -> Result<Vec<u8>> {
    let module = LIBRARY.clone().context("cannot assemble the library")?;
    let session = backend.open_session(SessionKind::Module(module.into()), spec(Access::ReadWrite)?).await?;
    let done = session.call("change", "").await?;
    ensure!(done.exit.success(), "{:?}", done.exit);
    Ok(session.snapshot()?.to_bytes()?)
}

fn unpacked(file: &[u8]) -> Option<Vec<u8>> {
    let length = u64::from_le_bytes(file.get(BEGINNING..PREFIX)?.try_into().ok()?);
    let packed = file.get(PREFIX..file.len().checked_sub(HASH)?)?;
    lz4_flex::block::decompress(packed, usize::try_from(length).ok()?).ok()
}

fn packed(beginning: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut bytes = beginning.to_vec();
    bytes.extend((plain.len() as u64).to_le_bytes());
    bytes.extend(lz4_flex::block::compress(plain));
    let hash = <sha2::Sha256 as sha2::Digest>::digest(&bytes);
    bytes.extend(hash);
    bytes
}

/// Mutates mostly the bytes after the module, which comes first and is covered by the module target.
fn changed(rng: &mut Rng, plain: Vec<u8>) -> Vec<u8> {
    let module = LIBRARY.as_ref().map_or(0, Vec::len).min(plain.len());
    let from = if rng.u8(..8) == 0 { 0 } else { module };
    // Memory is the largest part and its bytes have no structure. The header ends long before.
    let header = (module + 2048).min(plain.len());
    let until = if rng.u8(..4) == 0 { plain.len() } else { header };
    let (before, rest) = plain.split_at(from);
    let (middle, after) = rest.split_at(until.saturating_sub(from));
    [before, &damaged(rng, middle.to_vec()), after].concat()
}

fn spec(access: Access) -> Result<Spec> {
    Ok(Spec::builder().limits(limits()).workspace(Workspace::Private { access }).build()?)
}

/// Checks that an error is an expected one for a mutated file. Any other is a finding.
fn refused(error: &Error) -> Result<Outcome> {
    match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::NotExecutable => Ok(Outcome::Refused),
        // The files or the memory of the snapshot exceed a limit.
        ErrorKind::ResourceExhausted => Ok(Outcome::Refused),
        // The file may name an interpreter that is not installed.
        ErrorKind::Unavailable => Ok(Outcome::Refused),
        kind => bail!("refused with an error of kind {kind:?}: {error}"),
    }
}

async fn check(backend: &WasmBackend, file: &[u8], access: Access) -> Result<Outcome> {
    let start = Instant::now();
    let snapshot = match SessionSnapshot::from_bytes(file, MAX_UNPACKED) {
        Ok(snapshot) => snapshot,
        Err(error) => return refused(&error),
    };
    let restored = timeout(WALL_TIME + LATE, backend.restore_session(&snapshot, spec(access)?)).await;
    let Ok(restored) = restored else { bail!("the restore still runs after {:?}", start.elapsed()) };
    let session = match restored {
        Ok(session) => session,
        Err(error) => return refused(&error),
    };
    let outcome = call(&session).await;
    let sandbox = session.sandbox();
    within_limits(&sandbox).await?;
    // A restored session can be snapshotted again, unless it has ended.
    match session.snapshot() {
        Ok(again) => drop(again.to_bytes().context("cannot write a snapshot of the restored session")?),
        Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::Unsupported) => {}
        Err(error) => bail!("cannot snapshot the restored session: {error}"),
    }
    session.close().await.context("cannot close the session")?;
    outcome
}

async fn call(session: &Session) -> Result<Outcome> {
    let request = ExecRequest::builder(Command::Argv(vec!["tell".to_owned()])).timeout(WALL_TIME).max_output(OUTPUT);
    let handle = match session.start(&request.output_buffer(OUTPUT).build()?) {
        Ok(handle) => handle,
        // A module with other exports.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
            return Ok(Outcome::Refused);
        }
        Err(error) => bail!("a call was refused with an error of kind {:?}: {error}", error.kind()),
    };
    let Ok(exit) = timeout(WALL_TIME + LATE, handle.exit()).await else {
        bail!("still runs, with a wall time limit of {WALL_TIME:?}")
    };
    match exit {
        Ok(exit) => outcome(&exit),
        Err(error) if error.kind() == ErrorKind::ResourceExhausted => Ok(Outcome::Trapped),
        Err(error) => bail!("a call ended with an error of kind {:?}: {error}", error.kind()),
    }
}
