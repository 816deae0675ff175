//! The audit log: a tenant's own lines, and for the operator those of all tenants and the verification.

use axum::Extension;
use axum::extract::State;
use cofferdam_audit::{Entry, ExecutionId, Filter, Part, PartReport, Record, Report, Text, Timestamp};
use cofferdam_contract::{Error, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::IntoParams;

use super::extract::Query;
use super::pages::PageSize;
use super::problem::Failure;
use super::{App, detached};
use crate::caller::{Caller, Scope};
use crate::layers::audit::blocking;

/// The most bytes of the text of a search.
const MAX_TEXT: usize = 256;

/// The lines to find. A line must meet all conditions.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// The id of an execution.
    id: Option<String>,
    /// The sandbox. A call has it as the caller named it, by id or name.
    sandbox: Option<String>,
    /// The kind of the line, such as `call` or `end`.
    kind: Option<String>,
    /// The earliest time, such as `2026-11-22T12:00:00Z`.
    from: Option<String>,
    /// The end of the time range, exclusive.
    until: Option<String>,
    /// A part of one of the texts and numbers of the line, as the record has them, in upper or lower case. At most 256 bytes.
    #[param(min_length = 1, max_length = 256)]
    text: Option<String>,
    /// Returns the lines after the one with this number, the oldest first.
    after: Option<u64>,
    /// Returns the lines before the one with this number, the newest first. Default: the newest lines of the log.
    before: Option<u64>,
    /// The most lines of the answer, at most 1000. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The tenant, in a search of the operator. Default: all.
    #[param(ignore)]
    tenant: Option<String>,
}

/// A line of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AuditLine {
    /// The number of the segment.
    pub segment: u32,
    /// The number of the line in the segment, from 1.
    pub line: u64,
    /// The number of the line in the log, which has lines of all tenants.
    pub seq: u64,
    /// The SHA-256 of the line.
    pub hash: String,
    /// The content, which `docs/audit.md` describes.
    pub record: Value,
}

/// Lines of the audit log. A page can have fewer lines than the limit, or none, although more follow.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AuditPage {
    /// The lines.
    pub lines: Vec<AuditLine>,
    /// The value of `after` for the next page of a search with `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The value of `before` for the next page of another search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

impl AuditQuery {
    fn part(&self) -> Result<Part, Failure> {
        match (self.after, self.before) {
            (Some(_), Some(_)) => Err(Failure::bad_request("after and before exclude each other")),
            (Some(after), None) => Ok(Part::After(after)),
            (None, before) => Ok(Part::Before(before.unwrap_or(u64::MAX))),
        }
    }

    fn filter(&self, tenant: Option<&TenantId>) -> Result<Filter, Failure> {
        if let Some(kind) = self.kind.as_deref().filter(|kind| !Record::KINDS.contains(kind)) {
            let kinds = Record::KINDS.join(", ");
            return Err(Failure::bad_request(format!("there is no kind '{}', only {kinds}", kind.escape_debug())));
        }
        if self.text.as_ref().is_some_and(|text| text.is_empty() || text.len() > MAX_TEXT) {
            return Err(Failure::bad_request(format!("the text must have 1 to {MAX_TEXT} bytes")));
        }
        Ok(Filter {
            id: self.id.as_ref().map(ExecutionId::new).transpose().map_err(malformed)?,
            tenant: tenant.map(|tenant| Text::new(tenant.as_str())),
            sandbox: self.sandbox.as_ref().map(Text::new),
            kind: self.kind.clone(),
            from: self.from.as_deref().map(time).transpose()?,
            until: self.until.as_deref().map(time).transpose()?,
            text: self.text.clone(),
        })
    }
}

fn time(text: &str) -> Result<Timestamp, Failure> {
    text.parse().map_err(malformed)
}

fn malformed(problem: impl std::fmt::Display) -> Failure {
    Failure::bad_request(problem.to_string())
}

/// Search the audit log for lines of the tenant.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(AuditQuery),
    responses((status = 200, body = AuditPage)))]
pub async fn own(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<AuditQuery>,
) -> Result<axum::Json<AuditPage>, Failure> {
    if query.tenant.is_some() {
        return Err(Failure::bad_request("only /v1/admin/audit has the parameter tenant"));
    }
    found(&app, &caller, Some(&caller.tenant), &query).await
}

