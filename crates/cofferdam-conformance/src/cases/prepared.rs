//! Cases: prepared sandboxes. A claim gives the same sandbox as a create.

use std::sync::Arc;

use cofferdam_contract::{
    Access, ByteSize, Capability, Cpus, ErrorKind, PreparedSandbox, Sandbox, Spec, TenantId, Workspace,
};

use crate::GuestProgram as P;
use crate::case::{
    Context, Outcome, Stop, Verdict, check, check_eq, expect_error, path, read_small, text, write_small,
};
use crate::equivalence::{Trial, compare};

/// Number of random specs that are claimed. Each costs two sandboxes.
const TRIALS: u64 = 8;

async fn prepare(cx: &Context, template: &Spec) -> Outcome<Box<dyn PreparedSandbox>> {
    let prepared = cx.backend().prepare(template.clone()).await?;
    check!(prepared.is_alive(), "a new prepared sandbox is not alive");
    check_eq!(prepared.template(), template, "the template");
    check!(prepared.is_compatible(template), "the template is not compatible with itself");
    Ok(prepared)
}

/// Claims a new prepared sandbox. Returns `None` if the spec is not compatible, which must then be refused.
async fn claim(cx: &Context, template: &Spec, spec: &Spec) -> Outcome<Option<Arc<dyn Sandbox>>> {
    let prepared = prepare(cx, template).await?;
    let is_compatible = prepared.is_compatible(spec);
    let claimed = prepared.claim(spec.clone()).await.map(|sandbox| cx.keep(sandbox));
    match (is_compatible, claimed) {
        (true, claimed) => Ok(Some(claimed?)),
        (false, Err(_)) => Ok(None),
        (false, Ok(_)) => Err(Stop::fail(format!("a spec that is not compatible was claimed: {spec:?}"))),
    }
}

async fn claim_compatible(cx: &Context, template: &Spec, spec: &Spec) -> Outcome<Arc<dyn Sandbox>> {
    claim(cx, template, spec)
        .await?
        .ok_or_else(|| Stop::skip("the setting that the case changes is fixed in a prepared sandbox"))
}

pub(super) async fn claimed_as_created(cx: Context) -> Verdict {
    let mounted = tempfile::tempdir()?;
    let directory = mounted.path().canonicalize()?;
    let mounted = cx.declares(Capability::HostWorkspace).then_some(directory.as_path());
    let base = cx.spec().build()?;
    let mut compatible = 0;
    for seed in 0..TRIALS {
        let trial = Trial::seeded(seed, &base, mounted);
        // The template is another spec each time, so that its traces are visible.
        let template = Trial::seeded(seed + 1000, &base, None).spec;
        let prepared = match cx.backend().prepare(template.clone()).await {
            Ok(prepared) => prepared,
            Err(error) => {
                let created = cx.backend().create(template).await.map(|sandbox| cx.keep(sandbox));
                expect_error(created, &[error.kind()], "creating a sandbox that cannot be prepared")?;
                continue;
            }
        };
        if !prepared.is_compatible(&trial.spec) {
            check!(prepared.claim(trial.spec.clone()).await.is_err(), "a spec that is not compatible was claimed");
            continue;
        }
        compatible += 1;
        let claimed = prepared.claim(trial.spec.clone()).await.map(|sandbox| cx.keep(sandbox));
        let created = cx.backend().create(trial.spec.clone()).await.map(|sandbox| cx.keep(sandbox));
        let compared = compare(created, claimed, cx.programs(), &trial).await;
        compared.map_err(|differs| Stop::fail(format!("{differs}, for {:?}", trial.spec)))?;
    }
    if compatible == 0 {
        Err(Stop::skip("only the template itself is compatible with a prepared sandbox"))
    } else {
        Ok(())
    }
}

pub(super) async fn spec_is_the_claims(cx: Context) -> Verdict {
    let template = cx.spec().tenant(TenantId::new("template")?).label("of", "the-template").build()?;
    let spec = cx.spec().tenant(TenantId::new("acme-7")?).label("job", "42").build()?;
    let sandbox = claim_compatible(&cx, &template, &spec).await?;
    check_eq!(sandbox.spec(), &spec, "the spec");
    check_eq!(sandbox.spec().tenant().as_str(), "acme-7", "the tenant");
    check!(!sandbox.spec().labels().contains_key("of"), "a label of the template is present");
    Ok(())
}

pub(super) async fn environment_is_a_delta(cx: Context) -> Verdict {
    let spec = cx.spec().build()?;
    let request = |value: &str| Ok::<_, Stop>(cx.request(&P::PrintEnvironment)?.env("OF_THE_CLAIM", value).build()?);
    let sorted = |output: &[u8]| {
        let mut variables: Vec<String> = text(output).split('\0').map(str::to_owned).collect();
        variables.sort();
        variables
    };
    let claimed = claim_compatible(&cx, &spec, &spec).await?.exec(request("x")?).await?;
    let created = cx.sandbox_of(spec).await?.exec(request("x")?).await?;
    check_eq!(sorted(&claimed.stdout), sorted(&created.stdout), "the environment");
    check!(text(&claimed.stdout).contains("OF_THE_CLAIM=x"), "the variable that was set is missing");
    Ok(())
}

