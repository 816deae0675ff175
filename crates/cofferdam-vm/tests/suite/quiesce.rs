//! A guest that is quiesced, resumed, and renewed: all in the same VM, whose host is replaced by another.

use std::time::{Duration, Instant, SystemTime};

use cofferdam_contract::{ErrorKind, ExecHandle, ExecRequest, Limits, SandboxPath, Stdin, collect};
use cofferdam_guest::{Evidence, Guest, Record, Reseed, Settings};
use cofferdam_util::hex;
use cofferdam_vm::vmm::Started;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use crate::boot::{OPTIONS, promptly, start};
use crate::support::{self, NO_HANG};

/// Files from which guests read the identity of their VM.
const IDS: [&str; 2] = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];

type Streams = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);

/// Forwards the streams between a VM and its host, so that the host can disconnect unnoticed by the VM.
fn splice(streams: Streams) -> (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>, JoinHandle<Streams>) {
    let (mut reader, mut writer) = streams;
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (mut from, mut to) = tokio::io::split(theirs);
    let splicing = tokio::spawn(async move {
        tokio::select! {
            _ = tokio::io::copy(&mut reader, &mut to) => {}
            _ = tokio::io::copy(&mut from, &mut writer) => {}
        }
        (reader, writer)
    });
    let (reader, writer) = tokio::io::split(ours);
    (reader, writer, splicing)
}

fn settings() -> Settings {
    let limits = Limits { wall_time: NO_HANG, cpu_time: None, ..Limits::default() };
    Settings { answer_timeout: NO_HANG, limits, ..Settings::default() }
}

