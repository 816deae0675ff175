//! Requests to an agent before it serves, and the evidence from its answers.

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_linux::landlock::{self, access};
use cofferdam_linux::probe::forbidden_calls;
use cofferdam_linux::process;
use cofferdam_linux::seccomp::{self, Arch, TagKey};
use tokio::sync::oneshot;

use crate::error;
use crate::evidence::{self, Bounds, Evidence, ForbiddenCall, Identity, Space, Trial};
use crate::link::Link;
use crate::settings::{Groups, Rule, Settings};
use crate::slots::Reply;
use crate::wire::{Configure, MAGIC, MAX_DATA, Probe, Request, Sink, Texts, VERSION, put_text};

const CREATE: &str = "create";
/// The lower bound of the value that the kernel shows for no limit: the highest number of pages as a signed number.
const UNBOUNDED: u64 = 1 << 60;
/// The file with the kernel's boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
/// Directories in which no process inside may create a file.
const READ_ONLY_DIRECTORIES: [&str; 6] = ["", "/etc", "/usr", "/bin", "/sys", "/sys/fs/cgroup"];
/// Kernel files that no process inside may write.
const READ_ONLY_FILES: [&str; 4] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
];
/// Files with information about the host, which engines mask.
const MASKED_FILES: [&str; 5] =
    ["/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug"];
/// Directories with information about the host, which engines mask.
const MASKED_DIRECTORIES: [&str; 3] = ["/proc/acpi", "/proc/scsi", "/sys/firmware"];
/// Sockets that give access to the host.
const SOCKETS: [&str; 8] = [
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/systemd/private",
    "/run/dbus/system_bus_socket",
    "/run/user",
];
const O_WRONLY: u32 = 1;
const O_CREAT_EXCL: u32 = 0o300;
const O_DIRECTORY: u32 = if cfg!(target_arch = "aarch64") { 0o40_000 } else { 0o200_000 };
const O_TMPFILE: u32 = 0o20_000_000 | O_DIRECTORY;
const S_IFMT: u64 = 0o170_000;
const S_IFREG: u64 = 0o100_000;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EROFS: i32 = 30;
const EAFNOSUPPORT: i32 = 97;

fn unexpected_answer() -> Error {
    Error::new(ErrorKind::Internal, CREATE, "the agent sent an unexpected answer")
}

/// Exchanges greetings.
pub async fn greet(link: &std::sync::Arc<Link>) -> Result<()> {
    let greeted = link.call(CREATE, &Request::Hello { magic: MAGIC, version: VERSION }).await;
    let reply = greeted.map_err(|error| {
        Error::new(ErrorKind::Unavailable, CREATE, "the agent did not greet")
            .with_remedy("check that the agent's program exists inside and is not damaged")
            .with_source(error)
    })?;
    match reply {
        Reply::Hello { magic: MAGIC, version: VERSION, pid: 1 } => Ok(()),
        Reply::Hello { magic: MAGIC, version, .. } => Err(Error::new(
            ErrorKind::Unavailable,
            CREATE,
            format!("the guest agent speaks protocol {version}, this program speaks {VERSION}"),
        )),
        _ => Err(unexpected_answer()),
    }
}

/// An answer to a probe.
struct ProbeResult {
    errno: i32,
    value: u64,
    data: Bytes,
}

impl ProbeResult {
    fn ok(&self) -> Option<&Self> {
        (self.errno == 0).then_some(self)
    }

    fn text(&self) -> Option<String> {
        // A text that fills a whole frame is truncated, and so not reliable.
        (self.errno == 0 && self.data.len() < MAX_DATA).then(|| String::from_utf8_lossy(&self.data).into_owned())
    }

    fn number(&self) -> Option<u64> {
        self.text()?.trim().parse().ok()
    }

    fn numbers(&self) -> Vec<u64> {
        self.data.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?))).collect()
    }
}

