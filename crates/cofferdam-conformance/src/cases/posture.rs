//! Cases: the posture is complete, no weaker than allowed, and correct as far as a guest can see.

use std::time::Duration;

use cofferdam_contract::{ByteSize, Cpus, Level, Posture, Protection, ProtectionState};

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, text};

/// Protections that every posture must report, at every isolation level.
const ALWAYS: [Protection; 8] = [
    Protection::Workspace,
    Protection::Memory,
    Protection::CpuTime,
    Protection::Cpus,
    Protection::Processes,
    Protection::Disk,
    Protection::WallTime,
    Protection::Network,
];

pub(super) async fn has_every_row(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let wanted = match cx.backend().level() {
        Level::Process | Level::Container => Protection::ALL,
        Level::Simulated | Level::Wasm | Level::Vm => &ALWAYS,
    };
    for protection in wanted {
        let row = sandbox.posture().get(*protection);
        check!(row.is_some_and(|row| !row.mechanism.is_empty()), "no row, or no mechanism, for {protection}");
    }
    Ok(())
}

pub(super) async fn no_shortfall_unless_allowed(cx: Context) -> Verdict {
    let spec = cx.spec().build()?;
    let sandbox = cx.sandbox_of(spec.clone()).await?;
    sandbox.posture().require(spec.allow_weaker())?;
    for row in sandbox.posture().items() {
        let weak = matches!(row.state, ProtectionState::Absent | ProtectionState::WeakerThanRequired);
        check!(!weak || row.remedy.is_some(), "{} is weak, and its row has no remedy", row.protection);
    }
    Ok(())
}

pub(super) async fn lists_unrequested_protections(cx: Context) -> Verdict {
    use Protection as R;
    let bounded = cx.limited(|limits| {
        limits.cpu_time = Some(Duration::from_secs(9));
        limits.memory = Some(ByteSize::from_mebibytes(300));
        limits.disk = Some(ByteSize::from_mebibytes(50));
        limits.pids = Some(9);
    })?;
    let sandbox = cx.sandbox_of(bounded).await?;
    for protection in [R::CpuTime, R::Memory, R::Disk, R::Processes, R::WallTime] {
        check!(state(sandbox.posture(), protection)? != ProtectionState::NotAsked, "{protection} was requested");
    }
    let unbounded = cx.limited(|limits| {
        (limits.cpu_time, limits.cpus) = (None, None);
    })?;
    let sandbox = cx.sandbox_of(unbounded).await?;
    for protection in [R::CpuTime, R::Cpus] {
        check_eq!(state(sandbox.posture(), protection)?, ProtectionState::NotAsked, protection.as_str());
    }
    let share = cx.limited(|limits| limits.cpus = Some(Cpus::from_millis(500)))?;
    match cx.backend().create(share).await.map(|sandbox| cx.keep(sandbox)) {
        Ok(sandbox) => check!(state(sandbox.posture(), R::Cpus)? != ProtectionState::NotAsked, "a share was requested"),
        // A host that cannot enforce a share refuses it.
        Err(error) => check_eq!(error.kind(), cofferdam_contract::ErrorKind::WeakerThanRequired, "requesting a share"),
    }
    Ok(())
}

fn state(posture: &Posture, protection: Protection) -> Outcome<ProtectionState> {
    let row = posture.get(protection).ok_or_else(|| Stop::fail(format!("no row for {protection}")))?;
    Ok(row.state)
}

/// Returns true if the posture claims this protection. Other protections are not compared.
fn claims(posture: &Posture, protection: Protection) -> bool {
    posture.get(protection).is_some_and(|row| row.state == ProtectionState::Enforced)
}

pub(super) async fn agrees_with_the_kernel(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let status = text(&cx.exec_ok(&sandbox, P::PrintStatus).await?.stdout);
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|rest| rest.split_whitespace().collect::<Vec<_>>())
    };
    let mut compared = 0;
    let zero = vec!["0000000000000000"];
    for (protection, name, expected) in [
        (Protection::NoNewPrivileges, "NoNewPrivs", vec!["1"]),
        (Protection::Seccomp, "Seccomp", vec!["2"]),
        (Protection::Capabilities, "CapEff", zero.clone()),
        (Protection::Capabilities, "CapPrm", zero.clone()),
        (Protection::Capabilities, "CapInh", zero.clone()),
        (Protection::Capabilities, "CapBnd", zero.clone()),
        (Protection::Capabilities, "CapAmb", zero),
    ] {
        if claims(sandbox.posture(), protection) {
            check_eq!(field(name), Some(expected), format!("{name} of a sandbox that claims {protection}"));
            compared += 1;
        }
    }
    if claims(sandbox.posture(), Protection::User) {
        for name in ["Uid", "Gid"] {
            let ids = field(name).unwrap_or_default();
            check!(
                ids.len() == 4 && !ids.contains(&"0"),
                "{name} is {ids:?} in a sandbox that claims {}",
                Protection::User
            );
        }
        compared += 1;
    }
    if compared == 0 { Err(Stop::skip("the posture claims nothing that the kernel's status shows")) } else { Ok(()) }
}

pub(super) async fn agrees_on_processes(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let request = cx.request(&P::CountProcesses)?.build()?;
    if !claims(sandbox.posture(), Protection::PidNamespace) {
        return Err(Stop::skip("the posture claims no process ids of its own"));
    }
    let done = sandbox.exec(request).await?;
    let count: u32 = text(&done.stdout).trim().parse().map_err(std::io::Error::other)?;
    check!(count <= 10, "{count} processes can be seen in a new sandbox of at most 10");
    Ok(())
}

pub(super) async fn agrees_on_the_root(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    if !claims(sandbox.posture(), Protection::RootFilesystem) {
        return Err(Stop::skip("the posture claims no read-only root file system"));
    }
    for directory in ["", "/usr", "/etc", "/bin", "/proc/sys/kernel"] {
        let program = P::WriteFile { path: format!("{directory}/cofferdam-case"), contents: "x".into() };
        let request = cx.request(&program)?.build()?;
        let exit = cx.sandbox().await?.exec(request).await?.exit;
        check!(exit.code != 0, "the guest created a file in {directory}/");
    }
    Ok(())
}
