//! Cases: each limit of requirement E4, exceeded by a program.

use std::time::Duration;

use cofferdam_contract::{
    Access, ByteSize, Completed, ErrorKind, LimitKind, Limits, Protection, ProtectionState, Workspace,
};

use super::exit::timed_out;
use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, text};

const MIB: u64 = 1 << 20;

/// Skips the case if the host cannot enforce the limit and the target's spec allows that.
pub(super) async fn enforced(cx: &Context, protection: Protection) -> Verdict {
    if !cx.spec().build()?.allow_weaker().contains(&protection) {
        return Ok(());
    }
    let sandbox = cx.sandbox().await?;
    match sandbox.posture().get(protection) {
        Some(row) if row.state == ProtectionState::Enforced => Ok(()),
        Some(row) => {
            Err(Stop::skip(format!("the spec allows a weaker {protection}, and the host has: {}", row.mechanism)))
        }
        None => Ok(()),
    }
}

/// Runs a program under changed limits.
async fn run(cx: &Context, program: P, change: impl FnOnce(&mut Limits)) -> Outcome<Completed> {
    let request = cx.request(&program)?.build()?;
    Ok(cx.sandbox_of(cx.limited(change)?).await?.exec(request).await?)
}

async fn memory_refused(cx: &Context, processes: u32) -> Verdict {
    enforced(cx, Protection::Memory).await?;
    let program = P::AllocateMemory { bytes: 256 * MIB, processes };
    let done = run(cx, program, |limits| limits.memory = Some(ByteSize::from_mebibytes(64))).await?;
    check!(!text(&done.stdout).contains("allocated"), "the guest allocated four times its memory limit");
    check!(!done.exit.success(), "the program succeeded: {:?}", done.exit);
    if let Some(limit) = done.exit.killed_by {
        check_eq!(limit, LimitKind::Memory, "the limit that killed it");
    }
    if let Some(peak) = done.exit.usage.peak_memory_bytes {
        check!(peak <= 96 * MIB, "the peak was {peak} bytes under a limit of 64 MiB");
    }
    Ok(())
}

pub(super) async fn memory(cx: Context) -> Verdict {
    memory_refused(&cx, 1).await
}

pub(super) async fn memory_over_processes(cx: Context) -> Verdict {
    memory_refused(&cx, 6).await
}

pub(super) async fn memory_kill_of_a_child_is_reported(cx: Context) -> Verdict {
    enforced(&cx, Protection::Memory).await?;
    let program = P::AllocateMemoryInChild { bytes: 256 * MIB, code: 7 };
    let done = run(&cx, program, |limits| limits.memory = Some(ByteSize::from_mebibytes(64))).await?;
    let (output, exit) = (text(&done.stdout), done.exit);
    match output.as_str() {
        "child -9\n" => {
            check!(exit.code == 7 && exit.killed_by.is_none(), "the program itself was not killed: {exit:?}");
            check_eq!(exit.limits_hit, [LimitKind::Memory], "limits hit when a child was killed for memory");
        }
        // A per-process limit refuses memory and kills nothing.
        "child 12\n" => check_eq!(exit.code, 7, "the program's own exit code"),
        // Without control groups, the watch kills all processes of the sandbox.
        "" => check_eq!(exit.killed_by, Some(LimitKind::Memory), "the limit that killed all of it"),
        other => return Err(Stop::fail(format!("a child allocated four times its memory limit: {other:?}, {exit:?}"))),
    }
    Ok(())
}

pub(super) async fn memory_below_is_usable(cx: Context) -> Verdict {
    let program = P::AllocateMemory { bytes: 64 * MIB, processes: 2 };
    let done = run(&cx, program, |limits| limits.memory = Some(ByteSize::from_mebibytes(256))).await?;
    check_eq!(text(&done.stdout), "allocated\n", "a quarter of the memory limit");
    check!(done.exit.success() && done.exit.limits_hit.is_empty(), "a limit was hit: {:?}", done.exit);
    Ok(())
}

async fn cpu_runs_out(cx: &Context, program: P, processes: u32) -> Verdict {
    enforced(cx, Protection::CpuTime).await?;
    let done = run(cx, program, |limits| {
        limits.cpu_time = Some(Duration::from_secs(1));
        limits.wall_time = Duration::from_secs(60);
    })
    .await?;
    check_eq!(done.exit.killed_by, Some(LimitKind::Cpu), "the limit that killed it");
    check!(!done.exit.timed_out && !done.exit.success(), "not ended by the CPU limit: {:?}", done.exit);
    let (used, took) = (done.exit.usage.cpu_seconds, done.exit.duration.as_secs_f64());
    check!((0.0..=3.0).contains(&used), "{used} CPU seconds used under a limit of 1");
    // Not every backend can account for killed processes, but no program can use a CPU second in less wall time.
    check!((0.8..).contains(&(took * f64::from(processes))), "killed after {took} s, before one CPU second was used");
    Ok(())
}