/// A probe whose answer is pending.
struct PendingProbe<'a> {
    link: &'a Link,
    answer: oneshot::Receiver<Reply>,
}

impl PendingProbe<'_> {
    async fn found(self) -> Result<ProbeResult> {
        match self.link.wait(CREATE, self.answer).await? {
            Reply::Probed { errno, value, data } => Ok(ProbeResult { errno, value, data }),
            _ => Err(unexpected_answer()),
        }
    }
}

fn ask<'a>(link: &'a Link, probe: Probe<'_>) -> Result<PendingProbe<'a>> {
    Ok(PendingProbe { link, answer: link.ask(CREATE, &Request::Probe(probe))? })
}

fn file<'a>(link: &'a Link, path: &str) -> Result<PendingProbe<'a>> {
    ask(link, Probe::File { path: path.as_bytes(), from: 0 })
}

/// Returns true if a file inside has exactly these bytes. It detects a damaged or half written volume. It does not
/// protect against an attacker, since only the engine's owner can write there.
pub async fn is_program(link: &Link, path: &str, program: &[u8]) -> Result<bool> {
    let piece = |from: usize| Probe::File { path: path.as_bytes(), from: u32::try_from(from).unwrap_or(u32::MAX) };
    // The last piece is empty if nothing follows the program.
    let starts = (0..=program.len()).step_by(MAX_DATA);
    let pending = starts.map(|from| Ok((from, ask(link, piece(from))?))).collect::<Result<Vec<_>>>()?;
    let mut same = true;
    for (from, pending) in pending {
        let found = pending.found().await?;
        let expected = &program[from..program.len().min(from + MAX_DATA)];
        same &= found.errno == 0 && found.data == expected;
    }
    Ok(same)
}

struct Encoded(Vec<u8>);

