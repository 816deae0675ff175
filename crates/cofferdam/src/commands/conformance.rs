//! `cofferdam conformance`: runs the suite of `cofferdam-conformance` against a backend of this build.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::{Error, Result, RootFs, Spec, registry};
use cofferdam_conformance::{CaseResult, Options, Report};
use serde_json::json;

use super::block_on;
use crate::args::ConformanceArgs;
use crate::report::{self, Form};

/// Timeout for sandboxes that a test case left to close in the background.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs the suite. The exit status is 0 if no case fails.
pub fn main(args: &ConformanceArgs) -> u8 {
    report::finish(conform(args), Form::of(args.json))
}

fn conform(args: &ConformanceArgs) -> Result<u8> {
    let show = !args.json;
    let progress = move |case: &CaseResult| {
        if show {
            // A closed standard output must not end the run: the exit status still reports the result.
            let _ = writeln!(std::io::stdout(), "{case}");
        }
    };
    let options = Options { filter: args.filter.clone(), progress: Some(Arc::new(progress)), ..Options::default() };
    let report = block_on(examine(args, &options))?;
    let value = json!({"success": report.is_success(), "backend": report.backend, "cases": report.cases});
    let result = report::show(Form::of(args.json), &value, &format!("{}\n", report.summary()));
    Ok(report::printed(result, u8::from(!report.is_success())))
}

async fn examine(args: &ConformanceArgs, options: &Options) -> Result<Report> {
    let (mut target, pooled) = if args.pooled {
        let (target, pooled) = registry::pooled_conformance_target(&args.backend)?;
        (target, Some(pooled))
    } else {
        (registry::conformance_target(&args.backend)?, None)
    };
    if let Some(root) = &args.root {
        target = target.with_root(root);
    }
    if let Some(reference) = &args.image {
        let root = RootFs::Image { reference: reference.clone() };
        target = target.with_spec(Spec::builder().root(root).build()?);
    }
    let report = cofferdam_conformance::run(&target, options).await;
    if let Some(pooled) = pooled {
        pooled.pool().shutdown(SHUTDOWN_TIMEOUT).await?;
    }
    if let Some(filter) = args.filter.as_ref().filter(|_| report.cases.is_empty()) {
        let message = format!("the name of no test case contains '{filter}'");
        return Err(
            Error::invalid("conformance", message).with_remedy("run it without --filter, which prints the names")
        );
    }
    Ok(report)
}
