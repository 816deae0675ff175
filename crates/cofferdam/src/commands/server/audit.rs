//! `cofferdam audit query --server` and `cofferdam audit verify --server`.

use cofferdam::{Error, Result};
use cofferdam_audit::Report;
use cofferdam_server::client::{Client, Method};
use cofferdam_server::rest::{AuditLine, AuditPage};

use super::client::encoded;
use super::connect;
use crate::args::{AuditCommand, ClientArgs, QueryArgs, VerifyArgs};
use crate::commands::audit::MAX_LAST;
use crate::commands::block_on;
use crate::report::{self, READER_GONE};
use crate::terminal::safe_json;

/// Runs a command for the audit log of a server. Returns `None` if the command names no server.
pub fn main(command: &AuditCommand) -> Option<Result<u8>> {
    let (AuditCommand::Query(QueryArgs { client, .. }) | AuditCommand::Verify(VerifyArgs { client, .. })) = command;
    client.server.as_ref()?;
    Some(match command {
        AuditCommand::Query(args) => query(args, client),
        AuditCommand::Verify(args) => verify(args, client),
    })
}

fn verify(args: &VerifyArgs, client: &ClientArgs) -> Result<u8> {
    if args.directory.is_some() || args.key.is_some() || args.head.is_some() || args.artifacts {
        return Err(local_only("a directory, --key, --head and --artifacts"));
    }
    let client = connect(client)?;
    let found: Report = block_on(async { client.call(Method::GET, "/v1/admin/audit/verify", None::<&()>).await })?;
    let text = if args.json { format!("{}\n", safe_json(found.to_json())) } else { found.to_string() };
    Ok(report::printed(report::print(&text), found.exit_status()))
}

fn query(args: &QueryArgs, client: &ClientArgs) -> Result<u8> {
    if args.directory.is_some() {
        return Err(local_only("a directory"));
    }
    let client = connect(client)?;
    block_on(async {
        match args.last {
            Some(count) => last(&client, &address(args), count.min(MAX_LAST)).await,
            None => all(&client, &address(args)).await,
        }
    })
}

fn local_only(which: &str) -> Error {
    Error::invalid("audit", format!("--server excludes {which}"))
        .with_remedy("run the command without --server on the server's host")
}

/// Returns the endpoint with the conditions of the search.
fn address(args: &QueryArgs) -> String {
    let mut address = format!("/v1/{}audit?limit=1000", if args.tenant.is_some() { "admin/" } else { "" });
    for (name, value) in [
        ("id", &args.id),
        ("tenant", &args.tenant),
        ("sandbox", &args.sandbox),
        ("kind", &args.kind),
        ("from", &args.from),
        ("until", &args.until),
        ("text", &args.text),
    ] {
        if let Some(value) = value {
            address.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    address
}

/// Prints all lines, the oldest first.
async fn all(client: &Client, address: &str) -> Result<u8> {
    let mut after = Some(0);
    while let Some(from) = after {
        let page: AuditPage = client.call(Method::GET, &format!("{address}&after={from}"), None::<&()>).await?;
        for line in &page.lines {
            if report::print(&text(line)?).is_err() {
                return Ok(READER_GONE);
            }
        }
        // A server that does not proceed would keep this client forever.
        after = page.after.filter(|next| *next > from);
    }
    Ok(0)
}

/// Prints the last lines, the oldest first.
async fn last(client: &Client, address: &str, count: usize) -> Result<u8> {
    let (mut lines, mut before) = (Vec::new(), Some(u64::MAX));
    while let Some(from) = before.filter(|_| lines.len() < count) {
        let page: AuditPage = client.call(Method::GET, &format!("{address}&before={from}"), None::<&()>).await?;
        lines.extend(page.lines);
        before = page.before.filter(|next| *next < from);
    }
    lines.truncate(count);
    for line in lines.iter().rev() {
        if report::print(&text(line)?).is_err() {
            return Ok(READER_GONE);
        }
    }
    Ok(0)
}

fn text(line: &AuditLine) -> Result<String> {
    let document = serde_json::to_string(line).map_err(|error| {
        Error::new(cofferdam::ErrorKind::Internal, "audit", "a line has no document").with_source(error)
    })?;
    Ok(format!("{}\n", safe_json(document)))
}