impl Sink for Encoded {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Makes the agent install its part of the isolation, and measures the result.
pub async fn configure(link: &std::sync::Arc<Link>, settings: &Settings) -> Result<Evidence> {
    let random = process::random().map_err(|error| {
        Error::new(ErrorKind::Io, CREATE, "cannot read random numbers from the kernel").with_source(error)
    })?;
    let key = TagKey::new(random);
    let mut evidence = measure_first(link, settings, Probe::Tag { key: key.arguments() }).await?;
    send_configure(link, settings, &evidence, key).await?;
    measure(link, settings, &mut evidence).await?;
    Ok(evidence)
}

/// Measures again an agent that has already installed its part of the isolation.
pub async fn measure_again(link: &Link, settings: &Settings) -> Result<Evidence> {
    let mut evidence = measure_first(link, settings, Probe::ConfiguredTag).await?;
    measure(link, settings, &mut evidence).await?;
    Ok(evidence)
}

/// Measures the properties in which a copy of a guest can differ from it. Mounts, users and filters were copied with
/// its memory.
pub async fn differences(link: &Link, known: &Evidence) -> Result<Evidence> {
    let (boot, confinement) = (file(link, BOOT_ID)?, ask(link, Probe::Confinement)?);
    let mut evidence = Evidence { boot: boot_id(&boot.found().await?), ..known.clone() };
    // If the answer is too short, the sets are unknown instead of unchanged.
    evidence.capabilities.iter_mut().take(3).for_each(|set| *set = None);
    read_confinement(&mut evidence, &confinement.found().await?);
    Ok(evidence)
}

/// Measures the properties on which the further requests depend. `tag_probe` is the probe of exec tags.
async fn measure_first(link: &Link, settings: &Settings, tag_probe: Probe<'_>) -> Result<Evidence> {
    let abi = ask(link, Probe::Landlock)?;
    let exec_tags = ask(link, tag_probe)?;
    let groups = match settings.groups {
        Groups::Detect => find_groups(link).await?,
        Groups::Never => GroupsFound::default(),
    };
    let exec_tags = exec_tags.found().await?.ok().is_some();
    let abi = u32::try_from(abi.found().await?.value).unwrap_or(0);
    Ok(Evidence {
        bounds: groups.bounds,
        counts_cpu: groups.cpu,
        counts_memory: groups.memory,
        landlock_abi: abi,
        exec_tags,
        ..Evidence::default()
    })
}

async fn send_configure(
    link: &std::sync::Arc<Link>,
    settings: &Settings,
    evidence: &Evidence,
    key: TagKey,
) -> Result<()> {
    let limits = &settings.limits;
    let filter = settings.filter.map(|options| {
        let options = seccomp::Options { tag_key: Some(key), ..options };
        seccomp::compile(Arch::native(), &options).to_bytes()
    });
    let quotas = settings.quotas.then(|| {
        let count_processes = limits.processes.is_some();
        let options = seccomp::Options { quotas: true, count_processes, tag_key: Some(key), ..Default::default() };
        seccomp::compile_stages(Arch::native(), &options).1.to_bytes()
    });
    let governed = !settings.rules.is_empty() && evidence.landlock_abi > 0;
    let handled = if governed { landlock::handled(evidence.landlock_abi) } else { 0 };
    let rules = encoded_rules(&settings.rules, handled);
    let mut stores = Encoded(Vec::new());
    settings.stores.iter().for_each(|store| put_text(&mut stores, store.as_bytes()));
    let configure = Configure {
        workspace: settings.workspace.as_bytes(),
        code: settings.code.as_bytes(),
        stores: Texts::new(settings.stores.len(), &stores.0),
        groups: evidence.bounds.version,
        watch_memory: limits.memory.filter(|_| !evidence.counts_memory).map(|bytes| bytes.as_bytes()),
        watch_cpu: limits.cpu_time.filter(|_| !evidence.counts_cpu).map(|time| time.as_micros() as u64),
        tag: evidence.exec_tags.then(|| key.arguments()),
        silence: settings.silence.as_micros() as u64,
        filter: filter.as_deref().unwrap_or_default(),
        quotas: quotas.as_deref().unwrap_or_default(),
        max_processes: limits.processes.filter(|_| quotas.is_some()).map(u64::from),
        rights: handled,
        scopes: if governed { landlock::scopes(evidence.landlock_abi) } else { 0 },
        rules: Texts::new(if governed { settings.rules.len() * 2 } else { 0 }, &rules),
    };
    match link.call(CREATE, &Request::Configure(configure)).await? {
        Reply::Done { errno: 0, .. } => Ok(()),
        Reply::Done { errno, kind } => {
            let source = error::file(CREATE, settings.workspace.as_str(), errno, kind);
            Err(Error::new(ErrorKind::Unavailable, CREATE, "the agent cannot install its part of the isolation")
                .with_source(source))
        }
        _ => Err(unexpected_answer()),
    }
}

fn encoded_rules(rules: &[Rule], handled: u64) -> Vec<u8> {
    let mut encoded = Encoded(Vec::new());
    for rule in rules.iter().filter(|_| handled != 0) {
        put_text(&mut encoded, rule.path.as_bytes());
        put_text(&mut encoded, &(rule.rights & handled).to_le_bytes());
    }
    encoded.0
}

/// The control groups that the agent can read.
#[derive(Default)]
struct GroupsFound {
    bounds: Bounds,
    cpu: bool,
    memory: bool,
}

/// Returns the current bounds of the control groups.
pub async fn bounds(link: &Link) -> Result<Bounds> {
    find_groups(link).await.map(|found| found.bounds)
}

/// Finds control groups that belong to the enclosure alone. The root of a hierarchy has no bounds, and counts all
/// tenants.
async fn find_groups(link: &Link) -> Result<GroupsFound> {
    let read = |name: &str| file(link, &format!("/sys/fs/cgroup/{name}"));
    let second =
        [read("memory.max")?, read("memory.swap.max")?, read("pids.max")?, read("cpu.max")?, read("cpu.stat")?];
    let first = [
        read("memory/memory.limit_in_bytes")?,
        read("memory/memory.memsw.limit_in_bytes")?,
        read("pids/pids.max")?,
        read("cpu/cpu.cfs_quota_us")?,
        read("cpu/cpu.cfs_period_us")?,
        read("cpuacct/cpuacct.usage")?,
    ];
    let [mut two, mut one] = [Vec::new(), Vec::new()];
    for pending in second {
        two.push(pending.found().await?);
    }
    for pending in first {
        one.push(pending.found().await?);
    }
    if let [memory, swap, tasks, cpu, stat] = &two[..]
        && (memory.ok().is_some() || tasks.ok().is_some())
    {
        let cpu_millis = cpu.text().and_then(|text| share(&text));
        return Ok(GroupsFound {
            bounds: Bounds {
                version: 2,
                memory: memory.number(),
                swap: swap.number(),
                tasks: tasks.number(),
                cpu_millis,
            },
            // The root has this file, too, but no bounds.
            cpu: stat.ok().is_some(),
            memory: memory.ok().is_some(),
        });
    }
    let [memory, both, tasks, quota, period, usage] = &one[..] else { return Ok(GroupsFound::default()) };
    let bound = |found: &ProbeResult| found.number().filter(|&bytes| bytes < UNBOUNDED);
    // The root of this hierarchy has no such file.
    if tasks.ok().is_none() && bound(memory).is_none() {
        return Ok(GroupsFound::default());
    }
    let cpu_millis = quota.number().zip(period.number()).map(|(quota, period)| quota * 1000 / period.max(1));
    let swap = bound(both).zip(bound(memory)).map(|(both, memory)| both.saturating_sub(memory));
    Ok(GroupsFound {
        bounds: Bounds { version: 1, memory: bound(memory), swap, tasks: tasks.number(), cpu_millis },
        cpu: usage.number().is_some(),
        memory: memory.ok().is_some(),
    })
}

/// Returns thousandths of a processor, from quota and period.
fn share(text: &str) -> Option<u64> {
    let mut parts = text.split_whitespace().map(str::parse::<u64>);
    let quota = parts.next()?.ok()?;
    Some(quota.saturating_mul(1000) / parts.next()?.ok()?.max(1))
}

/// Measures the environment once the isolation is complete.
async fn measure(link: &Link, settings: &Settings, evidence: &mut Evidence) -> Result<()> {
    let [status, uids, gids, mounts, net] =
        ["status", "uid_map", "gid_map", "mountinfo", "net/dev"].map(|name| file(link, &format!("/proc/self/{name}")));
    let (kernel, boot) = (file(link, "/proc/version")?, file(link, BOOT_ID)?);
    let directory = stat(link, &settings.workspace)?;
    let identified: Vec<_> = settings.identified.iter().map(|path| stat(link, path)).collect();
    let namespaces = NAMESPACES.map(|name| (name, stat(link, &format!("/proc/self/ns/{name}"))));
    let confinement = ask(link, Probe::Confinement)?;
    let denial = ask(link, Probe::Denial)?;
    let writes = write_trials(link)?;
    let masked = mask_trials(link)?;
    let sockets = SOCKETS.map(|path| (path, stat(link, path)));
    let calls = call_trials(link)?;
    let workspace = workspace_trial(link, settings, evidence)?;

    read_status(evidence, &status?.found().await?);
    evidence.uid_map = uids?.found().await?.text().map(|text| evidence::map(&text)).unwrap_or_default();
    evidence.gid_map = gids?.found().await?.text().map(|text| evidence::map(&text)).unwrap_or_default();
    evidence.mounts = mounts?.found().await?.text().and_then(|text| evidence::mounts(&text));
    evidence.kernel =
        kernel.found().await?.text().and_then(|text| evidence::kernel(&text).map(str::to_owned)).unwrap_or_default();
    evidence.boot = boot_id(&boot.found().await?);
    let directory = directory.found().await?;
    evidence.workspace_inode = directory.ok().map(|found| found.value);
    evidence.workspace_device = directory.ok().and_then(device);
    for pending in identified {
        let found = pending?.found().await?;
        evidence.identities.push(found.ok().map(|found| Identity { inode: found.value, device: device(found) }));
    }
    evidence.interfaces = net?.found().await?.text().map(|text| evidence::interfaces(&text));
    for (name, pending) in namespaces {
        if let Some(inode) = namespace(&pending?.found().await?) {
            evidence.namespaces.insert(name.to_owned(), inode);
        }
    }
    read_confinement(evidence, &confinement.found().await?);
    let governed = !settings.rules.is_empty() && evidence.landlock_abi > 0;
    evidence.landlock = denial.found().await?.ok().is_some() && governed;
    for (path, pending) in writes {
        let found = pending.found().await?;
        evidence.writes.push(Trial { path, worked: found.errno == 0, errno: found.errno });
    }
    for (path, pending, directory) in masked {
        let found = pending.found().await?;
        let shows = if directory { found.value > 0 } else { found.value & S_IFMT == S_IFREG };
        evidence.masked.push(Trial { path, worked: found.errno == 0 && shows, errno: found.errno });
    }
    for (path, pending) in sockets {
        if pending?.found().await?.errno == 0 {
            evidence.sockets.push(path.to_owned());
        }
    }
    for (name, pending) in calls {
        let errno = pending.found().await?.errno;
        // A kernel without vsock refuses it as well.
        let errno = if name == VSOCK && errno == EAFNOSUPPORT { EPERM } else { errno };
        evidence.calls.push(ForbiddenCall { name, errno });
    }
    evidence.workspace_writable = workspace_writable(workspace.found().await?.errno);
    evidence.pid = 1;
    measure_space(link, evidence).await
}

fn stat<'a>(link: &'a Link, path: &str) -> Result<PendingProbe<'a>> {
    ask(link, Probe::Stat { path: path.as_bytes() })
}