pub(super) async fn cpu(cx: Context) -> Verdict {
    cpu_runs_out(&cx, P::SpinCpu { processes: 1 }, 1).await
}

pub(super) async fn cpu_over_processes(cx: Context) -> Verdict {
    cpu_runs_out(&cx, P::SpinCpu { processes: 4 }, 4).await
}

pub(super) async fn cpu_of_grandchildren(cx: Context) -> Verdict {
    cpu_runs_out(&cx, P::DaemoniseAndSpin, 1).await
}

/// Each exec has the whole limit, although earlier execs of its sandbox have used up theirs.
pub(super) async fn cpu_counts_from_the_start_of_an_exec(cx: Context) -> Verdict {
    enforced(&cx, Protection::CpuTime).await?;
    let spec = cx.limited(|limits| {
        limits.cpu_time = Some(Duration::from_secs(2));
        limits.wall_time = Duration::from_secs(60);
    })?;
    let sandbox = cx.sandbox_of(spec).await?;
    for _ in 0..2 {
        let exit = cx.exec(&sandbox, P::SpinCpu { processes: 1 }).await?.exit;
        check_eq!(exit.killed_by, Some(LimitKind::Cpu), "the limit that killed the one that spins");
        let took = exit.duration.as_secs_f64();
        check!((1.6..).contains(&took), "killed after {took} s, before it used 2 CPU seconds");
    }
    let exit = cx.exec(&sandbox, P::PrintNumbered { count: 200 }).await?.exit;
    check!(exit.success() && exit.limits_hit.is_empty(), "the last exec failed: {exit:?}");
    let used = exit.usage.cpu_seconds;
    check!((0.0..2.0).contains(&used), "{used} CPU seconds include those of earlier execs");
    Ok(())
}

/// Runs a program that forks beyond its limit. Returns its output and exit.
async fn fork_many(cx: &Context) -> Outcome<Completed> {
    enforced(cx, Protection::Processes).await?;
    run(cx, P::Fork { count: 64 }, |limits| limits.pids = Some(10)).await
}

pub(super) async fn processes(cx: Context) -> Verdict {
    let done = fork_many(&cx).await?;
    let output = text(&done.stdout);
    let forked = output.strip_prefix("forked ").and_then(|rest| rest.trim().parse::<u32>().ok());
    match forked {
        Some(forked) => check!((1..10).contains(&forked), "{forked} children beside their parent, under a limit of 10"),
        None => check!(!done.exit.success(), "the program printed {output:?}"),
    }
    Ok(())
}

pub(super) async fn processes_limit_is_named(cx: Context) -> Verdict {
    let exit = fork_many(&cx).await?.exit;
    match (exit.limits_hit.as_slice(), exit.killed_by) {
        ([LimitKind::Pids], None) | (_, Some(LimitKind::Pids)) => Ok(()),
        // A control group counts refused forks, a resource limit does not.
        ([], None) => Err(Stop::skip("the exit names no limit: nothing on this host counts refused forks")),
        _ => Err(Stop::fail(format!("the exit names another limit: {exit:?}"))),
    }
}

pub(super) fn stored(done: &Completed) -> Outcome<u64> {
    let output = text(&done.stdout);
    let number = output.lines().find_map(|line| line.strip_prefix("stored ")).and_then(|rest| rest.trim().parse().ok());
    number.ok_or_else(|| Stop::fail(format!("the program printed {output:?}, {:?}", done.exit)))
}

pub(super) async fn disk(cx: Context) -> Verdict {
    enforced(&cx, Protection::Disk).await?;
    let limit = 16 * MIB;
    let program = P::FillDisk { path: "big".into(), bytes: limit * 4 };
    let done = run(&cx, program, |limits| limits.disk = Some(ByteSize::from_bytes(limit))).await?;
    check_eq!(done.exit.code, 28, "the code of a program whose write was refused");
    let stored = stored(&done)?;
    check!(stored <= limit, "{stored} bytes stored under a limit of {limit}");
    check!(stored >= limit / 2, "only {stored} bytes could be stored under a limit of {limit}");
    Ok(())
}