/// Search the audit log for lines of all tenants.
#[utoipa::path(get, path = "/v1/admin/audit", tag = "admin",
    params(AuditQuery, ("tenant" = Option<String>, Query, description = "Select lines of this tenant")),
    responses((status = 200, body = AuditPage)))]
pub async fn all(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<AuditQuery>,
) -> Result<axum::Json<AuditPage>, Failure> {
    let tenant = query.tenant.as_ref().map(TenantId::new).transpose()?;
    found(&app, &caller, tenant.as_ref(), &query).await
}

/// Finds lines of a tenant, or as the operator those of all.
async fn found(
    app: &App,
    caller: &Caller,
    tenant: Option<&TenantId>,
    query: &AuditQuery,
) -> Result<axum::Json<AuditPage>, Failure> {
    let is_operator = caller.may(Scope::Admin) && tenant != Some(&caller.tenant);
    let log = log(app)?;
    let (filter, part, limit) = (query.filter(tenant)?, query.part()?, PageSize::of(query.limit)?.get());
    let (app, caller) = (app.clone(), caller.tenant.clone());
    // A search continues after its client has left, and so does its turn.
    let page = detached(async move {
        let _turn = app.audit_turns(is_operator).take(&caller).await?;
        blocking(move || log.page(&filter, part, limit)).await
    });
    let page = page.await?;
    let (after, before) = match page.next {
        None => (None, None),
        Some(Part::After(after)) => (Some(after), None),
        Some(Part::Before(before)) => (None, Some(before)),
    };
    let lines = page.entries.iter().map(line).collect::<Result<_, _>>()?;
    Ok(axum::Json(AuditPage { lines, after, before }))
}

fn line(entry: &Entry) -> Result<AuditLine, Error> {
    let Entry { segment, line, seq, hash, record } = entry;
    let record = serde_json::to_value(record).map_err(|error| {
        Error::new(cofferdam_contract::ErrorKind::Internal, "audit", "a line has no document").with_source(error)
    })?;
    Ok(AuditLine { segment: *segment, line: *line, seq: *seq, hash: hash.to_string(), record })
}

/// Verify the audit log.
///
/// Reads the whole log. The report is that of `cofferdam audit verify --json`.
#[utoipa::path(get, path = "/v1/admin/audit/verify", tag = "admin", responses((status = 200, body = Value)))]
pub async fn verify(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<axum::Json<Report>, Failure> {
    let log = log(&app)?;
    let report = detached(async move {
        let _turn = app.audit_turns(true).take(&caller.tenant).await?;
        blocking(move || log.verify()).await
    });
    Ok(axum::Json(report.await?))
}

/// A tenant's part of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AuditPart {
    /// True if every line of the log is unchanged and in its place, so that those of the tenant are.
    pub is_whole: bool,
    /// The number of lines of the tenant.
    pub records: u64,
    /// The hash of the first one.
    pub first: Option<String>,
    /// The hash of the last one. Stored elsewhere, it proves later that the log was not cut off before it.
    pub last: Option<String>,
    /// Connections and requests of the tenant's sandboxes that came too fast for lines of their own.
    pub network_lost: u64,
}

/// Verify the tenant's part of the audit log.
///
/// Reads the whole log, in which each line has the hash of the one before, and reports nothing of other tenants.
#[utoipa::path(get, path = "/v1/audit/verify", tag = "audit", responses((status = 200, body = AuditPart)))]
pub async fn verify_own(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<axum::Json<AuditPart>, Failure> {
    let log = log(&app)?;
    let part = detached(async move {
        let _turn = app.verify_turns().take(&caller.tenant).await?;
        blocking(move || log.verify_part(&Text::new(caller.tenant.as_str()))).await
    });
    let PartReport { is_whole, records, first, last, network_lost } = part.await?;
    let [first, last] = [first, last].map(|hash| hash.map(|hash| hash.to_string()));
    Ok(axum::Json(AuditPart { is_whole, records, first, last, network_lost }))
}

fn log(app: &App) -> Result<cofferdam_audit::Log, Error> {
    app.services().audit.clone().ok_or_else(|| {
        Error::unsupported("audit", "the server keeps no audit log")
            .with_remedy("the operator sets `directory` in [audit] of the configuration file")
    })
}