type Trials<'a> = Vec<(String, PendingProbe<'a>)>;

fn write_trials(link: &Link) -> Result<Trials<'_>> {
    let created = READ_ONLY_DIRECTORIES
        .iter()
        .map(|directory| (format!("{directory}/.cofferdam-write-probe"), O_WRONLY | O_CREAT_EXCL));
    let changed = READ_ONLY_FILES.iter().map(|path| ((*path).to_owned(), O_WRONLY));
    created
        .chain(changed)
        .map(|(path, flags)| {
            let pending = ask(link, Probe::Open { path: path.as_bytes(), flags, confined: false })?;
            Ok((path, pending))
        })
        .collect()
}

fn mask_trials(link: &Link) -> Result<Vec<(String, PendingProbe<'_>, bool)>> {
    let files = MASKED_FILES.iter().map(|path| {
        let probe = Probe::Open { path: path.as_bytes(), flags: 0, confined: false };
        Ok(((*path).to_owned(), ask(link, probe)?, false))
    });
    let directories = MASKED_DIRECTORIES
        .iter()
        .map(|path| Ok(((*path).to_owned(), ask(link, Probe::Entries { path: path.as_bytes() })?, true)));
    files.chain(directories).collect()
}

const VSOCK: &str = "socket(AF_VSOCK)";

