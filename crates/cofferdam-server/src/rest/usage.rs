//! Usage and quotas: a tenant's own, and those of all tenants for the operator; metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use cofferdam_contract::TenantId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Json, Path, Query};
use super::pages::{PageQuery, PageSize};
use super::problem::Failure;
use super::sandboxes::no_content;
use super::{Answer, App};
use crate::caller::Caller;
use crate::metrics::OPENMETRICS;
use crate::quota::{Prices, Quota};
use crate::store::{Store, Usage, UsagePosition, UsageRow};

/// The most days of one answer.
const MAX_DAYS: i64 = 366;
/// The interval at which the quotas in the database are polled.
pub(crate) const RELOAD: Duration = Duration::from_secs(2);

/// Days of usage.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UsageQuery {
    /// The first day, in days since 1970. Default: the last day.
    from: Option<i64>,
    /// The last day. Default: today.
    to: Option<i64>,
    /// The form of the answer. Default: JSON.
    #[param(inline)]
    format: Option<Format>,
    /// The value of `next` of the page before. CSV has no pages.
    #[param(max_length = 256)]
    after: Option<String>,
    /// The most rows of the page. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// The form of a list of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// A JSON document.
    Json,
    /// Lines of values with commas.
    Csv,
}

/// Usage by tenant, day and label.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct UsageList {
    /// The rows, in the order of days.
    pub usage: Vec<PricedUsage>,
    /// The cost of these rows, if the operator has set prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}

/// Usage with its cost.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PricedUsage {
    /// The usage.
    #[serde(flatten)]
    pub row: UsageRow,
    /// The cost in millionths of the currency, if the operator has set prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
}

/// A cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// The currency.
    pub currency: String,
    /// The sum of the costs of the rows, in millionths of the currency.
    pub micros: i64,
}

impl UsageList {
    /// Adds costs to rows, by the prices of now.
    fn of(rows: Vec<UsageRow>, next: Option<String>, prices: Option<&Prices>) -> Self {
        let priced = |row: UsageRow| {
            let cost_micros = prices.map(|prices| prices.cost_micros(&row.usage));
            PricedUsage { row, cost_micros }
        };
        let usage: Vec<_> = rows.into_iter().map(priced).collect();
        let cost = prices.map(|prices| Cost {
            currency: prices.currency().to_owned(),
            micros: usage.iter().filter_map(|row| row.cost_micros).fold(0, i64::saturating_add),
        });
        Self { usage, cost, next }
    }
}

/// A tenant's quota, and what it has of it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct QuotaState {
    /// The quota.
    pub quota: Quota,
    /// Live sandboxes.
    pub sandboxes: u32,
    /// Their memory, in mebibytes.
    pub memory_mib: u64,
    /// Their disk, in mebibytes.
    #[serde(default)]
    pub disk_mib: u64,
    /// Snapshots.
    pub snapshots: u32,
    /// Their size in bytes.
    pub snapshot_bytes: u64,
    /// Volumes.
    pub volumes: u32,
    /// Their sizes in bytes.
    pub volume_bytes: u64,
    /// The usage of today (UTC).
    pub today: Usage,
}

/// The quotas of tenants that differ from the default.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct QuotaList {
    /// The quotas by tenant.
    pub quotas: BTreeMap<String, Quota>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}

/// List the usage of the tenant by day and label.
#[utoipa::path(get, path = "/v1/usage", tag = "usage", params(UsageQuery),
    responses((status = 200, content((UsageList = "application/json"), (String = "text/csv")))))]
pub async fn own(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<UsageQuery>,
) -> Answer {
    listed(&app, Some(&caller.tenant), &query).await
}

/// List the usage of all tenants by day and label.
#[utoipa::path(get, path = "/v1/admin/usage", tag = "admin", params(UsageQuery),
    responses((status = 200, content((UsageList = "application/json"), (String = "text/csv")))))]
pub async fn all(State(app): State<App>, Query(query): Query<UsageQuery>) -> Answer {
    listed(&app, None, &query).await
}

async fn listed(app: &App, tenant: Option<&TenantId>, query: &UsageQuery) -> Answer {
    let to = query.to.unwrap_or_else(|| app.services().admission.today());
    let from = query.from.unwrap_or(to);
    if from > to || to.saturating_sub(from) >= MAX_DAYS {
        return Err(Failure::bad_request(format!("the days must be in order, and at most {MAX_DAYS}")));
    }
    let (store, prices) = (app.store()?, app.services().admission.prices());
    if query.format == Some(Format::Csv) {
        if query.after.is_some() || query.limit.is_some() {
            return Err(Failure::bad_request("CSV has no pages; leave out 'after' and 'limit'"));
        }
        let list = UsageList::of(store.usage(tenant, from, to).await?, None, prices.as_ref());
        return Ok(([(CONTENT_TYPE, "text/csv; charset=utf-8")], csv(&list)).into_response());
    }
    let size = PageSize::of(query.limit)?;
    let after = query.after.as_ref().map_or(Ok(UsagePosition::START), |after| after.parse());
    let after = after.map_err(|()| Failure::bad_request("after is not the value of next of a page"))?;
    let found = store.usage_after(tenant, from, to, &after, size.wanted()).await?;
    let found = found.into_iter().map(|row| (row.position().to_string(), row)).collect();
    let (page, next) = size.cut(found, |(position, _): &(String, _)| position);
    let rows = page.into_iter().map(|(_, row)| row).collect();
    Ok(axum::Json(UsageList::of(rows, next, prices.as_ref())).into_response())
}

