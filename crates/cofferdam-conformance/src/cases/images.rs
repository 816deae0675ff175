//! Cases: images as root file systems.

use cofferdam_contract::{ErrorKind, RootFs, Spec};

use crate::GuestProgram as P;
use crate::TestImage;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, text};

/// A name that no host has an image of.
const MISSING: &str = "cofferdam-conformance/no-such-image:none";

fn of_image(cx: &Context, reference: &str) -> Outcome<Spec> {
    Ok(cx.spec().root(RootFs::Image { reference: reference.to_owned() }).build()?)
}

fn read(image: &TestImage) -> P {
    P::ReadFile { path: image.file.0.clone() }
}

pub(super) async fn runs_its_program(cx: Context) -> Verdict {
    let image = cx.image()?;
    let sandbox = cx.sandbox_of(of_image(&cx, &image.reference)?).await?;
    check_eq!(text(&cx.exec_ok(&sandbox, read(image)).await?.stdout), image.file.1, "a file of the image");
    let printed = text(&cx.exec_ok(&sandbox, P::PrintEnvironment).await?.stdout);
    for (name, value) in &image.env {
        let found = printed.split('\0').find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        check_eq!(found, Some(value.as_str()), format!("the image's variable {name}"));
    }
    if let Some(directory) = &image.working_dir {
        let printed = text(&cx.exec_ok(&sandbox, P::PrintWorkingDir).await?.stdout);
        check_eq!(printed.trim_end(), directory, "the image's working directory");
    }
    if let Some(user) = image.user {
        let status = text(&cx.exec_ok(&sandbox, P::PrintStatus).await?.stdout);
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next());
        check_eq!(uid, Some(user.to_string().as_str()), "the image's user");
    }
    Ok(())
}

pub(super) async fn root_is_private(cx: Context) -> Verdict {
    let image = cx.image()?;
    let spec = of_image(&cx, &image.reference)?;
    let (first, second) = (cx.sandbox_of(spec.clone()).await?, cx.sandbox_of(spec.clone()).await?);
    let path = &image.file.0;
    let new = format!("{path}.new");
    let write = |path: &str| P::WriteFile { path: path.to_owned(), contents: "of a guest".into() };
    // Each may fail: the root may be read-only.
    for program in [write(path), write(&new), P::Remove { path: path.clone() }] {
        if cx.request(&program).is_ok() {
            cx.exec(&first, program).await?;
        }
    }
    for sandbox in [second, cx.sandbox_of(spec).await?] {
        check_eq!(text(&cx.exec_ok(&sandbox, read(image)).await?.stdout), image.file.1, "a file of the image");
        let found = cx.exec(&sandbox, P::ReadFile { path: new.clone() }).await?;
        check!(!found.exit.success(), "a file that another sandbox created in its root was found");
    }
    Ok(())
}

pub(super) async fn missing_is_named(cx: Context) -> Verdict {
    match cx.backend().create(of_image(&cx, MISSING)?).await {
        Ok(sandbox) => {
            cx.keep(sandbox);
            Err(Stop::fail("a sandbox of a missing image was created"))
        }
        Err(error) => {
            check_eq!(error.kind(), ErrorKind::NotFound, format!("the kind of the refusal: {error}"));
            check!(error.to_string().contains(MISSING), "the refusal does not name the image: {error}");
            check!(error.remedy().is_some_and(|remedy| !remedy.is_empty()), "the refusal has no remedy: {error}");
            Ok(())
        }
    }
}
