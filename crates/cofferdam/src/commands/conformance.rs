//! `cofferdam conformance`: runs the kit of `cofferdam-conformance` against a backend of this build.

use std::io::Write;
use std::sync::Arc;

use cofferdam::{Result, registry};
use cofferdam_conformance::{CaseResult, Options, Target};
use serde_json::json;

use super::block_on;
use crate::args::ConformanceArgs;
use crate::report::{self, Form};

/// Runs the kit; the exit status is 0 when no case fails.
pub fn main(args: &ConformanceArgs) -> u8 {
    let form = if args.json { Form::Json } else { Form::Text };
    match conform(args) {
        Ok(status) => status,
        Err(error) => report::error(&error, form),
    }
}

fn conform(args: &ConformanceArgs) -> Result<u8> {
    let mut target: Target = registry::conformance_target(&args.backend)?;
    if let Some(root) = &args.root {
        target = target.with_root(root);
    }
    let show = !args.json;
    let progress = move |case: &CaseResult| {
        if show {
            // A reader that went away must not end the run: the exit status still tells.
            let _ = writeln!(std::io::stdout(), "{case}");
        }
    };
    let options = Options { filter: args.filter.clone(), progress: Some(Arc::new(progress)), ..Options::default() };
    let report = block_on(async { Ok(cofferdam_conformance::run(&target, &options).await) })?;
    let result = if args.json {
        report::document(&json!({"success": report.is_success(), "backend": report.backend, "cases": report.cases}))
    } else {
        report::print(&format!("{}\n", report.summary()))
    };
    Ok(report::printed(result, u8::from(!report.is_success())))
}