fn csv(list: &UsageList) -> String {
    let columns =
        "tenant,day,label,sandboxes,execs,cpu_us,memory_mib_ms,egress_bytes,output_bytes,disk_mib_ms,audit_bytes";
    let mut text = columns.to_owned();
    text.push_str(if list.cost.is_some() { ",cost_micros,currency\r\n" } else { "\r\n" });
    for PricedUsage { row: UsageRow { tenant, day, label, usage }, cost_micros } in &list.usage {
        let Usage { sandboxes, execs, cpu_us, memory_mib_ms, egress_bytes, output_bytes, disk_mib_ms, audit_bytes } =
            usage;
        // A spreadsheet must not take a label for a formula.
        let escape = if label.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
        let label = label.replace('"', "\"\"");
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{tenant},{day},\"{escape}{label}\",{sandboxes},{execs},{cpu_us},{memory_mib_ms},{egress_bytes},{output_bytes},\
             {disk_mib_ms},{audit_bytes}"
        );
        if let (Some(cost), Some(Cost { currency, .. })) = (cost_micros, &list.cost) {
            let _ = write!(text, ",{cost},{currency}");
        }
        text.push_str("\r\n");
    }
    text
}

/// Describe the tenant's quota and what it has of it.
#[utoipa::path(get, path = "/v1/quota", tag = "usage", responses((status = 200, body = QuotaState)))]
pub async fn quota(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<axum::Json<QuotaState>, Failure> {
    Ok(axum::Json(state_of(&app, &caller.tenant).await?))
}

/// Describe the quota of a tenant and what it has of it.
#[utoipa::path(get, path = "/v1/admin/quotas/{tenant}", tag = "admin", params(("tenant" = String, Path)),
    responses((status = 200, body = QuotaState)))]
pub async fn quota_of(State(app): State<App>, Path(tenant): Path<String>) -> Result<axum::Json<QuotaState>, Failure> {
    Ok(axum::Json(state_of(&app, &TenantId::new(tenant)?).await?))
}

async fn state_of(app: &App, tenant: &TenantId) -> Result<QuotaState, Failure> {
    let (quota, sandboxes, memory_mib, today) = app.services().admission.state_of(tenant);
    let disk_mib = app.services().admission.disk_mib(tenant);
    let used = app.snapshots().map(|snapshots| snapshots.used(tenant)).unwrap_or_default();
    let (snapshots, snapshot_bytes) = (used.snapshots, used.bytes);
    let used = match app.volumes() {
        Ok(volumes) => volumes.used(tenant).await?,
        Err(_) => Default::default(),
    };
    let (volumes, volume_bytes) = (used.volumes, used.bytes);
    Ok(QuotaState { quota, sandboxes, memory_mib, disk_mib, snapshots, snapshot_bytes, volumes, volume_bytes, today })
}

/// List the quotas of tenants that differ from the default.
#[utoipa::path(get, path = "/v1/admin/quotas", tag = "admin", params(PageQuery),
    responses((status = 200, body = QuotaList)))]
pub async fn quotas(State(app): State<App>, Query(query): Query<PageQuery>) -> Result<axum::Json<QuotaList>, Failure> {
    let all = load_quotas(app.store()?).await?.into_iter().collect();
    let (page, next) = query.page(all, |(tenant, _): &(TenantId, _)| tenant.as_str())?;
    let quotas = page.into_iter().map(|(tenant, quota)| (tenant.as_str().to_owned(), quota)).collect();
    Ok(axum::Json(QuotaList { quotas, next }))
}

/// Set the quota of a tenant.
///
/// Takes effect at once.
#[utoipa::path(put, path = "/v1/admin/quotas/{tenant}", tag = "admin", request_body = Quota,
    params(("tenant" = String, Path)), responses((status = 204)))]
pub async fn set_quota(State(app): State<App>, Path(tenant): Path<String>, Json(quota): Json<Quota>) -> Answer {
    let document = serde_json::to_string(&quota.check()?).unwrap_or_default();
    change(&app, tenant, Some(&document)).await
}

/// Give a tenant the default quota again.
///
/// Takes effect at once.
#[utoipa::path(delete, path = "/v1/admin/quotas/{tenant}", tag = "admin", params(("tenant" = String, Path)),
    responses((status = 204)))]
pub async fn remove_quota(State(app): State<App>, Path(tenant): Path<String>) -> Answer {
    change(&app, tenant, None).await
}

async fn change(app: &App, tenant: String, document: Option<&str>) -> Answer {
    let store = app.store()?;
    store.set_quota(&TenantId::new(tenant)?, document).await?;
    app.services().admission.set_quotas(load_quotas(store).await?);
    Ok(no_content())
}

/// Reads the quotas of all tenants.
///
/// # Errors
/// - `Unavailable` if the database fails, `InvalidInput` for a malformed document in it.
pub(crate) async fn load_quotas(store: &Store) -> cofferdam_contract::Result<BTreeMap<TenantId, Quota>> {
    let all = store.quotas().await?;
    all.into_iter().map(|(tenant, document)| Ok((tenant, Quota::parse(&document)?))).collect()
}

/// Return the metrics of the server in the text format of OpenMetrics.
#[utoipa::path(get, path = "/v1/metrics", tag = "admin",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(State(app): State<App>) -> Response {
    let services = app.services();
    ([(CONTENT_TYPE, OPENMETRICS)], services.metrics.text(services.admission.waiting())).into_response()
}