async fn run(guest: &Guest, line: &str) -> String {
    let request = ExecRequest::shell(line).build().unwrap();
    let handle = promptly(guest.start(&request, &Limits::default())).await.unwrap();
    let done = promptly(collect(handle)).await.unwrap();
    assert!(done.exit.success(), "{line}: {done:?}");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

async fn begin(guest: &Guest, line: &str, wall_time: Duration, cpu_time: Option<Duration>) -> ExecHandle {
    let request = ExecRequest::shell(line).stdin(Stdin::Stream).build().unwrap();
    promptly(guest.start(&request, &Limits { wall_time, cpu_time, ..Limits::default() })).await.unwrap()
}

async fn file(guest: &Guest, name: &str) -> String {
    let mut text = String::new();
    match promptly(guest.read_file(&SandboxPath::new(name).unwrap())).await {
        Ok(mut reader) => drop(reader.read_to_string(&mut text).await.unwrap()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
    }
    text.trim().to_owned()
}

/// Waits until a file has other contents than `old`, and returns them.
async fn other_than(guest: &Guest, name: &str, old: &str) -> String {
    promptly(async {
        loop {
            let text = file(guest, name).await;
            if !text.is_empty() && text != old {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

struct Ids {
    machine: String,
    boot: String,
    name: String,
}

async fn ids(guest: &Guest) -> Ids {
    let text = run(guest, "cat /etc/machine-id; echo; cat /proc/sys/kernel/random/boot_id; uname -n").await;
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let [before @ .., boot, name] = &lines[..] else { panic!("{text}") };
    let machine = before.first().copied().unwrap_or_default();
    Ids { machine: machine.to_owned(), boot: (*boot).to_owned(), name: (*name).to_owned() }
}

async fn reattach(
    streams: Streams,
    held: (Record, Option<&Evidence>),
    reseed: &Reseed,
) -> (Guest, Evidence, JoinHandle<Streams>) {
    let (reader, writer, splicing) = splice(streams);
    let by = Instant::now() + NO_HANG;
    let (guest, evidence) = Guest::reattach(reader, writer, settings(), held, reseed.clone(), by).await.unwrap();
    (guest, evidence, splicing)
}

/// Promise (Containers): A VM that another host process reattaches has another clock, id, boot id and name before any
/// program resumes.
/// Promise (Virtual machines): Each copy of a VM measures its kernel, its own capabilities, its filter and
/// `no_new_privs` before any program resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiesced_vm_resumes_with_a_new_identity_for_another_host() {
    let test = "quiesced_vm_resumes_with_a_new_identity_for_another_host";
    let Some(image) = support::image(test) else { return };
    let before = support::census();
    let Started { vm, reader, writer } = start(&image, OPTIONS).await;
    let (reader, writer, splicing) = splice((Box::new(reader), Box::new(writer)));
    let connected = Guest::connect(reader, writer, settings(), Instant::now() + NO_HANG).await;
    let (guest, first) = connected.unwrap_or_else(|error| panic!("{error}; {}", vm.console()));
    // Without execs, no process has to be stopped.
    promptly(guest.quiesce()).await.unwrap();
    let nothing = ExecRequest::argv(["true"]).build().unwrap();
    let refused = promptly(guest.start(&nothing, &Limits::default())).await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    promptly(guest.release()).await.unwrap();
    let cold = ids(&guest).await;
    for mount in IDS {
        let found = first.mounts.iter().flatten().filter(|found| found.path == mount && found.read_only);
        assert_eq!(found.count(), 1, "{mount}: {:?}", first.mounts);
    }
    assert_eq!((&*cold.boot, &*cold.name), (&*first.boot, "sandbox"));

    // One exec that would block if its output was not read, and detects signals; and one that waits for the end of its
    // input.
    let counts = "trap 'echo continued > signalled' CONT; i=0; while :; do echo a line that is not short at all $i; \
                  echo $i > new; mv new count; i=$((i+1)); done";
    let counter = begin(&guest, counts, NO_HANG, None).await;
    let waits = begin(&guest, "cat > /dev/null; echo ended > input", NO_HANG, None).await;
    let mut count = other_than(&guest, "count", "").await;

    for _ in 0..3 {
        let begun = Instant::now();
        promptly(guest.quiesce()).await.unwrap();
        println!("held after {:?}", begun.elapsed());
        assert_eq!(guest.usage(&Limits::default()).await.unwrap_err().kind(), ErrorKind::Conflict);
        promptly(guest.release()).await.unwrap();
        count = other_than(&guest, "count", &count).await;
    }

    // Two execs near their limits, which must not count the time without a host.
    let limited = begin(&guest, "while :; do sleep 1; done", Duration::from_secs(6), None).await;
    let spinning = begin(&guest, "while :; do :; done", NO_HANG, Some(Duration::from_secs(3))).await;
    let held = promptly(guest.quiesce()).await.unwrap();
    let running: Vec<_> = [&counter, &waits, &limited, &spinning].map(ExecHandle::id).into();
    drop((guest, counter, waits, limited, spinning));
    let streams = promptly(splicing).await.unwrap();
    // Without a host, nothing happens, and no time is counted.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let day = Duration::from_secs(24 * 3600);
    let reseed = Reseed { now: SystemTime::now() + day, ..Reseed::new("copy-1").unwrap() };
    let begun = Instant::now();
    let (guest, evidence, splicing) = reattach(streams, (held.into_record(), None), &reseed).await;
    println!("adopted after {:?}", begun.elapsed());
    assert_eq!(guest.reattached(), running);
    let now = ids(&guest).await;
    assert_eq!((&*now.machine, &*now.name), (&*hex::encode(reseed.machine_id), "copy-1"));
    assert!(now.boot != cold.boot && now.boot == evidence.boot && now.boot.len() == 36, "{}", now.boot);
    let clock: u64 = run(&guest, "date +%s").await.parse().unwrap();
    let expected = (SystemTime::now() + day).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(clock.abs_diff(expected) < NO_HANG.as_secs(), "{clock} is not {expected}");
    // Everything else is unchanged.
    let same = |of: &Evidence| {
        let bounds = of.bounds;
        (of.kernel.clone(), of.uids.clone(), of.capabilities, bounds, of.exec_tags, of.landlock, of.seccomp_filtered)
    };
    assert_eq!(same(&evidence), same(&first));
    assert!(evidence.writes.iter().all(|trial| !trial.worked), "{:?}", evidence.writes);
    assert!(evidence.calls.iter().all(|call| !call.was_let_through()), "{:?}", evidence.calls);
    for mount in IDS {
        let found = evidence.mount_of(mount).filter(|found| found.path == mount);
        assert!(found.is_some_and(|found| found.read_only), "{mount}: {:?}", evidence.mounts);
        run(&guest, &format!("! echo x > {mount} && ! rm -f {mount} && test -s {mount}")).await;
    }
    // The execs continue without a client.
    for _ in 0..3 {
        let next = other_than(&guest, "count", &count).await;
        assert!(next.parse::<u64>().unwrap() > count.parse::<u64>().unwrap(), "{next} after {count}");
        count = next;
    }
    assert_eq!(other_than(&guest, "input", "").await, "ended");
    assert_eq!(file(&guest, "signalled").await, "", "the stop was invisible");
    promptly(async {
        while guest.reattached() != running[..1] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(promptly(guest.usage(&Limits::default())).await.unwrap().processes.is_some_and(|count| count >= 1));

    // A reattached guest can be saved as well.
    let record = promptly(guest.quiesce()).await.unwrap().into_record();
    drop(guest);
    let streams = promptly(splicing).await.unwrap();
    let again = Reseed::new("copy-2").unwrap();
    let known = Evidence { no_new_privileges: false, seccomp_filtered: false, ..evidence };
    let (guest, evidence, splicing) = reattach(streams, (record, Some(&known)), &again).await;
    assert_eq!(guest.reattached(), running[..1]);
    let last = ids(&guest).await;
    assert_eq!((&*last.machine, &*last.name), (&*hex::encode(again.machine_id), "copy-2"));
    assert!(last.boot != now.boot && last.boot != cold.boot && last.boot == evidence.boot);
    // Properties in which a copy can differ were measured; the others are the known ones.
    assert!(evidence.no_new_privileges && evidence.seccomp_filtered);
    assert_eq!(
        Evidence { no_new_privileges: false, seccomp_filtered: false, boot: known.boot.clone(), ..evidence.clone() },
        known
    );
    let mounts = evidence.mounts.iter().flatten().filter(|mount| mount.path == "/etc/machine-id");
    assert_eq!(mounts.count(), 1, "no mount is repeated");
    other_than(&guest, "count", &count).await;

    // A quiesced guest ends like any other.
    promptly(guest.quiesce()).await.unwrap();
    promptly(guest.close()).await;
    drop(promptly(splicing).await.unwrap());
    let ended = promptly(vm.ended()).await;
    assert!(ended.by_itself, "{ended:?}: {}", vm.console());
    drop((vm, guest));
    assert_eq!(support::left(&before).await, Default::default());
}
