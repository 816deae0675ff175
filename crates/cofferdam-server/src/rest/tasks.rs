//! The tasks that run now, for the operator.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::Query;
use super::problem::Failure;
use super::{Answer, App};
use crate::tasks::{Task, TaskKind, TaskState};

/// The most tasks of one answer.
const MAX_TASKS: usize = 10_000;
/// The tasks of an answer, unless the request sets another number.
const DEFAULT_TASKS: usize = 1000;

/// Parameters of a list of tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TaskQuery {
    /// The most tasks of the answer, the oldest first. Default: 1000.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
    /// Only tasks of this tenant.
    tenant: Option<String>,
    /// The form of the answer. Default: JSON.
    #[param(inline)]
    format: Option<TaskFormat>,
}

/// The form of a list of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskFormat {
    /// A JSON document.
    Json,
    /// A table.
    Text,
}

/// The tasks that run now, the oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TaskList {
    /// The tasks.
    pub tasks: Vec<TaskView>,
    /// The number of tasks, with those beyond the limit.
    pub total: usize,
}

/// A task.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TaskView {
    /// The kind.
    pub kind: TaskKind,
    /// The route of a request, the backend of a create or exec, the purpose of others.
    pub name: String,
    /// The state.
    pub state: TaskState,
    /// The time since its start, in seconds.
    pub age: f64,
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The id of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The id of the exec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// The id of the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

impl From<Task> for TaskView {
    fn from(task: Task) -> Self {
        let age = task.age().as_secs_f64();
        let Task { kind, name, state, tenant, sandbox, exec, trace, .. } = task;
        Self { kind, name, state, age, tenant: tenant.map(|tenant| tenant.as_str().to_owned()), sandbox, exec, trace }
    }
}

/// List the tasks of the server that run now.
///
/// Tasks are requests, creates, execs, connections and the server's own. This request is one of them.
#[utoipa::path(get, path = "/debug/tasks", tag = "admin", params(TaskQuery),
    responses((status = 200, content((TaskList = "application/json"), (String = "text/plain")))))]
pub async fn list(State(app): State<App>, Query(query): Query<TaskQuery>) -> Answer {
    let limit = query.limit.unwrap_or(DEFAULT_TASKS);
    if !(1..=MAX_TASKS).contains(&limit) {
        return Err(Failure::bad_request(format!("limit must be between 1 and {MAX_TASKS}")));
    }
    let is_wanted = |task: &Task| {
        query.tenant.as_ref().is_none_or(|wanted| task.tenant.as_ref().is_some_and(|own| own.as_str() == wanted))
    };
    let (tasks, total) = app.services().tasks.list(limit, is_wanted);
    let tasks: Vec<_> = tasks.into_iter().map(TaskView::from).collect();
    Ok(match query.format {
        Some(TaskFormat::Text) => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], table(&tasks, total)).into_response(),
        _ => axum::Json(TaskList { tasks, total }).into_response(),
    })
}

/// Returns a table. All values are ids and names of the server.
fn table(tasks: &[TaskView], total: usize) -> String {
    let mut text = format!("{:>10}  {:<10}  {:<9}  {:<20}  NAME\n", "AGE", "KIND", "STATE", "TENANT");
    for task in tasks {
        let TaskView { kind, name, state, age, tenant, sandbox, exec, trace } = task;
        let (kind, state) = (word(kind), word(state));
        let tenant = tenant.as_deref().unwrap_or("-");
        // Writing to a string cannot fail.
        let _ = write!(text, "{age:>9.3}s  {kind:<10}  {state:<9}  {tenant:<20}  {name}");
        for (key, value) in [("sandbox", sandbox), ("exec", exec), ("trace", trace)] {
            if let Some(value) = value {
                let _ = write!(text, " {key}={value}");
            }
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{} of {total} tasks", tasks.len());
    text
}

/// Returns the name of a value in documents.
fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