fn call_trials(link: &Link) -> Result<Vec<(&'static str, PendingProbe<'_>)>> {
    let (family, kind) = vsock();
    let vsock = (VSOCK, socket_number(), [family, kind, 0, 0, 0]);
    forbidden_calls()
        .chain([vsock])
        .map(|(name, number, arguments)| Ok((name, ask(link, Probe::Call { number, arguments })?)))
        .collect()
}

/// Returns the family of vsock sockets, and a type of these.
fn vsock() -> (u64, u64) {
    (40, 1)
}

/// Returns the number of the system call `socket`.
fn socket_number() -> u64 {
    if cfg!(target_arch = "x86_64") { 41 } else { 198 }
}

/// Tries to create a file in the workspace as guests would. If that must fail, the file has a name. Otherwise it has
/// none, so that the trial is invisible.
fn workspace_trial<'a>(link: &'a Link, settings: &Settings, evidence: &Evidence) -> Result<PendingProbe<'a>> {
    let rule = settings.rules.iter().find(|rule| rule.path == settings.workspace);
    let writable = evidence.landlock_abi == 0 || rule.is_none_or(|rule| rule.rights & access::MAKE_REG != 0);
    let named = format!("{}/.cofferdam-write-probe", settings.workspace);
    let (path, flags) = match writable {
        true => (&settings.workspace, O_WRONLY | O_TMPFILE),
        false => (&named, O_WRONLY | O_CREAT_EXCL),
    };
    ask(link, Probe::Open { path: path.as_bytes(), flags, confined: !writable })
}