pub(super) async fn access_is_the_claims(cx: Context) -> Verdict {
    let of = |access| Ok::<_, Stop>(cx.spec().workspace(Workspace::Private { access }).build()?);
    let write = || P::WriteFile { path: "made".into(), contents: "x".into() };
    let (open, closed) = (of(Access::ReadWrite)?, of(Access::ReadOnly)?);
    let done = cx.exec(&claim_compatible(&cx, &open, &closed).await?, write()).await?;
    check!(done.exit.code != 0, "a read-only claim is writable, like its template");
    cx.exec_ok(&claim_compatible(&cx, &closed, &open).await?, write()).await?;
    Ok(())
}

pub(super) async fn processes_are_the_claims(cx: Context) -> Verdict {
    super::limits::enforced(&cx, cofferdam_contract::Protection::Processes).await?;
    let template = cx.limited(|limits| limits.pids = Some(60))?;
    let spec = cx.limited(|limits| limits.pids = Some(8))?;
    let sandbox = claim_compatible(&cx, &template, &spec).await?;
    let done = cx.exec_ok(&sandbox, P::Fork { count: 40 }).await?;
    let forked = text(&done.stdout);
    let count: u32 = forked.trim().strip_prefix("forked ").and_then(|count| count.parse().ok()).unwrap_or(u32::MAX);
    check!(count < 8, "{forked:?} under a limit of 8 that was claimed");
    Ok(())
}

pub(super) async fn disk_is_the_claims(cx: Context) -> Verdict {
    super::limits::enforced(&cx, cofferdam_contract::Protection::Disk).await?;
    let template = cx.limited(|limits| limits.disk = Some(ByteSize::from_mebibytes(64)))?;
    let spec = cx.limited(|limits| limits.disk = Some(ByteSize::from_mebibytes(4)))?;
    let fill = || P::FillDisk { path: "big".into(), bytes: 16 << 20 };
    let done = cx.exec(&claim_compatible(&cx, &template, &spec).await?, fill()).await?;
    check!(done.exit.code != 0, "16 MiB were stored under a limit of 4 MiB that was claimed");
    cx.exec_ok(&claim_compatible(&cx, &spec, &template).await?, fill()).await?;
    Ok(())
}

pub(super) async fn weaker_claims_are_refused(cx: Context) -> Verdict {
    let directory = tempfile::tempdir()?;
    let mut candidates = vec![cx.limited(|limits| limits.cpus = Some(Cpus::from_millis(500)))?];
    if cx.declares(Capability::HostWorkspace) {
        let workspace = Workspace::HostDir { path: directory.path().canonicalize()?, access: Access::ReadWrite };
        let limited = cx.limited(|limits| limits.disk = Some(ByteSize::from_mebibytes(8)))?;
        candidates.push(limited.to_builder().workspace(workspace).build()?);
    }
    let template = cx.spec().build()?;
    let mut refused = 0;
    for spec in candidates {
        let weaker = match cx.backend().create(spec.clone()).await.map(|sandbox| cx.keep(sandbox)) {
            Ok(_) => continue,
            Err(error) if error.kind() == ErrorKind::WeakerThanRequired => [ErrorKind::WeakerThanRequired],
            Err(_) => continue,
        };
        let prepared = prepare(&cx, &template).await?;
        let is_compatible = prepared.is_compatible(&spec);
        let claimed = prepared.claim(spec).await.map(|sandbox| cx.keep(sandbox));
        match is_compatible {
            true => expect_error(claimed, &weaker, "claiming a spec that a create refuses as weaker")?,
            false => check!(claimed.is_err(), "a spec that is not compatible was claimed"),
        }
        refused += 1;
    }
    if refused == 0 { Err(Stop::skip("this host enforces every protection that the case could test")) } else { Ok(()) }
}

pub(super) async fn invalid_specs_are_refused(cx: Context) -> Verdict {
    let bad: Spec = serde_json::from_str(r#"{"limits":{"memory":1}}"#).map_err(std::io::Error::other)?;
    let prepared = cx.backend().prepare(bad.clone()).await;
    expect_error(prepared, &[ErrorKind::InvalidInput], "preparing a sandbox for an invalid template")?;
    let claimed = prepare(&cx, &cx.spec().build()?).await?.claim(bad).await.map(|sandbox| cx.keep(sandbox));
    check!(claimed.is_err(), "an invalid spec was claimed");
    Ok(())
}

pub(super) async fn closes_unused(cx: Context) -> Verdict {
    let template = cx.spec().build()?;
    prepare(&cx, &template).await?.close().await?;
    drop(prepare(&cx, &template).await?);
    // The backend must still work. The census finds what is left behind.
    let sandbox = claim_compatible(&cx, &template, &template).await?;
    cx.exec_ok(&sandbox, P::Succeed).await?;
    sandbox.close().await?;
    Ok(())
}

pub(super) async fn claims_share_nothing(cx: Context) -> Verdict {
    let template = cx.spec().build()?;
    let (one, other) = (prepare(&cx, &template).await?, prepare(&cx, &template).await?);
    let one = cx.keep(one.claim(template.clone()).await?);
    let other = cx.keep(other.claim(template.clone()).await?);
    check!(one.id() != other.id(), "two claims gave the sandbox {}", one.id());
    write_small(&one, "file", "one").await?;
    expect_error(other.read_file(&path("file")?).await, &[ErrorKind::NotFound], "reading another claim's file")?;
    cx.exec_ok(&other, P::WriteFile { path: "file".into(), contents: "other".into() }).await?;
    check_eq!(text(&read_small(&one, "file").await?), "one", "the first claim's file");
    one.close().await?;
    check_eq!(text(&read_small(&other, "file").await?), "other", "the file of the claim that is still open");
    Ok(())
}
