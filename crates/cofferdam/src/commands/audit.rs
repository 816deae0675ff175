//! `cofferdam audit`: verifies the audit log and queries its lines.

use std::path::PathBuf;
use std::str::FromStr;

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_audit::{Entry, ExecutionId, Expect, Filter, Key, Text, query, verify};
use serde_json::json;

use crate::args::{AuditArgs, AuditCommand, QueryArgs, VerifyArgs};
use crate::config::ConfigFile;
use crate::report::{self, Form, READER_GONE};
use crate::terminal::safe_json;

/// The maximum number of lines of `--last`.
pub(super) const MAX_LAST: usize = 100_000;

/// Verifies or queries a log. The exit status of `verify` is 1 for a broken log and 3 for an incomplete one.
pub fn main(args: &AuditArgs, config: Option<PathBuf>) -> u8 {
    let form = match &args.command {
        AuditCommand::Verify(VerifyArgs { json: true, .. }) => Form::Json,
        _ => Form::Text,
    };
    #[cfg(feature = "server")]
    if let Some(done) = crate::commands::server::audit(&args.command) {
        return report::finish(done, form);
    }
    let done = crate::config::load(config, |name| std::env::var_os(name)).and_then(|file| match &args.command {
        AuditCommand::Verify(verify) => verified(verify, &file),
        AuditCommand::Query(query) => found(query, &file),
    });
    report::finish(done, form)
}

fn verified(args: &VerifyArgs, file: &ConfigFile) -> Result<u8> {
    let key = args.key.clone().or_else(|| file.audit.as_ref()?.key.clone());
    let expect = Expect {
        head: args.head.as_deref().map(|text| parsed("--head", text)).transpose()?,
        key: key.as_deref().map(Key::read).transpose().map_err(failed)?,
        artifacts: args.artifacts,
    };
    let found = verify(&directory(args.directory.as_ref(), file)?, &expect).map_err(failed)?;
    let text = if args.json { format!("{}\n", safe_json(found.to_json())) } else { found.to_string() };
    Ok(report::printed(report::print(&text), found.exit_status()))
}

fn found(args: &QueryArgs, file: &ConfigFile) -> Result<u8> {
    let filter = Filter {
        id: args.id.as_ref().map(ExecutionId::new).transpose().map_err(failed)?,
        tenant: args.tenant.as_ref().map(Text::new),
        sandbox: args.sandbox.as_ref().map(Text::new),
        kind: args.kind.clone(),
        from: args.from.as_deref().map(|text| parsed("--from", text)).transpose()?,
        until: args.until.as_deref().map(|text| parsed("--until", text)).transpose()?,
        text: args.text.clone(),
    };
    let lines = query(&directory(args.directory.as_ref(), file)?, filter).map_err(failed)?;
    if let Some(count) = args.last {
        for entry in lines.tail(count.min(MAX_LAST)).map_err(failed)? {
            if report::print(&line(&entry)).is_err() {
                return Ok(READER_GONE);
            }
        }
        return Ok(0);
    }
    for entry in lines {
        if report::print(&line(&entry.map_err(failed)?)).is_err() {
            return Ok(READER_GONE);
        }
    }
    Ok(0)
}

fn line(entry: &Entry) -> String {
    let Entry { segment, line, seq, hash, record } = entry;
    let value = json!({"segment": segment, "line": line, "seq": seq, "hash": hash, "record": record});
    format!("{}\n", safe_json(value.to_string()))
}

fn directory(named: Option<&PathBuf>, file: &ConfigFile) -> Result<PathBuf> {
    let configured = file.audit.as_ref().map(|audit| &audit.directory);
    named.or(configured).cloned().ok_or_else(|| {
        Error::invalid("audit", "no audit log directory is given")
            .with_remedy("pass the directory, or set `directory` in [audit] of the configuration file")
    })
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(option: &str, text: &str) -> Result<T> {
    text.parse().map_err(|problem| {
        Error::invalid("audit", format!("{option} '{}': {problem}", text.escape_debug()))
            .with_remedy("see cofferdam audit --help")
    })
}

fn failed(problem: cofferdam_audit::Error) -> Error {
    Error::new(ErrorKind::Io, "audit", problem.to_string())
}