/// Returns true if guests can write to the workspace, from the error of the trial. Returns `None` if the file system or
/// the kernel inside does not support files without a name.
fn workspace_writable(errno: i32) -> Option<bool> {
    match errno {
        0 => Some(true),
        EPERM | EACCES | EROFS => Some(false),
        _ => None,
    }
}

fn boot_id(found: &ProbeResult) -> String {
    found.text().map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn read_status(evidence: &mut Evidence, found: &ProbeResult) {
    let text = found.text().unwrap_or_default();
    let ids = |key| evidence::status(&text, key).and_then(evidence::numbers).unwrap_or_default();
    evidence.uids = ids("Uid");
    evidence.gids = ids("Gid");
    evidence.groups = evidence::status(&text, "Groups").and_then(evidence::numbers);
    let set = |key| evidence::status(&text, key).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    evidence.capabilities = ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"].map(set);
    evidence.seccomp_filters = evidence::status(&text, "Seccomp_filters").and_then(|count| count.parse().ok());
}

/// Reads the confinement of the agent. The answer of the kernel to the agent takes precedence over the text of a file,
/// and exists even without that file.
fn read_confinement(evidence: &mut Evidence, found: &ProbeResult) {
    evidence.no_new_privileges = found.errno == 0 && found.value & 1 != 0;
    evidence.seccomp_filtered = found.errno == 0 && found.value & 2 != 0;
    let numbers = found.numbers();
    for (slot, set) in evidence.capabilities.iter_mut().zip(numbers.iter().take(3)) {
        *slot = Some(slot.unwrap_or(0) | set);
    }
    evidence.processors = numbers.get(3).and_then(|count| u32::try_from(*count).ok()).unwrap_or(1).max(1);
}

/// Returns the device of a directory, which follows the mode.
fn device(found: &ProbeResult) -> Option<(u32, u32)> {
    let fields = found.data.get(4..)?;
    let word = |at: usize| Some(u32::from_le_bytes(fields.get(at..at + 4)?.try_into().ok()?));
    (fields.len() == 8).then(|| Some((word(0)?, word(4)?)))?
}

/// Returns the number in `net:[4026531840]`, which follows the mode.
fn namespace(found: &ProbeResult) -> Option<u64> {
    let target = String::from_utf8_lossy(found.ok()?.data.get(4..)?).into_owned();
    target.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

/// Measures the space of every writable mount.
async fn measure_space(link: &Link, evidence: &mut Evidence) -> Result<()> {
    for mount in evidence.mounts.iter_mut().flatten().filter(|mount| !mount.read_only).take(64) {
        let found = ask(link, Probe::Space { path: mount.path.as_bytes() })?.found().await?;
        if let (0, [bytes, bytes_free, files, files_free]) = (found.errno, &found.numbers()[..]) {
            let (bytes, bytes_free, files, files_free) = (*bytes, *bytes_free, *files, *files_free);
            mount.space = Some(Space { kind: found.value, bytes, bytes_free, files, files_free });
        }
    }
    Ok(())
}