pub(super) async fn disk_beyond_memory(cx: Context) -> Verdict {
    enforced(&cx, Protection::Disk).await?;
    let (memory, disk) = (96 * MIB, 160 * MIB);
    // File systems on disks need some of it for themselves.
    let bytes = disk - 2 * MIB;
    let program = P::FillDisk { path: "big".into(), bytes };
    let done = run(&cx, program, |limits| {
        limits.memory = Some(ByteSize::from_bytes(memory));
        limits.disk = Some(ByteSize::from_bytes(disk));
    })
    .await?;
    check_eq!((done.exit.code, stored(&done)?), (0, bytes), "code and bytes of a program within its disk limit");
    Ok(())
}

pub(super) async fn disk_over_directories(cx: Context) -> Verdict {
    enforced(&cx, Protection::Disk).await?;
    let limit = 16 * MIB;
    let program = P::FillEveryDirectory { bytes: limit * 2 };
    let done = run(&cx, program, |limits| limits.disk = Some(ByteSize::from_bytes(limit))).await?;
    let stored = stored(&done)?;
    // If `/tmp` is not on the workspace's file system, it has a limit of its own and counts as memory.
    let max_stored = limit + limit / 2;
    check!(stored <= max_stored, "{stored} bytes stored in all directories together, under a limit of {limit}");
    Ok(())
}

pub(super) async fn disk_in_a_host_directory(cx: Context) -> Verdict {
    let directory = tempfile::tempdir()?;
    let limit = 16 * MIB;
    let workspace = Workspace::HostDir { path: directory.path().canonicalize()?, access: Access::ReadWrite };
    let limits = Limits { disk: Some(ByteSize::from_bytes(limit)), ..cx.spec().build()?.limits().clone() };
    let spec = cx.spec().limits(limits).workspace(workspace).build()?;
    let sandbox = match cx.backend().create(spec).await {
        Ok(sandbox) => cx.keep(sandbox),
        // Refusing a limit that cannot be enforced is correct.
        Err(error) if error.kind() == ErrorKind::WeakerThanRequired => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if sandbox.posture().get(Protection::Disk).is_none_or(|row| row.state != ProtectionState::Enforced) {
        return Err(Stop::skip("the spec allows a weaker disk limit, and the host has one"));
    }
    let fill = |number| P::FillDisk { path: format!("big{number}"), bytes: limit };
    cx.exec(&sandbox, P::Sequence(vec![fill(1), fill(2)])).await?;
    let sizes: Vec<u64> = std::fs::read_dir(directory.path())?
        .map(|entry| entry.and_then(|entry| entry.metadata()).map(|data| data.len()))
        .collect::<Result<_, _>>()?;
    check!(
        sizes.iter().sum::<u64>() <= limit,
        "files of {sizes:?} bytes in a host directory, under a limit of {limit}"
    );
    Ok(())
}

pub(super) async fn disk_of_copy_on_write(cx: Context) -> Verdict {
    let directory = tempfile::tempdir()?;
    let limit = 16 * MIB;
    let workspace = Workspace::CopyOnWrite { path: directory.path().canonicalize()? };
    let limits = Limits { disk: Some(ByteSize::from_bytes(limit)), ..cx.spec().build()?.limits().clone() };
    let sandbox = cx.sandbox_of(cx.spec().limits(limits).workspace(workspace).build()?).await?;
    let state = sandbox.posture().get(Protection::Disk).map(|row| row.state);
    check_eq!(state, Some(ProtectionState::Enforced), "the disk limit in the posture");
    let fill = |number| P::FillDisk { path: format!("big{number}"), bytes: limit };
    let done = cx.exec(&sandbox, P::Sequence(vec![fill(1), fill(2)])).await?;
    let stored = stored(&done)?;
    check!(stored <= limit, "{stored} bytes stored, under a limit of {limit}");
    check_eq!(std::fs::read_dir(directory.path())?.count(), 0, "entries of the host's directory");
    Ok(())
}

pub(super) async fn wall_time(cx: Context) -> Verdict {
    let done = run(&cx, P::SleepForever, |limits| limits.wall_time = Duration::from_secs(2)).await?;
    timed_out(&done.exit)
}

pub(super) async fn request_timeout_wins(cx: Context) -> Verdict {
    let sandbox = cx.sandbox_of(cx.limited(|limits| limits.wall_time = Duration::from_secs(3600))?).await?;
    let request = cx.request(&P::SleepForever)?.timeout(Duration::from_secs(2)).build()?;
    timed_out(&sandbox.exec(request).await?.exit)
}
